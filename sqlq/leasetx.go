package sqlq

import (
	"context"
	"errors"

	"github.com/settlemq/settle"
)

// leaseTx is the lease of deliveries whose handlers have a transaction, on a
// database with room for several writers. The transaction does not touch the row until it is
// settled, so the lease is renewed meanwhile; a lease that is lost rolls it back.
type leaseTx struct {
	*lease
	seats *seats
}

func openLeaseTx(s *session) *leaseTx {
	return &leaseTx{lease: openLease(s), seats: newSeats(s, s.reg.Workers)}
}

func (f *leaseTx) claim(ctx context.Context, n int) ([]*row, error) {
	st, err := f.seats.sit(ctx)
	if err != nil {
		return nil, err
	}
	call, cancel := f.s.patient(ctx)
	defer cancel()
	rows, began, err := f.take(call, n)
	if err == nil && len(rows) > 0 {
		if st.tx, err = st.conn.Begin(call, f.s.lend()...); err != nil {
			err = errors.Join(err, f.s.unclaimed(call, rows))
		}
	}
	if err != nil || len(rows) == 0 {
		f.seats.leave(st)
		return nil, err
	}
	f.seats.seated(st, rows, began)
	return rows, nil
}

func (f *leaseTx) settle(ctx context.Context, jobs []job) {
	var rest []job
	for _, j := range jobs {
		if f.settleTx(ctx, &j) {
			rest = append(rest, j)
		}
	}
	if len(rest) > 0 {
		f.s.settleTogether(ctx, rest)
	}
}

// settleTx ends the transaction of a delivery: an ack commits it with the
// settlement, anything else rolls it back. It reports whether the row is still to be
// settled, as any other is.
func (f *leaseTx) settleTx(ctx context.Context, j *job) bool {
	s, st := f.s, j.row.seat
	if !st.seize() {
		return true
	}
	if err := st.take(ctx); err != nil {
		s.fail([]*job{j}, err)
		return false
	}
	defer st.put()
	tx := st.tx
	if tx == nil {
		if j.row.undone {
			s.undo(ctx, j, nil)
			return false
		}
		return true
	}
	st.tx = nil
	defer f.seats.leave(st)
	if j.s.Verdict.Action != settle.ActionAck {
		if err := tx.Rollback(ctx); err != nil {
			st.conn.Kill()
		}
		return true
	}
	one := []*job{j}
	_, err := s.applyAll(ctx, tx, one)
	if err == nil && !j.touched {
		err = errUntouched
	}
	if err != nil {
		_ = tx.Rollback(ctx)
	} else {
		err = tx.Commit(ctx, nil, nil)
	}
	switch {
	case err == nil, errors.Is(err, errUntouched):
		s.conclude(one)
	default:
		s.undo(ctx, j, err)
	}
	return false
}

// freed gives back the connection of a row whose lease a renewal has found lost: its settlement
// does not come to that. What its handler wrote is rolled back.
func (f *leaseTx) freed(r *row) {
	f.seats.freed(r)
	st := r.seat
	if !st.seize() {
		return // given back when its handler returns
	}
	st.use <- struct{}{} // nobody keeps it for long
	defer st.put()
	if tx := st.tx; tx != nil {
		st.tx = nil
		if tx.Rollback(context.Background()) != nil {
			st.conn.Kill()
		}
	}
	f.seats.leave(st)
}

// close ends the connections of handlers that are not done as well: their rows may be lost already, so
// that nobody gives them back.
func (f *leaseTx) close() {
	f.seats.close()
	f.lease.close()
	f.seats.vacate()
}

func (f *leaseTx) giveBack(ctx context.Context, left []*row) error {
	f.seats.vacate()
	return f.lease.giveBack(ctx, left)
}

var _ form = (*leaseTx)(nil)
