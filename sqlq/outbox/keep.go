package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/settlemq/settle/sqlq"
)

// This file is for the person who looks after an outbox: what waits, what is
// set aside and why, and what is deleted.

// Counts are how many records an outbox has that are not done.
type Counts struct {
	Waiting  int // to be sent, or sent and not marked
	SetAside int
}

// Count counts the records that are not done. It reads them all.
func (b *Box) Count(ctx context.Context) (Counts, error) {
	var c Counts
	t, err := b.open(ctx, b.db.DB)
	if err != nil {
		return c, err
	}
	state := t.side.Out(sqlq.RoleGroup, "t")
	text := fmt.Sprintf("SELECT %s, count(*) FROM %s AS t WHERE t.%s IN (%s, %s) GROUP BY t.%s", state, t.side.Ref(),
		t.side.Q(sqlq.RoleGroup), t.side.In(sqlq.RoleGroup, ":waiting"), t.side.In(sqlq.RoleGroup, ":aside"), t.side.Q(sqlq.RoleGroup))
	err = b.query(ctx, b.db.DB, text, sqlq.Args{}, func(rows sqlq.Rows) error {
		var state string
		var n int
		if err := rows.Scan(&state, &n); err != nil {
			return err
		}
		switch state {
		case stateWaiting:
			c.Waiting = n
		case stateAside:
			c.SetAside = n
		}
		return nil
	})
	return c, b.explain("counting records", err)
}

// Aside is a record that was set aside.
type Aside struct {
	ID     string
	Key    string
	Sends  int    // how often it was sent or tried before
	Reason string // why it is sent no more
}

// SetAside returns up to limit records that were set aside, in the order they were due.
func (b *Box) SetAside(ctx context.Context, limit int) ([]Aside, error) {
	t, err := b.open(ctx, b.db.DB)
	if err != nil {
		return nil, err
	}
	side := t.side
	text := fmt.Sprintf("SELECT %s, coalesce(%s, ''), %s, coalesce(%s, '') FROM %s AS t WHERE t.%s = %s ORDER BY t.%s, t.%s LIMIT %d",
		side.Out(sqlq.RoleID, "t"), side.Out(sqlq.RoleKey, "t"), side.Out(sqlq.RoleAttempt, "t"), side.Out(sqlq.RoleCause, "t"), side.Ref(),
		side.Q(sqlq.RoleGroup), side.In(sqlq.RoleGroup, ":aside"), side.Q(sqlq.RoleRetryAfter), side.Q(sqlq.RoleID), max(limit, 0))
	var all []Aside
	err = b.query(ctx, b.db.DB, text, sqlq.Args{}, func(rows sqlq.Rows) error {
		var a Aside
		var id any
		var next int64
		if err := rows.Scan(&id, &a.Key, &next, &a.Reason); err != nil {
			return err
		}
		a.ID, a.Sends = sqlq.IDText(id), int(max(next-2, 0)) // the claim that set it aside was counted, and sent nothing
		all = append(all, a)
		return nil
	})
	return all, b.explain("reading what is set aside", err)
}

// SendAgain has records that were set aside sent as if they were new: those with
// the given ids, or all of them where there are none. It returns how many those are. They go behind what waits.
//
// With ids it also takes records that ended as dead letters: their mark goes, so that the consumer handles them again. That
// is how a dead letter is put back once its cause is cured; the one in the broker carries the id of a record that has ended, and is
// dead-lettered again if it is put back there.
func (b *Box) SendAgain(ctx context.Context, ids ...string) (n int64, err error) {
	t, err := b.open(ctx, b.db.DB)
	if err != nil {
		return 0, err
	}
	values := make([]any, len(ids))
	for i, id := range ids {
		if values[i], err = idOf(t.side.Column(sqlq.RoleID), id); err != nil {
			return 0, fmt.Errorf("%s: %q is no id of this table: %w", b.name, id, err)
		}
	}
	err = b.db.Transact(ctx, b.db.DB, func(ex sqlq.Execer) (err error) {
		n, err = b.sendAgain(ctx, ex, t, values)
		return err
	})
	if err == nil && n > 0 {
		b.Wake()
	}
	return n, b.explain("sending records again", err)
}

func (b *Box) sendAgain(ctx context.Context, ex sqlq.Execer, t *tables, ids []any) (int64, error) {
	side, args := t.side, sqlq.Args{}
	which := side.Q(sqlq.RoleGroup) + " = " + t.state(":aside")
	if len(ids) > 0 {
		var dead []any
		read := sqlq.Args{}
		err := b.query(ctx, ex, fmt.Sprintf("SELECT %s FROM %s AS t WHERE t.%s = %s AND %s", side.Out(sqlq.RoleID, "t"), side.Ref(),
			side.Q(sqlq.RoleGroup), t.state(":dead"), among(side, "t", ids, read)), read, func(rows sqlq.Rows) error {
			var id any
			err := rows.Scan(&id)
			dead = append(dead, id)
			return err
		})
		if err != nil {
			return 0, err
		}
		if len(dead) > 0 && !t.aside {
			if err := b.unmark(ctx, ex, t, dead); err != nil {
				return 0, err
			}
		}
		which = fmt.Sprintf("%s IN (%s, %s) AND %s", side.Q(sqlq.RoleGroup), t.state(":aside"), t.state(":dead"), among(side, "", ids, args))
	}
	s, err := b.step(fmt.Sprintf("UPDATE %s SET %s = %s, %s = 1, %s = %s, %s = NULL, %s = NULL WHERE %s", side.Ref(),
		side.Q(sqlq.RoleGroup), t.state(":waiting"), side.Q(sqlq.RoleAttempt),
		side.Q(sqlq.RoleRetryAfter), b.db.Dialect.Now(side.Column(sqlq.RoleRetryAfter)),
		side.Q(sqlq.RoleCause), side.Q(sqlq.RoleLockedUntil), which), args, nil)
	if err != nil {
		return 0, err
	}
	return ex.Exec(ctx, s.SQL, s.Args...)
}

// unmark takes the marks of records back.
func (b *Box) unmark(ctx context.Context, ex sqlq.Execer, t *tables, ids []any) error {
	args := sqlq.Args{}
	s, err := b.step(fmt.Sprintf("UPDATE %s SET %s = NULL WHERE %s", t.records.Ref(), t.records.Q(sqlq.RoleProcessedAt), among(t.records, "", ids, args)), args, nil)
	if err == nil {
		_, err = ex.Exec(ctx, s.SQL, s.Args...)
	}
	return err
}

// exec runs a text in a transaction of its own and returns how many rows it touched.
func (b *Box) exec(ctx context.Context, text string, args sqlq.Args) (n int64, err error) {
	s, err := b.step(text, args, nil)
	if err != nil {
		return 0, err
	}
	s.Touched = func(touched int64) { n = touched }
	err = b.db.Batch(ctx, b.db.DB, func() []sqlq.Step { return []sqlq.Step{s} })
	return n, err
}

// purgeRows is how many records one transaction of Purge deletes.
const purgeRows = 500

// Purge deletes the records that were marked longer ago than the given time, a few hundred in a
// transaction, and returns how many those were. An index on the column of the mark keeps it quick; CreateTable makes one.
func (b *Box) Purge(ctx context.Context, olderThan time.Duration) (int64, error) {
	t, err := b.open(ctx, b.db.DB)
	if err != nil {
		return 0, err
	}
	if olderThan < 0 {
		return 0, b.refuse("Purge", fmt.Sprintf("%v is negative", olderThan), "say how old the marks must be")
	}
	states := []string{""}
	if t.aside { // whose index has the state first
		states = []string{stateDone, stateDead}
	}
	var all int64
	for _, state := range states {
		for {
			n, err := b.purgeSome(ctx, t, state, olderThan)
			all += n
			if err != nil {
				return all, b.explain("purging marked records", err)
			}
			if n < purgeRows {
				break
			}
		}
	}
	if all > 0 {
		b.tell(Event{Kind: EventPurged, Records: int(all)})
	}
	return all, nil
}

// purgeSome deletes the records of one transaction.
func (b *Box) purgeSome(ctx context.Context, t *tables, state string, olderThan time.Duration) (int64, error) {
	of, role := t.records, sqlq.RoleProcessedAt
	args := sqlq.Args{"ago": -olderThan.Microseconds(), "state": state}
	var which string
	if t.aside {
		of, role = t.side, sqlq.RoleRetryAfter
		which = "t." + of.Q(sqlq.RoleGroup) + " = " + t.state(":state")
	} else {
		which = t.isMarked()
	}
	at := "t." + of.Q(role)
	text := fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s AND %s < %s ORDER BY %s LIMIT %d",
		of.Out(sqlq.RoleID, "t"), of.Ref(), which, at, b.db.Dialect.Later(of.Column(role), ":ago"), at, purgeRows)
	var ids []any
	err := b.query(ctx, b.db.DB, text, args, func(rows sqlq.Rows) error {
		var id any
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	steps := make([]sqlq.Step, 2)
	for i, l := range []*sqlq.Layout{t.records, t.side} {
		args := sqlq.Args{}
		if steps[i], err = b.step(fmt.Sprintf("DELETE FROM %s WHERE %s", l.Ref(), among(l, "", ids, args)), args, nil); err != nil {
			return 0, err
		}
	}
	return int64(len(ids)), b.db.Batch(ctx, b.db.DB, func() []sqlq.Step { return steps })
}
