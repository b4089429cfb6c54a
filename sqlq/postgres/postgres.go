// Package postgres keeps queues in a PostgreSQL database, version 13 or newer, with the driver
// github.com/jackc/pgx/v5 and its pool.
//
//	db, err := postgres.Open(dsn, postgres.Options{})
//	defer db.Close()
//	emails := db.Queue(sqlq.Standard("jobs", "emails"))
//	err = emails.CreateTable(ctx)
//	rt.Handle(emails, handler, settle.Options{Workers: 8, MaxAttempts: 5, DeadLetter: "emails.dead"})
//
// # Forms
//
// With [sqlq.Lease] a delivery takes no connection while its handler runs. With
// [sqlq.RowLock] each worker keeps a connection with an open transaction, and a
// message costs two round trips: begin and claim in one, settlement and commit in
// the other. With [sqlq.AdvisoryLock] the rows of one claim share a connection
// that holds their locks: session locks on hashtextextended(name, 0), so that others can
// take part by `SELECT pg_advisory_lock(hashtextextended('jobs-7', 0))`.
//
// # Types
//
// An id may be of an integer type, uuid, text or any other that has an order and an exact text. A payload is bytea,
// text, json or jsonb; a text or JSON column takes only what is that, and jsonb gives
// back the same value, not the same bytes. A time column without time zone holds
// UTC. All times are the server's: the clock of the process plays no part.
//
// # Settings
//
// Everything runs at READ COMMITTED, whatever the session's default is. Publish
// waits for the disk also where synchronous_commit is off; the settlements of
// such a session may be undone by a crash of the server, so that messages come again.
// In a transaction of the caller its own settings stand.
package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// Options are the settings of a database. The zero value of each means the default.
type Options struct {
	// MaxConns is how many connections the consumers and publishers of [Open] may have, and
	// beside them the user of Pool. Default: pool_max_conns of the DSN, else 16. Not for [Wrap].
	MaxConns int
	// Poll is how long a consumer waits before it looks again at a queue that
	// had nothing for it. Default 500 ms. What is published by the same DB, and what
	// falls due, is seen at once.
	Poll time.Duration
	// Notify has consumers listen, on one connection for all, to NOTIFY of those
	// who publish with it in other processes, so that they need not wait for a Poll. A notification is
	// sent after the commit, by itself, and at most once each NotifyEvery for a queue: a
	// commit with a NOTIFY holds up all others of the server. Polling goes on.
	Notify bool
	// NotifyEvery bounds the notifications of this process. Default 10 ms.
	NotifyEvery time.Duration
}

const (
	defaultMaxConns    = 16
	defaultPoll        = 500 * time.Millisecond
	defaultNotifyEvery = 10 * time.Millisecond
	// A query whose context ends is cancelled on the server; where that does not
	// answer within this time the connection is given up.
	cancelPatience = 2 * time.Second
)

// DB is an opened PostgreSQL database. It may be used by several goroutines at once.
type DB struct {
	pool   *pgxpool.Pool // of the package
	users  *pgxpool.Pool // of its user; the same where it was wrapped
	db     sqlq.Database
	shared *sqlq.Shared
	bell   *bell // nil without Notify
}

// Open makes ready the database that a DSN leads to, as pgxpool.ParseConfig takes
// it. It does no I/O: what is wrong with the database is the error of the first
// call that needs it. Close the result when everything that uses it has ended.
func Open(dsn string, o Options) (*DB, error) {
	o, err := o.check()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, &settle.ConfigError{Source: "postgres", Setting: "dsn", Reason: "it cannot be read", Fix: "write it like postgres://user:password@host:5432/database", Err: err}
	}
	given, err := pgx.ParseConfig(dsn) // which leaves the pool's own settings where they are
	switch {
	case o.MaxConns > 0:
		config.MaxConns = int32(o.MaxConns)
	case err == nil && given.RuntimeParams["pool_max_conns"] == "":
		config.MaxConns = max(defaultMaxConns, config.MaxConns)
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "settle"
	}
	// A handler whose context ends must not lose the transaction of its delivery.
	config.ConnConfig.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: cancelPatience}
	}
	users, err := pgxpool.NewWithConfig(context.Background(), config.Copy())
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	config.AfterConnect = setSteady
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		users.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	d := &DB{pool: pool, users: users}
	d.setUp(o)
	return d, nil
}

// Wrap makes ready a database that the caller has opened; [DB.Close] leaves it
// open. Its pool must have room for a connection of each worker with a
// [sqlq.RowLock], an [sqlq.AdvisoryLock] or a transaction, and two more. A
// query of a handler in its transaction that is cut off by its context costs the connection, unless the pool's
// BuildContextWatcherHandler sends a cancel request; the attempt is counted all the same.
func Wrap(pool *pgxpool.Pool, o Options) (*DB, error) {
	if pool == nil {
		return nil, &settle.ConfigError{Source: "postgres", Setting: "pool", Reason: "it is nil", Fix: "pass the pool you opened"}
	}
	o, err := o.check()
	if err == nil && o.MaxConns != 0 {
		err = &settle.ConfigError{Source: "postgres", Setting: "MaxConns", Reason: "the pool is the caller's", Fix: "set its MaxConns"}
	}
	if err != nil {
		return nil, err
	}
	d := &DB{pool: pool, users: pool}
	d.setUp(o)
	d.db.Lent = true
	return d, nil
}

func (o Options) check() (Options, error) {
	for _, s := range []struct {
		name  string
		value int64
	}{{"MaxConns", int64(o.MaxConns)}, {"Poll", int64(o.Poll)}, {"NotifyEvery", int64(o.NotifyEvery)}} {
		if s.value < 0 {
			return o, &settle.ConfigError{Source: "postgres", Setting: s.name, Reason: fmt.Sprintf("%d is negative", s.value), Fix: "use zero for the default, or a positive value"}
		}
	}
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	if o.NotifyEvery == 0 {
		o.NotifyEvery = defaultNotifyEvery
	}
	return o, nil
}

// durable are the steps that have a commit wait for the disk where the session would not.
var durable = []sqlq.Step{{SQL: "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"}}

func (d *DB) setUp(o Options) {
	d.shared = &sqlq.Shared{}
	d.db = sqlq.Database{
		Dialect: dialect{}, DB: &pool{p: d.pool}, Durable: &pool{p: d.pool, first: durable}, Poll: o.Poll,
		Room:   func() int { return int(d.pool.Config().MaxConns) },
		Shared: func(context.Context) (*sqlq.Shared, error) { return d.shared, nil },
	}
	if o.Notify {
		d.bell = newBell(d.pool, d.shared, o.NotifyEvery)
		d.shared.Bell = d.bell
	}
}

// Pool returns a pool for queries and transactions of your own. That of [Open] is not the
// one that consumers take their connections from, has room for as many, and opens none before it is used.
func (d *DB) Pool() *pgxpool.Pool { return d.users }

// Database returns the database for packages that are built on sqlq, such as outbox.
func (d *DB) Database() *sqlq.Database { return &d.db }

// Close ends what runs for the database and closes its pools. It leaves a pool that was wrapped open.
func (d *DB) Close() error {
	if d.bell != nil {
		d.bell.close()
	}
	if d.users != d.pool {
		d.users.Close()
		d.pool.Close()
	}
	return nil
}

// Queue is one queue in a table of a PostgreSQL database.
type Queue struct {
	*sqlq.Queue
	db *DB
}

// Queue returns the queue of a table. It does no I/O: what is wrong with the
// table is the error of the first call that needs it.
func (d *DB) Queue(t sqlq.Table) *Queue {
	return &Queue{Queue: sqlq.NewQueue(&d.db, t), db: d}
}

// PublishTx is [sqlq.Queue.PublishIn] in a transaction of pgx: the messages are
// there once tx commits, as durable as its settings make it. Call Wake after the
// commit to have consumers see them at once.
func (q *Queue) PublishTx(ctx context.Context, tx pgx.Tx, msgs ...settle.Message) error {
	return q.PublishIn(ctx, Tx(tx), msgs...)
}

// Tx makes a transaction of pgx what package sqlq runs statements in.
func Tx(tx pgx.Tx) sqlq.Execer {
	if tx == nil {
		return nil
	}
	return userTx{tx}
}

// HandleTx registers a handler that writes to the same database in a transaction
// of its delivery: an Ack commits its writes together with the settlement, all
// else undoes them and settles. The handler neither commits nor rolls back, and publishes
// with PublishTx. The transaction is at READ COMMITTED.
//
// It works with every form, and takes a connection of the pool for each worker. With
// [sqlq.RowLock] the row is locked in that transaction. With [sqlq.Lease] the lease is
// renewed while the handler runs, and a handler that has lost it is undone, with
// [settle.ErrLeaseLost]. With [sqlq.AdvisoryLock] the lock is on the transaction's connection.
// Batches are refused.
func HandleTx(rt *settle.Runtime, q *Queue, handler func(context.Context, pgx.Tx, *settle.Delivery) settle.Outcome, o settle.Options) {
	if q == nil || handler == nil {
		rt.Handle(q, nil, o) // Run says which
		return
	}
	source, h := sqlq.Transactional(q.Queue, sqlq.TxRules{}, nil, handler)
	rt.Handle(source, h, o)
}

// Channel is the channel that a table's queues are notified on, with the queue's GroupValue as the
// payload, or an empty one for all queues of the table. Those who insert rows by other means can notify
// consumers with it: SELECT pg_notify(channel, group).
func (q *Queue) Channel() string { return channel(q.Table().Schema, q.Table().Name) }
