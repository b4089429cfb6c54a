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
}

// Rows are the result of a Query, as *sql.Rows has them.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// DB is a pool of connections.
type DB interface {
	Execer
	// Conn takes a connection out of the pool.
	Conn(ctx context.Context) (Conn, error)
}

// Conn is one connection, used by one goroutine at a time.
type Conn interface {
	Execer
	// Begin begins a transaction that may write. It waits for another writer
	// until ctx ends or the database's own patience does.
	Begin(ctx context.Context) (Tx, error)
	// Close gives the connection back to its pool, or ends it where its state
	// is not known.
	Close() error
}

// Tx is a transaction on a [Conn]. After an error of Commit it is over, and
// whether it was committed is not known.
type Tx interface {
	Execer
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// commitError is an error of Commit: the work may be done or not.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// unknown reports whether work that ended with err may have been committed.
func unknown(err error) bool {
	var c *commitError
	return errors.As(err, &c)
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
	if err := tx.Commit(ctx); err != nil {
		return &commitError{fmt.Errorf("commit: %w", err)}
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
