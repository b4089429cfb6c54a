package sqlq

import (
	"context"
	"errors"
	"time"
)

// This file is about rows on lease that somebody else has locked, such as a person who looks
// at one with FOR UPDATE, or a handler that writes to its own row in another transaction. A statement about
// many rows would wait for that one, and all others with it until their leases are over.

// errForeign says that a row could not be written to.
var errForeign = errors.New("somebody else has the row locked")

// brief is the context of a statement about many rows. It ends soon where there is a
// way to go on without those that are locked.
func (s *session) brief(ctx context.Context) (context.Context, context.CancelFunc) {
	if p, ok := s.queue.db.Dialect.(Patient); s.texts.holding == nil || ok && p.Patient() {
		return ctx, func() {}
	}
	const least, most = 250 * time.Millisecond, time.Second
	return context.WithTimeout(ctx, min(max(s.layout.lease()/10, least), most))
}

// waited reports whether a statement under brief ended with err because somebody else has one of its rows locked.
func (s *session) waited(ctx, brief context.Context, err error) bool {
	if p, ok := s.queue.db.Dialect.(Patient); ok && p.Waited(err) {
		return true
	}
	return brief.Err() != nil && ctx.Err() == nil
}

// held is what became of the rows of a statement that passes over those that are locked.
type held struct {
	mine map[int]bool // the entries that are still their delivery's; true: locked by us now
}

// holdStep is the step that locks what can be locked without waiting.
func (s *session) holdStep(st *statement, e *entries) (Step, *held) {
	h := &held{mine: make(map[int]bool, e.len())}
	step := s.step(st, e, nil)
	step.Rows = func(rows Rows) error {
		for rows.Next() {
			var n, locked int
			if err := rows.Scan(&n, &locked); err != nil {
				return err
			}
			h.mine[n] = locked == 1
		}
		return nil
	}
	return step, h
}

// settleFree settles those rows that nobody else has locked. The others have to be asked for again.
func (s *session) settleFree(ctx context.Context, todo []*job) {
	e := &entries{}
	for _, j := range todo {
		j.touched = false
		e.addRow(j, j.row)
	}
	var free, locked []*job
	err := s.run.run(ctx, func(ex Execer) error {
		free, locked = free[:0], locked[:0]
		step, h := s.holdStep(s.texts.holding, e)
		if err := ex.Batch(ctx, []Step{step}); err != nil {
			return err
		}
		for n, ours := range h.mine {
			e.jobs[n].row.unsure = false // it is as its claim left it
			if ours {
				free = append(free, e.jobs[n])
			} else {
				locked = append(locked, e.jobs[n])
			}
		}
		return ex.Batch(ctx, s.steps(free))
	})
	if err != nil {
		s.fail(todo, err)
		return
	}
	s.conclude(todo)
	s.fail(locked, errForeign)
}

// renewFree renews those rows that nobody else has locked, and tells of the others in late.
func (l *lease) renewFree(ctx context.Context, rows []*row, next []any, kept []bool, late []error) error {
	s := l.s
	e, of := renewals(rows, next)
	return s.run.run(ctx, func(ex Execer) error {
		clear(kept)
		clear(late)
		step, h := s.holdStep(s.texts.holdingLong, e)
		if err := ex.Batch(ctx, []Step{step}); err != nil {
			return err
		}
		var free []*row
		var at []int
		var tokens []any
		for n, ours := range h.mine {
			if i := of[n]; ours {
				free, at, tokens = append(free, rows[i]), append(at, i), append(tokens, next[i])
			} else {
				late[i] = errForeign
			}
		}
		if len(free) == 0 {
			return nil
		}
		renewed := make([]bool, len(free))
		if err := ex.Batch(ctx, []Step{l.renewStep(free, tokens, renewed)}); err != nil {
			return err
		}
		for n, i := range at {
			kept[i] = renewed[n]
		}
		return nil
	})
}

// renewAlone renews rows one by one, where a statement for all of them did not go.
func (l *lease) renewAlone(ctx context.Context, rows []*row, next []any, kept []bool, late []error) {
	for i, r := range rows {
		one := kept[i : i+1]
		one[0] = false
		within, cancel := l.s.brief(ctx)
		late[i] = l.s.run.batch(within, func() []Step { return []Step{l.renewStep([]*row{r}, next[i:i+1], one)} })
		cancel()
	}
}
