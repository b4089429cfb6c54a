package settle

import (
	"sync"
	"time"
)

// ring is a first-in first-out buffer that grows when it is full.
type ring struct {
	buf  []*Delivery // a power of two long
	head int
	n    int
}

func (r *ring) push(d *Delivery) {
	if r.n == len(r.buf) {
		grown := make([]*Delivery, max(16, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = d
	r.n++
}

func (r *ring) pop(into []*Delivery) int {
	n := min(len(into), r.n)
	mask := len(r.buf) - 1
	for i := range n {
		at := (r.head + i) & mask
		into[i] = r.buf[at]
		r.buf[at] = nil
	}
	r.n -= n
	if r.n == 0 {
		r.head = 0
	} else {
		r.head = (r.head + n) & mask
	}
	return n
}

// intake is where the deliveries of a subscription wait for a worker, and where
// its receivers get leave to bring more. It is a queue and a count under one
// lock: a worker says what it has finished and takes the next in one step, and
// whole groups go in at once, which a channel cannot do.
//
// room = limit - inWork - excess is what may still be received.
type intake struct {
	mu        sync.Mutex // guards what follows
	ready     sync.Cond  // there is work, or it is closed
	room      sync.Cond  // there is room, or a session is over
	items     ring       // one delivery, or the first of a group that stays whole
	limit     int        // the prefetch
	inWork    int        // reserved by receivers, waiting here, or with a worker
	excess    int        // held beyond what may be held
	filling   int        // with workers that wait for their batch to fill
	idle      int        // workers waiting on ready
	receivers int        // receivers waiting on room
	closed    bool
}

func (q *intake) init() {
	q.ready.L = &q.mu
	q.room.L = &q.mu
}

// setLimit sets the prefetch, as the traits of a new session bound it.
func (q *intake) setLimit(n int) {
	q.mu.Lock()
	q.limit = n
	q.changed()
	q.mu.Unlock()
}

func (q *intake) setExcess(n int) {
	q.mu.Lock()
	q.excess = n
	q.changed()
	q.mu.Unlock()
}

// changed has those look again who wait for more than may now come. The caller
// holds mu.
func (q *intake) changed() {
	q.wakeReceivers()
	if q.filling > 0 {
		q.ready.Broadcast()
	}
}

// reserve waits for room and takes up to most of it. It returns 0 once over
// reports true; whoever makes it so calls wake.
func (q *intake) reserve(most int, over func() bool) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if over() {
			return 0
		}
		if n := min(most, q.limit-q.inWork-q.excess); n > 0 {
			q.inWork += n
			q.wakeReceivers() // there may be room for another
			return n
		}
		q.receivers++
		q.room.Wait()
		q.receivers--
	}
}

// wake has every waiting receiver look again.
func (q *intake) wake() {
	q.mu.Lock()
	q.room.Broadcast()
	q.mu.Unlock()
}

// wakeReceivers wakes a receiver if there is room worth a call: any, when the
// workers have nothing else, and half the prefetch while they have, so that
// receiving goes in groups. The caller holds mu.
func (q *intake) wakeReceivers() {
	if q.receivers == 0 {
		return
	}
	room := q.limit - q.inWork - q.excess
	if room > 0 && (q.items.n == 0 || 2*room >= q.limit) {
		q.room.Signal()
	}
}

// put adds items and gives back unused of the room that was reserved for them.
// It keeps none and returns false once the intake is closed: no worker would
// come for them.
func (q *intake) put(items []*Delivery, unused int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inWork -= unused
	if q.closed {
		return len(items) == 0
	}
	for _, d := range items {
		q.items.push(d)
	}
	for i := 0; i < len(items) && i < q.idle; i++ {
		q.ready.Signal()
	}
	if unused > 0 {
		q.wakeReceivers()
	}
	return true
}

// next says that finished deliveries have left their worker, waits for work and
// takes up to len(into) items. It returns 0 once the intake is closed and empty.
func (q *intake) next(finished int, into []*Delivery) int {
	q.mu.Lock()
	q.inWork -= finished
	for q.items.n == 0 && !q.closed {
		q.wakeReceivers()
		q.idle++
		q.ready.Wait()
		q.idle--
	}
	n := q.items.pop(into)
	q.wakeReceivers() // with the last item gone, any room is worth a call
	q.mu.Unlock()
	return n
}

// fill takes more items into into for a batch that has its first: it returns
// when into is full, when wait has passed, when the intake closes, and when all
// that may be in work is in batches that wait to fill, as no more can come then.
func (q *intake) fill(into []*Delivery, wait time.Duration) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.items.pop(into)
	if n == len(into) || wait <= 0 {
		return n
	}
	expired := false
	timer := time.AfterFunc(wait, func() {
		q.mu.Lock()
		expired = true
		q.ready.Broadcast()
		q.mu.Unlock()
	})
	defer timer.Stop()
	q.wakeReceivers()
	q.filling += 1 + n
	for n < len(into) && !expired && !q.closed && q.filling < q.limit-q.excess {
		q.idle++
		q.ready.Wait()
		q.idle--
		more := q.items.pop(into[n:])
		n += more
		q.filling += more
	}
	q.filling -= 1 + n
	return n
}

// close lets the workers go and returns what none of them has started.
func (q *intake) close() []*Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Broadcast()
	all := make([]*Delivery, q.items.n)
	q.items.pop(all)
	return all
}

// stage is where decided deliveries wait for a settler. Settlers take all that
// is ready at once, with no timer: a lone delivery never waits, and groups form
// while a settlement is under way.
type stage struct {
	mu      sync.Mutex // guards what follows
	ready   sync.Cond  // there is something to settle, or it is closed
	space   sync.Cond  // there is space, or it is closed
	items   ring
	limit   int // put waits at this many
	waiting int // settlers on ready
	putters int // workers on space
	closed  bool
}

func (s *stage) init(limit int) {
	s.ready.L, s.space.L, s.limit = &s.mu, &s.mu, limit
}

// put adds a delivery or the first of a whole group, waiting for space. It returns false
// when the stage is closed: the session is over.
func (s *stage) put(d *Delivery) bool {
	s.mu.Lock()
	for s.items.n >= s.limit && !s.closed {
		s.putters++
		s.space.Wait()
		s.putters--
	}
	return s.add(d)
}

// force is put without the wait, for those who must not: a timer, a receiver, a
// settler. What they bring is bounded elsewhere.
func (s *stage) force(d *Delivery) bool {
	s.mu.Lock()
	return s.add(d)
}

// add is the rest of put and force; it unlocks mu.
func (s *stage) add(d *Delivery) bool {
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.items.push(d)
	if s.waiting > 0 {
		s.ready.Signal()
	}
	return true
}

// take waits for deliveries and takes up to len(into). It returns 0 once the
// stage is closed and empty.
func (s *stage) take(into []*Delivery) int {
	s.mu.Lock()
	for s.items.n == 0 && !s.closed {
		s.waiting++
		s.ready.Wait()
		s.waiting--
	}
	n := s.items.pop(into)
	if s.putters > 0 {
		s.space.Broadcast()
	}
	s.mu.Unlock()
	return n
}

func (s *stage) close() {
	s.mu.Lock()
	s.closed = true
	s.ready.Broadcast()
	s.space.Broadcast()
	s.mu.Unlock()
}
