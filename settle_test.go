package settle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRunRefusesBadRegistrations(t *testing.T) {
	source := newFake("queue", Traits{})
	batch := func(context.Context, []*Delivery) []Outcome { return nil }
	for _, c := range []struct {
		name    string
		set     func(rt *Runtime)
		setting string
	}{
		{"nothing registered", func(*Runtime) {}, "Handle"},
		{"no source", func(rt *Runtime) { rt.Handle(nil, ackAll, Options{}) }, "Source"},
		{"a nil pointer for a source", func(rt *Runtime) { rt.Handle((*fakeSource)(nil), ackAll, Options{}) }, "Source"},
		{"no handler", func(rt *Runtime) { rt.Handle(source, nil, Options{}) }, "Handler"},
		{"no batch handler", func(rt *Runtime) { rt.HandleBatch(source, nil, Options{}) }, "Handler"},
		{"no function in JSON", func(rt *Runtime) { rt.Handle(source, JSON[int](nil), Options{}) }, "Handler"},
		{"no function in FromError", func(rt *Runtime) { rt.Handle(source, FromError(nil, Backoff{}), Options{}) }, "Handler"},
		{"workers", func(rt *Runtime) { rt.Handle(source, ackAll, Options{Workers: -1}) }, "Workers"},
		{"prefetch", func(rt *Runtime) { rt.Handle(source, ackAll, Options{Prefetch: -1}) }, "Prefetch"},
		{"cap", func(rt *Runtime) { rt.Handle(source, ackAll, Options{MaxAttempts: -1}) }, "MaxAttempts"},
		{"timeout", func(rt *Runtime) { rt.Handle(source, ackAll, Options{Timeout: -1}) }, "Timeout"},
		{"batch size", func(rt *Runtime) { rt.HandleBatch(source, batch, Options{BatchSize: -1}) }, "BatchSize"},
		{"batch wait", func(rt *Runtime) { rt.HandleBatch(source, batch, Options{BatchWait: -1}) }, "BatchWait"},
		{"batch size without a batch", func(rt *Runtime) { rt.Handle(source, ackAll, Options{BatchSize: 2}) }, "BatchSize"},
		{"batch wait without a batch", func(rt *Runtime) { rt.Handle(source, ackAll, Options{BatchWait: 2}) }, "BatchWait"},
		{"a batch that never fills", func(rt *Runtime) { rt.HandleBatch(source, batch, Options{Prefetch: 4, BatchSize: 5}) }, "Prefetch"},
		{"middleware on a batch", func(rt *Runtime) {
			rt.HandleBatch(source, batch, Options{Middleware: []Middleware{func(h Handler) Handler { return h }}})
		}, "Middleware"},
		{"nil middleware", func(rt *Runtime) { rt.Handle(source, ackAll, Options{Middleware: []Middleware{nil}}) }, "Middleware"},
		{"middleware that returns nil", func(rt *Runtime) {
			rt.Handle(source, ackAll, Options{Middleware: []Middleware{func(Handler) Handler { return nil }}})
		}, "Middleware"},
		{"more workers than a process can have", func(rt *Runtime) { rt.Handle(source, ackAll, Options{Workers: mostAtOnce + 1}) }, "Workers"},
		{"more prefetch than a process can hold", func(rt *Runtime) { rt.Handle(source, ackAll, Options{Prefetch: math.MaxInt}) }, "Prefetch"},
		{"a batch larger than a process can hold", func(rt *Runtime) { rt.HandleBatch(source, batch, Options{BatchSize: math.MaxInt}) }, "BatchSize"},
		{"drain timeout", func(rt *Runtime) { rt.DrainTimeout = -1; rt.Handle(source, ackAll, Options{}) }, "DrainTimeout"},
		{"start timeout", func(rt *Runtime) { rt.StartTimeout = -1; rt.Handle(source, ackAll, Options{}) }, "StartTimeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt := Runtime{Logger: discard}
			c.set(&rt)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel() // a Run that refuses nothing ends
			err := rt.Run(ctx)
			var config *ConfigError
			require.ErrorAs(t, err, &config)
			assert.Equal(t, c.setting, config.Setting)
			assert.NotEmpty(t, config.Fix)
			opens, _, _ := source.counts()
			assert.Zero(t, opens, "nothing opens when something is refused")
		})
	}
}

func TestRunReturnsEveryRefusal(t *testing.T) {
	var rt Runtime
	rt.Handle(newFake("a", Traits{}), nil, Options{Workers: -1})
	rt.Handle(newFake("b", Traits{}), nil, Options{})
	err := rt.Run(t.Context())
	assert.ErrorContains(t, err, "a: Handler")
	assert.ErrorContains(t, err, "a: Workers")
	assert.ErrorContains(t, err, "b: Handler")
}

func TestStartIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := newFake("good", Traits{})
		refused := newFake("refused", Traits{})
		refused.open = func(int) error { return &ConfigError{Source: "refused", Setting: "X", Reason: "no"} }
		down := newFake("down", Traits{})
		down.open = func(int) error { return errTest }
		rt := &Runtime{}
		for _, s := range []*fakeSource{good, refused, down} {
			rt.Handle(s, ackAll, Options{})
		}
		begin := time.Now()
		err := start(t, rt).wait()
		var config *ConfigError
		require.ErrorAs(t, err, &config)
		assert.ErrorIs(t, err, errTest, "the source that is down is named too")
		assert.Less(t, time.Since(begin), time.Second, "a refusal is final at once")
		opens, _, closes := good.counts()
		assert.Equal(t, opens, closes, "what had opened is closed")
		opens, _, _ = refused.counts()
		assert.Equal(t, 1, opens, "a refusal is not tried again")
	})
}

func TestStartTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := newFake("down", Traits{})
		down.open = func(int) error { return errTest }
		rt := &Runtime{StartTimeout: 10 * time.Second}
		rt.Handle(down, ackAll, Options{})
		begin := time.Now()
		err := start(t, rt).wait()
		assert.ErrorIs(t, err, errTest)
		assert.ErrorContains(t, err, "down")
		assert.Equal(t, 10*time.Second, time.Since(begin))
		opens, _, _ := down.counts()
		assert.Greater(t, opens, 3, "it was tried again")
	})
}

func TestStartWaitsForABrokerThatComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := newFake("late", Traits{})
		late.open = func(n int) error {
			if n < 4 {
				return errTest
			}
			return nil
		}
		rt := &Runtime{}
		rt.Handle(late, ackAll, Options{})
		r := start(t, rt)
		time.Sleep(10 * time.Second)
		require.NotNil(t, late.session(1))
		assert.NoError(t, r.stop())
	})
}

func TestRunEndsWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := newFake("down", Traits{})
		down.open = func(int) error { return errTest }
		rt := &Runtime{}
		rt.Handle(down, ackAll, Options{})
		r := start(t, rt)
		time.Sleep(time.Second)
		assert.NoError(t, r.stop(), "asked to end before it had begun")
	})
}

func TestRunAndHandleOnce(t *testing.T) {
	rt := &Runtime{}
	source := newFake("queue", Traits{})
	rt.Handle(source, ackAll, Options{})
	r := start(t, rt)
	require.Eventually(t, func() bool { return source.session(1) != nil }, 5*time.Second, time.Millisecond)
	assert.ErrorIs(t, rt.Run(t.Context()), ErrRunning)
	assert.Panics(t, func() { rt.Handle(source, ackAll, Options{}) })
	assert.NoError(t, r.stop())
	assert.ErrorIs(t, rt.Run(t.Context()), ErrRunning)
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newFake("queue", Traits{})
		rt := &Runtime{}
		rt.Handle(source, ackAll, Options{})
		r := start(t, rt)
		synctest.Wait()
		assert.NoError(t, rt.Shutdown(t.Context()))
		assert.NoError(t, rt.Shutdown(t.Context()), "a second time")
		assert.NoError(t, r.wait())
		opens, stops, closes := source.counts()
		assert.Equal(t, []int{1, 1, 1}, []int{opens, stops, closes})
	})
}

func TestShutdownBeforeRun(t *testing.T) {
	rt := &Runtime{}
	source := newFake("queue", Traits{})
	rt.Handle(source, ackAll, Options{})
	assert.NoError(t, rt.Shutdown(t.Context()))
	assert.NoError(t, rt.Run(t.Context()))
	opens, _, _ := source.counts()
	assert.Zero(t, opens)
}

// A Shutdown whose context ends cuts the drain short.
func TestShutdownCutsTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newFake("queue", Traits{})
		rt := &Runtime{DrainTimeout: time.Hour}
		rt.Handle(source, func(ctx context.Context, _ *Delivery) Outcome {
			<-ctx.Done()
			return Retry(context.Cause(ctx))
		}, Options{})
		r := start(t, rt)
		synctest.Wait()
		source.session(1).incoming <- deliveries("a")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		assert.ErrorIs(t, rt.Shutdown(ctx), context.DeadlineExceeded)
		assert.NoError(t, r.wait(), "the handler ended once its context had")
		assert.Equal(t, time.Second, time.Since(begin))
		done := source.session(1).done()
		require.Len(t, done, 1)
		assert.Equal(t, ActionRelease, done[0].Verdict.Action, "a failure that the drain caused costs nothing")
		assert.ErrorIs(t, done[0].Verdict.Cause, ErrDraining)
	})
}

// A source that breaks for good does not end the others; Run tells of it at the end.
func TestAFailedSourceEndsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := newFake("bad", Traits{}), newFake("good", Traits{})
		observer := &recorder{}
		rt := &Runtime{Observer: observer}
		rt.Handle(bad, ackAll, Options{})
		rt.Handle(good, ackAll, Options{})
		r := start(t, rt)
		synctest.Wait()
		bad.session(1).fail <- &ConfigError{Source: "bad", Setting: "Queue", Reason: "is gone"}
		synctest.Wait()
		require.Len(t, observer.noticed(NoticeFailed), 1)
		good.session(1).incoming <- deliveries("a")
		synctest.Wait()
		assert.Len(t, good.session(1).done(), 1, "the other works on")
		err := r.stop()
		var config *ConfigError
		require.ErrorAs(t, err, &config)
		opens, _, closes := bad.counts()
		assert.Equal(t, []int{1, 1}, []int{opens, closes})
	})
}

func TestRunEndsWhenEverySourceFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := newFake("bad", Traits{})
		rt := &Runtime{}
		rt.Handle(bad, ackAll, Options{})
		r := start(t, rt)
		synctest.Wait()
		bad.session(1).fail <- &ConfigError{Source: "bad", Setting: "Queue", Reason: "is gone"}
		var config *ConfigError
		require.ErrorAs(t, r.wait(), &config)
		assert.True(t, errors.As(rt.Shutdown(t.Context()), &config), "Shutdown returns what Run did")
	})
}

// A source whose Open says that something was canceled has not been asked to end.
func TestAnOpenThatWasCanceledElsewhereIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("down", Traits{})
		f.open = func(int) error { return fmt.Errorf("dial: the client is closed: %w", context.Canceled) }
		rt := &Runtime{}
		rt.Handle(f, ackAll, Options{})
		assert.ErrorContains(t, start(t, rt).wait(), "the client is closed")
	})
}

// openedObserver does something when a session opens.
type openedObserver struct {
	recorder
	do func()
}

func (o *openedObserver) Noticed(n Notice) {
	if n.Kind == NoticeOpened {
		o.do()
	}
}

// Run's context may end at any moment of its start: what opened is closed.
func TestRunThatEndsAsItOpensClosesWhatItOpened(t *testing.T) {
	for i := range 2000 {
		f := newFake("queue", Traits{})
		ctx, cancel := context.WithCancel(t.Context())
		rt := &Runtime{Logger: discard, Observer: &openedObserver{do: func() {
			go func() {
				for range i % 97 {
					runtime.Gosched()
				}
				cancel()
			}()
		}}}
		rt.Handle(f, ackAll, Options{})
		require.NoError(t, rt.Run(ctx))
		cancel()
		opens, _, closes := f.counts()
		require.Equal(t, opens, closes, "run %d", i)
	}
}

func TestSettingsAtTheirMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("queue", Traits{})
		rt := &Runtime{DrainTimeout: math.MaxInt64, StartTimeout: math.MaxInt64}
		rt.Handle(f, ackAll, Options{Prefetch: mostAtOnce, Timeout: math.MaxInt64, MaxAttempts: math.MaxInt, DeadLetter: "dead"})
		r := start(t, rt)
		synctest.Wait()
		f.session(1).incoming <- deliveries("a")
		synctest.Wait()
		assert.Equal(t, []string{"a ack"}, actions(f.session(1).done()))
		assert.NoError(t, r.stop())
	})
}
