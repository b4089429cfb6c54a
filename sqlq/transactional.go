package sqlq

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// HandlerTx is a transaction for a handler: T is what the driver calls one.
type HandlerTx[T any] struct {
	Native T
	Exec   Execer // runs in the transaction
	// Intact fails where the transaction is not the one that was begun any more. It
	// comes once, before the settlement and the commit. Nil: a commit finds that out.
	Intact func(context.Context) error
	// Undo takes back what the handler wrote and leaves the transaction open. Nil: it cannot.
	Undo     func(context.Context) error
	Commit   func() error
	Rollback func() error // harmless once the transaction has ended
	// Ended reports whether an error of Exec or Commit says that the handler
	// ended the transaction itself.
	Ended func(error) bool
}

// TxRules are what a database asks of a transactional registration.
type TxRules struct {
	// OneAtATime: one worker, because nobody else can write meanwhile. The handler
	// needs a Timeout under half the lease, because the lease cannot be renewed.
	OneAtATime bool
}

// Transactional makes a source and a handler of a queue whose handler writes in a
// transaction that commits together with its settlement. T is what the
// driver calls a transaction. begin opens one that outlives ctx, for a database with one writer; for others it is nil,
// and handlers get the Native of a [Tx].
func Transactional[T any](q *Queue, rules TxRules, begin func(ctx context.Context) (HandlerTx[T], error),
	handle func(context.Context, T, *settle.Delivery) settle.Outcome,
) (settle.Source, settle.Handler) {
	source := &txSource{Queue: q, rules: rules}
	if begin != nil {
		source.begin = func(ctx context.Context) (*openTx, error) {
			h, err := begin(ctx)
			if err != nil {
				return nil, err
			}
			return &openTx{native: h.Native, exec: h.Exec, intact: h.Intact, undo: h.Undo, commit: h.Commit, rollback: h.Rollback, ended: h.Ended}, nil
		}
	}
	if handle == nil {
		return source, nil
	}
	return source, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		r, ok := d.Native.(*row)
		switch {
		case ok && r.tx != nil:
			return handle(ctx, r.tx.native.(T), d)
		case ok && r.seat != nil && r.seat.enter():
			defer r.seat.exit()
			return handle(ctx, r.seat.tx.Native().(T), d)
		default:
			return settle.Retry(fmt.Errorf("%s: the delivery has no transaction", q.Name()))
		}
	}
}

// lend are the steps that make a transaction what a handler expects.
func (s *session) lend() []Step {
	if l, ok := s.queue.db.Dialect.(Lender); ok && s.transactional {
		return l.Lend()
	}
	return nil
}

// beginner opens a transaction for a handler.
type beginner func(ctx context.Context) (*openTx, error)

// txSource is a queue whose deliveries have a transaction each.
type txSource struct {
	*Queue
	rules TxRules
	begin beginner
}

// Open implements settle.Source.
func (t *txSource) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	if t.invalid == nil {
		if err := t.rules.check(t.Queue, r); err != nil {
			return nil, err
		}
	}
	return t.open(ctx, r, true, t.begin)
}

func (rules TxRules) check(q *Queue, r settle.Registration) error {
	if r.Batch > 1 {
		return refuse(q.Name(), "BatchSize", "a transaction belongs to one delivery", "leave it out")
	}
	if !rules.OneAtATime {
		return nil
	}
	if r.Workers > 1 {
		return refuse(q.Name(), "Workers", fmt.Sprintf("%d handlers cannot have a transaction at once, because the database has one writer", r.Workers), "leave it out, or use Handle")
	}
	half := q.table.lease() / 2
	switch {
	case r.Timeout == 0:
		return refuse(q.Name(), "Timeout", "a handler with a transaction keeps every other writer waiting, and its lease cannot be renewed meanwhile", "set it, under half the lease")
	case half > 0 && r.Timeout >= half:
		return refuse(q.Name(), "Timeout", fmt.Sprintf("%v is not under half the lease of %v, which cannot be renewed while the handler has its transaction", r.Timeout, 2*half), "lower Timeout or raise Lease.For")
	}
	return nil
}

// openTx is the transaction of one delivery, with the gate held.
type openTx struct {
	native   any
	exec     Execer
	intact   func(context.Context) error // nil: not to be asked
	undo     func(context.Context) error // nil: it cannot
	commit   func() error
	rollback func() error
	ended    func(error) bool
	gate     *Gate
	since    time.Duration // when it was confirmed, since the session began: nobody else can take its row from then on
	closed   atomic.Bool   // it has been committed or rolled back
	row      *row
	owner    atomic.Int32 // who ends it: one of those below
}

// Who ends a transaction: nobody yet; the settlement; or the session, because the
// lease of its row is over and everybody waits for its handler.
const (
	txOpen = iota
	txSettled
	txOverdue
)

// settling reports whether the settlement may end the transaction.
func (tx *openTx) settling() bool {
	return tx.owner.CompareAndSwap(txOpen, txSettled) || tx.owner.Load() == txSettled
}

// overdue ends the transaction of a handler that has outlived its lease: every
// writer of the database waits for it, and it may wait for one of them.
func (s *session) overdue(ctx context.Context) {
	tx := s.current.Load()
	span := s.layout.lease()
	if time.Since(s.epoch)-tx.since < span || !tx.owner.CompareAndSwap(txOpen, txOverdue) {
		return
	}
	s.reg.Notify(settle.Notice{Kind: settle.NoticeLeaseLost, Delivery: &tx.row.Delivery, Err: lostRow(s.source, tx.row.id)})
	call, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	tx.abandon(call)
}

// over lets the next writer of this process go.
func (tx *openTx) over() {
	if !tx.closed.Swap(true) {
		tx.gate.unlock()
	}
}

// abandon rolls back, not waiting beyond ctx for a handler that is in the middle
// of a statement. It reports whether the transaction has ended.
func (tx *openTx) abandon(ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tx.rollback()
		tx.over()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// beginTx opens the transaction of a row that was just claimed, and makes sure
// in it that the row is still ours. Where it cannot it gives the row back.
func (s *session) beginTx(ctx context.Context, r *row) error {
	s.work.mu.Lock()
	r.state = rowInTx // from before it waits for other writers: a renewal would wait behind it, and run beside its settlement
	s.work.mu.Unlock()
	tx, err := s.openTx(ctx, r)
	if err != nil {
		s.unclaim(r)
		return fmt.Errorf("beginning the transaction of row %s: %w", idText(r.id), err)
	}
	r.tx = tx
	s.current.Store(tx)
	return nil
}

func (s *session) openTx(ctx context.Context, r *row) (*openTx, error) {
	gate := s.shared.Gate
	if err := gate.lock(ctx); err != nil {
		return nil, err
	}
	tx, err := s.begin(context.WithoutCancel(ctx))
	if err != nil {
		gate.unlock()
		return nil, err
	}
	tx.gate = gate
	vs := s.values()
	vs.id, vs.attempt, vs.token = r.id, r.attempt, r.token
	n, err := s.texts.confirm.exec(s.bound(ctx), tx.exec, &vs)
	if err == nil && n == 0 {
		err = lostRow(s.source, r.id)
	}
	if err != nil {
		err = errors.Join(err, tx.rollback())
		tx.over()
		return nil, err
	}
	tx.since, tx.row = time.Since(s.epoch), r
	return tx, nil
}

// unclaim gives back a row that was claimed and not handed out.
func (s *session) unclaim(r *row) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	one := []settle.Settlement{{Delivery: &r.Delivery, Verdict: settle.Verdict{Action: settle.ActionRelease}}}
	jobs, _ := s.work.begin(ctx, s, one)
	s.settleTogether(ctx, jobs)
	if one[0].Err != nil {
		one[0].Err = errors.Join(settle.ErrLeaseLost, one[0].Err) // nobody will ask again
	}
	s.work.end(jobs)
	for _, j := range jobs {
		s.form.freed(j.row)
	}
}

// busy reports whether a handler's transaction keeps this session from writing.
func (s *session) busy() bool {
	tx := s.current.Load()
	return tx != nil && s.queue.db.OneWriter && !tx.closed.Load()
}

// errInTx says that a settlement has to wait for a handler of the same session.
var errInTx = errors.New("another delivery of this session has its transaction open, and the database has one writer")

// settleTxs settles the deliveries of a batch that have a transaction: an ack
// commits it with the settlement in it, anything else rolls it back. It returns
// the jobs that are then settled as all others are.
func (s *session) settleTxs(ctx context.Context, jobs []job) []job {
	var rest []job
	for i := range jobs {
		j := &jobs[i]
		switch tx := j.row.tx; {
		case j.row.undone:
			s.undo(ctx, j, nil)
		case tx != nil && !tx.settling() && j.s.Verdict.Action == settle.ActionAck:
			j.s.Err = lostRow(s.source, j.row.id) // what it wrote is undone
		case tx == nil || tx.closed.Load():
			rest = append(rest, *j)
		case j.s.Verdict.Action == settle.ActionAck:
			if s.commitTx(ctx, j, tx) {
				rest = append(rest, *j)
			}
		case tx.undo != nil && j.s.Verdict.Action != settle.ActionRelease && s.settleUndone(ctx, j, tx):
		case tx.abandon(ctx):
			rest = append(rest, *j)
		default:
			j.s.Err = fmt.Errorf("%s: row %s: its handler still uses the transaction", s.source, idText(j.row.id))
		}
	}
	if len(rest) > 0 && s.busy() {
		for _, j := range rest {
			j.s.Err = fmt.Errorf("%s: row %s: %w", s.source, idText(j.row.id), errInTx)
		}
		return nil
	}
	return rest
}

// settleUndone takes back what the handler, which has returned, wrote and settles the row
// in the same transaction, so that it does not wait behind other writers while its lease
// runs out. It reports false where that did not go, and the transaction is to be ended.
func (s *session) settleUndone(ctx context.Context, j *job, tx *openTx) bool {
	if tx.undo(s.bound(ctx)) != nil {
		return false
	}
	touched, err := s.apply(ctx, tx.exec, j.row, j.s.Verdict)
	if err != nil {
		return false
	}
	if !touched {
		j.s.Err = errors.Join(lostRow(s.source, j.row.id), tx.rollback())
	} else if tx.commit() != nil {
		j.row.unsure = true
		return false
	}
	tx.over()
	return true
}

// commitTx settles a row in its handler's transaction and commits that. It
// reports whether the row is still to be settled, without a transaction: when
// the handler has ended that itself.
func (s *session) commitTx(ctx context.Context, j *job, tx *openTx) (again bool) {
	r := j.row
	if span := s.layout.lease(); span > 0 && time.Since(s.epoch)-tx.since >= span {
		j.s.Err = errors.Join(lostRow(s.source, r.id), tx.rollback())
		tx.over()
		return false
	}
	// A database may have rolled back by itself: after that a settlement would be
	// committed alone, without what the handler wrote.
	var touched bool
	var err error
	if tx.intact != nil {
		err = tx.intact(s.bound(ctx))
	}
	if err == nil {
		touched, err = s.apply(ctx, tx.exec, r, j.s.Verdict)
	}
	switch {
	case err == nil && !touched:
		j.s.Err = errors.Join(lostRow(s.source, r.id), tx.rollback())
	case err == nil:
		if err = tx.commit(); err == nil {
			j.s.Err = nil
		}
	}
	if err != nil {
		_ = tx.rollback()
	}
	tx.over()
	switch {
	case err == nil:
		return false
	case tx.ended(err):
		s.reg.Logger.Warn("a handler ended its transaction itself, so its writes and its settlement were not one", "id", r.ID)
		return true
	default:
		s.undo(ctx, j, err)
		return false
	}
}

// undo frees a row whose transaction did not commit: what its handler wrote is
// gone, so the message must come again and cannot be acknowledged any more.
// Where the row is not there to be freed, the transaction did commit.
func (s *session) undo(ctx context.Context, j *job, cause error) {
	r := j.row
	r.undone = true
	vs := s.values()
	vs.id, vs.attempt, vs.token = r.id, r.attempt, r.token
	var touched bool
	err := s.run.run(ctx, func(ex Execer) (err error) {
		touched, err = s.exec(ctx, ex, eventFree, &vs)
		return err
	})
	switch {
	case err != nil:
		j.s.Err = fmt.Errorf("%s: row %s: whether its transaction committed is not known yet: %w", s.source, idText(r.id), errors.Join(cause, err))
	case touched:
		j.s.Err = settle.Permanent(fmt.Errorf("%s: row %s: its transaction did not commit, so the handler's writes are undone and the message comes again: %w",
			s.source, idText(r.id), errors.Join(cause, errUndone)))
	case s.form.ours(r):
		j.s.Err = nil
	default:
		j.s.Err = lostRow(s.source, r.id)
	}
}

var errUndone = errors.New("the transaction is rolled back")
