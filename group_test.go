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

// The rows of one transaction go to one worker, and settle and fail together.
func TestAWholeGroup(t *testing.T) {
	traits := Traits{Whole: true, Delay: DelayBySource, MaxReceive: 3}
	for _, batch := range []bool{false, true} {
		t.Run(fmt.Sprintf("batch %v", batch), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("queue", traits)
				decide := func(d *Delivery) Outcome {
					switch d.ID {
					case "a":
						return Ack()
					case "b":
						return RetryAfter(time.Second, errTest)
					default:
						return DeadLetter(errTest)
					}
				}
				rt := &Runtime{}
				if batch {
					rt.HandleBatch(f, func(_ context.Context, ds []*Delivery) (os []Outcome) {
						for _, d := range ds {
							os = append(os, decide(d))
						}
						return os
					}, Options{BatchSize: 3, Workers: 4})
				} else {
					rt.Handle(f, func(_ context.Context, d *Delivery) Outcome { return decide(d) }, Options{Workers: 4})
				}
				start(t, rt)
				synctest.Wait()
				c := f.session(1)
				failures := 2
				c.scripted(func(batch []Settlement) {
					if failures > 0 {
						failures--
						for i := range batch {
							batch[i].Err = errTest
						}
					}
				})
				c.incoming <- deliveries("a", "b", "c")
				time.Sleep(time.Minute)
				assert.Len(t, c.asked(), 3)
				for _, call := range c.asked() {
					assert.Equal(t, []string{"a ack", "b retry", "c dead-letter"}, actions(call))
				}
				assert.Equal(t, time.Second, c.asked()[2][1].Verdict.Delay)
				c.incoming <- deliveries("a", "a")
				synctest.Wait()
				assert.Equal(t, []string{"a ack", "a ack"}, actions(c.asked()[3]))
			})
		})
	}
}

func TestAWholeGroupIsGivenBackAsOne(t *testing.T) {
	var hang chan struct{}
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "b" {
			<-hang
		}
		return Ack()
	}
	bubble(t, Traits{Whole: true, Delay: DelayBySource}, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		hang = make(chan struct{})
		f.session(1).incoming <- deliveries("a", "b", "c")
		synctest.Wait()
		var drain *DrainError
		require.ErrorAs(t, r.stop(), &drain)
		assert.Equal(t, 3, drain.Unfinished)
		require.Len(t, f.session(1).asked(), 1)
		assert.Equal(t, []string{"a release", "b release", "c release"}, actions(f.session(1).asked()[0]))
		close(hang)
	})
}

func TestAWholeGroupThatHasNotStartedIsGivenBackWhole(t *testing.T) {
	var release chan struct{}
	handler := func(context.Context, *Delivery) Outcome { <-release; return Ack() }
	bubble(t, Traits{Whole: true, Delay: DelayBySource}, Options{}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		release = make(chan struct{})
		c := f.session(1)
		c.incoming <- deliveries("works")
		synctest.Wait()
		c.incoming <- deliveries("a", "b", "c")
		synctest.Wait()
		r.cancel()
		synctest.Wait()
		require.Len(t, c.asked(), 1)
		assert.Equal(t, []string{"a release", "b release", "c release"}, actions(c.asked()[0]))
		close(release)
		assert.NoError(t, r.wait())
	})
}

// A group that is held at the drain goes at once: what a handler decided for
// good stands, and a retry becomes a release.
func TestAHeldWholeGroupKeepsWhatWasDecided(t *testing.T) {
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "b" {
			return Outcome{} // a fault without a cap pauses the group
		}
		return Ack()
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake("queue", Traits{Whole: true})
		rt := &Runtime{DrainTimeout: time.Millisecond}
		rt.Handle(f, handler, Options{})
		r := start(t, rt)
		synctest.Wait()
		f.session(1).incoming <- deliveries("a", "b", "c")
		synctest.Wait()
		assert.Empty(t, f.session(1).asked(), "it is held")
		assert.NoError(t, r.stop())
		require.Len(t, f.session(1).asked(), 1)
		assert.Equal(t, []string{"a ack", "b release", "c ack"}, actions(f.session(1).done()))
	})
}

// A group is one batch, so it is no larger than one.
func TestAWholeGroupIsNoLargerThanItsBatch(t *testing.T) {
	f := newFake("queue", Traits{Whole: true, Delay: DelayBySource})
	filled := false
	f.receive = func(ctx context.Context, c *fakeConsumer, buf []*Delivery) (int, error) {
		if filled {
			return c.take(ctx, buf)
		}
		filled = true
		return copy(buf, deliveries(make([]string, len(buf))...)), nil
	}
	largest := 0
	synctest.Test(t, func(t *testing.T) {
		rt := &Runtime{}
		rt.HandleBatch(f, func(_ context.Context, ds []*Delivery) []Outcome {
			largest = max(largest, len(ds))
			return make([]Outcome, len(ds))
		}, Options{BatchSize: 4, MaxAttempts: 1, DeadLetter: "dead"})
		r := start(t, rt)
		synctest.Wait()
		assert.NoError(t, r.stop())
		assert.Equal(t, 4, largest)
	})
}
