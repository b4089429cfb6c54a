package sqlq

import (
	"context"
	"errors"
	"fmt"
)

// Execer runs SQL: on a pool, on one connection, or in a transaction. It is all
// that this package knows of a driver.
type Execer interface {
	// Exec runs a statement and returns how many rows it touched.
	Exec(ctx context.Context, sql string, args ...any) (int64, error)
	// Query runs a statement that returns rows; the caller closes them.
	Query(ctx context.Context, sql string, args ...any) (Rows, error)
	// Batch runs steps in their order, in as few round trips as the driver can,
	// and ends at the first that fails, with a [*StepError] that tells which.
	Batch(ctx context.Context, steps []Step) error
}

// Step is one statement of several that go to the database together.
type Step struct {
	SQL  string
	Args []any
	// Rows reads what the statement returns, and need not close it. Nil: nothing.
	Rows func(Rows) error
	// Touched is told how many rows the statement touched. Nil: nobody asks.
	Touched func(int64)
	// Walk says that the statement looks for rows in the order of claims, so that an index
	// must serve it, however few rows there seem to be.
	Walk bool
}

// StepError says which of several steps failed.
type StepError struct {
	Index int
	Err   error
}

func (e *StepError) Error() string { return e.Err.Error() }

func (e *StepError) Unwrap() error { return e.Err }

// Rows are the result of a Query, as *sql.Rows has them.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// DB is a pool of connections. Its Batch is a transaction of its own; an error
// that [Unsure] marked may come from a commit that took effect.
type DB interface {
	Execer
	// Conn takes a connection out of the pool.
	Conn(ctx context.Context) (Conn, error)
}

// Conn is one connection, used by one goroutine at a time but for Kill.
type Conn interface {
	Execer
	// Begin begins a transaction that may write, at READ COMMITTED where there are
	// levels, and runs steps in it. It waits for another writer until ctx ends
	// or the database's own patience does. After an error nothing is open.
	Begin(ctx context.Context, first ...Step) (Tx, error)
	// Transact runs steps in a transaction of their own, commits, and then runs
	// those that come after, as [Tx] does in Commit.
	Transact(ctx context.Context, steps, after []Step) error
	// Ping has the server show that the connection lives.
	Ping(ctx context.Context) error
	// Kill ends the connection at once, also while somebody uses it. What it had
	// open is rolled back. Close still has to be called.
	Kill()
	// Close gives the connection back to its pool, or ends it where its state
	// is not known.
	Close() error
}

// Named is a [Conn] that knows what Committed of a [Server] needs to know of the
// transactions on it; empty where that is not known.
type Named interface{ Name() string }

// Tx is a transaction on a [Conn].
type Tx interface {
	Execer
	// Commit runs the last steps, commits, and then runs those that come after on
	// the connection. The transaction is over afterwards, whatever the error: a
	// [*StepError] of the last steps rolls it back; an [*AfterError] says that it
	// is committed; where it is not known whether it is, the error is marked by [Unsure].
	Commit(ctx context.Context, last, after []Step) error
	Rollback(ctx context.Context) error
	// Native is the transaction as the driver's users know it.
	Native() any
}

// AfterError says that a transaction is committed, and that what came after it
// on its connection failed.
type AfterError struct{ Err error }

func (e *AfterError) Error() string { return "after the commit: " + e.Err.Error() }

func (e *AfterError) Unwrap() error { return e.Err }

// Unsure marks an error after which work may be committed or not.
func Unsure(err error) error { return &unsureError{err} }

type unsureError struct{ error }

func (e *unsureError) Unwrap() error { return e.error }

// unknown reports whether work that ended with err may have been committed.
func unknown(err error) bool {
	var u *unsureError
	return errors.As(err, &u)
}

// Sequence runs steps one by one: the Batch of a driver that has no better way.
func Sequence(ctx context.Context, ex Execer, steps []Step) error {
	for i := range steps {
		if err := steps[i].run(ctx, ex); err != nil {
			return &StepError{Index: i, Err: err}
		}
	}
	return nil
}

func (s *Step) run(ctx context.Context, ex Execer) error {
	if s.Rows == nil {
		n, err := ex.Exec(ctx, s.SQL, s.Args...)
		if err == nil && s.Touched != nil {
			s.Touched(n)
		}
		return err
	}
	rows, err := ex.Query(ctx, s.SQL, s.Args...)
	if err != nil {
		return err
	}
	err = s.Rows(rows)
	return errors.Join(err, rows.Err(), rows.Close())
}

// inTx runs work in a transaction of its own, with the gate held where there is one.
func inTx(ctx context.Context, db DB, gate *Gate, work func(Execer) error) error {
	if err := gate.lock(ctx); err != nil {
		return err
	}
	defer gate.unlock()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	err = onConn(ctx, conn, work)
	return errors.Join(err, conn.Close())
}

// onConn runs work in a transaction on conn.
func onConn(ctx context.Context, conn Conn, work func(Execer) error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // work panicked: the connection must not stay in a transaction
			_ = tx.Rollback(context.WithoutCancel(ctx))
		}
	}()
	err = work(tx)
	done = true
	if err != nil {
		return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	if err := tx.Commit(ctx, nil, nil); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// queryOne scans the first row of a query into dest. It returns false when there is none.
func queryOne(ctx context.Context, db Execer, sql string, args []any, dest ...any) (bool, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return false, err
	}
	found := rows.Next()
	if found {
		err = rows.Scan(dest...)
	}
	return found && err == nil, errors.Join(err, rows.Err(), rows.Close())
}

// Gate lets one writer of this process at a time at a database that has room
// for one: they queue here, in order, and do not collide there. A nil Gate is always open.
type Gate struct{ slot chan struct{} }

// NewGate returns an open gate.
func NewGate() *Gate { return &Gate{slot: make(chan struct{}, 1)} }

func (g *Gate) lock(ctx context.Context) error {
	if g == nil {
		return nil
	}
	select {
	case g.slot <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for another writer in this process: %w", context.Cause(ctx))
	}
}

func (g *Gate) unlock() {
	if g != nil {
		<-g.slot
	}
}
