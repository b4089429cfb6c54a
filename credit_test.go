package settle

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// However many are held, intake goes on until MaxHeld, then holds take the
// place of deliveries, then they give it back.
func TestHoldsPushBack(t *testing.T) {
	handler := func(context.Context, *Delivery) Outcome { return RetryAfter(time.Minute, errTest) }
	traits := Traits{MaxHeld: 5}
	bubble(t, traits, Options{Prefetch: 3}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		c := f.session(1)
		for i := range 20 {
			c.incoming <- deliveries(strconv.Itoa(i))
		}
		synctest.Wait()
		assert.Len(t, c.incoming, 20-5-3, "as many as may be held, and a prefetch")
		assert.Len(t, seen.noticed(NoticeHoldsFull), 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Len(t, c.done(), 8)
		assert.Len(t, c.incoming, 20-16)
		time.Sleep(time.Hour)
		assert.Len(t, c.done(), 20)
	})
}

func TestPrefetchBoundsWhatIsInWork(t *testing.T) {
	var release chan struct{}
	handler := func(context.Context, *Delivery) Outcome { <-release; return Ack() }
	for _, c := range []struct{ asked, trait, want int }{{5, 0, 5}, {5, 2, 2}, {5, 9, 5}} {
		bubble(t, Traits{Prefetch: c.trait}, Options{Workers: 2, Prefetch: c.asked}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
			release = make(chan struct{})
			for range 20 {
				f.session(1).incoming <- deliveries("a")
			}
			synctest.Wait()
			assert.Len(t, f.session(1).incoming, 20-c.want)
			close(release)
			synctest.Wait()
			assert.Len(t, f.session(1).done(), 20)
		})
	}
}

// Deliveries past their cap need no worker; they count against the prefetch all
// the same while they wait to be settled.
func TestDeliveriesPastTheirCapAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		var handed atomic.Int64
		f := newFake("queue", Traits{})
		f.receive = func(ctx context.Context, _ *fakeConsumer, buf []*Delivery) (int, error) {
			time.Sleep(time.Millisecond)
			for i := range buf {
				buf[i] = &Delivery{Attempt: 2}
			}
			handed.Add(int64(len(buf)))
			return len(buf), ctx.Err()
		}
		f.settle = func(context.Context, *fakeConsumer, []Settlement) { <-until }
		rt := &Runtime{}
		rt.Handle(f, ackAll, Options{Prefetch: 10, MaxAttempts: 1, DeadLetter: "dead"})
		r := start(t, rt)
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, handed.Load(), int64(10+leastStage+defaultMost), "a prefetch, what waits for a settler, and one Settle")
		close(until)
		assert.NoError(t, r.stop())
	})
}

// A worker that takes the last item leaves the others with nothing: any room is
// worth a receive then.
func TestAReceiverWakesWhenTheLastItemIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newIntake(4)
		never := func() bool { return false }
		require.Equal(t, 4, q.reserve(4, never))
		ds := deliveries("a", "b", "of a's lane")
		var one [1]*Delivery
		q.put(ds[:2], 0)
		q.next(0, one[:])
		q.next(0, one[:])
		got := make(chan int, 1)
		go func() { got <- q.reserve(4, never) }()
		synctest.Wait()
		q.put(ds[2:], 0)
		q.next(1, one[:])
		synctest.Wait()
		assert.Len(t, got, 1, "there is room for one, and nothing for the other workers")
		q.setLimit(100)
		<-got
	})
}

// Settlements of a lost session that are held to be tried again come after its
// other holds have ended. They take no room from the next session.
func TestALostSessionLeavesNoExcessBehind(t *testing.T) {
	f := newFake("queue", Traits{MaxHeld: 1})
	sub, err := newSubscription(handle{source: f, handler: ackAll}, nil, discard)
	require.NoError(t, err)
	c, err := f.Open(t.Context(), sub.reg)
	require.NoError(t, err)
	s := newSession(sub, c)
	s.start()
	s.lose(ErrSessionLost)
	s.dropHolds(time.Time{})
	for range 3 {
		d := new(Delivery)
		d.work.sess, d.work.tries = s, 1
		s.pending.Add(1)
		s.hold(d, time.Hour)
	}
	assert.Equal(t, 2, excessOf(sub))
	require.NoError(t, s.abandon())
	assert.Zero(t, excessOf(sub))
}

func excessOf(sub *subscription) int {
	sub.intake.mu.Lock()
	defer sub.intake.mu.Unlock()
	return sub.intake.excess
}

// A batch that cannot fill, because the source brings fewer than it takes, does
// not wait for what cannot come.
func TestABatchDoesNotWaitForMoreThanThePrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("queue", Traits{Prefetch: 2})
		rt := &Runtime{}
		rt.HandleBatch(f, func(_ context.Context, ds []*Delivery) (os []Outcome) {
			for range ds {
				os = append(os, Ack())
			}
			return os
		}, Options{Workers: 2, BatchSize: 4, BatchWait: 5 * time.Second})
		start(t, rt)
		synctest.Wait()
		c := f.session(1)
		for range 40 {
			c.incoming <- deliveries("a")
		}
		time.Sleep(20 * time.Second) // twenty batches at BatchWait each would take 100 s, or 50 s by both workers
		synctest.Wait()
		assert.Len(t, c.done(), 40)
	})
}
