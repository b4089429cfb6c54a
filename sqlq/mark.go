package sqlq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// This file is for databases that do not do in one statement what others do:
// claims that lock rows first and then mark them, and transactions that the database ends
// by itself and that are run again.

// takeMarked takes rows by a statement that locks them, and marks them. Both are one transaction
// and two round trips.
func (l *lease) takeMarked(ctx context.Context, steps func() []Step, rows *[]*row) error {
	db := l.s.queue.db
	return db.repeat(ctx, func() error {
		conn, err := db.DB.Conn(ctx)
		if err != nil {
			return err
		}
		err = l.mark(ctx, conn, steps(), rows)
		if err != nil && l.s.texts.unguard != nil {
			conn.Kill() // it may have the guard
		}
		return errors.Join(err, conn.Close())
	})
}

func (l *lease) mark(ctx context.Context, conn Conn, steps []Step, rows *[]*row) error {
	s := l.s
	var guarded any = true
	if s.texts.guard != nil && s.texts.unguard != nil {
		steps[0].Rows = func(r Rows) error { return scanOne(r, &guarded) }
	}
	tx, err := conn.Begin(ctx, steps...)
	if err != nil {
		return err
	}
	if !isTrue(guarded) {
		return errors.Join(errGuarded, tx.Rollback(ctx))
	}
	var last, after []Step
	marked := int64(len(*rows))
	if len(*rows) > 0 {
		vs := s.values()
		vs.token = (*rows)[0].token
		ids := make([]any, len(*rows))
		for i, r := range *rows {
			ids[i] = r.id
		}
		vs.lists = &lists{ids: s.queue.db.Dialect.(Server).List(ids)}
		last = append(last, Step{SQL: s.texts.mark.sql, Args: s.texts.mark.args(&vs), Touched: func(n int64) { marked = n }})
	}
	unguarded := any(true)
	if st := s.texts.unguard; st != nil {
		vs := s.values()
		after = append(after, Step{SQL: st.sql, Args: st.args(&vs), Rows: func(r Rows) error { return scanOne(r, &unguarded) }})
	}
	err = tx.Commit(ctx, last, after)
	var behind *AfterError
	switch {
	case errors.As(err, &behind), err == nil && !isTrue(unguarded):
		conn.Kill() // the rows are taken; what may be left goes with the connection
	case err != nil:
		return fmt.Errorf("commit: %w", err)
	}
	if n := int64(len(*rows)); marked != n { // what is not written down is not handed out
		*rows = nil
		return fmt.Errorf("a claim locked %d rows, and could mark %d of them: is there a trigger on the table?", n, marked)
	}
	return nil
}

var errGuarded = errors.New("another claim of this queue takes too long")

// isTrue reports whether a database returned true or 1.
func isTrue(v any) bool {
	switch v := v.(type) {
	case bool:
		return v
	case int64:
		return v == 1
	}
	return false
}

const (
	mostRepeats = 10
	repeatPause = 5 * time.Millisecond // the most, and so much more each time
)

// repeat does work, a transaction, again where the database has ended it for
// a reason that passes.
func (db *Database) repeat(ctx context.Context, work func() error) error {
	r, ok := db.Dialect.(Repeater)
	if !ok {
		return work()
	}
	for n := 1; ; n++ {
		err := work()
		if err == nil || n == mostRepeats || unknown(err) || !r.Again(err) {
			return err
		}
		timer := time.NewTimer(time.Duration(rand.Int64N(int64(n) * int64(repeatPause))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
