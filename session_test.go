package settle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bubble runs a test under a fake clock, with one source that is open.
func bubble(t *testing.T, traits Traits, o Options, h Handler, test func(t *testing.T, f *fakeSource, r *running, seen *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, seen := newFake("queue", traits), &recorder{}
		rt := &Runtime{Observer: seen, DrainTimeout: 10 * time.Second}
		rt.Handle(f, h, o)
		r := start(t, rt)
		synctest.Wait()
		test(t, f, r, seen)
	})
}

func actions(settled []Settlement) (all []string) {
	for _, s := range settled {
		all = append(all, s.Delivery.ID+" "+s.Verdict.Action.String())
	}
	return all
}

func TestASettlementThatFailsIsTriedAgain(t *testing.T) {
	bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		failures := 3
		c := f.session(1)
		c.scripted(func(batch []Settlement) {
			for i := range batch {
				if batch[i].Delivery.ID == "a" && failures > 0 {
					failures--
					batch[i].Err = errTest
				}
			}
		})
		c.incoming <- deliveries("a", "b")
		synctest.Wait()
		assert.Equal(t, []string{"b ack"}, actions(c.done()), "the others do not wait for it")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"b ack", "a ack"}, actions(c.done()))
		assert.Len(t, seen.noticed(NoticeSettleFailed), 3)
		assert.Len(t, seen.ended(), 2, "one end a delivery")
	})
}

func TestASettlementRefusedForGoodIsNotTriedAgain(t *testing.T) {
	for _, refusal := range []error{Permanent(errTest), ErrLeaseLost, fmt.Errorf("wrapped: %w", ErrSessionLost)} {
		bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
			c := f.session(1)
			c.scripted(func(batch []Settlement) { batch[0].Err = refusal })
			c.incoming <- deliveries("a")
			time.Sleep(time.Hour)
			assert.Len(t, c.asked(), 1)
			require.Len(t, seen.ended(), 1)
			assert.Equal(t, refusal, seen.ended()[0].Err)
		})
	}
}

func TestAReceiveThatFailsKeepsTheSession(t *testing.T) {
	bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		c := f.session(1)
		for range 5 {
			c.fail <- errTest
		}
		c.incoming <- deliveries("a")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"a ack"}, actions(c.done()))
		assert.Len(t, seen.noticed(NoticeReceiveFailed), 5)
		opens, _, closes := f.counts()
		assert.Equal(t, []int{1, 0}, []int{opens, closes})
	})
}

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
		f.session(1).fail <- ErrSessionLost
		time.Sleep(10 * time.Minute) // longer than StartTimeout: that is for the start alone
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
		c.scripted(func(batch []Settlement) {
			for i := range batch {
				batch[i].Err = errTest
			}
		})
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

func TestLanesOnWholeBatchesAreRefused(t *testing.T) {
	f := newFake("queue", Traits{Whole: true})
	rt := &Runtime{}
	rt.HandleBatch(f, func(context.Context, []*Delivery) []Outcome { return nil }, Options{Lane: func(d *Delivery) string { return d.Key }})
	var config *ConfigError
	require.ErrorAs(t, start(t, rt).wait(), &config)
	assert.Equal(t, "Lane", config.Setting)
	opens, _, closes := f.counts()
	assert.Equal(t, opens, closes)
}

func TestLanesOnWholeGroupsOfOne(t *testing.T) {
	var inWork, most atomic.Int32
	handler := func(context.Context, *Delivery) Outcome {
		most.Store(max(most.Load(), inWork.Add(1)))
		time.Sleep(time.Second)
		inWork.Add(-1)
		return Ack()
	}
	traits := Traits{Whole: true, Delay: DelayBySource, Receivers: 2, MaxReceive: 1}
	lane := func(*Delivery) string { return "one" }
	bubble(t, traits, Options{Workers: 4, Lane: lane}, handler, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		for range 3 {
			f.session(1).incoming <- deliveries("a")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Len(t, f.session(1).done(), 3)
		assert.Equal(t, int32(1), most.Load())
	})
}

// Deliveries of one lane go one at a time and in order, also while a
// settlement is tried again; other lanes go on.
func TestLanes(t *testing.T) {
	var mu sync.Mutex
	var order []string
	handler := func(_ context.Context, d *Delivery) Outcome {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, d.ID)
		return Ack()
	}
	lane := func(d *Delivery) string { return d.ID[:1] }
	bubble(t, Traits{}, Options{Workers: 8, Lane: lane}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		c := f.session(1)
		failures := 1
		c.scripted(func(batch []Settlement) {
			for i := range batch {
				if batch[i].Delivery.ID == "a1" && failures > 0 {
					failures--
					batch[i].Err = errTest
				}
			}
		})
		c.incoming <- deliveries("a1", "a2", "b1", "a3", "b2")
		synctest.Wait()
		mu.Lock()
		assert.ElementsMatch(t, []string{"a1", "b1", "b2"}, order, "lane a waits for its settlement")
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		assert.Equal(t, []string{"a2", "a3"}, order[3:])
		mu.Unlock()
		assert.NoError(t, r.stop())
	})
}

func TestALaneGoesOnWhileItsHeadIsHeld(t *testing.T) {
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "a1" {
			return RetryAfter(time.Minute, errTest)
		}
		return Ack()
	}
	lane := func(d *Delivery) string { return "one" }
	bubble(t, Traits{}, Options{Workers: 8, Lane: lane}, handler, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		f.session(1).incoming <- deliveries("a1", "a2")
		synctest.Wait()
		assert.Equal(t, []string{"a2 ack"}, actions(f.session(1).done()))
	})
}

func TestALaneThatPanics(t *testing.T) {
	lane := func(d *Delivery) string { panic(errTest) }
	bubble(t, Traits{}, Options{MaxAttempts: 3, DeadLetter: "dead", Lane: lane}, ackAll, func(t *testing.T, f *fakeSource, _ *running, _ *recorder) {
		f.session(1).incoming <- deliveries("a")
		synctest.Wait()
		done := f.session(1).done()
		assert.Equal(t, []string{"a retry"}, actions(done))
		assert.ErrorIs(t, done[0].Verdict.Cause, errTest)
	})
}

func TestLanesAreGivenBackInADrain(t *testing.T) {
	var release chan struct{}
	handler := func(context.Context, *Delivery) Outcome { <-release; return Ack() }
	lane := func(d *Delivery) string { return "one" }
	bubble(t, Traits{}, Options{Workers: 8, Lane: lane}, handler, func(t *testing.T, f *fakeSource, r *running, _ *recorder) {
		release = make(chan struct{})
		f.session(1).incoming <- deliveries("a", "b", "c")
		synctest.Wait()
		r.cancel()
		synctest.Wait()
		assert.Equal(t, []string{"b release", "c release"}, actions(f.session(1).done()))
		close(release)
		assert.NoError(t, r.wait())
		assert.Len(t, f.session(1).done(), 3)
	})
}

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

func TestConcurrentReceiversAndSettlers(t *testing.T) {
	var inSettle, most atomic.Int32
	bubble(t, Traits{Receivers: 4, Settlers: 3, MaxSettle: 1}, Options{Workers: 8}, ackAll, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		c := f.session(1)
		c.scripted(func([]Settlement) {
			most.Store(max(most.Load(), inSettle.Add(1)))
			inSettle.Add(-1)
		})
		for i := range 50 {
			c.incoming <- deliveries(strconv.Itoa(i))
		}
		synctest.Wait()
		assert.Len(t, c.done(), 50)
		for _, call := range c.asked() {
			assert.Len(t, call, 1, "MaxSettle")
		}
		assert.LessOrEqual(t, most.Load(), int32(3))
	})
}

func TestADeliveryPastItsCapMeetsNoHandler(t *testing.T) {
	for _, whole := range []bool{false, true} {
		handler := func(_ context.Context, d *Delivery) Outcome {
			if d.Attempt > 3 {
				panic("a handler saw attempt " + strconv.Itoa(d.Attempt))
			}
			assert.Equal(t, d.Attempt == 3, d.Final)
			return Ack()
		}
		o := Options{MaxAttempts: 3, DeadLetter: "dead"}
		bubble(t, Traits{Whole: whole, Delay: DelayBySource}, o, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
			ds := deliveries("past", "last", "first")
			ds[0].Attempt, ds[1].Attempt = 4, 3
			f.session(1).incoming <- ds
			synctest.Wait()
			done := f.session(1).done()
			assert.ElementsMatch(t, []string{"past dead-letter", "last ack", "first ack"}, actions(done))
			for _, s := range done {
				if s.Verdict.Action == ActionDeadLetter {
					assert.ErrorIs(t, s.Verdict.Cause, ErrTooManyAttempts)
				}
			}
			assert.True(t, ds[0].Final)
		})
	}
}

func TestDelaysThatCannotBeKeptAreTold(t *testing.T) {
	handler := func(context.Context, *Delivery) Outcome { return RetryAfter(time.Hour, errTest) }
	for _, c := range []struct {
		traits Traits
		want   error
	}{{Traits{Delay: NoDelay}, ErrNoDelay}, {Traits{LongestDelay: time.Minute}, ErrDelayTooLong}} {
		bubble(t, c.traits, Options{}, handler, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
			f.session(1).incoming <- deliveries("a", "b")
			synctest.Wait()
			assert.Equal(t, []string{"a retry", "b retry"}, actions(f.session(1).done()))
			told := seen.noticed(NoticeDelayTooLong)
			require.Len(t, told, 2, "each is counted")
			assert.Equal(t, time.Hour, told[0].Delay)
			assert.True(t, errors.Is(told[0].Err, c.want))
		})
	}
}
