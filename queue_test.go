package settle

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A ring gives back what was pushed, in order, however it grows and wraps.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ring
		var want []*Delivery
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "push") {
				d := new(Delivery)
				r.push(d)
				want = append(want, d)
				continue
			}
			into := make([]*Delivery, rapid.IntRange(0, 20).Draw(t, "most"))
			n := r.pop(into)
			if n != min(len(into), len(want)) {
				t.Fatalf("popped %d of %d into %d", n, len(want), len(into))
			}
			for i := range n {
				if into[i] != want[i] {
					t.Fatalf("item %d is out of order", i)
				}
			}
			want = want[n:]
		}
	})
}

func newIntake(limit int) *intake {
	q := new(intake)
	q.init()
	q.setLimit(limit)
	return q
}

// However many receivers and workers there are, no more is in work than the
// limit, and nothing is lost or waits for ever.
func TestIntakeUnderLoad(t *testing.T) {
	const limit, total = 7, 20000
	q := newIntake(limit)
	var over atomic.Bool
	var left, inWork atomic.Int64
	left.Store(total)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				room := q.reserve(4, over.Load)
				if room == 0 {
					return
				}
				if n := inWork.Add(int64(room)); n > limit {
					t.Errorf("%d in work under a limit of %d", n, limit)
				}
				n := room
				if room > 1 {
					n-- // as a source that had less
				}
				items := make([]*Delivery, n)
				for i := range items {
					items[i] = new(Delivery)
				}
				inWork.Add(int64(n - room))
				q.put(items, room-n)
			}
		})
	}
	for range 5 {
		all.Go(func() {
			into := make([]*Delivery, 1)
			for finished := 0; ; finished = 1 {
				if finished == 1 {
					inWork.Add(-1)
				}
				if q.next(finished, into) == 0 {
					return
				}
				if left.Add(-1) == 0 {
					over.Store(true)
					q.wake()
					q.close()
				}
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, left.Load(), int64(0))
}

func TestIntakeFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newIntake(10)
		into := make([]*Delivery, 3)
		begin := time.Now()
		go func() {
			time.Sleep(time.Second)
			q.put(deliveries("a", "b"), 0)
		}()
		assert.Equal(t, 2, q.fill(into, 5*time.Second))
		assert.Equal(t, 5*time.Second, time.Since(begin), "it waits for the third")
		q.put(deliveries("a", "b", "c", "d"), 0)
		assert.Equal(t, 3, q.fill(into, time.Hour), "full at once")
		assert.Equal(t, 1, q.fill(into, 0), "no wait")
		go func() {
			time.Sleep(time.Second)
			q.close()
		}()
		assert.Equal(t, 0, q.fill(into, time.Hour), "closed")
	})
}

// Batches that share all the credit between them do not wait for each other:
// the last to come goes, whatever the others hold.
func TestBatchesThatShareTheCreditDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newIntake(2)
		never := func() bool { return false }
		require.Equal(t, 2, q.reserve(2, never))
		q.put(deliveries("a", "b"), 0)
		var mine, other [4]*Delivery
		require.Equal(t, 1, q.next(0, mine[:1]))
		require.Equal(t, 1, q.next(0, other[:1]))
		begin := time.Now()
		waiting := make(chan int, 1)
		go func() { waiting <- q.fill(mine[1:], time.Hour) }()
		synctest.Wait()
		assert.Zero(t, q.fill(other[1:], time.Hour))
		assert.Zero(t, time.Since(begin), "nothing more can come")
		q.setExcess(1)
		assert.Zero(t, <-waiting, "what is held too much takes the rest of the credit")
		assert.Zero(t, time.Since(begin))
	})
}

func TestStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s stage
		s.init(2)
		assert.True(t, s.put(new(Delivery)))
		assert.True(t, s.put(new(Delivery)))
		put := make(chan bool)
		go func() { put <- s.put(new(Delivery)) }()
		synctest.Wait()
		assert.True(t, s.force(new(Delivery)), "force does not wait")
		into := make([]*Delivery, 2)
		assert.Equal(t, 2, s.take(into))
		assert.True(t, <-put, "put waits for space")
		go func() { put <- s.put(new(Delivery)) }()
		synctest.Wait()
		s.close()
		assert.False(t, <-put)
		assert.False(t, s.force(new(Delivery)))
		assert.Equal(t, 2, s.take(into), "what is in is taken out")
		assert.Equal(t, 0, s.take(into))
	})
}
