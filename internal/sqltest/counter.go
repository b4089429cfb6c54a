package sqltest

import (
	"context"
	"sync/atomic"

	"github.com/settlemq/settle/sqlq"
)

// Counter counts what goes to a database: statements, and several that are sent together as one.
type Counter struct {
	Calls   atomic.Int64 // all of it
	Queries atomic.Int64 // outside of a transaction and of a delivery's connection
	Begins  atomic.Int64 // transactions
}

// Count has everything that sessions opened from now on send counted. It takes a
// database in front of which nobody works yet.
func Count(db *sqlq.Database) *Counter {
	c := &Counter{}
	db.DB = countedDB{db.DB, counted{db.DB, c}}
	return c
}

// counted is an Execer that counts.
type counted struct {
	sqlq.Execer
	c *Counter
}

func (x counted) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	x.c.Calls.Add(1)
	return x.Execer.Exec(ctx, sql, args...)
}

func (x counted) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	x.c.Calls.Add(1)
	return x.Execer.Query(ctx, sql, args...)
}

func (x counted) Batch(ctx context.Context, steps []sqlq.Step) error {
	x.c.Calls.Add(1)
	return x.Execer.Batch(ctx, steps)
}

type countedDB struct {
	db sqlq.DB
	counted
}

func (d countedDB) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	d.c.Queries.Add(1)
	return d.counted.Query(ctx, sql, args...)
}

func (d countedDB) Batch(ctx context.Context, steps []sqlq.Step) error {
	d.c.Begins.Add(1)
	return d.counted.Batch(ctx, steps)
}

func (d countedDB) Conn(ctx context.Context) (sqlq.Conn, error) {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, counted{conn, d.c}}, nil
}

type countedConn struct {
	sqlq.Conn
	x counted
}

func (c countedConn) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	return c.x.Exec(ctx, sql, args...)
}

func (c countedConn) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	return c.x.Query(ctx, sql, args...)
}

func (c countedConn) Batch(ctx context.Context, steps []sqlq.Step) error {
	return c.x.Batch(ctx, steps)
}

func (c countedConn) Begin(ctx context.Context, first ...sqlq.Step) (sqlq.Tx, error) {
	c.x.c.Calls.Add(1)
	c.x.c.Begins.Add(1)
	return c.Conn.Begin(ctx, first...)
}

func (c countedConn) Transact(ctx context.Context, steps, after []sqlq.Step) error {
	c.x.c.Calls.Add(1)
	c.x.c.Begins.Add(1)
	return c.Conn.Transact(ctx, steps, after)
}

func (c countedConn) Ping(ctx context.Context) error {
	c.x.c.Calls.Add(1)
	return c.Conn.Ping(ctx)
}
