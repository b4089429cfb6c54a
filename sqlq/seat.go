package sqlq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// seat is a connection of its own for the rows of one claim, as long as one of
// them is in work: it has their locks, or the transaction of their handler.
type seat struct {
	of   *seats
	conn Conn
	// use is the right to use the connection: whoever has the token. A handler
	// with a transaction uses the connection without it, see enter.
	use chan struct{}

	// What follows belongs to whoever has use.
	tx     Tx             // nil: none is open
	mark   sql.NullString // what Committed needs to know of the transaction
	unsure bool           // what was settled last may be committed
	dead   error          // why the rows are not held any more; nil: they are

	// What follows is guarded by the mutex of seats.
	rows    []*row // what was claimed
	left    int    // of them, in work
	since   time.Time
	handler bool // a handler has the transaction
	killed  bool // while a handler had it
	gone    bool // given back
}

func (st *seat) take(ctx context.Context) error {
	select {
	case st.use <- struct{}{}:
		return nil
	default:
	}
	select {
	case st.use <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the connection of a delivery: %w", context.Cause(ctx))
	}
}

func (st *seat) try() bool {
	select {
	case st.use <- struct{}{}:
		return true
	default:
		return false
	}
}

func (st *seat) put() { <-st.use }

// enter says that a handler has the transaction now; exit, that it has returned.
// enter reports false where it is too late for that.
func (st *seat) enter() bool {
	st.of.mu.Lock()
	defer st.of.mu.Unlock()
	st.handler = !st.killed && !st.gone
	return st.handler
}

func (st *seat) exit() {
	st.of.mu.Lock()
	st.handler = false
	killed := st.killed
	st.of.mu.Unlock()
	if killed {
		st.of.leave(st)
	}
}

// seize takes the connection from its handler, if that has it. It reports
// whether the connection can be used; else it is ended, which undoes what the handler
// wrote, and closed when the handler returns.
func (st *seat) seize() bool {
	st.of.mu.Lock()
	free := !st.handler
	st.killed = st.killed || !free
	st.of.mu.Unlock()
	if !free {
		st.conn.Kill()
	}
	return free
}

// seats are those of one session.
type seats struct {
	s    *session
	room chan struct{} // a token for each seat that is taken
	lost func(*seat)   // what a form has to forget of rows that are not held any more; nil: nothing

	mu   sync.Mutex // guards open, and what seat says it guards
	open map[*seat]struct{}

	stop    context.CancelFunc
	watcher sync.WaitGroup
}

const (
	// watchEvery is how often the connections of deliveries in work are looked
	// at, so that a handler whose connection is lost hears of it.
	watchEvery  = time.Second
	pingTimeout = 5 * time.Second
)

func newSeats(s *session, room int) *seats {
	ctx, cancel := context.WithCancel(context.Background())
	f := &seats{s: s, room: make(chan struct{}, room), open: make(map[*seat]struct{}), stop: cancel}
	if !s.transactional {
		f.watcher.Go(func() { f.watch(ctx) })
	}
	return f
}

// sit takes a connection for a claim.
func (f *seats) sit(ctx context.Context) (*seat, error) {
	select {
	case f.room <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-f.s.stopped:
		return nil, errStopped
	}
	call, cancel := f.s.patient(ctx)
	defer cancel()
	conn, err := f.s.queue.db.DB.Conn(call)
	if err != nil {
		<-f.room
		return nil, fmt.Errorf("taking a connection: %w", err)
	}
	return &seat{of: f, conn: conn, use: make(chan struct{}, 1)}, nil
}

// seated keeps the seat for rows that were claimed at the given time.
func (f *seats) seated(st *seat, rows []*row, at time.Duration) {
	for _, r := range rows {
		r.seat = st
	}
	f.mu.Lock()
	st.rows, st.left, st.since = rows, len(rows), time.Now()
	f.open[st] = struct{}{}
	f.mu.Unlock()
	f.s.work.add(rows, at)
}

// leave gives the connection back; whoever calls it has use, where the seat is watched. One that a handler still has is ended, and
// given back when the handler returns.
func (f *seats) leave(st *seat) {
	f.mu.Lock()
	busy, gone := st.handler, st.gone
	st.killed = st.killed || busy
	st.gone = !busy
	if !busy {
		delete(f.open, st)
	}
	f.mu.Unlock()
	switch {
	case gone:
	case busy:
		st.conn.Kill()
	default:
		_ = st.conn.Close()
		<-f.room
	}
}

// bury ends a connection that is of no use any more. What it held is not held now.
func (f *seats) bury(st *seat, why error) {
	st.conn.Kill()
	f.retire(st, why)
}

// retire gives back a connection that does not hold its rows any more.
func (f *seats) retire(st *seat, why error) {
	f.end(st, why)
	f.leave(st)
}

// end notes that a connection does not hold its rows any more.
func (f *seats) end(st *seat, why error) {
	st.dead, st.tx = why, nil
	f.mu.Lock()
	rows := st.rows
	f.mu.Unlock()
	for _, r := range rows {
		f.s.floor.lower(r)
	}
	if f.lost != nil {
		f.lost(st)
	}
}

// over is the end of a transaction of which it cannot be told whether it committed.
const over = 2

// ended asks how the transaction ended: 1 committed, 0 rolled back, 2 over, nil not yet, or not to be known.
func (f *seats) ended(ctx context.Context, mark sql.NullString) (known *int, err error) {
	s := f.s
	if s.texts.committed == nil || !mark.Valid {
		return nil, nil
	}
	vs := s.values()
	vs.transaction = mark.String
	_, err = queryOne(ctx, s.queue.db.DB, s.texts.committed.sql, s.texts.committed.args(&vs), &known)
	return known, err
}

// freed says that a row is no longer in work, and reports whether its seat has none left.
func (f *seats) freed(r *row) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.seat.left--
	return r.seat.left == 0
}

// watch looks at the connections of deliveries that are long in work.
func (f *seats) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, st := range f.quiet() {
			if st.try() {
				f.look(ctx, st)
				st.put()
			}
		}
	}
}

// quiet returns the seats that have not been looked at for a while.
func (f *seats) quiet() []*seat {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*seat
	for st := range f.open {
		if time.Since(st.since) >= watchEvery/2 {
			st.since = time.Now()
			all = append(all, st)
		}
	}
	return all
}

// look pings a connection and tells the handlers of its rows if it is lost.
func (f *seats) look(ctx context.Context, st *seat) {
	f.mu.Lock()
	gone := st.gone
	f.mu.Unlock()
	if st.dead != nil || gone {
		return
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	err := st.conn.Ping(call)
	cancel()
	if err == nil {
		return
	}
	f.bury(st, err)
	f.tell(st, err)
}

// tell has the handlers of a seat's rows know that these are theirs no more.
func (f *seats) tell(st *seat, why error) {
	f.mu.Lock()
	rows := st.rows
	f.mu.Unlock()
	for _, r := range rows {
		f.s.work.mu.Lock()
		inWork := r.state == rowIdle
		f.s.work.mu.Unlock()
		if inWork {
			f.s.reg.Notify(settle.Notice{Kind: settle.NoticeLeaseLost, Delivery: &r.Delivery, Err: lostLock(f.s.source, r, why)})
		}
	}
}

func lostLock(source string, r *row, why error) error {
	return fmt.Errorf("%w: its lock is gone: %w", lostRow(source, r.id), why)
}

// bySeat groups the jobs of one call by their connections.
func bySeat(jobs []job) [][]*job {
	var groups [][]*job
	at := make(map[*seat]int, 1)
	for i := range jobs {
		st := jobs[i].row.seat
		n, ok := at[st]
		if !ok {
			n = len(groups)
			at[st] = n
			groups = append(groups, nil)
		}
		groups[n] = append(groups[n], &jobs[i])
	}
	return groups
}

// all returns the seats that are open, at the end of the session.
func (f *seats) all() []*seat {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*seat
	for st := range f.open {
		all = append(all, st)
	}
	return all
}

// close stops watching.
func (f *seats) close() {
	f.stop()
	f.watcher.Wait()
}

// vacate ends all connections, and with them what they hold.
func (f *seats) vacate() {
	for _, st := range f.all() {
		if st.seize() {
			st.use <- struct{}{} // nobody keeps it for long
			f.bury(st, errEnded)
			st.put()
		}
	}
}

var (
	errEnded = errors.New("the session has ended")
	errTaken = errors.New("its handler was still using it")
)
