package sqlq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// runner runs units of work, each in a transaction. A unit may be run more than
// once and must keep nothing of a run before. An error that [unknown] knows may come from a
// commit that took effect.
type runner interface {
	run(ctx context.Context, work func(Execer) error) error
	// batch runs steps as one unit, in as few round trips as it can. They are made when it runs.
	batch(ctx context.Context, steps func() []Step) error
	// close comes after the last run has returned.
	close() error
}

// pooled runs each unit in a transaction of its own on any connection.
type pooled struct{ db *Database }

func (p pooled) run(ctx context.Context, work func(Execer) error) error {
	return p.db.repeat(ctx, func() error { return inTx(ctx, p.db.DB, nil, work) })
}

func (p pooled) batch(ctx context.Context, steps func() []Step) error {
	return p.db.Batch(ctx, p.db.DB, steps)
}

func (pooled) close() error { return nil }

// writer runs the units of one session over one connection, several in one
// transaction: what arrives while a transaction is open joins it, so that the settlement of one
// group and the claim of the next cost one commit. There is no goroutine for it:
// the first to come leads, works off what has queued up, commits, and passes the lead on.
//
// Order of locks: mu is held for no call; the gate is taken by the leader alone.
type writer struct {
	db   DB
	gate *Gate

	mu    sync.Mutex // guards what follows
	queue []*unit    // its first belongs to the leader, if there is one
	led   bool

	conn Conn // the leader's; nil: none yet, or the last one broke
}

// unit is one piece of work that waits for a transaction.
type unit struct {
	ctx  context.Context
	work func(Execer) error
	turn chan bool // true: lead; false: done
	err  error
}

// mostUnits bounds the units of one transaction, so that the first does not wait for ever.
const mostUnits = 16

func (w *writer) run(ctx context.Context, work func(Execer) error) error {
	u := &unit{ctx: ctx, work: work, turn: make(chan bool, 1)}
	w.mu.Lock()
	w.queue = append(w.queue, u)
	lead := !w.led
	w.led = true
	w.mu.Unlock()
	if !lead {
		select {
		case lead = <-u.turn:
		case <-ctx.Done():
			if w.withdraw(u) {
				return context.Cause(ctx)
			}
			lead = <-u.turn
		}
	}
	if lead {
		w.lead(u)
	}
	return u.err
}

func (w *writer) batch(ctx context.Context, steps func() []Step) error {
	return w.run(ctx, func(ex Execer) error { return ex.Batch(context.Background(), steps()) })
}

// withdraw takes a unit out of the queue that no leader has taken up yet.
func (w *writer) withdraw(u *unit) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.Index(w.queue, u)
	select {
	case lead := <-u.turn: // it came at the same moment
		u.turn <- lead
		return false
	default:
	}
	if at < 0 {
		return false
	}
	w.queue = slices.Delete(w.queue, at, at+1)
	return true
}

// lead works off one transaction, of which u is the first unit, and passes the lead on.
func (w *writer) lead(u *unit) {
	var group []*unit
	defer func() {
		w.mu.Lock()
		if len(w.queue) > 0 {
			w.queue[0].turn <- true
		} else {
			w.led = false
		}
		w.mu.Unlock()
		for _, other := range group {
			if other != u {
				other.turn <- false
			}
		}
	}()
	if err := w.gate.lock(u.ctx); err != nil {
		w.mu.Lock()
		w.queue = slices.Delete(w.queue, 0, 1)
		w.mu.Unlock()
		u.err = err
		return
	}
	defer w.gate.unlock()
	group = w.together(u.ctx)
}

// take takes the next unit out of the queue.
func (w *writer) take() *unit {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil
	}
	u := w.queue[0]
	w.queue = slices.Delete(w.queue, 0, 1)
	return u
}

// together runs what is in the queue, and what comes meanwhile, in one
// transaction, and sets the error of each.
func (w *writer) together(ctx context.Context) []*unit {
	var group []*unit
	err := w.transact(ctx, func(ex Execer) error {
		for len(group) < mostUnits {
			u := w.take()
			if u == nil {
				break
			}
			group = append(group, u)
			if err := u.work(ex); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !unknown(err) && len(group) > 1 {
		// One of them failed, and with it all that shared its transaction.
		for _, u := range group {
			u.err = w.transact(context.Background(), u.work)
		}
		return group
	}
	if len(group) == 0 { // it could not even begin, and so could none that waits
		group = append(group, w.take())
		for ctx.Err() == nil {
			u := w.take()
			if u == nil {
				break
			}
			group = append(group, u)
		}
	}
	for _, u := range group {
		u.err = err
	}
	return group
}

// transact runs work in a transaction on the writer's connection. After an
// error it takes another the next time: this one may be broken.
func (w *writer) transact(ctx context.Context, work func(Execer) error) error {
	if w.conn == nil {
		conn, err := w.db.Conn(ctx)
		if err != nil {
			return fmt.Errorf("taking a connection: %w", err)
		}
		w.conn = conn
	}
	err := onConn(ctx, w.conn, work)
	if err != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
	return err
}

func (w *writer) close() error {
	if w.conn == nil {
		return nil
	}
	return w.conn.Close()
}

// errStopped is what Receive returns once intake has ended.
var errStopped = errors.New("sqlq: intake has ended")
