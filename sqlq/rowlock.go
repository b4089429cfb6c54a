package sqlq

import (
	"context"
	"errors"
	"fmt"
)

// rowLock is the form of rows that the database itself has locked, in a
// transaction that is open as long as they are in work. What one claim took is settled
// in that transaction. A crash rolls it back: the rows are free at once, and the attempt
// does not count. Where a connection is lost under a live process, the attempt is counted
// afterwards, on another, or by who has the row by then, see [debts].
type rowLock struct {
	*seats
	one bool // handlers have the transaction
}

const (
	savepoint         = "SAVEPOINT settle_handler"
	rollbackSavepoint = "ROLLBACK TO SAVEPOINT settle_handler"
)

func openRowLock(s *session) *rowLock {
	return &rowLock{seats: newSeats(s, s.reg.Workers), one: s.transactional}
}

func (f *rowLock) claim(ctx context.Context, n int) ([]*row, error) {
	st, err := f.sit(ctx)
	if err != nil {
		return nil, err
	}
	call, cancel := f.s.patient(ctx)
	defer cancel()
	rows, err := f.lock(call, st, n)
	if err != nil || len(rows) == 0 {
		f.leave(st)
		return nil, err
	}
	f.seated(st, rows, 0)
	return rows, nil
}

// lock begins a transaction and locks up to n rows in it. Where there are none
// it leaves no transaction open.
func (f *rowLock) lock(ctx context.Context, st *seat, n int) (rows []*row, err error) {
	s := f.s
	scan := newScanner(s.layout)
	claim := s.texts.claim
	if n == s.reg.Batch {
		claim = s.texts.claimFull
	}
	look := s.floor.look(claim)
	vs := s.values()
	vs.limit = int64(n)
	steps := func() []Step {
		look.bind(&vs)
		all := []Step{s.claimStep(claim, &vs, &rows, scan)}
		if f.one {
			all = append(append(all, s.lend()...), Step{SQL: savepoint})
		}
		return all
	}
	st.tx, err = st.conn.Begin(ctx, steps()...)
	if err == nil && len(rows) == 0 && look.again() {
		err = st.tx.Batch(ctx, steps())
	}
	if err == nil {
		look.found(rows)
		st.mark = scan.mark
		for _, r := range rows {
			r.Attempt += s.shared.debts.of(r)
		}
	}
	if (err != nil || len(rows) == 0) && st.tx != nil {
		err = errors.Join(err, st.tx.Rollback(ctx))
	}
	return rows, err
}

func (f *rowLock) settle(ctx context.Context, jobs []job) {
	for _, group := range bySeat(jobs) {
		f.settleSeat(ctx, group[0].row.seat, group)
	}
}

// settleSeat settles the rows of one transaction, which ends with that.
func (f *rowLock) settleSeat(ctx context.Context, st *seat, todo []*job) {
	if !st.seize() { // its handler was still at it: the transaction is gone with the connection
		for _, j := range todo {
			j.s.Err = f.counted(ctx, j, errTaken)
		}
		return
	}
	if err := st.take(ctx); err != nil {
		f.s.fail(todo, err)
		return
	}
	defer st.put()
	if st.dead != nil {
		f.settleDead(ctx, st, todo)
		return
	}
	err := f.commit(ctx, st, todo)
	var after *AfterError
	switch {
	case err == nil, errors.As(err, &after):
		st.tx = nil
		f.s.conclude(todo)
		f.paid(todo)
		f.leave(st)
	case errors.Is(err, errCounted):
		st.tx = nil
		f.paid(todo)
		todo[0].s.Err = lostLock(f.s.source, todo[0].row, err)
		f.leave(st)
	case errors.Is(err, errUntouched):
		f.fallen(ctx, st, err, todo)
	case unknown(err):
		st.unsure = true
		st.conn.Kill()
		f.fallen(ctx, st, err, todo)
	default:
		f.refused(ctx, st, todo, err)
	}
}

// errUntouched says that a handler's transaction was rolled back because its row was not there any more.
var errUntouched = errors.New("the row was not there any more when it was to be settled; a handler leaves its own row alone, Ack removes it")

// commit makes the verdicts true in the transaction and commits it. Where the
// handler had the transaction, only an ack keeps what it wrote.
func (f *rowLock) commit(ctx context.Context, st *seat, todo []*job) error {
	s := f.s
	var undo []Step
	if f.one && s.event(todo[0]) != eventAck {
		undo = []Step{{SQL: rollbackSavepoint}}
	}
	undo = append(undo, f.bumps(todo)...)
	if s.inLists(todo) && (!f.one || s.event(todo[0]) != eventAck) {
		return st.tx.Commit(ctx, append(undo, s.steps(todo)...), nil)
	}
	err := st.tx.Batch(ctx, undo)
	if err == nil {
		_, err = s.applyAll(ctx, st.tx, todo)
	}
	if err == nil && f.one && !todo[0].touched {
		err = errUntouched // so what the handler wrote is not committed either
	}
	if err == nil {
		return st.tx.Commit(ctx, nil, nil)
	}
	if f.one && s.event(todo[0]) == eventAck && f.countUndone(ctx, st, todo[0]) == nil {
		return errors.Join(errCounted, err)
	}
	return errors.Join(err, st.tx.Rollback(ctx))
}

// errCounted says that an acknowledgement could not be made true: what the handler wrote is undone, and the attempt counted.
var errCounted = errors.New("the handler's transaction is rolled back, and the message comes again")

// countUndone takes back what a handler wrote and counts its attempt, in its own transaction, so that nobody
// has the row meanwhile.
func (f *rowLock) countUndone(ctx context.Context, st *seat, j *job) error {
	s := f.s
	if s.texts.bump == nil {
		return errUndone
	}
	steps := []Step{{SQL: rollbackSavepoint}}
	for range s.shared.debts.of(j.row) + 1 {
		vs := s.valuesOf(j.row)
		steps = append(steps, Step{SQL: s.texts.bump.sql, Args: s.texts.bump.args(&vs)})
	}
	return st.tx.Commit(ctx, steps, nil)
}

// bumps are the steps that count what is owed for rows, before their settlement counts
// the attempt that ends with it.
func (f *rowLock) bumps(todo []*job) []Step {
	s := f.s
	var all []Step
	for _, j := range todo {
		switch s.event(j) {
		case eventRetry, eventRetryAfter, eventDeadLetter:
			for range s.shared.debts.of(j.row) {
				vs := s.valuesOf(j.row)
				all = append(all, Step{SQL: s.texts.bump.sql, Args: s.texts.bump.args(&vs)})
			}
		}
	}
	return all
}

// paid forgets what was owed for rows that are settled.
func (f *rowLock) paid(todo []*job) {
	for _, j := range todo {
		if f.s.event(j) != eventRelease {
			f.s.shared.debts.paid(debtOf(j.row))
		}
	}
}

// refused goes on where the database did not take a statement, and has rolled
// the transaction back: it locks the rows again. Of several each is tried by itself, and only those that are
// refused again are left for later.
func (f *rowLock) refused(ctx context.Context, st *seat, todo []*job, cause error) {
	s := f.s
	if f.one && s.event(todo[0]) == eventAck {
		f.fallen(ctx, st, errors.Join(cause, errUndone), todo)
		return
	}
	held, err := f.relock(ctx, st, todo)
	if err != nil {
		st.conn.Kill()
		f.fallen(ctx, st, errors.Join(cause, err), todo)
		return
	}
	if len(held) > 1 {
		f.oneByOne(ctx, st, held)
		return
	}
	s.fail(held, cause)
	if len(held) == 0 {
		f.rollback(ctx, st)
	}
}

// relock begins another transaction and locks the rows in it again. Those that
// somebody else has, or has had, are lost.
func (f *rowLock) relock(ctx context.Context, st *seat, todo []*job) (held []*job, err error) {
	s := f.s
	steps := make([]Step, 0, len(todo)+2)
	for _, j := range todo {
		vs := s.valuesOf(j.row)
		steps = append(steps, Step{SQL: s.texts.relock.sql, Args: s.texts.relock.args(&vs), Rows: func(rows Rows) error {
			if j.touched = rows.Next(); !j.touched {
				return nil
			}
			held = append(held, j)
			if s.texts.committed == nil {
				return nil
			}
			var id any
			return rows.Scan(&id, &st.mark)
		}})
	}
	if f.one {
		steps = append(steps, Step{SQL: savepoint})
	}
	st.tx = nil
	tx, err := st.conn.Begin(ctx, steps...)
	if err != nil {
		return nil, err
	}
	st.tx = tx
	for _, j := range todo {
		if j.touched {
			continue
		}
		if s.texts.count != nil && s.event(j) != eventRelease {
			s.shared.debts.add(j.row) // who has it now counts for us
		}
		j.s.Err = lostRow(s.source, j.row.id)
	}
	return held, nil
}

// oneByOne settles rows in one transaction, each behind a savepoint of its own.
func (f *rowLock) oneByOne(ctx context.Context, st *seat, todo []*job) {
	s := f.s
	var good, bad []*job
	for _, j := range todo {
		err := st.tx.Batch(ctx, []Step{{SQL: savepoint}})
		if err == nil {
			one := []*job{j}
			if err = st.tx.Batch(ctx, f.bumps(one)); err == nil {
				_, err = s.applyAll(ctx, st.tx, one)
			}
			if err == nil {
				good = append(good, j)
				continue
			}
		}
		s.fail([]*job{j}, err)
		bad = append(bad, j)
		if err := st.tx.Batch(ctx, []Step{{SQL: rollbackSavepoint}}); err != nil {
			st.conn.Kill()
			f.fallen(ctx, st, err, todo)
			return
		}
	}
	if err := st.tx.Commit(ctx, nil, nil); err != nil {
		st.unsure = unknown(err)
		st.conn.Kill()
		f.fallen(ctx, st, err, good, bad)
		return
	}
	s.conclude(good)
	f.paid(good)
	if len(bad) == 0 {
		f.leave(st)
		return
	}
	errs := make([]error, len(bad))
	for i, j := range bad {
		errs[i] = j.s.Err
	}
	held, err := f.relock(ctx, st, bad)
	if err != nil {
		st.conn.Kill()
		f.fallen(ctx, st, err, bad)
		return
	}
	for i, j := range bad {
		if j.touched {
			j.s.Err = errs[i]
		}
	}
	if len(held) == 0 {
		f.rollback(ctx, st)
	}
}

// rollback ends a transaction that has no rows any more.
func (f *rowLock) rollback(ctx context.Context, st *seat) {
	if err := st.tx.Rollback(ctx); err != nil {
		f.bury(st, err)
		return
	}
	st.tx = nil
	f.leave(st)
}

// fallen ends a seat whose rows are not held any more. Their attempts are counted before it
// is given back, so that no claim of this session comes before that where it need not.
func (f *rowLock) fallen(ctx context.Context, st *seat, why error, groups ...[]*job) {
	f.end(st, why)
	for _, todo := range groups {
		f.settleDead(ctx, st, todo)
	}
	f.leave(st)
}

// settleDead finds out what became of rows whose connection is lost: their
// transaction is committed, or it is rolled back and the attempt is counted now.
func (f *rowLock) settleDead(ctx context.Context, st *seat, todo []*job) {
	s := f.s
	committed, err := f.committed(ctx, st, todo)
	for _, j := range todo {
		switch {
		case err != nil:
			s.fail([]*job{j}, err)
		case committed:
			j.s.Err = nil
		default:
			j.s.Err = f.counted(ctx, j, st.dead)
		}
	}
}

// committed reports whether the transaction of a dead seat took effect.
func (f *rowLock) committed(ctx context.Context, st *seat, todo []*job) (bool, error) {
	s := f.s
	if !st.unsure {
		return false, nil
	}
	if s.texts.committed == nil || !st.mark.Valid {
		return s.vanished(ctx, todo[0].row)
	}
	known, err := f.ended(ctx, st.mark)
	_, named := st.conn.(Named) // a name may be another's by now
	switch {
	case known == nil && err == nil && named && !todo[0].row.asked():
		return s.vanished(ctx, todo[0].row)
	case known == nil:
		return false, fmt.Errorf("whether its transaction committed is not known yet: %w", errors.Join(st.dead, err))
	case *known == over:
		return s.vanished(ctx, todo[0].row)
	}
	return *known == 1, nil
}

// asked reports whether the runtime is to ask once more, and counts that.
func (r *row) asked() bool {
	r.asks++
	return r.asks <= mostAsks
}

// mostAsks is how often the runtime is let ask again while a row that is to be
// counted is locked: by the server's end of the lost connection, for a moment, or by somebody who has it.
const mostAsks = 5

// counted counts the attempt of a row that was rolled back, and returns what its delivery is told.
func (f *rowLock) counted(ctx context.Context, j *job, why error) error {
	s, r := f.s, j.row
	if s.event(j) == eventRelease {
		return nil
	}
	if s.texts.count == nil {
		return lostLock(s.source, r, why)
	}
	done, err := f.count(ctx, r)
	if err == nil && !done {
		err = f.yielded(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("%s: counting the attempt of row %s, which is not held any more: %w", s.source, idText(r.id), errors.Join(why, err))
	}
	return lostLock(s.source, r, why)
}

// count counts the attempt of a row that nobody has, and what is owed for it. It reports
// false where somebody has the row, or had it.
func (f *rowLock) count(ctx context.Context, r *row) (done bool, err error) {
	s, of := f.s, debtOf(r)
	for range s.shared.debts.of(r) + 1 {
		vs := s.valuesOf(r)
		n, err := s.texts.count.exec(ctx, s.queue.db.DB, &vs)
		if err != nil || n == 0 {
			return false, err
		}
		r.attempt++
	}
	s.shared.debts.paid(of)
	return true, nil
}

// yielded returns an error as long as a row that was not counted may be locked by the
// lost connection alone. Once that is over it is somebody else's, who counts for us.
func (f *rowLock) yielded(ctx context.Context, r *row) error {
	known, err := f.ended(ctx, r.seat.mark)
	if err != nil {
		return err
	}
	gone, err := f.s.vanished(ctx, r)
	switch {
	case err != nil || gone:
		return err
	case known == nil && r.asked():
		return errLocked
	}
	f.s.shared.debts.add(r)
	return nil
}

var errLocked = errors.New("the row is locked")

// ours is always false: whether a row is still locked only its transaction knows.
func (f *rowLock) ours(*row) bool { return false }

func (f *rowLock) freed(r *row) { f.seats.freed(r) }

// giveBack ends the connections of rows that were never settled, which frees
// them, and counts their attempts.
func (f *rowLock) giveBack(ctx context.Context, left []*row) error {
	s := f.s
	f.vacate()
	if s.texts.count == nil {
		return nil
	}
	var errs []error
	for _, r := range left {
		if _, err := f.count(ctx, r); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var _ form = (*rowLock)(nil)
