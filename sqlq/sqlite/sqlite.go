// Package sqlite keeps queues in a SQLite database, with the driver modernc.org/sqlite.
//
//	db, err := sqlite.Open("app.db", sqlite.Options{})
//	defer db.Close()
//	emails := db.Queue(sqlq.Standard("jobs", "emails"))
//	err = emails.CreateTable(ctx)
//	rt.Handle(emails, handler, settle.Options{Workers: 8, MaxAttempts: 5, DeadLetter: "emails.dead"})
//
// # What is kept, and when
//
// Times are whole microseconds since 1970 by the process's clock, in INTEGER
// columns. The database is in WAL mode. What Publish commits is on the disk
// (synchronous=FULL). Claims and settlements are not waited for on the disk
// (synchronous=NORMAL), unless Options.Durable says so: they survive a crash of
// the process, and where the machine loses power the last of them may be undone, so
// that a message comes again. Nothing is lost by that. In a transaction of the caller the settings of
// its own connection stand.
//
// # Processes
//
// With [sqlq.Lease] several processes may work on one file. With
// [sqlq.AdvisoryLock] the locks live in the process, so a second process on the
// same table is refused, by a lock on a file beside the database. [sqlq.RowLock]
// is refused: SQLite has no row locks.
//
// SQLite has one writer at a time. Those of one process that use this package queue
// up in order; against others there is Options.BusyTimeout. A transaction of
// your own that stays open keeps all queues of the file waiting.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// Options are the settings of a database. The zero value of each means the
// default that stands beside it.
type Options struct {
	// BusyTimeout is how long a writer waits for another. Default 5 s.
	BusyTimeout time.Duration
	// Poll is how long a consumer waits before it looks again at a queue that
	// had nothing for it. Default 500 ms. What is published in the same process, and what falls
	// due, is seen at once.
	Poll time.Duration
	// Durable has claims and settlements too wait for the disk. It costs a sync for
	// each group of them.
	Durable bool
}

const (
	defaultBusyTimeout = 5 * time.Second
	defaultPoll        = 500 * time.Millisecond
	// ownBusyTimeout is that of the connections that this package begins
	// transactions on: it tries again itself, and ends soon after its context does.
	ownBusyTimeout = 100 * time.Millisecond
)

// DB is an opened SQLite database. It may be used by several goroutines at once.
type DB struct {
	pool  *sql.DB // the user's, and for handlers' transactions
	pools []*sql.DB
	path  string // for errors; empty: the caller's
	db    sqlq.Database

	mu     sync.Mutex // guards shared
	shared *sqlq.Shared
}

// Open makes ready the database in the file at path, which need not exist yet. It
// does no I/O: what is wrong with the file is the error of the first call that needs it. Close
// the result when everything that uses it has ended.
func Open(path string, o Options) (*DB, error) {
	source := fmt.Sprintf("sqlite: %q", path)
	o, err := o.check(source)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.ContainsRune(path, 0):
		return nil, &settle.ConfigError{Source: source, Setting: "path", Reason: "it holds a NUL byte, where SQLite would end it", Fix: "take it out"}
	case path == "":
		return nil, &settle.ConfigError{Source: "sqlite", Setting: "path", Reason: "it is empty", Fix: "name the database's file"}
	case strings.HasPrefix(path, ":memory:"):
		return nil, &settle.ConfigError{Source: source, Setting: "path", Reason: "in memory each connection has a database of its own", Fix: "use a file in a temporary directory, or package settlemem in tests"}
	case strings.HasPrefix(path, "file:"):
		return nil, &settle.ConfigError{Source: source, Setting: "path", Reason: "it is a URI, and this wants the path of a file", Fix: "pass the path alone, or open the database yourself and use Wrap"}
	}
	// The file stays the same one when the process changes its directory.
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	normal := "NORMAL"
	if o.Durable {
		normal = "FULL"
	}
	d := &DB{path: path}
	open := func(busy time.Duration, synchronous string) *sql.DB {
		pool, openErr := sql.Open("sqlite", dsn(path, busy, synchronous))
		err = errors.Join(err, openErr)
		if openErr == nil {
			d.pools = append(d.pools, pool)
		}
		return pool
	}
	d.pool = open(o.BusyTimeout, normal)
	own := open(ownBusyTimeout, normal)
	durable := open(ownBusyTimeout, "FULL")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	d.setUp(o, own, durable)
	return d, nil
}

// Wrap makes ready a database that the caller has opened, with its driver and
// its settings; [DB.Close] leaves it open. Its pool must have room for two
// connections, one for each consumer that runs, and those the handlers need.
func Wrap(pool *sql.DB, o Options) (*DB, error) {
	if pool == nil {
		return nil, &settle.ConfigError{Source: "sqlite", Setting: "pool", Reason: "it is nil", Fix: "pass the database you opened"}
	}
	o, err := o.check("sqlite")
	if err != nil {
		return nil, err
	}
	d := &DB{pool: pool}
	d.setUp(o, pool, pool)
	d.db.Room = func() int { return pool.Stats().MaxOpenConnections }
	if !o.Durable {
		d.db.Durable = durable{d.db.Durable}
	} else {
		d.db.DB, d.db.Durable = durable{d.db.DB}, durable{d.db.Durable}
	}
	return d, nil
}

func (o Options) check(source string) (Options, error) {
	for _, s := range []struct {
		name  string
		value time.Duration
	}{{"BusyTimeout", o.BusyTimeout}, {"Poll", o.Poll}} {
		if s.value < 0 {
			return o, &settle.ConfigError{Source: source, Setting: s.name, Reason: fmt.Sprintf("%v is negative", s.value), Fix: "use zero for the default, or a positive value"}
		}
	}
	if o.BusyTimeout == 0 {
		o.BusyTimeout = defaultBusyTimeout
	}
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	return o, nil
}

func (d *DB) setUp(o Options, own, durable *sql.DB) {
	engine := func(pool *sql.DB) sqlq.DB {
		return &sqlq.SQL{Pool: pool, BeginWith: "BEGIN IMMEDIATE", Busy: busy, Patience: o.BusyTimeout}
	}
	d.db = sqlq.Database{
		Dialect: dialect{d.path}, DB: engine(own), Durable: engine(durable),
		OneWriter: true, Poll: o.Poll, Shared: d.share,
	}
}

// dsn is the data source name of a file, whatever its path holds. What it sets
// holds for each connection.
func dsn(path string, busy time.Duration, synchronous string) string {
	slashed := filepath.ToSlash(path)
	if filepath.VolumeName(path) != "" {
		slashed = "/" + slashed
	}
	escaped := (&url.URL{Path: slashed}).EscapedPath()
	settings := url.Values{
		"_pragma": {
			"busy_timeout(" + strconv.FormatInt(busy.Milliseconds(), 10) + ")",
			"journal_mode(WAL)",
			"synchronous(" + synchronous + ")",
		},
		"_txlock": {"immediate"},
	}
	return "file:" + escaped + "?" + settings.Encode()
}

// SQL returns the database's pool, for queries and transactions of your own:
// with the busy timeout, in WAL mode, and with transactions that begin as writers.
func (d *DB) SQL() *sql.DB { return d.pool }

// Database returns the database for packages that are built on sqlq, such as outbox.
func (d *DB) Database() *sqlq.Database { return &d.db }

// Close closes the database. It leaves one that was wrapped open.
func (d *DB) Close() error {
	var errs []error
	for _, p := range d.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Queue is one queue in a table of a SQLite database.
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
// messages are there once tx commits, as durable as its connection's settings
// make it. Call Wake after the commit to have consumers in this process see them at once.
func (q *Queue) PublishTx(ctx context.Context, tx *sql.Tx, msgs ...settle.Message) error {
	return q.PublishIn(ctx, sqlq.SQLTx(tx), msgs...)
}

// HandleTx registers a handler that writes to the same database in a
// transaction of its delivery: an Ack commits its writes together with the settlement, all
// else undoes them and settles. The handler neither commits nor rolls back, and
// publishes with PublishTx.
//
// SQLite has one writer, so the transaction begins before the handler and keeps
// every other writer waiting. Handlers go one at a time: Workers is 1. Timeout
// must be set, under half the lease. A handler that outlives its lease is
// undone, with [settle.ErrLeaseLost].
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
	begin := func(ctx context.Context) (sqlq.HandlerTx[*sql.Tx], error) {
		tx, err := q.db.pool.BeginTx(ctx, nil)
		if err != nil {
			return sqlq.HandlerTx[*sql.Tx]{}, err
		}
		// SQLite rolls a transaction back by itself when a statement that writes is interrupted,
		// on a full disk, and on OR ROLLBACK. The savepoint is gone then.
		if _, err := tx.ExecContext(ctx, "SAVEPOINT settle_handler"); err != nil {
			return sqlq.HandlerTx[*sql.Tx]{}, errors.Join(err, tx.Rollback())
		}
		return sqlq.HandlerTx[*sql.Tx]{
			Native: tx, Exec: sqlq.SQLTx(tx), Commit: tx.Commit, Rollback: tx.Rollback,
			Intact: func(ctx context.Context) error {
				_, err := tx.ExecContext(ctx, "RELEASE settle_handler")
				return err
			},
			Undo: func(ctx context.Context) error {
				_, err := tx.ExecContext(ctx, "ROLLBACK TO settle_handler")
				return err
			},
			Ended: func(err error) bool { return errors.Is(err, sql.ErrTxDone) },
		}, nil
	}
	return sqlq.Transactional(q.Queue, sqlq.TxRules{OneAtATime: true}, begin, handler)
}
