package settle

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestADrainGivesBackWhatHasNotStarted(t *testing.T) {
	var release chan struct{}
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "waits" {
			return RetryAfter(5*time.Second, errTest) // within the drain
		}
		if d.ID == "waits long" {
			return RetryAfter(time.Hour, errTest)
		}
		<-release
		return Ack()
	}
	bubble(t, Traits{}, Options{Workers: 1}, handler, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		release = make(chan struct{})
		c := f.session(1)
		c.incoming <- deliveries("waits", "waits long", "works", "queued 1", "queued 2")
		synctest.Wait()
		r.cancel()
		synctest.Wait()
		assert.Equal(t, []string{"queued 1 release", "queued 2 release", "waits long release"}, actions(c.done()), "at once")
		assert.Len(t, seen.noticed(NoticeHoldsLost), 1)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Equal(t, "waits retry", actions(c.done())[3], "a near hold is waited for")
		close(release)
		assert.NoError(t, r.wait())
		assert.Equal(t, "works ack", actions(c.done())[4])
		assert.Len(t, seen.noticed(NoticeDrained), 1)
	})
}

// What a handler does by the end of its context still counts; what it has not
// done by then is given back.
func TestTheDrainDeadline(t *testing.T) {
	for _, c := range []struct {
		name    string
		outcome Outcome
		want    Action
	}{
		{"an ack counts", Ack(), ActionAck},
		{"a dead letter counts", DeadLetter(errTest), ActionDeadLetter},
		{"a retry is the drain's doing", Retry(errTest), ActionRelease},
		{"nothing decided is the drain's doing", Outcome{}, ActionRelease},
	} {
		t.Run(c.name, func(t *testing.T) {
			handler := func(ctx context.Context, _ *Delivery) Outcome {
				<-ctx.Done()
				return c.outcome
			}
			bubble(t, Traits{}, Options{MaxAttempts: 1, DeadLetter: "dead"}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
				f.session(1).incoming <- deliveries("a")
				synctest.Wait()
				begin := time.Now()
				assert.NoError(t, r.stop())
				assert.Equal(t, 10*time.Second, time.Since(begin))
				done := f.session(1).done()
				require.Len(t, done, 1)
				assert.Equal(t, c.want, done[0].Verdict.Action)
			})
		})
	}
}

func TestAHandlerThatOutlivesTheDrain(t *testing.T) {
	var hang chan struct{}
	handler := func(context.Context, *Delivery) Outcome {
		<-hang
		return Ack()
	}
	bubble(t, Traits{}, Options{Workers: 2}, handler, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		hang = make(chan struct{})
		f.session(1).incoming <- deliveries("a", "b", "c")
		synctest.Wait()
		err := r.stop()
		var drain *DrainError
		require.ErrorAs(t, err, &drain)
		assert.Equal(t, 2, drain.Unfinished)
		want := []string{"c release", "a release", "b release"}
		assert.ElementsMatch(t, want, actions(f.session(1).done()))
		close(hang)
		synctest.Wait()
		assert.ElementsMatch(t, want, actions(f.session(1).done()), "its outcome is void")
		assert.Len(t, seen.ended(), 3)
	})
}

// A database that is away through the whole drain: what it could not settle is
// reported, and Run returns.
func TestADrainWithoutItsBroker(t *testing.T) {
	bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		c := f.session(1)
		c.scripted(failing(errTest))
		c.incoming <- deliveries("a")
		synctest.Wait()
		err := r.stop()
		var drain *DrainError
		require.ErrorAs(t, err, &drain)
		assert.Equal(t, 1, drain.Unfinished)
		require.Len(t, seen.ended(), 1)
		assert.ErrorIs(t, seen.ended()[0].Err, errTest)
		for _, call := range c.asked() {
			assert.Equal(t, ActionAck, call[0].Verdict.Action, "an ack is never turned into something else")
		}
	})
}

func TestASessionLostInTheDrain(t *testing.T) {
	handler := func(context.Context, *Delivery) Outcome { return RetryAfter(9*time.Second, errTest) }
	bubble(t, Traits{}, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		f.session(1).incoming <- deliveries("a")
		synctest.Wait()
		// The loss is seen by a settlement, not by a receive: those have ended.
		r.cancel()
		synctest.Wait()
		c := f.session(1)
		c.scripted(func(batch []Settlement) { batch[0].Err = ErrSessionLost })
		assert.NoError(t, r.wait())
		require.Len(t, seen.ended(), 1)
		assert.ErrorIs(t, seen.ended()[0].Err, ErrSessionLost)
	})
}

// What goes back goes when the broker sends no more: it would come straight
// back to this process, at the cost of an attempt on some brokers.
func TestADrainStopsTheSourceBeforeItGivesBack(t *testing.T) {
	var release chan struct{}
	handler := func(context.Context, *Delivery) Outcome { <-release; return Ack() }
	f := newFake("queue", Traits{})
	var before, handled int
	f.stopping = func(context.Context) {
		before = len(f.session(1).asked())
		close(release) // a worker that is free now must not start one either
		synctest.Wait()
		for _, s := range f.session(1).done() {
			if s.Verdict.Action == ActionAck {
				handled++
			}
		}
	}
	bubbleOf(t, f, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		release = make(chan struct{})
		f.session(1).incoming <- deliveries("a", "b", "c")
		synctest.Wait()
		assert.NoError(t, r.stop())
		assert.Zero(t, before, "nothing was given back before Stop")
		assert.Equal(t, 1, handled)
		assert.ElementsMatch(t, []string{"a ack", "b release", "c release"}, actions(f.session(1).done()))
	})
}

// A delivery that an older session left behind, with a handler that hangs, is
// not the business of the session that drains: that is not asked to settle it,
// waits for its own handlers, and Run does not wait for ever.
func TestADrainSettlesEachDeliveryOnItsOwnSession(t *testing.T) {
	var hang chan struct{}
	handler := func(_ context.Context, d *Delivery) Outcome {
		switch d.ID {
		case "hangs":
			<-hang
		case "new":
			time.Sleep(5 * time.Second)
		}
		return Ack()
	}
	lane := func(d *Delivery) string {
		if d.ID == "new" {
			return "new"
		}
		return "old"
	}
	bubble(t, Traits{}, Options{Workers: 2, Lane: lane}, handler, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		hang = make(chan struct{})
		f.session(1).incoming <- deliveries("hangs", "waits")
		synctest.Wait()
		f.session(1).fail <- ErrSessionLost
		time.Sleep(time.Second)
		second := f.session(2)
		require.NotNil(t, second)
		second.incoming <- deliveries("new")
		synctest.Wait()
		_ = r.stopsWithin(t, 15*time.Second) // DrainTimeout is 10 s
		assert.Equal(t, []string{"new ack"}, actions(second.done()))
		require.Len(t, second.asked(), 1)
		assert.Empty(t, f.session(1).asked())
		close(hang)
		synctest.Wait()
		assert.ElementsMatch(t, []string{"hangs", "waits", "new"}, ids(seen.ended()))
	})
}

func TestADrainDoesNotWaitForAHoldThatBeginsInItAndEndsAfterIt(t *testing.T) {
	var release chan struct{}
	handler := func(context.Context, *Delivery) Outcome {
		<-release
		return RetryAfter(time.Hour, errTest)
	}
	bubble(t, Traits{}, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		release = make(chan struct{})
		f.session(1).incoming <- deliveries("a")
		synctest.Wait()
		r.cancel()
		synctest.Wait()
		begin := time.Now()
		close(release)
		assert.NoError(t, r.wait())
		assert.Less(t, time.Since(begin), time.Second)
		assert.Equal(t, []string{"a release"}, actions(f.session(1).done()))
		assert.Len(t, seen.noticed(NoticeHoldsLost), 1)
	})
}

// A delivery that is cut and cannot be given back either is one unfinished delivery.
func TestADrainCountsEachUnfinishedDeliveryOnce(t *testing.T) {
	var hang chan struct{}
	handler := func(context.Context, *Delivery) Outcome { <-hang; return Ack() }
	bubble(t, Traits{}, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		hang = make(chan struct{})
		f.session(1).scripted(failing(errTest))
		f.session(1).incoming <- deliveries("a")
		synctest.Wait()
		var drain *DrainError
		require.ErrorAs(t, r.stop(), &drain)
		assert.Equal(t, 1, drain.Unfinished)
		close(hang)
	})
}

// Receive may tell of the loss as the drain ends intake. Then nothing can be
// settled any more: the drain waits for no hold, and Stop is not called.
func TestALossThatReceiveTellsInTheDrain(t *testing.T) {
	f := newFake("queue", Traits{})
	f.receive = func(ctx context.Context, c *fakeConsumer, buf []*Delivery) (int, error) {
		n, err := c.take(ctx, buf)
		if ctx.Err() != nil {
			return n, fmt.Errorf("cut off: %w", ErrSessionLost)
		}
		return n, err
	}
	var cause error
	handler := func(ctx context.Context, d *Delivery) Outcome {
		if d.ID == "held" {
			return RetryAfter(9*time.Second, errTest)
		}
		<-ctx.Done()
		cause = context.Cause(ctx)
		return Ack()
	}
	bubbleOf(t, f, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		f.session(1).incoming <- deliveries("held", "works")
		synctest.Wait()
		begin := time.Now()
		_ = r.stop()
		assert.Less(t, time.Since(begin), time.Second)
		assert.ErrorIs(t, cause, ErrSessionLost)
		_, stops, closes := f.counts()
		assert.Equal(t, []int{0, 1}, []int{stops, closes})
	})
}

// Each delivery has one end, also where the source failed for good and its
// handlers hang.
func TestAFailedSourceEndsEachDelivery(t *testing.T) {
	for name, lane := range map[string]func(*Delivery) string{"intake": nil, "lane": func(*Delivery) string { return "one" }} {
		t.Run("one waits in its "+name, func(t *testing.T) {
			var hang chan struct{}
			handler := func(context.Context, *Delivery) Outcome { <-hang; return Ack() }
			bubble(t, Traits{}, Options{Lane: lane}, handler, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
				hang = make(chan struct{})
				f.session(1).incoming <- deliveries("a", "b", "c")
				synctest.Wait()
				f.session(1).fail <- &ConfigError{Source: "queue", Setting: "X", Reason: "is gone"}
				time.Sleep(time.Minute)
				var config *ConfigError
				assert.ErrorAs(t, r.stopsWithin(t, 15*time.Second), &config)
				assert.ElementsMatch(t, []string{"a", "b", "c"}, ids(seen.ended()))
				close(hang)
				synctest.Wait()
				assert.Len(t, seen.ended(), 3)
			})
		})
	}
}

func TestADrainIsToldAlsoWhereTheSourceIsAway(t *testing.T) {
	bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		f.opensWith(func(int) error { return errTest })
		f.session(1).fail <- ErrSessionLost
		time.Sleep(time.Minute)
		assert.NoError(t, r.stop())
		assert.Len(t, seen.noticed(NoticeDrained), 1)
	})
}
