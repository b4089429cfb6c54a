package settle

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A source whose calls do not return, or return late, breaks its contract. It
// must not hang the service, and no delivery goes without an end.
func TestRunReturnsWhateverCallHangs(t *testing.T) {
	for _, call := range []string{"Open", "Receive", "Settle", "Stop", "Close"} {
		t.Run(call, func(t *testing.T) {
			var until chan struct{}
			f := newFake("queue", Traits{})
			switch call {
			case "Open":
				f.open = func(n int) error {
					if n > 1 {
						<-until
					}
					return nil
				}
			case "Receive":
				f.receive = func(ctx context.Context, c *fakeConsumer, buf []*Delivery) (int, error) {
					n, err := c.take(ctx, buf)
					if ctx.Err() != nil {
						<-until
					}
					return n, err
				}
			case "Settle":
				f.settle = func(_ context.Context, c *fakeConsumer, batch []Settlement) {
					<-until
					c.keep(batch)
				}
			case "Stop":
				f.stopping = func(context.Context) { <-until }
			case "Close":
				f.closing = func(context.Context) { <-until }
			}
			bubbleOf(t, f, Options{}, ackAll, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
				until = make(chan struct{})
				f.session(1).incoming <- deliveries("a", "b")
				synctest.Wait()
				if call == "Open" {
					f.session(1).fail <- ErrSessionLost
					time.Sleep(time.Minute)
				}
				_ = r.stopsWithin(t, time.Minute)
				close(until)
				time.Sleep(time.Minute)
				assert.ElementsMatch(t, []string{"a", "b"}, ids(seen.ended()), "one end a delivery")
				opens, _, closes := f.counts()
				assert.Equal(t, opens, closes, "what opened late is closed too")
			})
		})
	}
}

// What a Receive brings when the drain is over has an end too.
func TestADeliveryThatComesAfterTheDrain(t *testing.T) {
	f := newFake("queue", Traits{})
	f.receive = func(ctx context.Context, _ *fakeConsumer, buf []*Delivery) (int, error) {
		<-ctx.Done()
		time.Sleep(30 * time.Second)
		buf[0] = &Delivery{ID: "late", Attempt: 1}
		return 1, nil
	}
	bubbleOf(t, f, Options{}, ackAll, func(t *testing.T, _ *fakeSource, r *running, seen *recorder) {
		_ = r.stopsWithin(t, time.Minute)
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"late"}, ids(seen.ended()))
	})
}

// A database that does not answer: Settle keeps to its context, so the drain
// ends that and need not wait out the whole of Settle's own deadline, and Close
// comes after every Settle has returned.
func TestADrainEndsASettleThatKeepsToItsContext(t *testing.T) {
	var inSettle, overlaps atomic.Int32
	lines := newLogLines()
	f := newFake("queue", Traits{})
	f.settle = func(ctx context.Context, _ *fakeConsumer, batch []Settlement) {
		inSettle.Add(1)
		defer inSettle.Add(-1)
		<-ctx.Done()
		for i := range batch {
			batch[i].Err = ctx.Err()
		}
	}
	f.closing = func(context.Context) { overlaps.Add(inSettle.Load()) }
	synctest.Test(t, func(t *testing.T) {
		rt := &Runtime{DrainTimeout: time.Second, Logger: lines.logger()}
		rt.Handle(f, ackAll, Options{})
		r := start(t, rt)
		synctest.Wait()
		f.session(1).incoming <- deliveries("a")
		synctest.Wait()
		var drain *DrainError
		if assert.ErrorAs(t, r.stopsWithin(t, 8*time.Second), &drain) {
			assert.Equal(t, 1, drain.Unfinished)
		}
		assert.Zero(t, lines.containing("does not return"), "the source is not blamed")
		assert.Zero(t, overlaps.Load())
	})
}

// A Receive that brings nothing and says nothing is a source's mistake; it
// does not spin.
func TestAReceiveThatBringsNothingIsCalledWithPauses(t *testing.T) {
	f := newFake("queue", Traits{})
	var calls atomic.Int64
	f.receive = func(ctx context.Context, c *fakeConsumer, buf []*Delivery) (int, error) {
		if calls.Add(1) < 1000 {
			return 0, nil
		}
		return c.take(ctx, buf)
	}
	bubbleOf(t, f, Options{}, ackAll, func(t *testing.T, _ *fakeSource, _ *running, seen *recorder) {
		time.Sleep(time.Minute)
		assert.Less(t, calls.Load(), int64(100))
		assert.NotEmpty(t, seen.noticed(NoticeReceiveFailed))
	})
}
