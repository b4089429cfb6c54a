package settle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
