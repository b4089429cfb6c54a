package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/settlemq/settle/sqlq"
)

// This file is sqlq's view of pgx. What goes together is sent together: a
// transaction of several statements is one round trip, its begin and its commit included.

const (
	begin  = "BEGIN ISOLATION LEVEL READ COMMITTED"
	commit = "COMMIT"
)

// rows is pgx.Rows as sqlq reads them.
type rows struct{ pgx.Rows }

func (r rows) Close() error {
	r.Rows.Close()
	return r.Rows.Err()
}

func affected(tag pgconn.CommandTag, err error) (int64, error) { return tag.RowsAffected(), err }

func rowsOf(r pgx.Rows, err error) (sqlq.Rows, error) {
	if err != nil {
		return nil, err
	}
	return rows{r}, nil
}

// querier is what pools, connections and transactions of pgx have in common.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// pool implements sqlq.DB.
type pool struct {
	p *pgxpool.Pool
	// first are steps that begin each transaction of Batch.
	first []sqlq.Step
}

func (p *pool) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	return affected(p.p.Exec(ctx, sql, args...))
}

func (p *pool) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	return rowsOf(p.p.Query(ctx, sql, args...))
}

func (p *pool) Batch(ctx context.Context, steps []sqlq.Step) error {
	c, err := p.p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	return transact(ctx, c.Conn(), append(steadied(c.Conn(), steps), p.first...), steps, nil)
}

func (p *pool) Conn(ctx context.Context) (sqlq.Conn, error) {
	c, err := p.p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c: c, native: c.Conn()}, nil
}

// conn implements sqlq.Conn.
type conn struct {
	c      *pgxpool.Conn
	native *pgx.Conn

	mu     sync.Mutex // guards what follows
	killed bool
	closed bool
}

func (c *conn) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	return affected(c.native.Exec(ctx, sql, args...))
}

func (c *conn) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	return rowsOf(c.native.Query(ctx, sql, args...))
}

func (c *conn) Batch(ctx context.Context, steps []sqlq.Step) error {
	if first := steadied(c.native, steps); len(first) > 0 {
		return transact(ctx, c.native, first, steps, nil)
	}
	return together(ctx, c.native, steps)
}

func (c *conn) Begin(ctx context.Context, first ...sqlq.Step) (sqlq.Tx, error) {
	first = append(steadied(c.native, first), first...)
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{BeginQuery: begin})
	queue(&b, first)
	results := c.native.SendBatch(ctx, &b)
	_, err := results.Exec()
	if err == nil {
		err = read(results, first, 0)
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return nil, errors.Join(err, tidy(c.native, err))
	}
	return &tx{c: c, native: results.Tx()}, nil
}

func (c *conn) Transact(ctx context.Context, steps, after []sqlq.Step) error {
	if len(steps) > 0 {
		return transact(ctx, c.native, steadied(c.native, steps), steps, after)
	}
	if err := together(ctx, c.native, after); err != nil {
		return &sqlq.AfterError{Err: err}
	}
	return nil
}

func (c *conn) Ping(ctx context.Context) error { return c.native.Ping(ctx) }

// Kill closes the network connection under pgx, which anybody may do at any
// time. The server rolls back and lets go of locks when it sees that. The pool is rid of the
// connection at once, so that its Close does not wait for a handler that still has it.
func (c *conn) Kill() {
	c.mu.Lock()
	over := c.killed || c.closed
	c.killed = c.killed || !over
	if !over {
		c.c.Hijack()
	}
	c.mu.Unlock()
	if !over {
		_ = c.native.PgConn().Conn().Close()
	}
}

func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	killed := c.killed
	c.mu.Unlock()
	if killed {
		end(c.native)
	} else {
		c.c.Release() // which ends it where a transaction is still open
	}
	return nil
}

// end closes a connection for good.
func end(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// tidy ends the transaction that a failed batch may have left open. A connection to a server
// that takes no writes any more is ended: another may lead to the one that does.
func tidy(c *pgx.Conn, why error) error {
	if code(why) == readOnly {
		end(c)
		return nil
	}
	if c.IsClosed() || c.PgConn().TxStatus() == 'I' {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := c.Exec(ctx, "ROLLBACK"); err != nil {
		end(c)
		return fmt.Errorf("rolling back: %w", err)
	}
	return nil
}

// tx implements sqlq.Tx.
type tx struct {
	c      *conn
	native pgx.Tx
	shared bool // with a handler
}

// errTxEnded says that a handler has ended its transaction in a way of its own.
var errTxEnded = errors.New("the transaction was ended by a statement of the handler's")

// open returns an error where there is no transaction any more.
func (t *tx) open() error {
	if status := t.c.native.PgConn().TxStatus(); t.shared && status == 'I' && !t.c.native.IsClosed() {
		return errTxEnded
	}
	return nil
}

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	if err := t.open(); err != nil {
		return 0, err
	}
	return t.c.Exec(ctx, sql, args...)
}

func (t *tx) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	return t.c.Query(ctx, sql, args...)
}

func (t *tx) Batch(ctx context.Context, steps []sqlq.Step) error {
	if err := t.open(); err != nil {
		return err
	}
	if t.c.native.PgConn().TxStatus() == 'E' && len(steps) > 1 {
		// A statement has failed, and the first step takes that back. Until then the server prepares no
		// statement, and pgx prepares all of a batch before it sends the first.
		if err := together(ctx, t.c.native, steps[:1]); err != nil {
			return err
		}
		steps = steps[1:]
	}
	return together(ctx, t.c.native, steps)
}

func (t *tx) Commit(ctx context.Context, last, after []sqlq.Step) error {
	if !t.shared {
		return finish(ctx, t.c.native, nil, last, after)
	}
	// pgx has to know that it is over: the handler may still have it.
	if err := t.Batch(ctx, last); err != nil {
		return errors.Join(err, t.Rollback(ctx))
	}
	if err := t.native.Commit(ctx); err != nil {
		return errors.Join(commitError(err), tidy(t.c.native, err))
	}
	if err := together(ctx, t.c.native, after); err != nil {
		return &sqlq.AfterError{Err: err}
	}
	return nil
}

// Rollback does not end with ctx: a connection in a transaction is of no use to anybody.
func (t *tx) Rollback(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := t.native.Rollback(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return err
}

func (t *tx) Native() any {
	t.shared = true
	return handlersTx{t.native}
}

// handlersTx is a transaction in the hands of a handler, which does not end it.
type handlersTx struct{ pgx.Tx }

var errNotYours = errors.New("postgres: the outcome of a handler commits or rolls back its transaction: return settle.Ack() to commit")

func (handlersTx) Commit(context.Context) error   { return errNotYours }
func (handlersTx) Rollback(context.Context) error { return errNotYours }

// userTx makes an Execer of a transaction, or anything like it, of the caller's.
type userTx struct{ q querier }

func (t userTx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	return affected(t.q.Exec(ctx, sql, args...))
}

func (t userTx) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	return rowsOf(t.q.Query(ctx, sql, args...))
}

func (t userTx) Batch(ctx context.Context, steps []sqlq.Step) error { return together(ctx, t.q, steps) }

// together sends steps at once and reads what comes back.
func together(ctx context.Context, q querier, steps []sqlq.Step) error {
	if len(steps) == 0 {
		return nil
	}
	var b pgx.Batch
	queue(&b, steps)
	results := q.SendBatch(ctx, &b)
	err := read(results, steps, 0)
	if closed := results.Close(); err == nil {
		err = closed
	}
	return err
}

// transact is a transaction of its own in one round trip: begin, steps, commit, and what comes after.
func transact(ctx context.Context, c *pgx.Conn, first, steps, after []sqlq.Step) error {
	head := make([]sqlq.Step, 0, 1+len(first))
	head = append(append(head, sqlq.Step{SQL: begin}), first...)
	return finish(ctx, c, head, steps, after)
}

// finish runs steps, commits, and runs what comes after, in one round trip.
func finish(ctx context.Context, c *pgx.Conn, head, steps, after []sqlq.Step) error {
	var b pgx.Batch
	queue(&b, head)
	queue(&b, steps)
	b.Queue(commit)
	queue(&b, after)
	results := c.SendBatch(ctx, &b)
	err := read(results, head, -len(head))
	if err == nil {
		err = read(results, steps, 0)
	}
	committed := false
	if err == nil {
		var tag pgconn.CommandTag
		if tag, err = results.Exec(); err == nil && tag.String() == "ROLLBACK" {
			err = pgx.ErrTxCommitRollback
		}
		committed = err == nil
	}
	if err == nil {
		err = read(results, after, 0)
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	switch {
	case err == nil, committed && len(after) == 0: // what broke after the commit, the next call finds
		return nil
	case committed:
		return &sqlq.AfterError{Err: err}
	default:
		return errors.Join(commitError(err), tidy(c, err))
	}
}

// commitError is what is known of a commit that was sent with others and ended with err.
func commitError(err error) error {
	var refused *pgconn.PgError // the class 57 is about servers that stop, which may be after the commit
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback), pgconn.SafeToRetry(err):
		return err
	case errors.As(err, &refused) && refused.Code[:2] != "57" && refused.Code[:2] != "08":
		return err // the server says so itself
	default:
		return sqlq.Unsure(err)
	}
}

func queue(b *pgx.Batch, steps []sqlq.Step) {
	for i := range steps {
		b.Queue(steps[i].SQL, steps[i].Args...)
	}
}

// read takes the results of steps. base is added to the index of the one that fails.
func read(results pgx.BatchResults, steps []sqlq.Step, base int) error {
	for i := range steps {
		if err := readStep(results, &steps[i]); err != nil {
			return &sqlq.StepError{Index: max(base+i, 0), Err: err}
		}
	}
	return nil
}

func readStep(results pgx.BatchResults, s *sqlq.Step) error {
	if s.Rows == nil {
		tag, err := results.Exec()
		if err == nil && s.Touched != nil {
			s.Touched(tag.RowsAffected())
		}
		return err
	}
	r, err := results.Query()
	if err != nil {
		return err
	}
	err = s.Rows(rows{r})
	r.Close()
	if failed := r.Err(); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("reading the result: %w", err)
	}
	if s.Touched != nil {
		s.Touched(r.CommandTag().RowsAffected())
	}
	return nil
}

var (
	_ sqlq.DB   = (*pool)(nil)
	_ sqlq.Conn = (*conn)(nil)
	_ sqlq.Tx   = (*tx)(nil)
)
