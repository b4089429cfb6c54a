package sqlq

import (
	"context"
	"errors"
	"fmt"

	"github.com/settlemq/settle"
)

// This file makes verdicts true of rows: many at once, and one by one where
// many at once is not to be had or one of them is in the way.

// settleTogether settles rows in one transaction. A row whose own statement
// fails does not take the others with it: they are settled without it.
func (s *session) settleTogether(ctx context.Context, jobs []job) {
	todo := make([]*job, len(jobs))
	for i := range jobs {
		todo[i] = &jobs[i]
	}
	for len(todo) > 0 {
		within, cancel := s.brief(ctx)
		bad, err := s.settleOnce(within, todo)
		waited := s.waited(ctx, within, err)
		cancel()
		switch {
		case err == nil:
			s.conclude(todo)
			return
		case waited && len(todo) > 1 && s.inLists(todo):
			for _, j := range todo {
				j.row.unsure = j.row.unsure || unknown(err)
			}
			s.settleFree(ctx, todo)
			return
		case len(todo) == 1 || unknown(err) || s.queue.db.Dialect.Down(err):
			s.fail(todo, err)
			return
		case bad >= 0:
			s.fail(todo[bad:bad+1], err)
			todo = append(todo[:bad:bad], todo[bad+1:]...)
		default: // one of many, in one statement
			for _, j := range todo {
				one := []*job{j}
				within, cancel := s.brief(ctx)
				if _, err := s.settleOnce(within, one); err != nil {
					s.fail(one, err)
				} else {
					s.conclude(one)
				}
				cancel()
			}
			return
		}
	}
}

// settleOnce settles rows in one transaction. It returns the index of the one that failed, where that is known.
func (s *session) settleOnce(ctx context.Context, todo []*job) (bad int, err error) {
	bad = -1
	if s.inLists(todo) {
		return bad, s.run.batch(ctx, func() []Step { return s.steps(todo) })
	}
	err = s.run.run(ctx, func(ex Execer) (err error) {
		bad, err = s.applyAll(ctx, ex, todo)
		return err
	})
	return bad, err
}

// conclude takes what was touched as settled, and the rest as lost.
func (s *session) conclude(todo []*job) {
	for _, j := range todo {
		j.s.Err = nil
		if !j.touched && !(j.row.unsure && s.form.ours(j.row)) {
			j.s.Err = lostRow(s.source, j.row.id)
		}
	}
}

func (s *session) fail(todo []*job, err error) {
	for _, j := range todo {
		j.row.unsure = j.row.unsure || unknown(err)
		j.s.Err = fmt.Errorf("%s: %s of row %s: %w", s.source, j.s.Verdict.Action, idText(j.row.id), err)
	}
}

// event returns the event that makes the verdict of j true.
func (s *session) event(j *job) event { return eventOf(j.s.Verdict, s.reg.DeadLetter != "") }

// inLists reports whether the statements for many rows serve all of todo.
func (s *session) inLists(todo []*job) bool {
	for _, j := range todo {
		if !s.texts.listed(s.event(j)) {
			return false
		}
	}
	return true
}

// listed reports whether there is a statement for many rows, or no need of one.
func (t *texts) listed(e event) bool { return t.many[e] != nil || len(t.events[e]) == 0 }

// applyAll makes the verdicts true, in lists where that goes.
func (s *session) applyAll(ctx context.Context, ex Execer, todo []*job) (bad int, err error) {
	if s.inLists(todo) {
		return -1, ex.Batch(ctx, s.steps(todo))
	}
	for i, j := range todo {
		if j.touched, err = s.apply(ctx, ex, j.row, j.s.Verdict); err != nil {
			return i, err
		}
	}
	return -1, nil
}

// apply makes a verdict true of a row. It returns false when the row is no
// longer the delivery's.
func (s *session) apply(ctx context.Context, ex Execer, r *row, v settle.Verdict) (bool, error) {
	vs := s.valuesOf(r)
	vs.delay, vs.cause = micros(v.Delay), causeText(v.Cause)
	e := eventOf(v, s.reg.DeadLetter != "")
	touched, err := s.exec(ctx, ex, e, &vs)
	if err == nil && !touched && r.proposed != nil {
		vs.token = r.proposed
		touched, err = s.exec(ctx, ex, e, &vs)
	}
	return touched, err
}

// valuesOf returns what a statement about r may name.
func (s *session) valuesOf(r *row) values {
	vs := s.values()
	vs.id, vs.attempt, vs.token = r.id, r.attempt, r.token
	return vs
}

// exec runs the statements of an event, the first of which is fenced.
func (s *session) exec(ctx context.Context, ex Execer, e event, vs *values) (bool, error) {
	for i, st := range s.texts.events[e] {
		n, err := st.exec(s.bound(ctx), ex, vs)
		if err != nil {
			return false, err
		}
		if i == 0 && n == 0 {
			return false, nil
		}
	}
	return true, nil
}

// vanished reports whether a row is not as its claim found it any more: what
// may have been committed is, or somebody who had the row since has settled it.
func (s *session) vanished(ctx context.Context, r *row) (bool, error) {
	vs := s.valuesOf(r)
	var n int
	_, err := queryOne(s.bound(ctx), s.queue.db.DB, s.texts.present.sql, s.texts.present.args(&vs), &n)
	return err == nil && n == 0, err
}

// unclaimed gives rows back that were claimed and cannot be handed out, at no cost in attempts.
func (s *session) unclaimed(ctx context.Context, rows []*row) error {
	todo := make([]*job, len(rows))
	for i, r := range rows {
		one := settle.Settlement{Delivery: &r.Delivery, Verdict: settle.Verdict{Action: settle.ActionRelease}}
		todo[i] = &job{s: &one, row: r}
	}
	_, err := s.settleOnce(ctx, todo)
	return err
}

// free gives rows back, their attempts spent, on ex.
func (s *session) free(ctx context.Context, ex Execer, rows []*row) error {
	for _, r := range rows {
		vs := s.valuesOf(r)
		if _, err := s.exec(ctx, ex, eventFree, &vs); err != nil {
			return err
		}
	}
	return nil
}

// bound returns the context that a statement runs under. Where there is one
// writer that is none: what a statement is part of commits or rolls back as a whole, and the
// database bounds how long it waits for a lock.
func (s *session) bound(ctx context.Context) context.Context {
	if s.queue.db.OneWriter {
		return context.Background()
	}
	return ctx
}

// entries are rows of one event on their way to the database, side by side.
type entries struct {
	jobs                    []*job // an entry's; a job has two where its token is one of two
	ids, tokens, nextTokens []any
	attempts, delays        []any
	causes                  []any
}

func (e *entries) add(j *job, r *row, token any) {
	e.jobs = append(e.jobs, j)
	e.ids = append(e.ids, r.id)
	e.attempts = append(e.attempts, r.attempt)
	e.tokens = append(e.tokens, token)
}

// addRow adds a row, and once more where its token is one of two.
func (e *entries) addRow(j *job, r *row) {
	e.add(j, r, r.token)
	if r.proposed != nil {
		e.add(j, r, r.proposed)
	}
}

func (e *entries) len() int { return len(e.ids) }

// packed is all that is known of each entry, as [Packer] has it.
func (e *entries) packed() [][]any {
	all := make([][]any, e.len())
	for i := range all {
		all[i] = make([]any, 6)
		for at, list := range [...][]any{e.ids, e.attempts, e.tokens, e.delays, e.causes, e.nextTokens} {
			if len(list) > 0 {
				all[i][at] = list[i]
			}
		}
	}
	return all
}

// step is the statement that works on all entries. touched is called with the
// number of each that was still its delivery's.
func (s *session) step(st *statement, e *entries, touched func(int)) Step {
	server := s.queue.db.Dialect.(Server)
	vs := s.values()
	vs.lists = &lists{}
	for _, l := range []struct {
		of    *any
		param param
		from  []any
	}{
		{&vs.lists.ids, paramIDs, e.ids},
		{&vs.lists.attempts, paramAttempts, e.attempts},
		{&vs.lists.tokens, paramTokens, e.tokens},
		{&vs.lists.nextTokens, paramNextTokens, e.nextTokens},
		{&vs.lists.delays, paramDelays, e.delays},
		{&vs.lists.causes, paramCauses, e.causes},
	} {
		if st.names(l.param) {
			*l.of = server.List(l.from)
		}
	}
	if st.names(paramRows) {
		vs.lists.rows = server.(Packer).Pack(e.packed())
	}
	return Step{SQL: st.sql, Args: st.args(&vs), Rows: func(rows Rows) error {
		for rows.Next() {
			var n int
			if err := rows.Scan(&n); err != nil {
				return err
			}
			if n < 0 || n >= e.len() {
				return errors.New("the statement returned the number of no row")
			}
			touched(n)
		}
		return nil
	}}
}

// singly is the statement that settles the row of a job.
func (s *session) singly(st *statement, j *job) Step {
	vs := s.valuesOf(j.row)
	vs.delay, vs.cause = micros(j.s.Verdict.Delay), causeText(j.s.Verdict.Cause)
	return Step{SQL: st.sql, Args: st.args(&vs), Touched: func(n int64) { j.touched = n > 0 }}
}

// steps are the statements that settle todo, one an event: in lists, or, where an event
// has one row, the statement for one, which a database finds a plan for once. They set touched.
func (s *session) steps(todo []*job) []Step {
	var byEvent [eventCount]*entries
	for _, j := range todo {
		e := s.event(j)
		j.touched = s.texts.many[e] == nil // nothing to do is done
		if j.touched {
			continue
		}
		in := byEvent[e]
		if in == nil {
			in = &entries{}
			byEvent[e] = in
		}
		in.addRow(j, j.row)
		for len(in.delays) < in.len() {
			in.delays = append(in.delays, micros(j.s.Verdict.Delay))
			in.causes = append(in.causes, causeText(j.s.Verdict.Cause))
		}
	}
	var all []Step
	for e, in := range byEvent {
		switch {
		case in == nil:
		case in.len() == 1 && len(s.texts.events[e]) == 1:
			all = append(all, s.singly(s.texts.events[e][0], in.jobs[0]))
		default:
			all = append(all, s.step(s.texts.many[e], in, func(n int) { in.jobs[n].touched = true }))
		}
	}
	return all
}
