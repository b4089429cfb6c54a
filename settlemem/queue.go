package settlemem

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// Queue is a queue of a [Broker]: a settle.Source and a settle.Publisher.
type Queue struct {
	broker *Broker
	name   string

	mu       sync.Mutex // guards what follows, and the deliveries of the queue's consumers
	ready    sync.Cond  // a message is ready, or a consumer ends
	waiting  int        // receivers on ready
	levels   []level    // the ready messages, the highest priority first
	delayed  delays
	timer    *time.Timer   // of the first delayed message
	size     int           // ready, delayed and unsettled
	last     int           // the place that was given out last
	emptied  chan struct{} // closed when size reaches 0; nil: nobody waits
	sessions map[*consumer]struct{}
}

// message is one message in the broker, wherever it is.
type message struct {
	settle.Message
	attempts  int // deliveries so far
	place     int // its place among the ready: it comes back to it when it is given back
	published time.Time
}

func newQueue(b *Broker, name string) *Queue {
	q := &Queue{broker: b, name: name, sessions: make(map[*consumer]struct{})}
	q.ready.L = &q.mu
	return q
}

// Name returns the queue's name as logs show it.
func (q *Queue) Name() string { return fmt.Sprintf("settlemem: queue %q", q.name) }

// Open starts a session. A dead letter that is the queue itself is refused.
func (q *Queue) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.DeadLetter == q.name {
		return nil, &settle.ConfigError{
			Source: q.Name(), Setting: "DeadLetter",
			Reason: "it is the queue itself, so a dead letter would be delivered again",
			Fix:    "name another queue",
		}
	}
	if r.MaxAttempts > 0 && r.DeadLetter == "" {
		r.Notify(settle.Notice{Kind: settle.NoticeWeakened, Err: fmt.Errorf("MaxAttempts is %d and DeadLetter is empty: a message that reaches the cap is dropped", r.MaxAttempts)})
	}
	c := &consumer{queue: q, registration: r}
	c.unsettled.next, c.unsettled.prev = &c.unsettled, &c.unsettled
	q.mu.Lock()
	q.sessions[c] = struct{}{}
	q.mu.Unlock()
	return c, nil
}

// add puts a new message in.
func (q *Queue) add(m *message, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.size++
	q.put(m, delay)
}

// put makes a message ready, after a delay if there is one. The caller holds mu.
func (q *Queue) put(m *message, delay time.Duration) {
	if delay > 0 {
		heap.Push(&q.delayed, delayedMessage{at: time.Now().Add(delay), m: m})
		q.arm()
		return
	}
	q.last++
	m.place = q.last
	q.level(m.Priority).pushBack(m)
	q.wake()
}

// putBack makes a message ready in the place it had. The caller holds mu.
func (q *Queue) putBack(m *message) {
	q.level(m.Priority).pushFront(m)
	q.wake()
}

func (q *Queue) wake() {
	if q.waiting > 0 {
		q.ready.Signal()
	}
}

// level returns the ready messages of a priority. The caller holds mu.
func (q *Queue) level(priority int) *level {
	if len(q.levels) > 0 && q.levels[0].priority == priority {
		return &q.levels[0] // nearly always the only one
	}
	i, ok := slices.BinarySearchFunc(q.levels, priority, func(l level, p int) int { return p - l.priority })
	if !ok {
		q.levels = slices.Insert(q.levels, i, level{priority: priority})
	}
	return &q.levels[i]
}

// pop takes the next ready message; nil if there is none. The caller holds mu.
func (q *Queue) pop() *message {
	for i := range q.levels {
		if m := q.levels[i].popFront(); m != nil {
			return m
		}
	}
	return nil
}

// gone says that a message has left the queue for good. The caller holds mu.
func (q *Queue) gone() {
	q.size--
	if q.size == 0 && q.emptied != nil {
		close(q.emptied)
		q.emptied = nil
	}
}

// arm sets the timer for the first delayed message. The caller holds mu.
func (q *Queue) arm() {
	if len(q.delayed) == 0 {
		return
	}
	wait := time.Until(q.delayed[0].at)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.ripen)
		return
	}
	q.timer.Reset(wait)
}

// ripen makes ready what was delayed until now.
func (q *Queue) ripen() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(q.delayed) > 0 && !q.delayed[0].at.After(now) {
		q.put(heap.Pop(&q.delayed).(delayedMessage).m, 0)
	}
	q.arm()
}

func (q *Queue) sever() {
	q.mu.Lock()
	var severed []*consumer
	for c := range q.sessions {
		c.end()
		severed = append(severed, c)
	}
	q.mu.Unlock()
	for _, c := range severed { // no Receive may be under way to tell of it
		c.registration.Notify(settle.Notice{Kind: settle.NoticeLost, Err: fmt.Errorf("%s: severed: %w", q.Name(), settle.ErrSessionLost)})
	}
}

// level is the ready messages of one priority: a ring.
type level struct {
	priority int
	buf      []*message // a power of two long
	head, n  int
}

func (l *level) at(i int) int { return (l.head + i) & (len(l.buf) - 1) }

func (l *level) grow() {
	if l.n < len(l.buf) {
		return
	}
	grown := make([]*message, max(16, 2*len(l.buf)))
	copy(grown, l.list())
	l.buf, l.head = grown, 0
}

func (l *level) pushBack(m *message) {
	l.grow()
	l.buf[l.at(l.n)] = m
	l.n++
}

func (l *level) pushFront(m *message) {
	l.grow()
	l.head = l.at(-1)
	l.buf[l.head] = m
	l.n++
	for i := 1; i < l.n && l.buf[l.at(i)].place < m.place; i++ {
		l.buf[l.at(i-1)], l.buf[l.at(i)] = l.buf[l.at(i)], m
	}
}

func (l *level) popFront() *message {
	if l.n == 0 {
		return nil
	}
	m := l.buf[l.head]
	l.buf[l.head] = nil
	l.head = l.at(1)
	l.n--
	return m
}

func (l *level) list() []*message {
	all := make([]*message, l.n)
	for i := range all {
		all[i] = l.buf[l.at(i)]
	}
	return all
}

// delays implements heap.Interface, the earliest first.
type delays []delayedMessage

type delayedMessage struct {
	at time.Time
	m  *message
}

func (h delays) Len() int           { return len(h) }
func (h delays) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h delays) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *delays) Push(x any)        { *h = append(*h, x.(delayedMessage)) }

func (h *delays) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = delayedMessage{}
	*h = old[:len(old)-1]
	return last
}
