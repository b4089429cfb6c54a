package sqlq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// lease is the form of a row that is held by a time in its table. The claim
// counts the attempt and writes that time, the token; only who knows both can
// settle the row. A goroutine renews what stays in work.
type lease struct {
	s    *session
	span time.Duration

	stop    context.CancelFunc
	renewal sync.WaitGroup
}

// Renewal looks renewSteps times a lease, and renews what the next look would
// find beyond the half of its life.
const renewSteps = 10

func openLease(s *session) *lease {
	l := &lease{s: s, span: s.layout.lease()}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.renewal.Go(func() { l.renew(ctx) })
	return l
}

func (l *lease) claim(ctx context.Context, n int) ([]*row, error) {
	s := l.s
	call, cancel := s.patient(ctx)
	defer cancel()
	rows, began, err := l.take(call, n)
	if err != nil {
		return nil, err
	}
	s.work.add(rows, began)
	return rows, nil
}

// take takes up to n rows and commits that. They are ours from the time it returns with them.
func (l *lease) take(ctx context.Context, n int) (rows []*row, began time.Duration, err error) {
	s := l.s
	look := s.floor.look(s.texts.claim)
	for st := s.texts.claim; ; {
		rows, began, err = l.takeBy(ctx, st, &look, n)
		if err != nil || len(rows) > 0 {
			break
		}
		if look.again() {
			continue
		}
		if st == s.texts.second || s.texts.second == nil {
			break
		}
		st = s.texts.second
	}
	if err == nil {
		sortRows(rows)
		look.found(rows)
	}
	return rows, began, err
}

// takeBy takes rows by one of the claim's statements.
func (l *lease) takeBy(ctx context.Context, st *statement, look *look, n int) (rows []*row, began time.Duration, err error) {
	s := l.s
	scan := newScanner(s.layout)
	steps := func() []Step {
		began = time.Since(s.epoch)
		vs := s.values()
		vs.limit, vs.scan = int64(n), int64(64+4*n)
		look.bind(&vs)
		var all []Step
		if s.texts.guard != nil {
			all = append(all, Step{SQL: s.texts.guard.sql, Args: s.texts.guard.args(&vs)})
		}
		return append(all, s.claimStep(st, &vs, &rows, scan))
	}
	switch {
	case s.texts.mark != nil:
		err = l.takeMarked(ctx, steps, &rows)
		return rows, began, err
	case s.layout.Statements.Claim == "":
		err = s.run.batch(ctx, steps)
		return rows, began, err
	}
	err = s.run.run(ctx, func(ex Execer) error {
		if err := ex.Batch(s.bound(ctx), steps()); err != nil {
			return err
		}
		if len(rows) > n { // so it is not committed
			return fmt.Errorf("the claim returned %d rows where :limit was %d", len(rows), n)
		}
		return nil
	})
	return rows, began, err
}

// claimStep is a claim whose rows are collected into rows.
func (s *session) claimStep(st *statement, vs *values, into *[]*row, scan *scanner) Step {
	return Step{SQL: st.sql, Args: st.args(vs), Walk: true, Rows: func(rows Rows) (err error) {
		*into, err = s.collect((*into)[:0], rows, scan)
		return err
	}}
}

// renew is the loop that holds leases for longer.
func (l *lease) renew(ctx context.Context) {
	ticker := time.NewTicker(l.span / renewSteps)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if l.s.busy() {
			l.s.overdue(ctx)
			continue // it would wait for a handler, and the settlement of that for it
		}
		age := l.span/2 - l.span/renewSteps
		if rows := l.s.work.due(time.Since(l.s.epoch) - age); len(rows) > 0 {
			l.renewRows(ctx, rows)
		}
	}
}

// renewRows holds rows for another lease from now on, fenced as a settlement
// is. It tells of those that are lost, and of those whose lease has ended while they could
// not be renewed.
func (l *lease) renewRows(ctx context.Context, rows []*row) {
	s := l.s
	kept := make([]bool, len(rows))
	var at time.Duration
	next := make([]any, len(rows))
	within, cancel := context.WithTimeout(ctx, l.span/2)
	defer cancel()
	advance := func() {
		at = time.Since(s.epoch)
		clear(kept)
		for i, r := range rows {
			next[i] = s.queue.db.Dialect.Advance(s.layout.Column(RoleLockedUntil), r.first, at-r.firstAt)
		}
	}
	late := make([]error, len(rows)) // what kept each from being renewed
	var err error
	if s.texts.renewMany != nil {
		brief, done := s.brief(within)
		err = s.run.batch(brief, func() []Step {
			advance()
			return []Step{l.renewStep(rows, next, kept)}
		})
		waited := s.waited(within, brief, err)
		done()
		switch {
		case err == nil || len(rows) == 1:
		case waited && s.texts.holdingLong != nil:
			err = l.renewFree(within, rows, next, kept, late)
		case !waited && !unknown(err) && !s.queue.db.Dialect.Down(err):
			err = nil
			l.renewAlone(within, rows, next, kept, late)
		}
	} else {
		err = s.run.run(within, func(ex Execer) error {
			advance()
			return l.renewEach(within, ex, rows, next, kept)
		})
	}
	for i := range late {
		late[i] = errors.Join(late[i], err)
	}
	for _, i := range l.renewedRows(rows, kept, late, next, at) {
		cause := lostRow(s.source, rows[i].id)
		if late[i] != nil {
			cause = fmt.Errorf("%w: its lease ended and could not be renewed: %w", cause, late[i])
		}
		s.reg.Notify(settle.Notice{Kind: settle.NoticeLeaseLost, Delivery: &rows[i].Delivery, Err: cause})
	}
	if err := errors.Join(slices.Compact(slices.Clone(late))...); err != nil && ctx.Err() == nil {
		s.reg.Logger.Warn("leases could not be renewed; trying again", "rows", len(rows), "error", err)
	}
}

// renewStep renews all rows in one statement.
func (l *lease) renewStep(rows []*row, next []any, kept []bool) Step {
	e, of := renewals(rows, next)
	return l.s.step(l.s.texts.renewMany, e, func(n int) { kept[of[n]] = true })
}

// renewals are rows on their way to be renewed, and the row of each entry.
func renewals(rows []*row, next []any) (e *entries, of []int) {
	e = &entries{}
	for i, r := range rows {
		e.addRow(nil, r)
		for len(of) < e.len() {
			of, e.nextTokens = append(of, i), append(e.nextTokens, next[i])
		}
	}
	return e, of
}

// renewEach renews rows one by one.
func (l *lease) renewEach(ctx context.Context, ex Execer, rows []*row, next []any, kept []bool) error {
	s := l.s
	for i, r := range rows {
		vs := s.valuesOf(r)
		vs.nextToken = next[i]
		n, err := s.texts.renew.exec(s.bound(ctx), ex, &vs)
		if err == nil && n == 0 && r.proposed != nil {
			vs.token = r.proposed
			n, err = s.texts.renew.exec(s.bound(ctx), ex, &vs)
		}
		if err != nil {
			return err
		}
		kept[i] = n > 0
	}
	return nil
}

// renewedRows puts the rows of a renewal back to work and returns which of them are lost.
func (l *lease) renewedRows(rows []*row, kept []bool, late []error, next []any, at time.Duration) (lost []int) {
	w := &l.s.work
	now := time.Since(l.s.epoch)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range rows {
		r.state = rowIdle
		switch err := late[i]; {
		case err == nil && kept[i]:
			r.token, r.proposed, r.claimed, r.expired = next[i], nil, at, false
			w.remove(r)
			w.push(r)
		case err == nil && r.unsure:
			// Our own settlement was committed, or it is lost: Settle finds out which.
		case err == nil:
			r.state = rowLost
			w.remove(r)
			lost = append(lost, i)
		default:
			if unknown(err) {
				r.proposed = next[i]
			}
			if now-r.claimed >= l.span && !r.expired {
				r.expired = true
				lost = append(lost, i)
			}
		}
	}
	close(w.renewed)
	w.renewed = nil
	return lost
}

// ours reports whether nobody else can have taken r yet.
func (l *lease) ours(r *row) bool { return time.Since(l.s.epoch)-r.claimed < l.span }

func (l *lease) settle(ctx context.Context, jobs []job) { l.s.settleTogether(ctx, jobs) }

func (l *lease) giveBack(ctx context.Context, left []*row) error {
	return l.s.run.run(ctx, func(ex Execer) error { return l.s.free(ctx, ex, left) })
}

func (l *lease) freed(*row) {}

func (l *lease) close() {
	l.stop()
	l.renewal.Wait()
}
