package pulsar

import (
	"fmt"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// work is what a session has received and not settled. It keeps what neither
// the broker nor the client library does: that a delivery is settled once, and
// that a message is with one handler of the session at a time. The broker takes a late
// acknowledgement of an old delivery for one of the copy that somebody else may have
// by then; here each delivery has a token, which is spent once.
type work struct {
	timeout time.Duration // AckTimeout; 0: none
	epoch   time.Time
	// expired is told, outside the lock, which deliveries were taken away
	// because their time was over.
	expired func([]*delivery)

	mu     sync.Mutex // guards what follows and the lower part of each delivery
	owners owners
	ended  bool // the session is over
	// theirs are the topics of a Failover subscription that are another
	// consumer's now.
	theirs map[string]struct{}

	oldest, newest *delivery // in the order of arrival, where there is an AckTimeout
	timer          *time.Timer
	firing         sync.WaitGroup // calls of expired under way
}

func newWork(timeout time.Duration, expired func([]*delivery)) *work {
	return &work{timeout: timeout, epoch: time.Now(), expired: expired, owners: newOwners()}
}

// admit takes in what has arrived and returns it, without what is of a topic
// that is another's now. Where the same message is in work already,
// the newer delivery is its owner and the older loses its token: the broker has
// given the message out again, whatever the reason. Those that lost it are returned too.
func (w *work) admit(arrived []*delivery) (in, taken []*delivery) {
	now := int64(time.Since(w.epoch))
	w.mu.Lock()
	defer w.mu.Unlock()
	in = arrived[:0]
	for _, d := range arrived {
		if _, lost := w.theirs[d.from.topic]; lost {
			continue
		}
		in = append(in, d)
		if old := w.owners.take(d); old != nil {
			w.leave(old)
			taken = append(taken, old)
		}
		w.watch(d, now)
	}
	return in, taken
}

// claim takes a delivery in hand for a Settle call. It fails when the token is
// spent. The caller holds mu.
func (w *work) claim(d *delivery) error {
	if d.state != inWork {
		return fmt.Errorf("pulsar: %w: it is settled already, or was taken away", settle.ErrLeaseLost)
	}
	d.state = inHand
	return nil
}

// putBack ends the claim on a delivery that could not be settled. The caller
// holds mu.
func (w *work) putBack(d *delivery) {
	if d.state == inHand {
		d.state = inWork
	}
}

// leave spends the token of d. The caller holds mu.
func (w *work) leave(d *delivery) {
	if d.state == over {
		return
	}
	d.state = over
	w.unwatch(d)
	w.owners.leave(d)
}

// forfeit takes away all that is in work of a topic, which is another's until regain.
func (w *work) forfeit(topic string) (taken []*delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.theirs == nil {
		w.theirs = make(map[string]struct{})
	}
	w.theirs[topic] = struct{}{}
	for d := range w.owners.all() {
		if d.from.topic == topic {
			taken = append(taken, d)
		}
	}
	for _, d := range taken {
		w.leave(d)
	}
	return taken
}

// regain ends forfeit.
func (w *work) regain(topic string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.theirs, topic)
}

// end stops the timer.
func (w *work) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
