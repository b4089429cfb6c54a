package rabbit

import "sync"

// openDeliveries are the deliveries of one session that are not settled, in the order of
// their tags. There are never more than the prefetch.
//
// They are what makes grouped acks safe. An ack with multiple settles
// every delivery up to its tag, whatever was meant for it. So it is sent for a tag only
// when every open delivery up to it is one that the same Settle call acks.
// A delivery leaves when its frame was written, not before: a frame that is still to be
// written may not be overtaken by an ack with multiple of another call.
type openDeliveries struct {
	mu          sync.Mutex // guards what follows and the links of the deliveries
	first, last *delivery
	n           int
}

// add appends deliveries that were just received; their tags are above all others.
func (o *openDeliveries) add(got []*delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range got {
		d.before, d.after = o.last, nil
		if o.last == nil {
			o.first = d
		} else {
			o.last.after = d
		}
		o.last = d
	}
	o.n += len(got)
}

// claim takes d in hand. It reports false for one that is settled or in
// another's hand.
func (o *openDeliveries) claim(d *delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d.state != unsettled {
		return false
	}
	d.state = claimed
	return true
}

// group marks deliveries in hand as acking and returns the last of the run
// from the first open delivery on that consists of such alone: one ack with multiple
// settles that run. It returns nil where the first open delivery is none of them. What it
// marks must leave, or be put back, before group is called again.
func (o *openDeliveries) group(acks []*delivery) (last *delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range acks {
		d.state = acking
	}
	for d := o.first; d != nil && d.state == acking; d = d.after {
		last = d
	}
	return last
}

// leave takes out deliveries whose frame was written.
func (o *openDeliveries) leave(done []*delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range done {
		if d.before == nil {
			o.first = d.after
		} else {
			d.before.after = d.after
		}
		if d.after == nil {
			o.last = d.before
		} else {
			d.after.before = d.before
		}
		d.before, d.after, d.state = nil, nil, settled
	}
	o.n -= len(done)
}

// putBack ends the claim on a delivery that could not be settled.
func (o *openDeliveries) putBack(d *delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d.state = unsettled
}
