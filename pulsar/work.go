package pulsar

import (
	"fmt"
	"math/bits"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

// work is what a session has received and not settled: who owns which message.
// It keeps what the broker and the client library do not: that a delivery is settled once, and
// that one message is never with two handlers of a session.
//
// The broker acknowledges and gives back whole entries: a message, or all that
// were published as one batch. So a batch goes back when none of it is in work
// any more, and not when its first message fails: those that are still with
// handlers, or waiting out a delay, would come a second time, here or at another consumer.
//
// A message may all the same come again while it is in work: on Exclusive and
// Failover, where the broker sends again whatever is unsettled, and where the rest of a
// batch was still in the library's queue. Such a copy is not handed out. The
// delivery in work takes over its id, so that whichever of the two settles it settles both.
// A copy of a message that this session has acknowledged is acknowledged again.
type work struct {
	timeout time.Duration // AckTimeout; 0: none
	epoch   time.Time
	// expired is told, outside the lock, which deliveries were taken away because
	// their time was over, and what to nack for that.
	expired func(taken []*delivery, nacks []client.MessageID)

	mu      sync.Mutex // guards what follows and the lower part of each delivery
	alone   map[place]*delivery
	batches map[place]*batch
	idle    []place // batches that have, or had, nothing in work; oldest first
	rounds  bool    // a batch came more than once
	leaving bool    // what is released goes back with the session
	ended   bool    // nothing goes back any more but with the session

	oldest, newest *delivery // in the order of arrival, where there is an AckTimeout
	timer          *time.Timer

	firing sync.WaitGroup // calls of expired under way

	nacked map[entryID]struct{} // nacked and not yet on its way to the broker
	sent   chan struct{}        // closed when nacked is empty; nil: nobody waits
}

// place is where a message is stored.
type place struct {
	topic string
	entryID
}

// entryID is the place without its topic. Ledger ids are unique in a cluster.
type entryID struct{ ledger, entry int64 }

func placeOf(m client.Message) place {
	id := m.ID()
	return place{topic: m.Topic(), entryID: entryID{id.LedgerID(), id.EntryID()}}
}

// batch is an entry of several messages.
type batch struct {
	place
	size   int
	inWork map[int32]*delivery
	acked  []uint64         // by index: acknowledged in this session
	back   client.MessageID // something of it is to come again; nil: nothing
	idle   bool             // it stands in work.idle
	// round counts how often the entry came. The library keeps for each round which of the batch are acknowledged, and can be
	// asked about one round at a time.
	round int
	last  int32 // the index that came last in this round
}

// mostIdle is how many batches with nothing in work are remembered.
const mostIdle = 1024

func newWork(timeout time.Duration, expired func([]*delivery, []client.MessageID)) *work {
	return &work{
		timeout: timeout, epoch: time.Now(), expired: expired,
		alone: make(map[place]*delivery), batches: make(map[place]*batch), nacked: make(map[entryID]struct{}),
	}
}

// admit takes in what has arrived, in order. It fills into with what is to be
// handed out, and returns that and the ids of copies to acknowledge.
func (w *work) admit(arrived []*delivery, into []*settle.Delivery) (n int, done []client.MessageID) {
	now := int64(time.Since(w.epoch))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range arrived {
		var fresh, acked bool
		if size := d.id.BatchSize(); size > 1 {
			fresh, acked = w.joins(d, int(size))
		} else {
			fresh = w.stands(d)
		}
		switch {
		case fresh:
			into[n] = &d.Delivery
			n++
			w.watch(d, now)
		case acked:
			done = append(done, d.id)
		}
	}
	return n, done
}

// stands admits a message that was published alone.
func (w *work) stands(d *delivery) (fresh bool) {
	at := placeOf(d.native)
	if old := w.alone[at]; old != nil {
		old.id = d.id
		return false
	}
	w.alone[at] = d
	return true
}

// joins admits a message of a batch.
func (w *work) joins(d *delivery, size int) (fresh, acked bool) {
	at := placeOf(d.native)
	index := d.id.BatchIdx()
	b := w.batches[at]
	if b == nil {
		b = &batch{place: at, size: size, inWork: make(map[int32]*delivery), acked: make([]uint64, (size+63)/64)}
		w.batches[at] = b
	} else if index <= b.last {
		b.round++
		w.rounds = true
	}
	b.last = index
	if b.acked[index/64]&(1<<(index%64)) != 0 {
		return false, true
	}
	if old := b.inWork[index]; old != nil {
		old.id, old.round = d.id, b.round
		return false, false
	}
	d.within, d.round = b, b.round
	b.inWork[index] = d
	return true, false
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

// putBack ends the claim on a delivery that could not be settled.
func (w *work) putBack(d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.state == inHand {
		d.state = inWork
	}
}

// acknowledged takes out a delivery in hand whose acknowledgement by the given
// id is confirmed. It returns an id to nack, and one to acknowledge too. The caller holds mu.
func (w *work) acknowledged(d *delivery, by client.MessageID) (nack, done client.MessageID) {
	w.leave(d)
	b := d.within
	if b == nil {
		return nil, nil
	}
	index := by.BatchIdx()
	b.acked[index/64] |= 1 << (index % 64)
	if d.id != by {
		done = d.id // it came again meanwhile
	}
	return w.settleBatch(b), done
}

// giveBack takes out a delivery that is to come again, and returns the id to
// nack now; nil where others of its batch are still in work. The caller holds mu.
func (w *work) giveBack(d *delivery) (nack client.MessageID) {
	w.leave(d)
	b := d.within
	if b == nil {
		return w.nack(d.id)
	}
	b.back = d.id
	return w.settleBatch(b)
}

// release takes out a delivery that no handler settled. Before Stop it goes
// back at once, as one that failed does, which costs it an attempt; after Stop
// it goes back with the end of the session, which does not. The caller holds mu.
func (w *work) release(d *delivery) (nack client.MessageID) {
	if !w.leaving {
		return w.giveBack(d)
	}
	w.leave(d)
	if d.within == nil {
		return nil
	}
	return w.settleBatch(d.within)
}

// leave spends the token of d. The caller holds mu.
func (w *work) leave(d *delivery) {
	d.state = over
	w.unwatch(d)
	if b := d.within; b != nil {
		delete(b.inWork, d.native.ID().BatchIdx())
		return
	}
	delete(w.alone, placeOf(d.native))
}

// settleBatch returns the id to nack when nothing of b is in work any more and
// something of it is to come again. The caller holds mu.
func (w *work) settleBatch(b *batch) (nack client.MessageID) {
	if len(b.inWork) > 0 {
		return nil
	}
	if b.back != nil {
		nack = w.nack(b.back)
		b.back = nil
	}
	count := 0
	for _, word := range b.acked {
		count += bits.OnesCount64(word)
	}
	if count == b.size {
		delete(w.batches, b.place)
		return nack
	}
	w.rest(b)
	return nack
}

// rest remembers a batch with nothing in work, and forgets the oldest of too
// many: should that come again, all of it is handled again. The caller holds mu.
func (w *work) rest(b *batch) {
	if b.idle {
		return
	}
	b.idle = true
	w.idle = append(w.idle, b.place)
	for len(w.idle) > mostIdle {
		if old := w.batches[w.idle[0]]; old != nil {
			old.idle = false
			if len(old.inWork) == 0 {
				delete(w.batches, old.place)
			}
		}
		w.idle = w.idle[1:]
	}
}

// nack notes that an entry is to go back. The caller holds mu.
func (w *work) nack(id client.MessageID) client.MessageID {
	if w.ended {
		return nil
	}
	w.nacked[entryID{id.LedgerID(), id.EntryID()}] = struct{}{}
	return id
}

// nacksSent says that the library has sent nacks.
func (w *work) nacksSent(ids []client.MessageID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.nacked, entryID{id.LedgerID(), id.EntryID()})
	}
	if w.sent != nil && len(w.nacked) == 0 {
		close(w.sent)
		w.sent = nil
	}
}

// waitNacks waits until every nack is on its way, or for the given time. A nack
// that a close overtakes is not counted by the broker.
func (w *work) waitNacks(most time.Duration) {
	w.mu.Lock()
	if len(w.nacked) == 0 {
		w.mu.Unlock()
		return
	}
	sent := make(chan struct{})
	w.sent = sent
	w.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-sent:
	case <-timer.C:
	}
}

// stopping says that the session is about to end.
func (w *work) stopping() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaving = true
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

// apart divides ids so that no two of one batch and of different rounds are
// together: the library would acknowledge by the round of one and lose the other.
func (w *work) apart(ids []client.MessageID, rounds []int) [][]client.MessageID {
	w.mu.Lock()
	simple := !w.rounds
	w.mu.Unlock()
	if simple {
		return [][]client.MessageID{ids}
	}
	byRound := make(map[int][]client.MessageID)
	for i, id := range ids {
		byRound[rounds[i]] = append(byRound[rounds[i]], id)
	}
	groups := make([][]client.MessageID, 0, len(byRound))
	for _, group := range byRound {
		groups = append(groups, group)
	}
	return groups
}
