package settle

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

func TestLanePurge(t *testing.T) {
	l := lanes{key: func(d *Delivery) string { return d.Key }}
	head, waits, alone := &Delivery{Key: "k"}, &Delivery{Key: "k"}, new(Delivery)
	assert.True(t, l.enter(head))
	assert.False(t, l.enter(waits))
	assert.True(t, l.enter(alone), "no key is no lane")
	assert.True(t, l.enter(new(Delivery)))
	assert.Equal(t, []*Delivery{waits}, l.purge())
	assert.Nil(t, l.leave(waits), "it never had the lane")
	assert.Nil(t, l.leave(head))
	assert.Nil(t, l.leave(head), "a second time")
	assert.Empty(t, l.byName, "a lane that is free costs nothing")
}

// Nothing can stop Goexit, so a Lane that calls it ends its source, aloud: a
// source that stands still in silence would be worse.
func TestALaneThatLeavesItsGoroutineEndsTheSource(t *testing.T) {
	lane := func(*Delivery) string {
		runtime.Goexit()
		return ""
	}
	bubble(t, Traits{}, Options{Lane: lane}, ackAll, func(t *testing.T, f *fakeSource, r *running, seen *recorder) {
		f.session(1).incoming <- deliveries("a")
		var config *ConfigError
		require.ErrorAs(t, r.wait(), &config)
		assert.Equal(t, "Lane", config.Setting)
		assert.Len(t, seen.noticed(NoticeFailed), 1)
	})
}

// A settler may free a lane when the drain has closed the intake already: no
// worker would come for the next of the lane, so it goes back.
func TestALaneThatIsFreedWhenTheWorkersAreGone(t *testing.T) {
	f := newFake("queue", Traits{})
	sub, err := newSubscription(handle{source: f, handler: ackAll, options: Options{Lane: func(*Delivery) string { return "one" }}}, nil, discard)
	require.NoError(t, err)
	c, err := f.Open(t.Context(), sub.reg)
	require.NoError(t, err)
	s := newSession(sub, c)
	ds := deliveries("a", "b")
	s.accept(ds, 2)
	assert.Len(t, sub.intake.close(), 1, "a is ready, b waits for it")
	s.freeLane(ds[0])
	s.stage.close() // take does not wait
	released := make([]*Delivery, 2)
	require.Equal(t, 1, s.stage.take(released))
	assert.Equal(t, "b", released[0].ID)
	assert.Equal(t, ActionRelease, released[0].work.verdict.Action)
}
