package sqlq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// work is what a session has claimed and not settled, the longest held first.
// It keeps renewal and settlement of one row apart, and sees to it that a row
// is settled once.
type work struct {
	mu      sync.Mutex // guards what follows, and what row says it guards
	head    *row
	tail    *row
	renewed chan struct{} // closed when the renewal under way has ended; nil: none
}

// add appends rows that were claimed at the given time.
func (w *work) add(rows []*row, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range rows {
		r.claimed, r.firstAt = at, at
		w.push(r)
	}
}

// push appends r. The caller holds mu.
func (w *work) push(r *row) {
	r.prev, r.next = w.tail, nil
	if w.tail == nil {
		w.head = r
	} else {
		w.tail.next = r
	}
	w.tail = r
}

// remove takes r out. The caller holds mu.
func (w *work) remove(r *row) {
	if r.prev == nil {
		w.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		w.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.next, r.prev = nil, nil
}

// job is one settlement of a batch that may go ahead.
type job struct {
	s       *settle.Settlement
	row     *row
	touched bool // the row was still the delivery's
	over    bool // the row is no longer in work
}

// begin marks the rows of a batch as in settlement and returns them. The others
// of the batch get their errors; lost are those that a renewal has found lost, each of them
// once. It waits for a renewal that has one of them.
func (w *work) begin(ctx context.Context, sess *session, batch []settle.Settlement) (jobs []job, lost []*row) {
	jobs = make([]job, 0, len(batch))
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range batch {
		s := &batch[i]
		r, ok := s.Delivery.Native.(*row)
		if !ok || r.sess != sess {
			s.Err = fmt.Errorf("%s: the delivery is of another session: %w", sess.source, settle.ErrLeaseLost)
			continue
		}
		s.Err = nil
		for r.state == rowRenewing && s.Err == nil {
			r.wanted = true
			s.Err = w.wait(ctx)
			r.wanted = false
		}
		switch {
		case s.Err != nil:
		case r.state == rowIdle || r.state == rowInTx:
			r.state = rowSettling
			jobs = append(jobs, job{s: s, row: r})
		case r.state == rowSettling:
			s.Err = fmt.Errorf("%s: row %s is in settlement already", sess.source, idText(r.id))
		case r.state == rowLost:
			r.state = rowDone
			lost = append(lost, r)
			fallthrough
		default:
			s.Err = lostRow(sess.source, r.id)
		}
	}
	return jobs, lost
}

// wait waits for the renewal under way. The caller holds mu, which is free meanwhile.
func (w *work) wait(ctx context.Context) error {
	done := w.renewed
	w.mu.Unlock()
	defer w.mu.Lock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sqlq: waiting for the renewal of a lease: %w", context.Cause(ctx))
	}
}

// end takes the errors of jobs as how their settlement ended: without one, or
// with one that is final, the row is no longer in work.
func (w *work) end(jobs []job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range jobs {
		r := jobs[i].row
		if err := jobs[i].s.Err; err != nil && !errors.Is(err, settle.ErrLeaseLost) && !settle.IsPermanent(err) {
			r.state = rowIdle
			continue
		}
		r.state = rowDone
		jobs[i].over = true
		w.remove(r)
	}
}

// due marks the idle rows claimed up to the given time as in renewal and returns them.
func (w *work) due(upTo time.Duration) []*row {
	w.mu.Lock()
	defer w.mu.Unlock()
	var rows []*row
	for r := w.head; r != nil && r.claimed <= upTo; r = r.next {
		if r.state == rowIdle && !r.wanted {
			r.state = rowRenewing
			rows = append(rows, r)
		}
	}
	if len(rows) > 0 {
		w.renewed = make(chan struct{})
	}
	return rows
}

// left returns the rows that are in work, for the end of the session.
func (w *work) left() []*row {
	w.mu.Lock()
	defer w.mu.Unlock()
	var rows []*row
	for w.head != nil {
		r := w.head
		w.remove(r)
		r.state = rowDone
		rows = append(rows, r)
	}
	return rows
}
