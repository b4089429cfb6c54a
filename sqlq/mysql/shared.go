package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/settlemq/settle/sqlq"
)

// sharedTx is a transaction that a handler gets, as the *sql.Tx it knows. It implements sqlq.Tx.
type sharedTx struct {
	c      *conn
	native *sql.Tx
	lent   bool // the handler has had it, and nobody has looked at it since
}

const (
	rollbackPatience = 5 * time.Second
	// guardpoint is set when the transaction begins. It is gone where the server has ended the
	// transaction meanwhile: after a deadlock, or a statement that commits by itself, such as CREATE TABLE.
	// Each later statement of the handler was then committed alone.
	guardpoint = "settle_open"
)

var (
	errTxEnded = errors.New("the handler's transaction had ended before its outcome, so that what it wrote may be committed: look for tx.Commit, tx.Rollback, a deadlock, or a statement that commits, such as CREATE TABLE, in the handler; return settle.Ack() to commit")
	errTxBusy  = errors.New("the handler's transaction cannot be used: did it leave the rows of a query open?")
)

func (c *conn) beginShared(ctx context.Context, first []sqlq.Step) (sqlq.Tx, error) {
	t := &sharedTx{c: c}
	err := c.call(ctx, func() (err error) {
		// What a handler does after the server has ended its transaction, at a deadlock, must not be committed
		// statement by statement: it is another transaction, which is rolled back.
		if _, err := c.c.ExecContext(ctx, "SET SESSION autocommit = 0"); err != nil {
			return err
		}
		// Its statements have contexts of their own; the end of one must not end the transaction.
		t.native, err = c.c.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		return err
	})
	if err != nil {
		c.bad.Store(true)
		return nil, err
	}
	err = sequence(ctx, t.native, nil, first)
	if err == nil && c.id == 0 {
		err = t.native.QueryRowContext(ctx, "SELECT CAST(CONNECTION_ID() AS SIGNED)").Scan(&c.id)
	}
	if err == nil {
		_, err = t.native.ExecContext(ctx, "SAVEPOINT "+guardpoint)
	}
	if err != nil {
		return nil, errors.Join(err, t.Rollback(ctx))
	}
	return t, nil
}

// Native implements sqlq.Tx.
func (t *sharedTx) Native() any {
	t.lent = true
	t.c.lent.Store(true)
	return t.native
}

// look returns an error where there is no transaction any more, which it asks once.
func (t *sharedTx) look(ctx context.Context) error {
	if !t.lent {
		return nil
	}
	if _, err := t.native.ExecContext(ctx, "RELEASE SAVEPOINT "+guardpoint); err != nil {
		if number(err) == erNoSavepoint || errors.Is(err, sql.ErrTxDone) {
			return fmt.Errorf("%w: %w", errTxEnded, err)
		}
		if number(err) == 0 && ctx.Err() == nil {
			return fmt.Errorf("%w: %w", errTxBusy, err)
		}
		return err
	}
	t.lent = false
	t.c.lent.Store(false)
	return nil
}

// run does something in the transaction.
func (t *sharedTx) run(ctx context.Context, do func() error) error {
	return t.c.call(ctx, func() error {
		if err := t.look(ctx); err != nil {
			return err
		}
		return do()
	})
}

func (t *sharedTx) Exec(ctx context.Context, text string, args ...any) (n int64, err error) {
	err = t.run(ctx, func() error {
		n, err = exec(ctx, t.native, false, text, args)
		return err
	})
	return n, err
}

func (t *sharedTx) Query(ctx context.Context, text string, args ...any) (found sqlq.Rows, err error) {
	err = t.run(ctx, func() error {
		found, err = query(ctx, t.native, false, text, args)
		return err
	})
	return found, err
}

func (t *sharedTx) Batch(ctx context.Context, steps []sqlq.Step) error {
	return t.run(ctx, func() error { return sequence(ctx, t.native, nil, steps) })
}

// Commit implements sqlq.Tx.
func (t *sharedTx) Commit(ctx context.Context, last, after []sqlq.Step) error {
	if err := t.Batch(ctx, last); err != nil {
		return errors.Join(err, t.Rollback(ctx))
	}
	if err := t.end(ctx, t.native.Commit); err != nil {
		t.c.Kill()
		return commitError(err)
	}
	t.giveBack(ctx)
	if err := sequence(ctx, t.c.c, nil, after); err != nil {
		return &sqlq.AfterError{Err: err}
	}
	return nil
}

// end commits or rolls back, which the driver does without a context.
func (t *sharedTx) end(ctx context.Context, how func() error) error {
	t.c.busy.Add(1)
	defer t.c.busy.Add(-1)
	defer context.AfterFunc(ctx, t.c.sever)()
	return how()
}

// Rollback implements sqlq.Tx. It does not end with ctx: a connection in a transaction is of no use to anybody.
func (t *sharedTx) Rollback(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	err := t.end(ctx, t.native.Rollback)
	if err != nil && !errors.Is(err, sql.ErrTxDone) {
		t.c.Kill() // a statement of the handler's may still run at the server
		return fmt.Errorf("rolling back: %w", err)
	}
	t.c.lent.Store(false)
	t.giveBack(ctx)
	return nil
}

// giveBack has the connection commit by itself again.
func (t *sharedTx) giveBack(ctx context.Context) {
	if _, err := t.c.c.ExecContext(ctx, "SET SESSION autocommit = 1"); err != nil {
		t.c.bad.Store(true)
	}
}

// userTx makes an Execer of a transaction of the caller's.
type userTx struct{ tx *sql.Tx }

func (t userTx) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	return exec(ctx, t.tx, false, text, args)
}

func (t userTx) Query(ctx context.Context, text string, args ...any) (sqlq.Rows, error) {
	return query(ctx, t.tx, false, text, args)
}

func (t userTx) Batch(ctx context.Context, steps []sqlq.Step) error {
	return sequence(ctx, t.tx, nil, steps)
}

var _ sqlq.Tx = (*sharedTx)(nil)
