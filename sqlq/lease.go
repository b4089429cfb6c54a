package sqlq

import (
	"context"
	"fmt"
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
	var rows []*row
	var began time.Duration
	scan := newScanner(s.layout)
	err := s.run.run(ctx, func(ex Execer) error {
		began = time.Since(s.epoch)
		vs := s.values()
		vs.limit, vs.scan = int64(n), int64(64+4*n)
		var err error
		rows, err = s.query(ex, s.texts.claim, &vs, rows[:0], scan)
		if err == nil && len(rows) == 0 && s.texts.second != nil {
			rows, err = s.query(ex, s.texts.second, &vs, rows, scan)
		}
		if err == nil && len(rows) > n {
			err = fmt.Errorf("the claim returned %d rows where :limit was %d", len(rows), n)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	sortRows(rows)
	s.work.add(rows, began)
	return rows, nil
}

// query runs a claim and collects its rows.
func (s *session) query(ex Execer, st *statement, vs *values, into []*row, scan *scanner) ([]*row, error) {
	rows, err := ex.Query(context.Background(), st.sql, st.args(vs)...)
	if err != nil {
		return into, err
	}
	return s.collect(into, rows, scan)
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
	err := s.run.run(within, func(ex Execer) error {
		at = time.Since(s.epoch)
		for i, r := range rows {
			next[i] = s.queue.db.Dialect.Advance(s.layout.Column(RoleLockedUntil), r.token, at-r.claimed)
			vs := s.values()
			vs.id, vs.attempt, vs.token, vs.nextToken = r.id, r.attempt, r.token, next[i]
			n, err := s.texts.renew.exec(ex, &vs)
			if err == nil && n == 0 && r.proposed != nil {
				vs.token = r.proposed
				n, err = s.texts.renew.exec(ex, &vs)
			}
			if err != nil {
				return err
			}
			kept[i] = n > 0
		}
		return nil
	})
	lost := l.renewedRows(rows, kept, next, at, err)
	for _, r := range lost {
		cause := lostRow(s.source, r.id)
		if err != nil {
			cause = fmt.Errorf("%w: its lease ended and could not be renewed: %w", cause, err)
		}
		s.reg.Notify(settle.Notice{Kind: settle.NoticeLeaseLost, Delivery: &r.Delivery, Err: cause})
	}
	if err != nil && ctx.Err() == nil {
		s.reg.Logger.Warn("leases could not be renewed; trying again", "rows", len(rows), "error", err)
	}
}

// renewedRows puts the rows of a renewal back to work and returns those that are lost.
func (l *lease) renewedRows(rows []*row, kept []bool, next []any, at time.Duration, err error) (lost []*row) {
	w := &l.s.work
	now := time.Since(l.s.epoch)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range rows {
		r.state = rowIdle
		switch {
		case err == nil && kept[i]:
			r.token, r.proposed, r.claimed, r.expired = next[i], nil, at, false
			w.remove(r)
			w.push(r)
		case err == nil && r.unsure:
			// Our own settlement was committed, or it is lost: Settle finds out which.
		case err == nil:
			r.state = rowLost
			w.remove(r)
			lost = append(lost, r)
		default:
			if unknown(err) {
				r.proposed = next[i]
			}
			if now-r.claimed >= l.span && !r.expired {
				r.expired = true
				lost = append(lost, r)
			}
		}
	}
	close(w.renewed)
	w.renewed = nil
	return lost
}

// ours reports whether nobody else can have taken r yet.
func (l *lease) ours(r *row) bool { return time.Since(l.s.epoch)-r.claimed < l.span }

func (l *lease) freed(*row) {}

func (l *lease) close() {
	l.stop()
	l.renewal.Wait()
}
