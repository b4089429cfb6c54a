package sqlq

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"
)

// SQL is a [DB] on a database/sql pool.
type SQL struct {
	Pool *sql.DB
	// BeginWith is the statement that begins a transaction.
	BeginWith string
	// Busy reports whether a call failed because of another connection's work. A
	// connection, a transaction, and a statement outside of one are tried again then,
	// for as long as Patience.
	Busy     func(error) bool
	Patience time.Duration
}

var _ DB = (*SQL)(nil)

// Exec implements [Execer].
func (s *SQL) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.patiently(ctx, func() error {
		n, err = affected(s.Pool.ExecContext(ctx, query, args...))
		return err
	})
	return n, err
}

// Query implements [Execer].
func (s *SQL) Query(ctx context.Context, query string, args ...any) (rows Rows, err error) {
	err = s.patiently(ctx, func() error {
		rows, err = rowsOf(s.Pool.QueryContext(ctx, query, args...))
		return err
	})
	return rows, err
}

// Batch implements [DB]: one transaction, and a round trip for each step.
func (s *SQL) Batch(ctx context.Context, steps []Step) error {
	return inTx(ctx, s, nil, func(ex Execer) error { return Sequence(ctx, ex, steps) })
}

// Conn implements [DB]. The connection prepares each statement once.
func (s *SQL) Conn(ctx context.Context) (Conn, error) {
	c := &sqlConn{of: s, prepared: make(map[string]*sql.Stmt)}
	err := s.patiently(ctx, func() (err error) {
		c.conn, err = s.Pool.Conn(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// patiently makes a call until it succeeds or fails for another reason than
// that the database is busy: in steps as short as the connection's own patience,
// so that it ends soon after ctx does.
func (s *SQL) patiently(ctx context.Context, call func() error) error {
	var started time.Time
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := call()
		if err == nil || s.Busy == nil || !s.Busy(err) {
			return err
		}
		if started.IsZero() {
			started = time.Now()
		}
		if time.Since(started) >= s.Patience {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// SQLTx makes an [Execer] of a transaction of database/sql.
func SQLTx(tx *sql.Tx) Execer {
	if tx == nil {
		return nil
	}
	return sqlTx{tx}
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return affected(t.tx.ExecContext(ctx, query, args...))
}

func (t sqlTx) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	return rowsOf(t.tx.QueryContext(ctx, query, args...))
}

func (t sqlTx) Batch(ctx context.Context, steps []Step) error { return Sequence(ctx, t, steps) }

// sqlConn is a pinned connection. Its transactions are plain statements, so
// that they are prepared as all others are.
type sqlConn struct {
	of       *SQL
	conn     *sql.Conn
	prepared map[string]*sql.Stmt
	broken   bool // its transaction may still be open
}

func (c *sqlConn) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := c.prepared[query]; s != nil {
		return s, nil
	}
	s, err := c.conn.PrepareContext(ctx, query)
	if err == nil {
		c.prepared[query] = s
	}
	return s, err
}

func (c *sqlConn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	s, err := c.stmt(ctx, query)
	if err != nil {
		return 0, err
	}
	return affected(s.ExecContext(ctx, args...))
}

func (c *sqlConn) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	s, err := c.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return rowsOf(s.QueryContext(ctx, args...))
}

func (c *sqlConn) Batch(ctx context.Context, steps []Step) error { return Sequence(ctx, c, steps) }

func (c *sqlConn) Begin(ctx context.Context, first ...Step) (Tx, error) {
	tx, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := Sequence(ctx, tx, first); err != nil {
		return nil, errors.Join(err, tx.Rollback(ctx))
	}
	return tx, nil
}

func (c *sqlConn) Transact(ctx context.Context, steps, after []Step) error {
	tx, err := c.begin(ctx)
	if err != nil {
		return err
	}
	return tx.Commit(ctx, steps, after)
}

func (c *sqlConn) Ping(ctx context.Context) error { return c.conn.PingContext(ctx) }

// begin does not run under ctx: a driver may start a goroutine to watch one, and
// a BEGIN that is interrupted may have begun.
func (c *sqlConn) begin(ctx context.Context) (*sqlConnTx, error) {
	detached := context.WithoutCancel(ctx)
	s, err := c.stmt(detached, c.of.BeginWith)
	if err != nil {
		return nil, err
	}
	err = c.of.patiently(ctx, func() error {
		_, err := s.ExecContext(detached)
		return err
	})
	if err != nil {
		return nil, err
	}
	return (*sqlConnTx)(c), nil
}

func (c *sqlConn) Close() error {
	var errs []error
	for _, s := range c.prepared {
		errs = append(errs, s.Close())
	}
	if c.broken {
		c.Kill()
	}
	if err := c.conn.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Kill has the pool drop the connection. It waits for a call under way: such a
// one is bounded by its own context.
func (c *sqlConn) Kill() { _ = c.conn.Raw(func(any) error { return driver.ErrBadConn }) }

// sqlConnTx is the transaction of a sqlConn.
type sqlConnTx sqlConn

func (t *sqlConnTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return (*sqlConn)(t).Exec(ctx, query, args...)
}

func (t *sqlConnTx) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	return (*sqlConn)(t).Query(ctx, query, args...)
}

func (t *sqlConnTx) Batch(ctx context.Context, steps []Step) error { return Sequence(ctx, t, steps) }

func (t *sqlConnTx) Native() any { return nil }

func (t *sqlConnTx) Commit(ctx context.Context, last, after []Step) error {
	if err := Sequence(ctx, t, last); err != nil {
		return errors.Join(err, t.Rollback(ctx))
	}
	if _, err := (*sqlConn)(t).Exec(context.WithoutCancel(ctx), "COMMIT"); err != nil {
		t.broken = true
		_, _ = (*sqlConn)(t).Exec(context.WithoutCancel(ctx), "ROLLBACK")
		return Unsure(err)
	}
	if err := Sequence(ctx, (*sqlConn)(t), after); err != nil {
		return &AfterError{err}
	}
	return nil
}

func (t *sqlConnTx) Rollback(ctx context.Context) error {
	_, err := (*sqlConn)(t).Exec(context.WithoutCancel(ctx), "ROLLBACK")
	if err != nil {
		t.broken = true
	}
	return err
}

func affected(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func rowsOf(rows *sql.Rows, err error) (Rows, error) {
	if err != nil {
		return nil, err
	}
	return rows, nil
}
