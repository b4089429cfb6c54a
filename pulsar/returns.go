package pulsar

import (
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

// This file has messages come again.
//
// On Shared and KeyShared a message that was published alone is nacked: the broker delivers it again,
// to whom it likes, and counts. Elsewhere a nack does more than is asked for. That of
// one message of a batch brings back the whole batch: also what is still with handlers or waits out a
// delay, and, on a broker with its default settings, what is acknowledged. A message in chunks that comes
// again would be put together again, and the library's clock for its first time, which goes on, would
// then throw its chunks away. On Exclusive
// and Failover it brings back all that is unsettled, and the broker may then send
// more than the library has room for, which stops the whole connection. So there the session hands
// the message out again itself: it stays unacknowledged, disturbs no other, and its count, where there is
// one, is the broker's and what this session adds.

// nacks are the entries that were nacked and are not yet on their way to the
// broker: the library sends them after RetryDelay. A close that overtakes a nack would keep the
// broker from counting it.
type nacks struct {
	mu      sync.Mutex // guards what follows
	pending map[entryID]struct{}
	empty   chan struct{} // closed when pending is empty; nil: nobody waits
}

func (n *nacks) add(id client.MessageID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pending == nil {
		n.pending = make(map[entryID]struct{})
	}
	n.pending[entryOf(id)] = struct{}{}
}

// sent says that the library has sent these.
func (n *nacks) sent(ids []client.MessageID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		delete(n.pending, entryOf(id))
	}
	if n.empty != nil && len(n.pending) == 0 {
		close(n.empty)
		n.empty = nil
	}
}

// wait waits until every nack is sent, or for the given time.
func (n *nacks) wait(most time.Duration) {
	n.mu.Lock()
	if len(n.pending) == 0 {
		n.mu.Unlock()
		return
	}
	empty := make(chan struct{})
	n.empty = empty
	n.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-empty:
	case <-timer.C:
	}
}

// again are the messages that this session hands out again. All wait equally
// long, so the first is always the next.
type again struct {
	delay time.Duration
	due   chan struct{} // a token when the first is due

	mu      sync.Mutex // guards what follows
	waiting []waiting
	timer   *time.Timer
	ended   bool
}

type waiting struct {
	d  *delivery
	at time.Time
}

func newAgain(delay time.Duration) *again {
	return &again{delay: delay, due: make(chan struct{}, 1)}
}

// add has d handed out after the delay.
func (a *again) add(d *delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	a.waiting = append(a.waiting, waiting{d, time.Now().Add(a.delay)})
	if len(a.waiting) == 1 {
		a.arm()
	}
}

// arm sets the timer for the first. The caller holds mu.
func (a *again) arm() {
	if len(a.waiting) == 0 {
		return
	}
	wait := time.Until(a.waiting[0].at)
	if a.timer == nil {
		a.timer = time.AfterFunc(wait, a.ring)
		return
	}
	a.timer.Reset(wait)
}

func (a *again) ring() {
	select {
	case a.due <- struct{}{}:
	default:
	}
}

// take appends to into what is due, up to most.
func (a *again) take(into []*delivery, most int) []*delivery {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	n := 0
	for n < len(a.waiting) && n < most && !a.waiting[n].at.After(now) {
		into = append(into, a.waiting[n].d)
		n++
	}
	clear(a.waiting[:n])
	a.waiting = a.waiting[n:]
	a.arm()
	return into
}

// forfeit drops what waits of a topic.
func (a *again) forfeit(topic string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := a.waiting[:0]
	for _, w := range a.waiting {
		if w.d.from.topic != topic {
			kept = append(kept, w)
		}
	}
	clear(a.waiting[len(kept):])
	a.waiting = kept
}

func (a *again) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended, a.waiting = true, nil
	if a.timer != nil {
		a.timer.Stop()
	}
}

// inChunks reports whether a message was published in chunks.
func inChunks(id client.MessageID) bool { return id.BatchIdx() < 0 }

// giveBack has the messages of deliveries come again whose tokens are spent. A
// failure counts as an attempt.
func (c *consumer) giveBack(all []*delivery, failed bool) {
	for _, d := range all {
		if id := d.native.ID(); c.set.Type.counts() && id.BatchSize() <= 1 && !inChunks(id) {
			c.nacks.add(id)
			d.from.native.NackID(id)
			continue
		}
		next := &delivery{from: d.from, native: d.native, run: d.run, tried: d.tried}
		next.Delivery = settle.Delivery{
			ID: d.ID, Key: d.Key, Body: d.Body, Headers: d.Headers, Attempt: d.Attempt, Published: d.Published, Native: next,
		}
		if failed && c.set.countsAttempts() {
			next.Attempt++
		}
		c.again.add(next)
	}
}
