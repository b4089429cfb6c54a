package settle

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lost session takes everything it delivered with it; the next one works.
func TestALostSession(t *testing.T) {
	var causes chan error
	handled := make(chan string, 10)
	handler := func(ctx context.Context, d *Delivery) Outcome {
		handled <- d.ID
		switch d.ID {
		case "works":
			<-ctx.Done()
			causes <- context.Cause(ctx)
		case "waits":
			return RetryAfter(time.Minute, errTest)
		}
		return Ack()
	}
	bubble(t, Traits{}, Options{Workers: 1}, handler, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		causes = make(chan error, 1)
		first := f.session(1)
		first.incoming <- deliveries("waits", "works", "queued")
		synctest.Wait()
		first.fail <- fmt.Errorf("cut off: %w", ErrSessionLost)
		synctest.Wait()
		assert.ErrorIs(t, <-causes, ErrSessionLost, "the handler's context tells why it ended")
		ended := seen.ended()
		require.Len(t, ended, 3)
		for _, s := range ended {
			assert.ErrorIs(t, s.Err, ErrSessionLost, s.Delivery.ID)
		}
		assert.Empty(t, first.asked(), "nothing was settled on the lost session")
		assert.Len(t, seen.noticed(NoticeLost), 1)
		require.Len(t, seen.noticed(NoticeHoldsLost), 1, "a wait that ends early is told")

		time.Sleep(time.Minute)
		second := f.session(2)
		require.NotNil(t, second)
		second.incoming <- deliveries("again")
		synctest.Wait()
		assert.Equal(t, []string{"again ack"}, actions(second.done()))
		assert.NoError(t, r.stop())
		close(handled)
		var all []string
		for id := range handled {
			all = append(all, id)
		}
		assert.Equal(t, []string{"waits", "works", "again"}, all, "what waited for a worker never reached one")
		opens, stops, closes := f.counts()
		assert.Equal(t, []int{2, 1, 2}, []int{opens, stops, closes}, "a lost session is closed and not stopped")
	})
}

// A handler that ignores its context keeps one worker and no more: the next
// session opens meanwhile, and what the handler says is void.
func TestALostSessionDoesNotWaitForItsHandlers(t *testing.T) {
	var hang chan struct{}
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "hangs" {
			<-hang
		}
		return Ack()
	}
	bubble(t, Traits{}, Options{Workers: 2}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		hang = make(chan struct{})
		f.session(1).incoming <- deliveries("hangs")
		synctest.Wait()
		f.session(1).fail <- ErrSessionLost
		time.Sleep(time.Minute)
		f.session(2).incoming <- deliveries("next")
		synctest.Wait()
		assert.Equal(t, []string{"next ack"}, actions(f.session(2).done()))
		close(hang)
		synctest.Wait()
		assert.Empty(t, f.session(1).asked())
		ended := seen.ended()
		require.Len(t, ended, 2)
		assert.ErrorIs(t, ended[1].Err, ErrSessionLost)
	})
}

func TestReopeningTriesUntilItCan(t *testing.T) {
	bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		f.mu.Lock()
		f.open = func(n int) error {
			if n < 20 {
				return errTest
			}
			return nil
		}
		f.mu.Unlock()
		lost := time.Now()
		var reopened atomic.Int64
		f.mu.Lock()
		first := f.open
		f.open = func(n int) error {
			reopened.Store(int64(time.Since(lost)))
			return first(n)
		}
		f.mu.Unlock()
		f.session(1).fail <- ErrSessionLost
		time.Sleep(10 * time.Minute) // longer than StartTimeout: that is for the start alone
		assert.LessOrEqual(t, time.Duration(reopened.Load()), 18*mostReopen, "a broker that is back is found soon")
		require.NotNil(t, f.session(2))
		assert.Len(t, seen.noticed(NoticeReopening), 18)
	})
}

func TestALostLeaseEndsItsHandlersContext(t *testing.T) {
	var causes chan error
	handler := func(ctx context.Context, _ *Delivery) Outcome {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return Retry(ctx.Err())
	}
	bubble(t, Traits{}, Options{Workers: 1}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		causes = make(chan error, 2)
		ds := deliveries("works", "waits")
		f.session(1).incoming <- ds
		synctest.Wait()
		f.notify(Notice{Kind: NoticeLeaseLost, Delivery: ds[1]})
		f.notify(Notice{Kind: NoticeLeaseLost, Delivery: ds[0], Err: errTest})
		synctest.Wait()
		cause := <-causes
		assert.ErrorIs(t, cause, ErrLeaseLost)
		assert.ErrorIs(t, cause, errTest)
		assert.Equal(t, []string{"works retry", "waits release"}, actions(f.session(1).done()), "one that had not started does not start")
		assert.Len(t, seen.noticed(NoticeLeaseLost), 2)
	})
}

// While the prefetch is full no Receive is under way that could tell of a loss.
func TestALossIsSeenWhileThePrefetchIsFull(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(f *fakeSource, c *fakeConsumer, release chan struct{})
	}{
		{"by a notice of the source", func(f *fakeSource, _ *fakeConsumer, _ chan struct{}) {
			f.notify(Notice{Kind: NoticeLost, Err: errTest})
		}},
		{"by a settlement", func(_ *fakeSource, c *fakeConsumer, release chan struct{}) {
			c.scripted(failing(ErrSessionLost))
			release <- struct{}{}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var release chan struct{}
			handled, ended := 0, 0
			handler := func(ctx context.Context, _ *Delivery) Outcome {
				handled++
				select {
				case <-ctx.Done():
					assert.ErrorIs(t, context.Cause(ctx), ErrSessionLost)
				case <-release:
				}
				ended++
				return Ack()
			}
			bubble(t, Traits{}, Options{Prefetch: 4}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
				release = make(chan struct{})
				f.session(1).incoming <- deliveries("1", "2", "3", "4")
				synctest.Wait()
				c.lose(f, f.session(1), release)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.NotNil(t, f.session(2), "the next session is open")
				assert.LessOrEqual(t, handled, 2, "what waited for a worker never reached one")
				assert.Equal(t, handled, ended, "a handler's context ends with its session")
				assert.Len(t, seen.ended(), 4)
			})
		})
	}
}

// A source may tell of a loss before its Open has returned, and long after the
// session has been followed by another.
func TestALossIsThatOfItsOwnSession(t *testing.T) {
	f := newFake("queue", Traits{})
	var first func(Notice)
	f.open = func(n int) error {
		if n == 1 {
			first = f.heard()
			first(Notice{Kind: NoticeLost, Err: errTest})
		}
		return nil
	}
	bubbleOf(t, f, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		time.Sleep(time.Minute)
		require.NotNil(t, f.session(2), "a loss that is told early is not forgotten")
		first(Notice{Kind: NoticeLost, Err: errTest})
		time.Sleep(time.Minute)
		assert.Nil(t, f.session(3), "a session's end is not the next one's")
		f.session(2).incoming <- deliveries("a")
		synctest.Wait()
		assert.Equal(t, []string{"a ack"}, actions(f.session(2).done()))
		assert.Len(t, seen.noticed(NoticeLost), 1)
	})
}

func TestASessionThatIsLostAsItOpensIsOpenedAgainWithPauses(t *testing.T) {
	f := newFake("queue", Traits{})
	f.receive = func(context.Context, *fakeConsumer, []*Delivery) (int, error) {
		time.Sleep(time.Millisecond)
		return 0, ErrSessionLost
	}
	bubbleOf(t, f, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		time.Sleep(time.Minute)
		opens, _, _ := f.counts()
		assert.Greater(t, opens, 10)
		assert.Less(t, opens, 50)
	})
}

// A pause is for sessions that do not last: one that worked is followed at once.
func TestALostSessionThatWorkedIsFollowedAtOnce(t *testing.T) {
	bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		time.Sleep(time.Hour)
		f.session(1).fail <- ErrSessionLost
		synctest.Wait()
		assert.NotNil(t, f.session(2))
	})
}
