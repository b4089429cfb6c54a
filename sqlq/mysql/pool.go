package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/settlemq/settle/sqlq"
)

// This file is sqlq's view of database/sql on MySQL. What goes together is sent
// as one text where the connection takes that, and statement by statement where not.

// pool implements sqlq.DB.
type pool struct {
	db     *sql.DB
	multi  bool // its connections take several statements in one text
	shared bool // the transactions of its connections go to handlers
	killer *killer
}

const (
	commit = "COMMIT"
	// A session of a pool of our own is at READ COMMITTED anyway; this costs nothing beside it.
	level = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
	start = "START TRANSACTION"
)

// querier is what pools, connections and transactions have in common.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (p *pool) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	return exec(ctx, p.db, p.multi, text, args)
}

func (p *pool) Query(ctx context.Context, text string, args ...any) (sqlq.Rows, error) {
	return query(ctx, p.db, p.multi, text, args)
}

// Batch implements sqlq.DB. Where a statement fails that is one of several sent as one, it
// finds out which by sending them one by one.
func (p *pool) Batch(ctx context.Context, steps []sqlq.Step) error {
	c, err := p.take(ctx)
	if err != nil {
		return err
	}
	err = c.Transact(ctx, steps, nil)
	var refused *mysqldriver.MySQLError
	if c.multi && len(steps) > 1 && errors.As(err, &refused) && !(dialect{}).Down(err) {
		c.multi = false
		err = c.Transact(ctx, steps, nil)
	}
	return errors.Join(err, c.Close())
}

func (p *pool) Conn(ctx context.Context) (sqlq.Conn, error) { return p.take(ctx) }

func (p *pool) take(ctx context.Context) (*conn, error) {
	c := &conn{of: p, multi: p.multi}
	return c, c.connect(ctx)
}

func (p *pool) kill(ctx context.Context, id int64) error {
	_, err := p.db.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
	return err
}

func (p *pool) killQuery(ctx context.Context, id int64) error {
	_, err := p.db.ExecContext(ctx, fmt.Sprintf("KILL QUERY %d", id))
	return err
}

// conn implements sqlq.Conn.
type conn struct {
	of    *pool
	c     *sql.Conn
	link  *link // nil: of a pool of the caller's
	id    int64 // the server's name of it; 0: not asked for
	multi bool
	used  bool         // the server has answered on it
	bad   atomic.Bool  // it must not go back to the pool
	busy  atomic.Int32 // calls under way
	lent  atomic.Bool  // a handler has its transaction
}

// connect takes a connection out of the pool, which may be one that the server has ended.
func (c *conn) connect(ctx context.Context) error {
	native, err := c.of.db.Conn(ctx)
	if err != nil {
		return err
	}
	c.c, c.link, c.id = native, nil, 0
	return native.Raw(func(dc any) error {
		switch dc := dc.(type) {
		case *link:
			c.link = dc
		case *lentLink:
			c.link = dc.link
		default:
			return nil
		}
		c.id = c.link.id
		return nil
	})
}

// mostStale bounds how many connections that have ended meanwhile a call finds in the pool.
const mostStale = 100

// call does something on the connection. One that has ended while it lay in the pool, which
// shows before anything is sent, is replaced by another; not so where a part was done already.
func (c *conn) call(ctx context.Context, do func() error) error {
	c.busy.Add(1)
	defer c.busy.Add(-1)
	for stale := 0; ; stale++ {
		err := do()
		if err == nil {
			c.used = true
			return nil
		}
		var refused *mysqldriver.MySQLError
		if errors.As(err, &refused) {
			c.used = true
			switch refused.Number {
			case erReadOnly, erReadOnlyMode, erReadOnlyTx: // the primary may be elsewhere by now
				c.bad.Store(true)
			}
			return err
		}
		var at *sqlq.StepError
		begun := errors.As(err, &at) && at.Index > 0
		if c.used || begun || stale == mostStale || !errors.Is(err, driver.ErrBadConn) {
			c.bad.Store(true)
			if ctx.Err() != nil && c.id != 0 { // the server would go on with the statement, and what comes next meet its locks
				c.of.killer.end(c.id)
			}
			return err
		}
		_ = c.c.Close()
		if err := c.connect(ctx); err != nil {
			c.bad.Store(true)
			return err
		}
	}
}

func (c *conn) Exec(ctx context.Context, text string, args ...any) (n int64, err error) {
	err = c.call(ctx, func() error {
		n, err = exec(ctx, c.c, c.multi, text, args)
		return err
	})
	return n, err
}

func (c *conn) Query(ctx context.Context, text string, args ...any) (found sqlq.Rows, err error) {
	err = c.call(ctx, func() error {
		found, err = query(ctx, c.c, c.multi, text, args)
		return err
	})
	return found, err
}

func (c *conn) Batch(ctx context.Context, steps []sqlq.Step) error { return c.send(ctx, nil, steps) }

// send runs the statements of head, and then steps.
func (c *conn) send(ctx context.Context, head []string, steps []sqlq.Step) error {
	return c.call(ctx, func() error {
		if c.multi {
			return c.together(ctx, head, steps)
		}
		return sequence(ctx, c.c, head, steps)
	})
}

// begin are the statements that begin a transaction.
func (c *conn) begin() []string {
	if c.link != nil && !c.of.shared {
		return []string{start}
	}
	return []string{level, start}
}

func (c *conn) Begin(ctx context.Context, first ...sqlq.Step) (sqlq.Tx, error) {
	if c.of.shared {
		return c.beginShared(ctx, first)
	}
	if err := c.send(ctx, c.begin(), first); err != nil {
		return nil, errors.Join(err, c.rollback(ctx))
	}
	return &tx{c}, nil
}

func (c *conn) Transact(ctx context.Context, steps, after []sqlq.Step) error {
	if len(steps) == 0 {
		if err := c.Batch(ctx, after); err != nil {
			return &sqlq.AfterError{Err: err}
		}
		return nil
	}
	return c.finish(ctx, c.begin(), steps, after)
}

// finish runs steps, commits, and runs what comes after.
func (c *conn) finish(ctx context.Context, head []string, steps, after []sqlq.Step) error {
	committed := false
	all := append(append(make([]sqlq.Step, 0, len(steps)+len(after)+2), steps...), sqlq.Step{SQL: commit})
	if len(after) > 0 { // this tells an error before the commit from one behind it
		all = append(all, sqlq.Step{SQL: "SELECT 1", Rows: func(sqlq.Rows) error {
			committed = true
			return nil
		}})
		all = append(all, after...)
	}
	err := c.send(ctx, head, all)
	var at *sqlq.StepError
	switch {
	case err == nil:
		return nil
	case committed, errors.As(err, &at) && at.Index > len(steps):
		return &sqlq.AfterError{Err: err}
	}
	return errors.Join(commitError(err), c.rollback(ctx))
}

// commitError is what is known of a commit that was sent with others and ended with err.
func commitError(err error) error {
	switch number(err) {
	case 0:
		if errors.Is(err, driver.ErrBadConn) || errors.Is(err, errNotSent) {
			return err // nothing was sent
		}
		return sqlq.Unsure(err)
	case erServerShutdown, erQueryInterrupted, erConnectionKilled, erErrorDuringCommit:
		return sqlq.Unsure(err) // it may be about what came behind the commit
	}
	return err // the server says so itself
}

// rollback ends a transaction that may be open. A connection on which that fails is of no use.
func (c *conn) rollback(ctx context.Context) error {
	if c.bad.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	if _, err := c.Exec(ctx, "ROLLBACK"); err != nil {
		c.bad.Store(true)
		return fmt.Errorf("rolling back: %w", err)
	}
	return nil
}

// Name implements sqlq.Named.
func (c *conn) Name() string {
	if c.id == 0 {
		return ""
	}
	return strconv.FormatInt(c.id, 10)
}

func (c *conn) Ping(ctx context.Context) error {
	return c.call(ctx, func() error { return c.c.PingContext(ctx) })
}

// Kill implements sqlq.Conn.
func (c *conn) Kill() {
	c.bad.Store(true)
	c.sever()
}

// sever ends the connection. A statement that runs is ended by the server: closing the
// connection alone would leave it at work, with its locks.
func (c *conn) sever() {
	if c.id != 0 && (c.lent.Load() || c.busy.Load() > 0) {
		c.of.killer.kill(c.id)
	}
	if c.link != nil {
		_ = c.link.wire.Close()
	}
}

func (c *conn) Close() error {
	if c.bad.Load() {
		_ = c.c.Raw(func(any) error { return driver.ErrBadConn }) // has the pool drop it
	}
	if err := c.c.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) && !c.bad.Load() {
		return err
	}
	return nil
}

// tx implements sqlq.Tx.
type tx struct{ c *conn }

func (t *tx) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	return t.c.Exec(ctx, text, args...)
}

func (t *tx) Query(ctx context.Context, text string, args ...any) (sqlq.Rows, error) {
	return t.c.Query(ctx, text, args...)
}

func (t *tx) Batch(ctx context.Context, steps []sqlq.Step) error { return t.c.Batch(ctx, steps) }

func (t *tx) Commit(ctx context.Context, last, after []sqlq.Step) error {
	return t.c.finish(ctx, nil, last, after)
}

func (t *tx) Rollback(ctx context.Context) error { return t.c.rollback(ctx) }

func (t *tx) Native() any { return nil }

var (
	_ sqlq.DB   = (*pool)(nil)
	_ sqlq.Conn = (*conn)(nil)
	_ sqlq.Tx   = (*tx)(nil)

	_ sqlq.Named = (*conn)(nil)
)
