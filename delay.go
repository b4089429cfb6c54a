package settle

import (
	"container/heap"
	"sync"
	"time"
)

// holds keeps deliveries of one session unsettled until their time: those whose
// delay the runtime waits out, and those whose settlement failed and is tried
// again. One heap and one timer serve them all; a hold costs 16 bytes beside its delivery.
//
// due is called on the timer's goroutine, outside the lock.
type holds struct {
	epoch time.Time         // times in the heap count from here
	due   func([]*Delivery) // takes what is due

	mu     sync.Mutex // guards what follows
	heap   holdHeap
	timer  *time.Timer // nil until the first hold
	ending bool        // the session ends at end: a wait beyond it is refused
	end    time.Duration
	closed bool
	firing sync.WaitGroup // calls of fire under way
}

type hold struct {
	at time.Duration // since the epoch
	d  *Delivery
}

// add holds d for the given time. It returns how many are held now, and false
// when the session will be over by then.
func (h *holds) add(d *Delivery, wait time.Duration) (int, bool) {
	at := saturatingAdd(time.Since(h.epoch), wait)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.ending && at > h.end && d.work.tries == 0 {
		return 0, false
	}
	heap.Push(&h.heap, hold{at: at, d: d})
	if h.heap[0].d == d {
		h.arm()
	}
	return len(h.heap), true
}

// arm sets the timer for the first hold. The caller holds mu.
func (h *holds) arm() {
	if len(h.heap) == 0 {
		return
	}
	wait := h.heap[0].at - time.Since(h.epoch)
	if h.timer == nil {
		h.timer = time.AfterFunc(wait, h.fire)
		return
	}
	h.timer.Reset(wait)
}

// fire hands over what is due and arms the timer for the rest.
func (h *holds) fire() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.firing.Add(1)
	defer h.firing.Done()
	due := h.before(time.Since(h.epoch))
	h.arm()
	h.mu.Unlock()
	if len(due) > 0 {
		h.due(due)
	}
}

// before removes and returns the holds due by the given time. The caller holds mu.
func (h *holds) before(at time.Duration) []*Delivery {
	var due []*Delivery
	for len(h.heap) > 0 && h.heap[0].at <= at {
		due = append(due, heap.Pop(&h.heap).(hold).d)
	}
	return due
}

// after removes and returns the holds that are due after the given time, and
// has add refuse the like from now on; only what waits to be settled once more comes in.
func (h *holds) after(t time.Time) []*Delivery {
	at := t.Sub(h.epoch)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending, h.end = true, at
	var late []*Delivery
	kept := h.heap[:0]
	for _, e := range h.heap {
		if e.at > at {
			late = append(late, e.d)
		} else {
			kept = append(kept, e)
		}
	}
	clear(h.heap[len(kept):])
	h.heap = kept
	heap.Init(&h.heap)
	return late
}

func (h *holds) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.heap)
}

// close stops the timer, waits for a fire under way and returns what was held.
func (h *holds) close() []*Delivery {
	h.mu.Lock()
	h.closed = true
	if h.timer != nil {
		h.timer.Stop()
	}
	all := h.before(1<<63 - 1)
	h.mu.Unlock()
	h.firing.Wait()
	return all
}

// holdHeap implements heap.Interface, the earliest first.
type holdHeap []hold

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h holdHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *holdHeap) Push(x any)        { *h = append(*h, x.(hold)) }

func (h *holdHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = hold{}
	*h = old[:len(old)-1]
	return last
}
