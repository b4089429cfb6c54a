package pulsar

import "time"

// This file takes deliveries away that are unsettled for AckTimeout. The client
// library has no such timeout. All deliveries have the same, so the oldest is
// always the next, and one timer serves them all.

// recheck is how soon a delivery whose time is over and which a settler has in
// hand is looked at again.
const recheck = 50 * time.Millisecond

// watch begins the time of d. The caller holds mu.
func (w *work) watch(d *delivery, now int64) {
	if w.timeout == 0 {
		return
	}
	d.rare = &rare{since: now, older: w.newest}
	if w.newest == nil {
		w.oldest = d
	} else {
		w.newest.rare.newer = d
	}
	w.newest = d
	switch {
	case w.ended:
	case w.timer == nil:
		w.timer = time.AfterFunc(w.timeout, w.expire)
	case w.oldest == d:
		w.timer.Reset(w.timeout)
	}
}

// unwatch ends the time of d. The caller holds mu.
func (w *work) unwatch(d *delivery) {
	if w.timeout == 0 {
		return
	}
	r := d.rare
	if r.older == nil {
		w.oldest = r.newer
	} else {
		r.older.rare.newer = r.newer
	}
	if r.newer == nil {
		w.newest = r.older
	} else {
		r.newer.rare.older = r.older
	}
	r.older, r.newer = nil, nil
}

// expire takes away what is over its time. What a settler has in hand stays
// his: he may be about to be told that it is settled.
func (w *work) expire() {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	now := int64(time.Since(w.epoch))
	var taken []*delivery
	next := time.Duration(0)
	for d := w.oldest; d != nil; {
		after := d.rare.newer
		if left := time.Duration(d.rare.since-now) + w.timeout; left > 0 {
			if next == 0 {
				next = left
			}
			break
		}
		if d.state == inHand {
			next = recheck
		} else {
			w.leave(d)
			taken = append(taken, d)
		}
		d = after
	}
	if next > 0 {
		w.timer.Reset(next)
	}
	w.firing.Add(1)
	defer w.firing.Done()
	w.mu.Unlock()
	if len(taken) > 0 {
		w.expired(taken)
	}
}
