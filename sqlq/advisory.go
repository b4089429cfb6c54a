package sqlq

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/settlemq/settle"
)

// advisoryLock is the form of a row that is held by a lock with a name, where the
// locks live in this process: the database has none. Nobody else may work on
// the table; Shared.Exclude sees to that.
type advisoryLock struct {
	s *session
}

// A claim looks at so many rows more than it may take, in the hope that not all
// have the same lock.
const moreCandidates = 16

// claim finds rows that are due, takes the locks that are free, and counts the
// attempt of those rows if they are still due. All of it is one transaction.
func (a *advisoryLock) claim(ctx context.Context, n int) ([]*row, error) {
	s := a.s
	var rows []*row
	scan := newScanner(s.layout)
	err := s.run.run(ctx, func(ex Execer) error {
		a.unlock(rows) // of a run that failed
		rows = rows[:0]
		ids, names, err := a.candidates(ex, n)
		if err != nil {
			return err
		}
		vs := s.values()
		for i := 0; i < len(ids) && len(rows) < n; i++ {
			name := lockName{s.queue.line.schema, s.queue.line.table, names[i]}
			if !s.shared.locks.take(name) {
				continue
			}
			had := len(rows)
			vs.id = ids[i]
			rows, err = s.query(ex, s.texts.take, &vs, rows, scan)
			if len(rows) == had {
				s.shared.locks.free(name)
			} else {
				rows[had].lock = names[i]
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		a.unlock(rows)
		return nil, err
	}
	s.work.add(rows, 0)
	return rows, nil
}

// candidates returns the ids of rows that are due and the names of their locks.
func (a *advisoryLock) candidates(ex Execer, n int) (ids []any, names []string, err error) {
	s := a.s
	held, err := json.Marshal(s.shared.locks.of(s.queue.line.schema, s.queue.line.table))
	if err != nil {
		return nil, nil, fmt.Errorf("the names of the locks held: %w", err)
	}
	vs := s.values()
	vs.limit, vs.held = int64(n+moreCandidates), string(held)
	st := s.texts.candidates
	rows, err := ex.Query(context.Background(), st.sql, st.args(&vs)...)
	if err != nil {
		return nil, nil, err
	}
	for rows.Next() {
		var id any
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			_ = rows.Close()
			return nil, nil, err
		}
		ids, names = append(ids, id), append(names, name)
	}
	err = rows.Err()
	if closed := rows.Close(); err == nil {
		err = closed
	}
	return ids, names, err
}

// query runs a claim and collects its rows. It is not under a context, see [session.bound].
func (s *session) query(ex Execer, st *statement, vs *values, into []*row, scan *scanner) ([]*row, error) {
	rows, err := ex.Query(context.Background(), st.sql, st.args(vs)...)
	if err != nil {
		return into, err
	}
	return s.collect(into, rows, scan)
}

func (a *advisoryLock) unlock(rows []*row) {
	for _, r := range rows {
		a.freed(r)
	}
}

func (a *advisoryLock) freed(r *row) {
	l := a.s.queue.line
	a.s.shared.locks.free(lockName{l.schema, l.table, r.lock})
}

// ours is always true: what this session has locked nobody else takes.
func (a *advisoryLock) ours(*row) bool { return true }

func (a *advisoryLock) settle(ctx context.Context, jobs []job) { a.s.settleTogether(ctx, jobs) }

func (a *advisoryLock) giveBack(ctx context.Context, left []*row) error {
	return a.s.run.run(ctx, func(ex Execer) error { return a.s.free(ctx, ex, left) })
}

func (a *advisoryLock) close() {}

var _ form = (*advisoryLock)(nil)

var _ settle.Consumer = (*session)(nil)
