package settle

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// batchBubble is bubble for a batch handler.
func batchBubble(t *testing.T, o Options, h BatchHandler, test func(t *testing.T, f *fakeSource, r *running, seen *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, seen := newFake("queue", Traits{}), &recorder{}
		rt := &Runtime{Observer: seen}
		rt.HandleBatch(f, h, o)
		r := start(t, rt)
		synctest.Wait()
		test(t, f, r, seen)
	})
}

// A handler that panics or leaves its goroutine fails its delivery, and its
// worker works on.
func TestPanicAndGoexit(t *testing.T) {
	handler := func(_ context.Context, d *Delivery) Outcome {
		switch d.ID {
		case "panics":
			panic("a value")
		case "panics with an error":
			panic(errTest)
		case "leaves":
			runtime.Goexit()
		}
		return Ack()
	}
	o := Options{Workers: 1, MaxAttempts: 2, DeadLetter: "dead"}
	bubble(t, Traits{}, o, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		c := f.session(1)
		c.incoming <- deliveries("panics", "leaves", "panics with an error", "leaves", "works")
		synctest.Wait()
		done := c.done()
		assert.Equal(t, []string{"panics retry", "leaves retry", "panics with an error retry", "leaves retry", "works ack"}, actions(done))
		var p *PanicError
		require.ErrorAs(t, done[0].Verdict.Cause, &p)
		assert.Equal(t, "a value", p.Value)
		assert.Contains(t, string(p.Stack), "worker_test.go", "the stack shows where")
		require.ErrorAs(t, done[1].Verdict.Cause, &p)
		assert.True(t, p.Goexit)
		assert.Contains(t, string(p.Stack), "worker_test.go")
		assert.ErrorIs(t, done[2].Verdict.Cause, errTest)
		assert.NoError(t, r.stop())
	})
}

func TestPanicInAWholeGroup(t *testing.T) {
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "leaves" {
			runtime.Goexit()
		}
		return Ack()
	}
	o := Options{MaxAttempts: 2, DeadLetter: "dead"}
	bubble(t, Traits{Whole: true, Delay: DelayBySource}, o, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		f.session(1).incoming <- deliveries("a", "leaves", "b")
		synctest.Wait()
		require.Len(t, f.session(1).asked(), 1)
		assert.Equal(t, []string{"a ack", "leaves retry", "b ack"}, actions(f.session(1).done()))
		assert.NoError(t, r.stop())
	})
}

func TestAFaultWithoutACapIsSlowedDown(t *testing.T) {
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "panics" {
			panic("a value")
		}
		return Outcome{}
	}
	bubble(t, Traits{}, Options{}, handler, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		f.session(1).incoming <- deliveries("panics", "decides nothing")
		time.Sleep(time.Second - 1)
		assert.Empty(t, f.session(1).done())
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		assert.ElementsMatch(t, []string{"panics retry", "decides nothing retry"}, actions(f.session(1).done()))
	})
}

func TestTimeout(t *testing.T) {
	handler := func(ctx context.Context, _ *Delivery) Outcome {
		<-ctx.Done()
		if ctx.Err() != context.DeadlineExceeded {
			return Ack()
		}
		return Retry(context.Cause(ctx))
	}
	bubble(t, Traits{}, Options{Timeout: time.Second}, handler, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		f.session(1).incoming <- deliveries("a", "b")
		time.Sleep(time.Second + 1)
		synctest.Wait()
		require.Len(t, f.session(1).done(), 1, "each handler has its own time")
		assert.Equal(t, ErrTimeout, f.session(1).done()[0].Verdict.Cause)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Len(t, f.session(1).done(), 2)
	})
}

// A context has ended once its handler has returned, whoever kept it.
func TestAContextEndsWithItsHandler(t *testing.T) {
	var kept, looked context.Context
	handler := func(ctx context.Context, d *Delivery) Outcome {
		if d.ID == "looked" {
			looked = ctx
			_ = ctx.Err()
		} else {
			kept = ctx
		}
		return Ack()
	}
	bubble(t, Traits{}, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		ds := deliveries("kept", "looked")
		f.session(1).incoming <- ds
		synctest.Wait()
		assert.Equal(t, context.Canceled, kept.Err())
		assert.Equal(t, context.Canceled, looked.Err())
		assert.Error(t, ds[0].Context().Err())
		assert.NoError(t, r.stop())
	})
	assert.Error(t, new(Delivery).Context().Err(), "a delivery that no handler has seen")
}

func TestMiddlewareIsOutermostFirst(t *testing.T) {
	var order []string
	named := func(name string) Middleware {
		return func(next Handler) Handler {
			return func(ctx context.Context, d *Delivery) Outcome {
				order = append(order, name)
				return next(ctx, d)
			}
		}
	}
	o := Options{Middleware: []Middleware{named("outer"), named("inner")}}
	bubble(t, Traits{}, o, ackAll, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		f.session(1).incoming <- deliveries("a")
		synctest.Wait()
		assert.Equal(t, []string{"outer", "inner"}, order)
	})
}

// Each delivery of a batch gets its own outcome.
func TestBatchOutcomes(t *testing.T) {
	var sizes []int
	handler := func(_ context.Context, batch []*Delivery) (all []Outcome) {
		sizes = append(sizes, len(batch))
		for i := range batch {
			all = append(all, []Outcome{Ack(), Drop(errTest), Retry(errTest), DeadLetter(errTest), {}}[i])
			batch[i] = nil // its slice is the handler's
		}
		return all
	}
	o := Options{BatchSize: 5, BatchWait: time.Second, MaxAttempts: 2, DeadLetter: "dead"}
	batchBubble(t, o, handler, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		f.session(1).incoming <- deliveries("a", "b")
		time.Sleep(500 * time.Millisecond)
		f.session(1).incoming <- deliveries("c", "d", "e", "f")
		synctest.Wait()
		assert.Equal(t, []string{"a ack", "b drop", "c retry", "d dead-letter", "e retry"}, actions(f.session(1).done()))
		assert.ErrorIs(t, f.session(1).done()[4].Verdict.Cause, ErrNoOutcome)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []int{5, 1}, sizes, "full at once, or after BatchWait with what there is")
	})
}

func TestBatchOfTheWrongLength(t *testing.T) {
	for _, outcomes := range [][]Outcome{nil, {Ack()}, {Ack(), Ack(), Ack()}} {
		handler := func(context.Context, []*Delivery) []Outcome { return outcomes }
		o := Options{BatchSize: 2, MaxAttempts: 2, DeadLetter: "dead"}
		batchBubble(t, o, handler, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
			f.session(1).incoming <- deliveries("a", "b")
			synctest.Wait()
			done := f.session(1).done()
			assert.Equal(t, []string{"a retry", "b retry"}, actions(done))
			assert.ErrorContains(t, done[0].Verdict.Cause, fmt.Sprintf("%d outcomes for 2 deliveries", len(outcomes)))
		})
	}
}

func TestBatchPanicAndGoexit(t *testing.T) {
	for _, goexit := range []bool{false, true} {
		handler := func(_ context.Context, batch []*Delivery) []Outcome {
			if batch[0].ID != "a" {
				return []Outcome{Ack()}
			}
			if goexit {
				runtime.Goexit()
			}
			panic(errTest)
		}
		o := Options{BatchSize: 2, MaxAttempts: 2, DeadLetter: "dead"}
		batchBubble(t, o, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
			f.session(1).incoming <- deliveries("a", "b", "c")
			synctest.Wait()
			assert.Equal(t, []string{"a retry", "b retry", "c ack"}, actions(f.session(1).done()))
			assert.NoError(t, r.stop())
		})
	}
}

// nilError is Go's classic mistake when a nil *nilError is returned as an error:
// its text panics.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestACauseThatPanicsFailsItsDelivery(t *testing.T) {
	decide := func(d *Delivery) Outcome {
		if d.ID == "b" {
			var err *nilError
			return DeadLetter(err)
		}
		return Ack()
	}
	o := Options{MaxAttempts: 2, DeadLetter: "dead"}
	test := func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		f.session(1).incoming <- deliveries("a", "b", "c")
		synctest.Wait()
		done := f.session(1).done()
		assert.Equal(t, []string{"a ack", "b retry", "c ack"}, actions(done))
		var p *PanicError
		assert.ErrorAs(t, done[1].Verdict.Cause, &p)
		assert.NoError(t, r.stop())
	}
	bubble(t, Traits{}, o, func(_ context.Context, d *Delivery) Outcome { return decide(d) }, test)
	batchBubble(t, o, func(_ context.Context, batch []*Delivery) (all []Outcome) {
		for _, d := range batch {
			all = append(all, decide(d))
		}
		return all
	}, test)
}

func TestALostLeaseEndsItsBatchsContext(t *testing.T) {
	handler := func(ctx context.Context, batch []*Delivery) []Outcome {
		<-ctx.Done()
		return []Outcome{Retry(context.Cause(ctx)), Retry(context.Cause(ctx))}
	}
	batchBubble(t, Options{BatchSize: 2}, handler, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		ds := deliveries("a", "b")
		f.session(1).incoming <- ds
		synctest.Wait()
		f.notify(Notice{Kind: NoticeLeaseLost, Delivery: ds[1]})
		synctest.Wait()
		require.Len(t, f.session(1).done(), 2)
		assert.ErrorIs(t, f.session(1).done()[0].Verdict.Cause, ErrLeaseLost)
	})
}

// The observer hears of each delivery once before and once after its handler,
// and its context goes all the way.
func TestObserver(t *testing.T) {
	var value any
	handler := func(ctx context.Context, d *Delivery) Outcome {
		value = ctx.Value(contextKey{})
		time.Sleep(time.Second)
		return Drop(errTest)
	}
	bubble(t, Traits{}, Options{}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		f.session(1).incoming <- deliveries("a")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, "a", value)
		assert.Len(t, seen.got, 1)
		require.Len(t, seen.ended(), 1)
		s := seen.ended()[0]
		assert.Equal(t, "queue", s.Source)
		assert.Equal(t, Verdict{Action: ActionDrop, Cause: errTest}, s.Verdict)
		assert.Equal(t, time.Second, s.Duration)
		assert.NoError(t, s.Err)
		require.Len(t, seen.noticed(NoticeOpened), 1)
		assert.Equal(t, "queue", seen.noticed(NoticeOpened)[0].Source)
	})
}

func TestBatchObserver(t *testing.T) {
	var values []any
	handler := func(_ context.Context, batch []*Delivery) (all []Outcome) {
		for _, d := range batch {
			values = append(values, d.Context().Value(contextKey{}))
			all = append(all, Ack())
		}
		return all
	}
	batchBubble(t, Options{BatchSize: 2}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		f.session(1).incoming <- deliveries("a", "b")
		synctest.Wait()
		assert.Equal(t, []any{"a", "b"}, values, "each delivery has its own context")
		assert.Len(t, seen.ended(), 2)
	})
}

func TestJSON(t *testing.T) {
	type order struct{ Number int }
	var got order
	h := JSON(func(_ context.Context, o order, _ *Delivery) Outcome {
		got = o
		return Ack()
	})
	assert.Equal(t, Ack(), h(t.Context(), &Delivery{Body: []byte(`{"Number": 7, "other": true}`)}))
	assert.Equal(t, 7, got.Number)
	for _, body := range []string{"", "{", `{"Number": "x"}`, "\xff"} {
		o := h(t.Context(), &Delivery{Body: []byte(body)})
		assert.Equal(t, outcomeDeadLetter, o.kind, "%q", body)
		assert.ErrorContains(t, o.Cause(), "order")
	}
}

func TestFromError(t *testing.T) {
	var err error
	h := FromError(func(context.Context, *Delivery) error { return err }, Backoff{Base: time.Second, Min: time.Second})
	assert.Equal(t, Ack(), h(t.Context(), &Delivery{Attempt: 1}))
	err = errTest
	assert.Equal(t, RetryAfter(time.Second, errTest), h(t.Context(), &Delivery{Attempt: 1}))
	err = fmt.Errorf("wrapped: %w", Permanent(errTest))
	o := h(t.Context(), &Delivery{Attempt: 1})
	assert.Equal(t, outcomeDeadLetter, o.kind)
	assert.ErrorIs(t, o.Cause(), errTest)
}

func TestPermanent(t *testing.T) {
	assert.NoError(t, Permanent(nil))
	assert.False(t, IsPermanent(errTest))
	assert.True(t, IsPermanent(fmt.Errorf("wrapped: %w", Permanent(errTest))))
	assert.ErrorIs(t, Permanent(errTest), errTest)
	assert.Equal(t, errTest.Error(), Permanent(errTest).Error())
}

func TestOutcomeString(t *testing.T) {
	assert.Equal(t, "ack", Ack().String())
	assert.Equal(t, "retry_after(1s): an error of the test", RetryAfter(time.Second, errTest).String())
	assert.Equal(t, "none", Outcome{}.String())
}

func TestConfigErrorText(t *testing.T) {
	e := &ConfigError{Source: `table "jobs"`, Setting: "Attempt", Reason: "there is no such column", Fix: "add it", Err: errTest}
	assert.Equal(t, `table "jobs": Attempt: there is no such column: an error of the test; add it`, e.Error())
	assert.ErrorIs(t, e, errTest)
}

func TestPublishErrors(t *testing.T) {
	assert.Equal(t, []error{nil, nil}, PublishErrors(nil, 2))
	assert.Equal(t, []error{errTest, errTest}, PublishErrors(errTest, 2))
	partly := &PublishError{Total: 3, Failed: []FailedMessage{{Index: 1, Err: ErrUnroutable}}}
	assert.Equal(t, []error{nil, ErrUnroutable, nil}, PublishErrors(fmt.Errorf("wrapped: %w", partly), 3))
	assert.ErrorIs(t, error(partly), ErrUnroutable)
}

func TestHeaders(t *testing.T) {
	h := Headers{"text": "a", "bytes": []byte("b"), "number": int32(3), "nil": nil}
	assert.Equal(t, "a", h.Get("text"))
	assert.Equal(t, "b", h.Get("bytes"))
	assert.Equal(t, "3", h.Get("number"))
	assert.Empty(t, h.Get("nil"))
	assert.Empty(t, Headers(nil).Get("absent"))
	c := h.Clone()
	c["text"] = "changed"
	assert.Equal(t, "a", h.Get("text"))
	assert.Nil(t, Headers(nil).Clone())
}

type nativeThing struct{ n int }

type nativeWithAs struct{}

func (nativeWithAs) As(target any) bool {
	if s, ok := target.(*string); ok {
		*s = "by As"
		return true
	}
	return false
}

func TestDeliveryAs(t *testing.T) {
	d := &Delivery{Native: &nativeThing{7}}
	var thing *nativeThing
	assert.True(t, d.As(&thing))
	assert.Equal(t, 7, thing.n)
	var other *nativeWithAs
	assert.False(t, d.As(&other))
	d = &Delivery{Native: nativeWithAs{}}
	var text string
	assert.True(t, d.As(&text))
	assert.Equal(t, "by As", text)
	assert.False(t, new(Delivery).As(&text))
	assert.Panics(t, func() { d.As(nil) })
	assert.Panics(t, func() { d.As(text) })
	assert.Panics(t, func() { d.As((*string)(nil)) })
}
