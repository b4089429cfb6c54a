// Package mysql keeps queues in a database of MySQL, 8.0 or newer, or MariaDB,
// 10.8 or newer, with the driver github.com/go-sql-driver/mysql.
//
//	db, err := mysql.Open("user:password@tcp(127.0.0.1:3306)/app", mysql.Options{})
//	defer db.Close()
//	emails := db.Queue(sqlq.Standard("jobs", "emails"))
//	err = emails.CreateTable(ctx)
//	rt.Handle(emails, handler, settle.Options{Workers: 8, MaxAttempts: 5, DeadLetter: "emails.dead"})
//
// # Forms
//
// With [sqlq.Lease] a delivery takes no connection while its handler runs. A claim of
// any number of rows costs two round trips, and so does a settlement of any number of them at the most. With
// [sqlq.RowLock] each worker keeps a connection with an open transaction, and a
// message costs two round trips: begin and claim in one, settlement and commit in
// the other. With [sqlq.AdvisoryLock] the rows of one claim share a connection that holds their
// locks, made by GET_LOCK. Names of locks hold for the whole server, so they are hashed together with the database's
// name: 'settle:' and SHA2('DATABASE/key/NAME', 224).
//
// # Types
//
// An id may be of an integer type, char, varchar, binary, varbinary or MariaDB's uuid. A payload is a blob, text or JSON; a text
// or JSON column takes only what is that, and MySQL's JSON gives back the same value, not the same bytes.
// A DATETIME holds UTC: fill it by UTC_TIMESTAMP(6), not by NOW(). All times are the
// server's: the clock of the process plays no part. What is compared of text is compared by its column's collation; the
// tables that this package makes tell groups and keys apart to the letter.
//
// # Settings
//
// Everything runs at READ COMMITTED, whatever the server's default is. Of the DSN, [Open] keeps what it says but for
// clientFoundRows, which is on, and parseTime and loc, which play no part in what this package does; its own connections besides take
// several statements in one text (multiStatements) and are strict. Sessions have time_zone '+00:00' unless the DSN says
// otherwise.
//
// A deadlock (1213) undoes a transaction, which is then run again. Our own connections wait a second for a lock that somebody
// else has; then rows that are free are settled and renewed without the one that is not, which is tried again.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// Options are the settings of a database. The zero value of each means the default.
type Options struct {
	// MaxConns is how many connections each of the two pools of [Open] may have: that for
	// claims and settlements, and that of [DB.SQL] and [HandleTx]. Default 16. Not for [Wrap].
	MaxConns int
	// Poll is how long a consumer waits before it looks again at a queue that
	// had nothing for it. Default 500 ms. What is published by the same DB, and what
	// falls due, is seen at once.
	Poll time.Duration
}

const (
	defaultMaxConns = 16
	defaultPoll     = 500 * time.Millisecond
	// leastRead is the shortest time that the driver waits for an answer on our own
	// connections: a statement may wait for a lock.
	leastRead    = 30 * time.Second
	dialPatience = 10 * time.Second
)

// DB is an opened database. It may be used by several goroutines at once.
type DB struct {
	pool   *sql.DB // the user's, and for handlers' transactions
	owned  []*sql.DB
	db     sqlq.Database
	tx     sqlq.Database // for handlers with transactions
	killer killer
	shared *sqlq.Shared
}

// Open makes ready the database that a DSN of the driver leads to. It does no I/O: what is wrong
// with the database is the error of the first call that needs it, which also tells MySQL from MariaDB. Close the result
// when everything that uses it has ended.
func Open(dsn string, o Options) (*DB, error) {
	o, err := o.check()
	if err != nil {
		return nil, err
	}
	config, err := mysqldriver.ParseDSN(dsn)
	if err != nil {
		return nil, &settle.ConfigError{Source: "mysql", Setting: "dsn", Reason: "it cannot be read", Fix: "write it like user:password@tcp(host:3306)/database", Err: err}
	}
	if config.Timeout == 0 {
		config.Timeout = dialPatience
	}
	config.ClientFoundRows = true
	config.Logger = &mysqldriver.NopLogger{} // what it would print, this package returns
	d := &DB{}
	zone := ""
	if config.Params["time_zone"] == "" {
		zone = ", time_zone = '+00:00'"
	}
	own := config.Clone()
	own.MultiStatements, own.InterpolateParams = true, true
	if own.ReadTimeout > 0 {
		own.ReadTimeout = max(own.ReadTimeout, leastRead)
	}
	const session = "SET SESSION autocommit = 1"
	const strict = ", NAMES utf8mb4, innodb_lock_wait_timeout = 1, sql_mode = CONCAT_WS(',', NULLIF(@@sql_mode, ''), 'STRICT_TRANS_TABLES')"
	if d.pool, err = d.open(config, o, &d.killer, session+zone); err != nil {
		return nil, err
	}
	engine, err := d.open(own, o, nil, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", session+zone+strict)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.setUp(o, engine, true, config.DBName)
	d.db.Dialect = dialect{database: config.DBName, patient: true}
	return d, nil
}

// open makes one pool. A killer ends statements whose context ends.
func (d *DB) open(config *mysqldriver.Config, o Options, k *killer, setUp ...string) (*sql.DB, error) {
	c, err := newConnector(config, k, setUp...)
	if err != nil {
		return nil, &settle.ConfigError{Source: "mysql", Setting: "dsn", Reason: "the driver does not take it", Fix: "correct it", Err: err}
	}
	p := sql.OpenDB(c)
	p.SetMaxOpenConns(o.MaxConns)
	p.SetMaxIdleConns(o.MaxConns)
	d.owned = append(d.owned, p)
	return p, nil
}

// Wrap makes ready a database that the caller has opened, with its settings; [DB.Close] leaves it open. Its pool must have
// room for a connection of each worker with a [sqlq.RowLock], an [sqlq.AdvisoryLock] or a transaction, and two
// more, and should keep as many when they are idle (SetMaxIdleConns). Each statement is a round trip of its own, where a
// database of [Open] sends several at once. A table with [sqlq.Statements] needs clientFoundRows=true in the DSN.
func Wrap(pool *sql.DB, o Options) (*DB, error) {
	if pool == nil {
		return nil, &settle.ConfigError{Source: "mysql", Setting: "pool", Reason: "it is nil", Fix: "pass the database you opened"}
	}
	if o.MaxConns != 0 {
		return nil, &settle.ConfigError{Source: "mysql", Setting: "MaxConns", Reason: "the pool is the caller's", Fix: "call its SetMaxOpenConns"}
	}
	o, err := o.check()
	if err != nil {
		return nil, err
	}
	d := &DB{pool: pool}
	d.setUp(o, pool, false, "")
	return d, nil
}

func (o Options) check() (Options, error) {
	for _, s := range []struct {
		name  string
		value int64
	}{{"MaxConns", int64(o.MaxConns)}, {"Poll", int64(o.Poll)}} {
		if s.value < 0 {
			return o, &settle.ConfigError{Source: "mysql", Setting: s.name, Reason: fmt.Sprintf("%d is negative", s.value), Fix: "use zero for the default, or a positive value"}
		}
	}
	if o.MaxConns == 0 {
		o.MaxConns = defaultMaxConns
	}
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	return o, nil
}

func (d *DB) setUp(o Options, engine *sql.DB, multi bool, database string) {
	d.shared = &sqlq.Shared{}
	own := &pool{db: engine, multi: multi, killer: &d.killer}
	d.killer.pool = own
	lent := &pool{db: d.pool, shared: true, killer: &d.killer}
	for at, p := range map[*sqlq.Database]*pool{&d.db: own, &d.tx: lent} {
		at.Dialect, at.DB, at.Durable, at.Poll = dialect{database: database}, p, p, o.Poll
		at.Room = func() int { return p.db.Stats().MaxOpenConnections }
		at.Shared = func(context.Context) (*sqlq.Shared, error) { return d.shared, nil }
	}
}

// SQL returns a pool for queries and transactions of your own.
func (d *DB) SQL() *sql.DB { return d.pool }

// Database is for packages that keep tables of their own beside a queue's.
func (d *DB) Database() *sqlq.Database { return &d.db }

// Close closes the database. It leaves one that was wrapped open.
func (d *DB) Close() error {
	d.killer.running.Wait()
	var errs []error
	for _, p := range d.owned {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Queue is one queue in a table of a MySQL or MariaDB database.
type Queue struct {
	*sqlq.Queue
	db *DB
}

// Queue returns the queue of a table. It does no I/O: what is wrong with the
// table is the error of the first call that needs it.
func (d *DB) Queue(t sqlq.Table) *Queue {
	return &Queue{Queue: sqlq.NewQueue(&d.db, t), db: d}
}

// PublishTx is [sqlq.Queue.PublishIn] in a transaction of database/sql: the
// messages are there once tx commits, as durable as its settings make it. Call Wake after the
// commit to have consumers in this process see them at once.
func (q *Queue) PublishTx(ctx context.Context, tx *sql.Tx, msgs ...settle.Message) error {
	return q.PublishIn(ctx, Tx(tx), msgs...)
}

// Tx makes a transaction of database/sql what package sqlq runs statements in.
func Tx(tx *sql.Tx) sqlq.Execer {
	if tx == nil {
		return nil
	}
	return userTx{tx}
}

// HandleTx registers a handler that writes to the same database in a transaction
// of its delivery: an Ack commits its writes together with the settlement, all
// else undoes them and settles. The handler neither commits nor rolls back, runs nothing that commits by itself, such as
// CREATE TABLE, and publishes with PublishTx. The transaction is at READ COMMITTED.
//
// It works with every form, and takes a connection of the pool of [DB.SQL] for each worker. With
// [sqlq.RowLock] the row is locked in that transaction. With [sqlq.Lease] the lease is
// renewed while the handler runs, and a handler that has lost it is undone, with
// [settle.ErrLeaseLost]. With [sqlq.AdvisoryLock] the lock is on the transaction's connection.
// Batches are refused.
//
// A query that is cut off by its context is ended at the server, and the transaction goes on, to be rolled back or
// committed by the outcome. In a pool of the caller's ([Wrap]) the driver closes the connection instead, and with it the transaction: what the
// handler wrote is undone, and the attempt is counted afterwards, unless another worker has the row by then.
func HandleTx(rt *settle.Runtime, q *Queue, handler func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome, o settle.Options) {
	if q == nil || handler == nil {
		rt.Handle(q, nil, o) // Run says which
		return
	}
	source, h := transactional(q, handler)
	rt.Handle(source, h, o)
}

// transactional makes the source and the handler that HandleTx registers.
func transactional(q *Queue, handler func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome) (settle.Source, settle.Handler) {
	return sqlq.Transactional(sqlq.NewQueue(&q.db.tx, q.Table()), sqlq.TxRules{}, nil, handler)
}
