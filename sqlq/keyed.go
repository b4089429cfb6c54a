package sqlq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// keyed is the form of rows that are held by advisory locks of the database: a
// session's locks, on a connection that the rows of one claim have to themselves. The claim takes
// the locks first and then counts the attempts of the rows that are still due, so
// a crash spends an attempt and frees the rows at once. Rows are settled on the connection that
// has their locks, so that a delivery whose lock is lost settles nothing.
type keyed struct {
	*seats

	mu   sync.Mutex  // guards held, and the key of rows
	held map[any]int // the locks this session has
}

func openKeyed(s *session) *keyed {
	f := &keyed{seats: newSeats(s, s.reg.Workers), held: make(map[any]int)}
	f.lost = f.forget
	return f
}

// A claim tries leastTries candidates beside what it may take, and where all of them have
// locks that others hold, mostTries once, without those that somebody has.
const (
	leastTries = 16
	mostTries  = 4096
)

func (f *keyed) claim(ctx context.Context, n int) ([]*row, error) {
	st, err := f.sit(ctx)
	if err != nil {
		return nil, err
	}
	call, cancel := f.s.patient(ctx)
	defer cancel()
	rows, err := f.lock(call, st, n)
	if err != nil {
		f.bury(st, err) // it may have locks
		return nil, err
	}
	if len(rows) == 0 {
		f.leave(st)
		return nil, nil
	}
	if f.s.transactional {
		if st.tx, err = st.conn.Begin(call, f.s.lend()...); err != nil {
			for _, r := range rows { // which are not the seat's yet
				f.drop(r)
			}
			f.bury(st, err)
			return nil, errors.Join(err, f.s.unclaimed(call, rows))
		}
	}
	f.seated(st, rows, 0)
	return rows, nil
}

// lock takes the locks of up to n rows that are due, and then the rows.
func (f *keyed) lock(ctx context.Context, st *seat, n int) ([]*row, error) {
	s := f.s
	look := s.floor.look(s.texts.seize)
	vs := s.values()
	vs.limit, vs.scan = int64(n), int64(n+leastTries)
	vs.held = f.locks(nil)
	look.bind(&vs)
	ids, locks, err := f.seize(ctx, st, &vs)
	if err == nil && len(ids) == 0 {
		look.again()
		vs.scan = mostTries
		look.bind(&vs)
		var others []any
		if others, err = f.others(ctx, st); err == nil {
			vs.held = f.locks(others)
			ids, locks, err = f.seize(ctx, st, &vs)
		}
	}
	if err != nil || len(ids) == 0 {
		if err == nil {
			look.found(nil)
		}
		return nil, err
	}
	rows, err := f.take(ctx, st, ids)
	if err != nil {
		return nil, err
	}
	if len(rows) < len(ids) {
		if err := f.unlockOthers(ctx, st, rows, ids, locks); err != nil {
			return nil, err
		}
	}
	f.keep(rows, ids, locks)
	look.found(rows)
	return rows, nil
}

// seize takes locks and returns the rows they are of.
func (f *keyed) seize(ctx context.Context, st *seat, vs *values) (ids, locks []any, err error) {
	text := f.s.texts.seize
	step := Step{SQL: text.sql, Args: text.args(vs), Walk: true, Rows: func(rows Rows) error {
		ids, locks = ids[:0], locks[:0]
		for rows.Next() {
			var id, lock any
			if err := rows.Scan(&id, &lock); err != nil {
				return err
			}
			ids, locks = append(ids, id), append(locks, lock)
		}
		return nil
	}}
	err = st.conn.Batch(ctx, []Step{step})
	return ids, locks, err
}

// take counts the attempts of those rows that are still due, now that nobody
// else can take them, and returns them.
func (f *keyed) take(ctx context.Context, st *seat, ids []any) (rows []*row, err error) {
	s := f.s
	vs := s.values()
	vs.lists = &lists{ids: s.queue.db.Dialect.(Server).List(ids)}
	step := s.claimStep(s.texts.takeAll, &vs, &rows, newScanner(s.layout))
	if err := st.conn.Batch(ctx, []Step{step}); err != nil {
		return nil, err
	}
	sortRows(rows)
	return rows, nil
}

// unlockOthers gives back the locks of rows that were not there any more.
func (f *keyed) unlockOthers(ctx context.Context, st *seat, rows []*row, ids, locks []any) error {
	taken := make(map[any]bool, len(rows))
	for _, r := range rows {
		taken[comparable1(r.id)] = true
	}
	var others []any
	for i, id := range ids {
		if !taken[comparable1(id)] {
			others = append(others, locks[i])
		}
	}
	unlocked := 0
	if err := st.conn.Batch(ctx, f.unlocks(others, &unlocked)); err != nil {
		return err
	}
	if unlocked < len(others) {
		return errNotLocked
	}
	return nil
}

// comparable1 makes a key of a map of any id.
func comparable1(id any) any {
	if b, ok := id.([]byte); ok {
		return string(b)
	}
	return id
}

// errNotLocked says that the connection did not have a lock that it took.
var errNotLocked = errors.New("an advisory lock was not there any more: something between this process and the server hands one connection to several, or somebody else gave the lock back")

// unlocks gives locks back and counts in unlocked those that were there.
func (f *keyed) unlocks(locks []any, unlocked *int) []Step {
	text := f.s.texts.unlock
	steps := make([]Step, len(locks))
	for i, lock := range locks {
		vs := values{lock: lock}
		steps[i] = Step{SQL: text.sql, Args: text.args(&vs), Rows: func(rows Rows) error {
			var held *bool
			err := scanOne(rows, &held)
			if held != nil && *held {
				*unlocked++
			}
			return err
		}}
	}
	return steps
}

// keep notes the locks of rows, so that the next claims leave them out.
func (f *keyed) keep(rows []*row, ids, locks []any) {
	byID := make(map[any]any, len(ids))
	for i, id := range ids {
		byID[comparable1(id)] = locks[i]
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rows {
		r.key = byID[comparable1(r.id)]
		f.held[r.key]++
	}
}

// others returns the locks that anybody has now, so that a claim need not try their rows one
// by one; none where the database does not say.
func (f *keyed) others(ctx context.Context, st *seat) (locks []any, err error) {
	text := f.s.texts.busy
	if text == nil {
		return nil, nil
	}
	step := Step{SQL: text.sql, Rows: func(rows Rows) error {
		for rows.Next() {
			var lock any
			if err := rows.Scan(&lock); err != nil {
				return err
			}
			locks = append(locks, lock)
		}
		return nil
	}}
	return locks, step.run(ctx, st.conn)
}

// locks returns those that this session has, and more, as a list.
func (f *keyed) locks(more []any) any {
	f.mu.Lock()
	all := make([]any, 0, len(f.held)+len(more))
	all = append(all, more...)
	for lock := range f.held {
		all = append(all, lock)
	}
	f.mu.Unlock()
	return f.s.queue.db.Dialect.(Server).List(all)
}

func (f *keyed) settle(ctx context.Context, jobs []job) {
	for _, group := range bySeat(jobs) {
		f.settleSeat(ctx, group[0].row.seat, group)
	}
}

// settleSeat settles rows on the connection that has their locks, and gives the locks back.
func (f *keyed) settleSeat(ctx context.Context, st *seat, todo []*job) {
	if !st.seize() { // its handler was still at it: the locks are gone with the connection
		f.settleLost(ctx, todo, errTaken)
		return
	}
	if err := st.take(ctx); err != nil {
		f.s.fail(todo, err)
		return
	}
	defer st.put()
	f.settleOn(ctx, st, todo)
}

// settleOn is settleSeat for who has the connection. What a statement that the
// database does not take keeps from being settled is tried row by row.
func (f *keyed) settleOn(ctx context.Context, st *seat, todo []*job) {
	s := f.s
	if st.dead != nil {
		f.settleDead(ctx, st, todo)
		return
	}
	unlocked := 0
	err := f.commit(ctx, st, todo, &unlocked)
	var after *AfterError
	switch committed := err == nil || errors.As(err, &after); {
	case committed && unlocked == len(todo):
		s.conclude(todo)
	case committed:
		s.conclude(todo)
		err = errors.Join(errNotLocked, err)
		s.reg.Logger.Warn("an advisory lock could not be given back; its connection is closed", "error", err)
		f.lose(st, err)
	case unknown(err):
		st.unsure = true
		f.lose(st, err)
		f.settleDead(ctx, st, todo)
	case s.transactional && s.event(todo[0]) == eventAck:
		// What the handler wrote is undone, so the message has to come again.
		f.lose(st, errors.Join(errUndone, err))
		f.settleDead(ctx, st, todo)
	case st.conn.Ping(ctx) != nil:
		f.lose(st, err)
		f.settleDead(ctx, st, todo)
	case len(todo) > 1:
		for _, j := range todo {
			f.settleOn(ctx, st, []*job{j})
		}
	default:
		s.fail(todo, err)
	}
}

// lose ends a connection, and with it all locks that it has.
func (f *keyed) lose(st *seat, why error) {
	f.bury(st, why)
	f.tell(st, why)
}

// commit makes the verdicts true in a transaction and then gives the locks
// back. Where the handler had the transaction, only an ack keeps what it wrote.
func (f *keyed) commit(ctx context.Context, st *seat, todo []*job, unlocked *int) error {
	s := f.s
	locks := make([]any, len(todo))
	f.mu.Lock()
	for i, j := range todo {
		locks[i] = j.row.key
	}
	f.mu.Unlock()
	after := f.unlocks(locks, unlocked)
	tx := st.tx
	st.tx = nil
	if tx != nil && s.event(todo[0]) != eventAck {
		if err := tx.Rollback(ctx); err != nil {
			return err
		}
		tx = nil
	}
	if tx == nil && s.inLists(todo) {
		return st.conn.Transact(ctx, s.steps(todo), after)
	}
	if tx == nil {
		var err error
		if tx, err = st.conn.Begin(ctx); err != nil {
			return err
		}
	}
	_, err := s.applyAll(ctx, tx, todo)
	if err == nil && s.transactional && !todo[0].touched {
		err = errUntouched
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx, nil, after)
}

// settleDead finds out what became of rows whose connection is lost.
func (f *keyed) settleDead(ctx context.Context, st *seat, todo []*job) {
	if !st.unsure {
		f.settleLost(ctx, todo, st.dead)
		return
	}
	s := f.s
	// What the server was told before the connection was lost it may still be at.
	var mark sql.NullString
	if c, ok := st.conn.(Named); ok {
		mark.String = c.Name()
		mark.Valid = mark.String != ""
	}
	if known, err := f.ended(ctx, mark); err != nil || known == nil && mark.Valid && s.texts.committed != nil && todo[0].row.asked() {
		s.fail(todo, fmt.Errorf("whether its transaction committed is not known yet: %w", errors.Join(st.dead, err)))
		return
	}
	for _, j := range todo {
		switch gone, err := s.vanished(ctx, j.row); {
		case err != nil:
			s.fail([]*job{j}, fmt.Errorf("whether its transaction committed is not known yet: %w", errors.Join(st.dead, err)))
		case gone:
			j.s.Err = nil
		default:
			f.settleLost(ctx, []*job{j}, st.dead)
		}
	}
}

// settleLost tells of rows whose locks are gone. The attempts of those that no
// handler decided on are given back, if nobody has them by now.
func (f *keyed) settleLost(ctx context.Context, todo []*job, why error) {
	s := f.s
	for _, j := range todo {
		if s.event(j) != eventRelease {
			j.s.Err = lostLock(s.source, j.row, why)
			continue
		}
		one := []*job{j}
		if _, err := s.settleOnce(ctx, one); err != nil {
			s.fail(one, err)
		} else {
			j.s.Err = nil
		}
	}
}

// ours is always false: whether a lock is still there only its connection knows.
func (f *keyed) ours(*row) bool { return false }

// forget has claims see the rows of a seat whose locks are gone.
func (f *keyed) forget(st *seat) {
	f.seats.mu.Lock()
	rows := st.rows
	f.seats.mu.Unlock()
	for _, r := range rows {
		f.drop(r)
	}
}

// drop forgets the lock of a row, once.
func (f *keyed) drop(r *row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.key == nil {
		return
	}
	if f.held[r.key]--; f.held[r.key] <= 0 {
		delete(f.held, r.key)
	}
	r.key = nil
}

func (f *keyed) freed(r *row) {
	f.drop(r)
	if f.seats.freed(r) {
		r.seat.use <- struct{}{} // somebody may be looking at the connection; nobody does for long
		f.leave(r.seat)
		r.seat.put()
	}
}

// giveBack ends the connections of rows that were never settled, and with them
// their locks. What the claim wrote stays, so there is nothing else to do.
func (f *keyed) giveBack(context.Context, []*row) error {
	f.vacate()
	return nil
}

var _ form = (*keyed)(nil)

// scanOne reads one value; nil where there is no row.
func scanOne(rows Rows, into any) error {
	if !rows.Next() {
		return nil
	}
	return rows.Scan(into)
}
