package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/postgres"
)

var postgresPart = part{name: "postgres", about: aboutPostgres, comparisons: postgresComparisons, extras: []extra{
	{"statements and round trips", postgresTrips},
	{"claim time by depth", postgresDepths},
	{"idle cost", postgresIdle},
	{"from the insert to the handler", postgresWakeUp},
}}

const (
	postgresConns = 16
	manyWorkers   = 2000 // what river's own benchmark uses
)

func postgresDSN() (string, error) {
	if dsn := os.Getenv("SETTLE_POSTGRES_DSN"); dsn != "" {
		return dsn, nil
	}
	return "", noServiceError{"SETTLE_POSTGRES_DSN names no server"}
}

// aboutPostgres says which server it is, with the settings that decide what a commit costs.
func aboutPostgres(ctx context.Context) (string, error) {
	pool, _, err := postgresPool(ctx, 1)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	var about string
	err = pool.QueryRow(ctx, `SELECT 'PostgreSQL ' || current_setting('server_version') || ', fsync ' || current_setting('fsync') ||
		', synchronous_commit ' || current_setting('synchronous_commit') || ', shared_buffers ' || current_setting('shared_buffers')`).Scan(&about)
	return about, err
}

func postgresComparisons(context.Context) ([]comparison, error) {
	pool := fmt.Sprintf("pool of %d", postgresConns)
	ours := func(name string, form sqlq.Form, o settle.Options, done string) contestant {
		settings := fmt.Sprintf("%d workers", o.Workers)
		if o.BatchSize > 0 {
			settings += fmt.Sprintf(", batches of %d", o.BatchSize)
		}
		return contestant{
			name: name, settings: settings + ", " + pool, done: done,
			prepare: func(ctx context.Context, n int) (run, error) { return settlePostgres(ctx, n, form, o) },
		}
	}
	fenced := "the row's DELETE is committed, fenced on its attempt and lease"
	locked := "the row's DELETE is committed in the transaction that locks it"
	return []comparison{
		{
			part: "postgres", name: "lease, each at its best", messages: 100000, base: "river",
			work: "Take a row of 200 bytes, do nothing with it, and be done with it, with many workers.",
			contestants: []contestant{
				ours("settle", sqlq.Lease{}, settle.Options{Workers: manyWorkers}, fenced),
				riverWorkers(manyWorkers),
			},
			bars: []bar{{"settle", "river", 1, false}},
		},
		{
			part: "postgres", name: "lease, 8 workers", messages: 10000, base: "river",
			work: "Take a row of 200 bytes, do nothing with it, and be done with it; 8 at once.",
			contestants: []contestant{
				ours("settle", sqlq.Lease{}, settle.Options{Workers: 8}, fenced),
				riverWorkers(8),
			},
			bars: []bar{{"settle", "river", 1, false}},
		},
		{
			part: "postgres", name: "watermill-sql", messages: 100000, base: "watermill-sql, batches of 1",
			work: "Take a row of 200 bytes, do nothing with it, and be done with it.",
			contestants: []contestant{
				ours("settle", sqlq.Lease{}, settle.Options{Workers: manyWorkers}, fenced),
				ours("settle, 8 workers", sqlq.Lease{}, settle.Options{Workers: 8}, fenced),
				watermillSQL(1, 100), watermillSQL(100, 10), watermillTopic(10),
			},
			bars: []bar{{"settle", "watermill-sql, batches of 1", 20, false}},
		},
		{
			part: "postgres", name: "row lock one by one, 8 workers", messages: 20000, base: "by hand",
			work: "Lock a row of 200 bytes in a transaction, do nothing with it, delete it and commit; 8 at once.",
			contestants: []contestant{
				ours("settle", sqlq.RowLock{}, settle.Options{Workers: 8}, locked),
				{
					name: "by hand", settings: "8 loops of BEGIN, SELECT .. FOR UPDATE SKIP LOCKED, DELETE, COMMIT, " + pool, done: locked,
					prepare: func(ctx context.Context, n int) (run, error) { return rowsByHand(ctx, n, 8, 1) },
				},
			},
			bars: []bar{{"settle", "by hand", 0.9, false}},
		},
		{
			part: "postgres", name: "row lock in batches of 16, 8 workers", messages: 50000, base: "by hand",
			work: "Lock 16 rows of 200 bytes in a transaction, do nothing with them, delete them and commit; 8 at once.",
			contestants: []contestant{
				ours("settle", sqlq.RowLock{}, settle.Options{Workers: 8, BatchSize: 16}, locked),
				{
					name: "by hand", settings: "8 loops of BEGIN, SELECT .. LIMIT 16 FOR UPDATE SKIP LOCKED, DELETE .. = ANY, COMMIT, " + pool, done: locked,
					prepare: func(ctx context.Context, n int) (run, error) { return rowsByHand(ctx, n, 8, 16) },
				},
			},
			bars: []bar{{"settle", "by hand", 0.9, false}},
		},
		{
			part: "postgres", name: "advisory lock, 8 workers", messages: 10000, base: "by hand",
			work: "Lock a row of 200 bytes by name, do nothing with it, delete it and unlock; 8 at once.",
			contestants: []contestant{
				ours("settle", sqlq.AdvisoryLock{Key: "jobs-{id}"}, settle.Options{Workers: 8}, "the row's DELETE is committed on the connection that has its lock"),
				{
					name: "by hand", settings: "8 loops, a connection each: pg_try_advisory_lock over candidates, SELECT the row again, DELETE, pg_advisory_unlock, " + pool, done: "the row's DELETE is committed on the connection that has its lock",
					prepare: func(ctx context.Context, n int) (run, error) { return locksByHand(ctx, n, 8) },
				},
			},
			bars: []bar{{"settle", "by hand", 0.9, false}},
		},
	}, nil
}

// counting counts what a pool sends.
type counting struct{ statements, trips atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	c.trips.Add(1)
	return ctx
}
func (c *counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counting) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.trips.Add(1)
	return ctx
}

func (c *counting) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	c.statements.Add(1)
}
func (c *counting) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// notes are the statements and round trips a message, n of them since the last call.
func (c *counting) notes(n int) map[string]float64 {
	return map[string]float64{
		"statements":  float64(c.statements.Swap(0)) / float64(n),
		"round trips": float64(c.trips.Swap(0)) / float64(n),
	}
}

func (c *counting) reset() {
	c.statements.Store(0)
	c.trips.Store(0)
}

// postgresPool is a pool that counts.
func postgresPool(ctx context.Context, conns int32) (*pgxpool.Pool, *counting, error) {
	dsn, err := postgresDSN()
	if err != nil {
		return nil, nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	count := &counting{}
	config.MaxConns, config.ConnConfig.Tracer = conns, count
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pool, count, err
}

// postgresQueue makes a table anew and fills it. It returns the queue, opened as users do,
// and a pool for what else there is to do.
func postgresQueue(ctx context.Context, n int, form sqlq.Form) (*postgres.DB, *postgres.Queue, *pgxpool.Pool, *counting, error) {
	pool, count, err := postgresPool(ctx, postgresConns)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	db, queue, err := openQueue(form, os.Getenv("SETTLE_POSTGRES_DSN"))
	if err == nil {
		_, err = pool.Exec(ctx, "DROP TABLE IF EXISTS bench_jobs")
	}
	if err == nil {
		err = queue.CreateTable(ctx)
	}
	if err == nil {
		err = fill(ctx, queue, n)
	}
	if err == nil {
		_, err = pool.Exec(ctx, "VACUUM ANALYZE bench_jobs")
	}
	if err == nil {
		if _, err = pool.Exec(ctx, "CHECKPOINT"); denied(err) {
			err = nil
		}
	}
	count.reset()
	return db, queue, pool, count, err
}

// openQueue opens the table of the benchmarks.
func openQueue(form sqlq.Form, dsn string) (*postgres.DB, *postgres.Queue, error) {
	db, err := postgres.Open(dsn, postgres.Options{MaxConns: postgresConns})
	if err != nil {
		return nil, nil, err
	}
	table := sqlq.Standard("bench_jobs", "bench")
	table.Form = form
	if _, lease := form.(sqlq.Lease); !lease {
		table.LockedUntil = ""
	}
	return db, db.Queue(table), nil
}

func settlePostgres(ctx context.Context, n int, form sqlq.Form, o settle.Options) (run, error) {
	db, queue, pool, _, err := postgresQueue(ctx, n, form)
	if err != nil {
		return run{}, err
	}
	pool.Close()
	return runtimeRun(n, queue, o, func() { db.Close() }), nil
}

// rowsByHand is the loop that one writes oneself: a transaction for each batch of rows.
func rowsByHand(ctx context.Context, n, loops, batch int) (run, error) {
	db, _, pool, count, err := postgresQueue(ctx, n, sqlq.RowLock{})
	if err != nil {
		return run{}, err
	}
	db.Close()
	return run{
		do: func(ctx context.Context) error {
			return loop(loops, func() (bool, error) {
				tx, err := pool.Begin(ctx)
				if err != nil {
					return false, err
				}
				defer tx.Rollback(ctx)
				ids, err := lockRows(ctx, tx, batch)
				if err != nil || len(ids) == 0 {
					return false, err
				}
				if batch == 1 {
					_, err = tx.Exec(ctx, "DELETE FROM bench_jobs WHERE id = $1", ids[0])
				} else {
					_, err = tx.Exec(ctx, "DELETE FROM bench_jobs WHERE id = ANY($1)", ids)
				}
				if err != nil {
					return false, err
				}
				return true, tx.Commit(ctx)
			})
		},
		end:   pool.Close,
		notes: func() map[string]float64 { return count.notes(n) },
	}, nil
}

// lockRows locks rows. The limit is written out: with a parameter in its place
// the server would plan the statement anew each time.
func lockRows(ctx context.Context, tx pgx.Tx, batch int) (ids []int64, err error) {
	rows, err := tx.Query(ctx, fmt.Sprintf("SELECT id, attempt, headers, payload FROM bench_jobs WHERE queue = $1 AND retry_after <= now() ORDER BY retry_after, id LIMIT %d FOR UPDATE SKIP LOCKED", batch), "bench")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var attempt int
		var headers *string
		var body []byte
		if err := rows.Scan(&id, &attempt, &headers, &body); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// locksByHand takes a row by an advisory lock, as one would by hand: try the
// first few that are due, look at the row again under its lock, delete it, unlock.
func locksByHand(ctx context.Context, n, loops int) (run, error) {
	db, _, pool, count, err := postgresQueue(ctx, n, sqlq.RowLock{})
	if err != nil {
		return run{}, err
	}
	db.Close()
	const try = `WITH due AS MATERIALIZED (SELECT id FROM bench_jobs WHERE queue = $1 AND retry_after <= now() ORDER BY retry_after, id LIMIT 64)
		SELECT id FROM due WHERE pg_try_advisory_lock(hashtextextended('jobs-' || id, 0)) LIMIT 1`
	step := func(ctx context.Context, conn *pgxpool.Conn) (bool, error) {
		var id int64
		err := conn.QueryRow(ctx, try, "bench").Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			var left bool
			err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM bench_jobs WHERE queue = $1)", "bench").Scan(&left)
			return left, err
		}
		if err != nil {
			return false, err
		}
		var attempt int
		var headers *string
		var body []byte
		err = conn.QueryRow(ctx, "SELECT attempt, headers, payload FROM bench_jobs WHERE id = $1 AND retry_after <= now()", id).Scan(&attempt, &headers, &body)
		if err == nil {
			_, err = conn.Exec(ctx, "DELETE FROM bench_jobs WHERE id = $1", id)
		} else if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		if err != nil {
			return false, err
		}
		var unlocked bool
		return true, conn.QueryRow(ctx, "SELECT pg_advisory_unlock(hashtextextended('jobs-' || $1::bigint, 0))", id).Scan(&unlocked)
	}
	return run{
		do: func(ctx context.Context) error {
			conns := make(chan *pgxpool.Conn, loops)
			for range loops {
				conn, err := pool.Acquire(ctx)
				if err != nil {
					return err
				}
				defer conn.Release()
				conns <- conn
			}
			return loop(loops, func() (bool, error) {
				conn := <-conns
				defer func() { conns <- conn }()
				return step(ctx, conn)
			})
		},
		end:   pool.Close,
		notes: func() map[string]float64 { return count.notes(n) },
	}, nil
}
