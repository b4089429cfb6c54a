package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/mysql"
	"github.com/settlemq/settle/sqlq/outbox"
	"github.com/settlemq/settle/sqlq/postgres"
	"github.com/settlemq/settle/sqlq/sqlite"
)

func TestMain(m *testing.M) { sqltest.Main(m, roles) }

// store is a database that a test has to itself: its kind and how to open it.
type store struct{ kind, url string }

// database is a store that is open.
type database struct {
	outbox.DB
	kind  string
	close func() error
	begin func(ctx context.Context) (transaction, error)
}

// transaction is one of a user's own driver.
type transaction struct {
	sqlq.Execer
	commit, rollback func() error
}

const (
	inSQLite   = "sqlite"
	inPostgres = "postgres"
	inMySQL    = "mysql"
	inMariaDB  = "mariadb"
)

// server is the service that a kind of database is.
var server = map[string]services.Service{inPostgres: services.Postgres, inMySQL: services.MySQL, inMariaDB: services.MariaDB}

// eachStore runs a test on a database of one writer and on one of several; in make test-all on every kind.
func eachStore(t *testing.T, test func(t *testing.T, s store)) {
	kinds := []string{inSQLite, inPostgres}
	if os.Getenv("SETTLE_TEST_ALL") == "1" {
		kinds = append(kinds, inMySQL, inMariaDB)
	}
	onStores(t, kinds, test)
}

// everyStore runs a test on every kind of database.
func everyStore(t *testing.T, test func(t *testing.T, s store)) {
	onStores(t, []string{inSQLite, inPostgres, inMySQL, inMariaDB}, test)
}

func onStores(t *testing.T, kinds []string, test func(t *testing.T, s store)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // most of a test is waiting
			test(t, newStore(t, kind))
		})
	}
}

// some is how many records a test has: fewer where the race detector makes the database itself slow.
func (s store) some(n int) int {
	if s.kind == inSQLite {
		return n / 5
	}
	return n
}

var homes atomic.Int64

// newStore makes a database of a kind.
func newStore(t testing.TB, kind string) store {
	t.Helper()
	if kind == inSQLite {
		return store{kind, filepath.Join(t.TempDir(), "outbox.db")}
	}
	url := services.URL(t, server[kind])
	home := fmt.Sprintf("outbox_%d_%d", os.Getpid(), homes.Add(1))
	if kind == inPostgres {
		postgresAdmin(t, url, "CREATE SCHEMA "+home)
		t.Cleanup(func() { postgresAdmin(t, url, "SET client_min_messages = error; DROP SCHEMA "+home+" CASCADE") })
		sep := "?"
		if strings.Contains(url, "?") {
			sep = "&"
		}
		return store{kind, url + sep + "search_path=" + home}
	}
	mysqlAdmin(t, url, "CREATE DATABASE "+home)
	t.Cleanup(func() { mysqlAdmin(t, url, "DROP DATABASE "+home) })
	return store{kind, url[:strings.LastIndexByte(url, '/')+1] + home}
}

func postgresAdmin(t testing.TB, url, text string) {
	c, err := pgx.Connect(context.Background(), url)
	require.NoError(t, err)
	defer c.Close(context.Background())
	_, err = c.Exec(context.Background(), text)
	require.NoError(t, err, text)
}

func mysqlAdmin(t testing.TB, url, text string) {
	db, err := sql.Open("mysql", url)
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(context.Background(), text)
	require.NoError(t, err, text)
}

// connect opens a store.
func connect(s store) (*database, error) {
	switch s.kind {
	case inSQLite:
		db, err := sqlite.Open(s.url, sqlite.Options{Poll: 50 * time.Millisecond})
		if err != nil {
			return nil, err
		}
		return &database{db, s.kind, db.Close, func(ctx context.Context) (transaction, error) {
			tx, err := db.SQL().BeginTx(ctx, nil)
			if err != nil {
				return transaction{}, err
			}
			return transaction{sqlq.SQLTx(tx), tx.Commit, tx.Rollback}, nil
		}}, nil
	case inPostgres:
		db, err := postgres.Open(s.url, postgres.Options{Poll: 50 * time.Millisecond})
		if err != nil {
			return nil, err
		}
		return &database{db, s.kind, db.Close, func(ctx context.Context) (transaction, error) {
			tx, err := db.Pool().Begin(ctx)
			if err != nil {
				return transaction{}, err
			}
			return transaction{postgres.Tx(tx), func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }}, nil
		}}, nil
	}
	db, err := mysql.Open(s.url, mysql.Options{Poll: 50 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	return &database{db, s.kind, db.Close, func(ctx context.Context) (transaction, error) {
		tx, err := db.SQL().BeginTx(ctx, nil)
		if err != nil {
			return transaction{}, err
		}
		return transaction{mysql.Tx(tx), tx.Commit, tx.Rollback}, nil
	}}, nil
}

func (s store) open(t testing.TB) *database {
	t.Helper()
	db, err := connect(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.close()) })
	return db
}

func (db *database) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	sqltest.Exec(t, db.Database(), sql, args...)
}

// record records messages in a transaction of the test's.
func (db *database) record(t testing.TB, box *outbox.Box, msgs ...settle.Message) {
	t.Helper()
	tx, err := db.begin(context.Background())
	require.NoError(t, err)
	if err := box.Record(context.Background(), tx, msgs...); err != nil {
		_ = tx.rollback()
		require.NoError(t, err)
	}
	require.NoError(t, tx.commit())
	box.Wake()
}

// quiet is a box of the standard table whose events go to log.
func newBox(t testing.TB, db *database, table outbox.Table, log *events) *outbox.Box {
	t.Helper()
	box := outbox.New(db, table, log.options())
	require.NoError(t, box.CreateTable(context.Background()))
	return box
}

// nameOf is the name of a box's table.
func nameOf(box *outbox.Box) string { return strings.Split(box.Name(), `"`)[1] }

func standard(t testing.TB, s store) (*database, *outbox.Box, *events) {
	t.Helper()
	db, log := s.open(t), new(events)
	return db, newBox(t, db, outbox.Standard("outbox"), log), log
}

// events keeps what a box tells, and what it logs.
type events struct {
	mu   sync.Mutex // guards what follows
	all  []outbox.Event
	text strings.Builder
}

func (e *events) options() outbox.Options {
	return outbox.Options{Observe: e.observe, Logger: slog.New(slog.NewTextHandler(e, nil))}
}

func (e *events) observe(event outbox.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

func (e *events) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(p)
}

func (e *events) log() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

// of returns the events of a kind.
func (e *events) of(kind outbox.EventKind) []outbox.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var some []outbox.Event
	for _, event := range e.all {
		if event.Kind == kind {
			some = append(some, event)
		}
	}
	return some
}

// start runs a relay until the returned function is called or the test ends.
func start(t testing.TB, r *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// copyOf is one message as a broker got it.
type copyOf struct {
	settle.Message
	id string // the record's
	at time.Time
}

// script is a publisher that does as a test says, for what no real broker does when
// it is asked to; the tests with a server are in rabbit_test.go.
type script struct {
	answer func(settle.Message) error // of each message; nil: it is taken

	mu     sync.Mutex // guards what follows
	taken  []copyOf
	calls  int
	offers int
}

func (s *script) Publish(_ context.Context, msgs ...settle.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	failed := &settle.PublishError{Total: len(msgs)}
	for i, m := range msgs {
		s.offers++
		var err error
		if s.answer != nil {
			err = s.answer(m)
		}
		if err != nil {
			failed.Failed = append(failed.Failed, settle.FailedMessage{Index: i, Err: err})
			continue
		}
		s.taken = append(s.taken, copyOf{m, m.Headers.Get(outbox.DefaultHeader), time.Now()})
	}
	if len(failed.Failed) > 0 {
		return failed
	}
	return nil
}

// copies are the messages that were taken so far.
func (s *script) copies() []copyOf {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]copyOf(nil), s.taken...)
}

// await waits until n messages were taken.
func (s *script) await(t testing.TB, n int) []copyOf {
	t.Helper()
	require.Eventually(t, func() bool { return len(s.copies()) >= n }, sqltest.Deadline, time.Millisecond, "%d messages", n)
	return s.copies()
}

func bodies(all []copyOf) []string {
	var texts []string
	for _, c := range all {
		texts = append(texts, string(c.Body))
	}
	return texts
}

// awaitCounts waits until the box has so many records.
func awaitCounts(t testing.TB, box *outbox.Box, want outbox.Counts) {
	t.Helper()
	var got outbox.Counts
	ok := func() bool {
		var err error
		got, err = box.Count(context.Background())
		return err == nil && got == want
	}
	deadline := time.Now().Add(sqltest.Deadline)
	for !ok() && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	require.Equal(t, want, got)
}

func text(s string) settle.Message { return settle.Message{To: "orders", Body: []byte(s)} }

func texts(n int, prefix string) []settle.Message {
	all := make([]settle.Message, n)
	for i := range all {
		all[i] = text(fmt.Sprintf("%s%d", prefix, i))
	}
	return all
}

var errBroken = errors.New("broken")
