package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

const ownDDL = `CREATE TABLE own (id INTEGER PRIMARY KEY, body TEXT, try INTEGER, due INTEGER, lock INTEGER, done INTEGER, prio INTEGER, head TEXT, grp TEXT, key TEXT,
	text TEXT, strict_lock INTEGER NOT NULL DEFAULT 0, gen INTEGER GENERATED ALWAYS AS (id + 1), real REAL, stamp DATETIME)`

func ownTable() sqlq.Table {
	return sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "lock"}
}

// What a table cannot have is refused at Open, with the setting and what to do.
func TestTablesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*sqlq.Table)
		setting string
		says    string
	}{
		{"no name", func(t *sqlq.Table) { t.Name = "" }, "Name", "empty"},
		{"no such table", func(t *sqlq.Table) { t.Name = "nope" }, "Name", "no such table"},
		{"no id", func(t *sqlq.Table) { t.ID = "" }, "ID", "empty"},
		{"no payload", func(t *sqlq.Table) { t.Payload = "" }, "Payload", "empty"},
		{"no such column", func(t *sqlq.Table) { t.Attempt = "nope" }, "Attempt", `"try"`},
		{"two roles", func(t *sqlq.Table) { t.RetryAfter = "lock" }, "LockedUntil", "RetryAfter already"},
		{"a NUL in a name", func(t *sqlq.Table) { t.Key = "k\x00" }, "Key", "NUL"},
		{"a group without a value", func(t *sqlq.Table) { t.Group = "grp" }, "GroupValue", "no value"},
		{"a value without a group", func(t *sqlq.Table) { t.GroupValue = "x" }, "Group", "no column"},
		{"an id that is not unique", func(t *sqlq.Table) { t.ID = "key" }, "ID", "not unique"},
		{"an attempt that is text", func(t *sqlq.Table) { t.Attempt = "text" }, "Attempt", `"TEXT"`},
		{"a time that is text", func(t *sqlq.Table) { t.RetryAfter = "text" }, "RetryAfter", "microseconds"},
		{"a time that is DATETIME", func(t *sqlq.Table) { t.LockedUntil = "stamp" }, "LockedUntil", "microseconds"},
		{"a priority that is REAL", func(t *sqlq.Table) { t.Priority = "real" }, "Priority", `"REAL"`},
		{"a group that is a number", func(t *sqlq.Table) { t.Group, t.GroupValue = "prio", "x" }, "Group", "text"},
		{"a lock that is NOT NULL", func(t *sqlq.Table) { t.LockedUntil = "strict_lock" }, "LockedUntil", "NOT NULL"},
		{"a generated attempt", func(t *sqlq.Table) { t.Attempt = "gen" }, "Attempt", "generated"},
		{"a lease without a lock column", func(t *sqlq.Table) { t.LockedUntil = "" }, "LockedUntil", "Lease"},
		{"a lease that is too short", func(t *sqlq.Table) { t.Form = sqlq.Lease{For: time.Millisecond} }, "Lease.For", "too short"},
		{"a negative lease", func(t *sqlq.Table) { t.Form = sqlq.Lease{For: -1} }, "Lease.For", "too short"},
		{"row locks", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.RowLock{} }, "Form", "no row locks"},
		{"a lock pattern without a column", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.AdvisoryLock{Key: "jobs"} }, "AdvisoryLock.Key", "names no column"},
		{"a lock pattern that does not close", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.AdvisoryLock{Key: "{id"} }, "AdvisoryLock.Key", "close"},
		{"a lock pattern with empty braces", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.AdvisoryLock{Key: "{}"} }, "AdvisoryLock.Key", "without a column"},
		{"a lock pattern with another column", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.AdvisoryLock{Key: "{nope}"} }, "AdvisoryLock.Key", `"nope"`},
		{"an advisory lock with a lease's column", func(t *sqlq.Table) { t.Form = sqlq.AdvisoryLock{Key: "{id}"} }, "LockedUntil", "lease"},
		{"FIFO without a lease", func(t *sqlq.Table) { t.FIFO, t.LockedUntil, t.Form = true, "", sqlq.AdvisoryLock{Key: "{id}"} }, "FIFO", "Lease"},
		{"FIFO with priorities", func(t *sqlq.Table) { t.FIFO, t.Priority = true, "prio" }, "FIFO", "Priority"},
		{"FIFO with a RetryAfter that may be NULL", func(t *sqlq.Table) { t.FIFO = true }, "RetryAfter", "NULL"},
		{"a statement with another name", func(t *sqlq.Table) { t.Statements.Ack = []string{"DELETE FROM own WHERE id = :nope"} }, "Statements.Ack", ":nope"},
		{"a statement without a fence", func(t *sqlq.Table) { t.Statements.Ack = []string{"DELETE FROM own WHERE id = :id AND try = :attempt"} }, "Statements.Ack", ":token"},
		{"a statement that is no SQL", func(t *sqlq.Table) {
			t.Statements.Retry = []string{"UPDATE own SET nope = 1 WHERE id = :id AND try = :attempt AND lock = :token"}
		}, "Statements.Retry", "does not take it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, ownDDL)
			table := ownTable()
			c.change(&table)
			q := db.Queue(table)
			err := sqltest.Refusal(t, q, settle.Registration{})
			assert.Equal(t, c.setting, err.Setting, "%v", err)
			assert.ErrorContains(t, err, c.says)
			if !strings.HasPrefix(c.setting, "Statements") && c.setting != "AdvisoryLock.Key" {
				var config *settle.ConfigError
				require.ErrorAs(t, q.Publish(t.Context(), settle.Message{}), &config, "Publish says the same")
				assert.Equal(t, c.setting, config.Setting)
			}
		})
	}
}

func TestCapsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*sqlq.Table)
		r       settle.Registration
		setting string
		says    string
	}{
		{"a cap without a dead letter", nil, settle.Registration{MaxAttempts: 3}, "DeadLetter", "MaxAttempts and DeadLetter"},
		{"a dead letter without a cap", nil, settle.Registration{DeadLetter: "table:dead"}, "MaxAttempts", "MaxAttempts and DeadLetter"},
		{"a cap without a column to count in", func(t *sqlq.Table) { t.Attempt = "" }, settle.Registration{MaxAttempts: 3, DeadLetter: "dead"}, "MaxAttempts", "Attempt column"},
		{"the queue itself, as a table", nil, settle.Registration{MaxAttempts: 3, DeadLetter: "own"}, "DeadLetter", "itself"},
		{"the queue itself, as a table by its prefix", nil, settle.Registration{MaxAttempts: 3, DeadLetter: "table:own"}, "DeadLetter", "itself"},
		{"the queue itself, in another case", nil, settle.Registration{MaxAttempts: 3, DeadLetter: "OWN"}, "DeadLetter", "itself"},
		{"the queue itself, as a group", func(t *sqlq.Table) { t.Group, t.GroupValue = "grp", "main" }, settle.Registration{MaxAttempts: 3, DeadLetter: "main"}, "DeadLetter", "itself"},
		{"the table itself, beside groups", func(t *sqlq.Table) { t.Group, t.GroupValue = "grp", "main" }, settle.Registration{MaxAttempts: 3, DeadLetter: "table:own"}, "DeadLetter", "itself"},
		{"nothing", nil, settle.Registration{MaxAttempts: 3, DeadLetter: "table:"}, "DeadLetter", "names nothing"},
		{"no such table", nil, settle.Registration{MaxAttempts: 3, DeadLetter: "nope"}, "DeadLetter", "no table"},
		{"a table without a role's column", nil, settle.Registration{MaxAttempts: 3, DeadLetter: "poor"}, "DeadLetter", `"lock"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, ownDDL)
			sqltest.Exec(t, &db.db, "CREATE TABLE poor (id INTEGER, body TEXT, try INTEGER, due INTEGER)")
			table := ownTable()
			if c.change != nil {
				c.change(&table)
			}
			err := sqltest.Refusal(t, db.Queue(table), c.r)
			assert.Equal(t, c.setting, err.Setting, "%v", err)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestPathsAndOptionsThatAreRefused(t *testing.T) {
	for _, path := range []string{"", ":memory:", "file:x.db?mode=memory", "a.db\x00b"} {
		_, err := Open(path, Options{})
		var config *settle.ConfigError
		require.ErrorAs(t, err, &config, path)
	}
	for _, o := range []Options{{Poll: -1}, {BusyTimeout: -1}} {
		_, err := Open("x.db", o)
		require.ErrorContains(t, err, "negative")
	}
	_, err := Wrap(nil, Options{})
	require.ErrorContains(t, err, "nil")
}

// What is wrong with the file comes back from the first call that needs it, and
// from Open of the queue, with what to do.
func TestFilesThatAreWrong(t *testing.T) {
	dir := t.TempDir()
	noDB := filepath.Join(dir, "text.db")
	require.NoError(t, os.WriteFile(noDB, []byte(strings.Repeat("this is no database. ", 500)), 0o600))
	for _, c := range []struct{ path, says string }{
		{filepath.Join(dir, "no", "such", "dir.db"), "cannot be opened"},
		{dir, "cannot be opened"},
		{noDB, "no SQLite database"},
	} {
		db := openPath(t, c.path, Options{})
		q := db.Queue(leased(time.Minute))
		err := sqltest.Refusal(t, q, settle.Registration{})
		assert.ErrorContains(t, err, c.says)
		assert.ErrorContains(t, err, c.path, "it names the file")
		assert.ErrorContains(t, q.Publish(t.Context(), settle.Message{}), c.says)
		assert.ErrorContains(t, q.CreateTable(t.Context()), c.says)
	}
}

func TestAReadOnlyDatabaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	q := newQueue(t, openPath(t, path, Options{}), leased(time.Minute))
	sqltest.Publish(t, q, "a")
	pool, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	require.NoError(t, err)
	defer pool.Close()
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	read := db.Queue(leased(time.Minute))
	assert.ErrorContains(t, sqltest.Refusal(t, read, settle.Registration{}), "cannot be written to")
	assert.ErrorContains(t, read.Publish(t.Context(), settle.Message{}), "cannot be written to")
	assert.Equal(t, 1, sqltest.One[int](t, &q.db.db, "SELECT attempt FROM jobs"))
}

// A database that another process keeps locked is an error that may pass: the
// runtime tries again until its StartTimeout.
func TestALockedDatabaseIsAnErrorThatMayPass(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	db := openPath(t, path, Options{BusyTimeout: 50 * time.Millisecond})
	q := newQueue(t, db, leased(time.Minute))
	tx, err := db.SQL().Begin()
	require.NoError(t, err)
	_, err = q.Open(t.Context(), sqltest.Registration(settle.Registration{}))
	require.ErrorContains(t, err, "locked")
	require.ErrorContains(t, err, "BusyTimeout")
	var config *settle.ConfigError
	require.NotErrorAs(t, err, &config)
	err = q.Publish(t.Context(), settle.Message{})
	require.ErrorContains(t, err, "locked")
	require.False(t, settle.IsPermanent(err))
	require.NoError(t, tx.Rollback())
	sqltest.Open(t, q, settle.Registration{})
}

// A database that may not grow takes no more messages and loses none.
func TestAFullDiskLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	roomy := newQueue(t, openPath(t, path, Options{}), leased(time.Minute))
	pool, err := sql.Open("sqlite", dsn(path, time.Second, "NORMAL")+"&_pragma=max_page_count(40)")
	require.NoError(t, err)
	defer pool.Close()
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	q := db.Queue(leased(time.Minute))
	body := []byte(strings.Repeat("x", 10_000))
	sent := 0
	for {
		err := q.Publish(t.Context(), settle.Message{Body: body})
		if err == nil {
			sent++
			continue
		}
		require.ErrorContains(t, err, "full")
		require.ErrorContains(t, err, "make room")
		require.False(t, settle.IsPermanent(err), "there may be room later")
		break
	}
	require.NotZero(t, sent)
	// A claim may need a page too. Where it gets none it fails, and claims nothing.
	c := sqltest.Open(t, q, settle.Registration{Workers: 100})
	if _, err := c.Receive(t.Context(), make([]*settle.Delivery, 100)); err != nil {
		require.ErrorContains(t, err, "full")
		var config *settle.ConfigError
		require.NotErrorAs(t, err, &config, "it may pass")
		require.Equal(t, sent, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs WHERE attempt = 1 AND locked_until IS NULL"))
	}
	c = sqltest.Open(t, roomy, settle.Registration{Workers: 100})
	sqltest.Exec(t, &roomy.db.db, "UPDATE jobs SET locked_until = NULL")
	for n := sent; n > 0; {
		ds := sqltest.Receive(t, c, 3)
		n -= len(ds)
		for _, d := range ds {
			require.NoError(t, sqltest.Settle(c, d, ack))
		}
	}
	require.NoError(t, q.Publish(t.Context(), settle.Message{Body: body}), "there is room again")
}

func TestWrap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	pool, err := sql.Open("sqlite", path) // no pragma, no _txlock
	require.NoError(t, err)
	defer pool.Close()
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	q := newQueue(t, db, leased(time.Minute))
	said := sqltest.Weakened(t, q, settle.Options{})
	require.Len(t, said, 1)
	assert.Contains(t, said[0], "PRAGMA journal_mode = WAL")
	sqltest.Publish(t, q, "a")
	c, err := q.Open(t.Context(), sqltest.Registration(settle.Registration{}))
	require.NoError(t, err)
	require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
	require.NoError(t, c.Close(t.Context()))
	require.NoError(t, db.Close())
	require.NoError(t, pool.Ping(), "a wrapped database stays open")

	pool.SetMaxOpenConns(3)
	narrow, err := Wrap(pool, Options{})
	require.NoError(t, err)
	sqltest.Open(t, narrow.Queue(leased(time.Minute)), settle.Registration{}) // with room for one consumer
	assert.Equal(t, "SetMaxOpenConns", sqltest.Refusal(t, narrow.Queue(leased(time.Minute)), settle.Registration{}).Setting)

	memory, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	defer memory.Close()
	inMemory, err := Wrap(memory, Options{})
	require.NoError(t, err)
	assert.ErrorContains(t, sqltest.Refusal(t, inMemory.Queue(leased(time.Minute)), settle.Registration{}), "in memory")
}

// A table that is there without the columns is refused before anything is made: an
// index on names that are no columns would be one on text constants, and wrong
// once the columns come.
func TestCreateTableRefusesATableWithoutItsColumns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	db, err := Open(path, Options{})
	require.NoError(t, err)
	defer db.Close()
	_, err = db.SQL().Exec(`CREATE TABLE jobs (id INTEGER PRIMARY KEY, payload TEXT); INSERT INTO jobs (payload) VALUES ('a'), ('b')`)
	require.NoError(t, err)
	q := db.Queue(sqlq.Standard("jobs", "emails"))
	var config *settle.ConfigError
	require.ErrorAs(t, q.CreateTable(t.Context()), &config)
	assert.Equal(t, "Group", config.Setting)
	_, err = db.SQL().Exec(q.Schema()) // by other means
	assert.ErrorContains(t, err, "no such column")
	var made int
	require.NoError(t, db.SQL().QueryRow(`SELECT count(*) FROM sqlite_schema WHERE tbl_name = 'jobs' AND type = 'index'`).Scan(&made))
	assert.Zero(t, made, "nothing was made")
}

func TestHandleTxWithoutItsQueueOrHandler(t *testing.T) {
	handler := func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome { return settle.Ack() }
	db, err := Open(filepath.Join(t.TempDir(), "q.db"), Options{})
	require.NoError(t, err)
	defer db.Close()
	for _, c := range []struct {
		queue   *Queue
		handler func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome
		setting string
	}{{nil, handler, "Source"}, {db.Queue(sqlq.Standard("jobs", "a")), nil, "Handler"}} {
		rt := &settle.Runtime{}
		HandleTx(rt, c.queue, c.handler, settle.Options{})
		var config *settle.ConfigError
		require.ErrorAs(t, rt.Run(t.Context()), &config)
		assert.Equal(t, c.setting, config.Setting)
	}
}

// Who forgets the group of a table that has several queues would take the rows of all of them.
func TestAForgottenGroupIsTold(t *testing.T) {
	db := openFile(t, Options{})
	newQueue(t, db, sqlq.Standard("jobs", "emails"))
	q := db.Queue(sqlq.Standard("jobs", ""))
	var config *settle.ConfigError
	require.ErrorAs(t, q.CreateTable(t.Context()), &config)
	assert.Equal(t, "Group", config.Setting)
	assert.Contains(t, config.Reason, `column "queue" must have a value`)
	const told = `column "queue" must have a value and no role names it`
	assert.Contains(t, strings.Join(sqltest.Weakened(t, q, settle.Options{}), "\n"), told)
	assert.Empty(t, sqltest.Weakened(t, db.Queue(sqlq.Standard("jobs", "emails")), settle.Options{}))
}

func TestCreateTableAndSchema(t *testing.T) {
	for _, p := range plans() {
		if p.DDL != "" {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			db := openFile(t, Options{})
			q := db.Queue(p.Table)
			require.NoError(t, q.CreateTable(t.Context()))
			sqltest.Publish(t, q, "kept")
			require.NoError(t, q.CreateTable(t.Context()), "a table that is there is left alone")
			n, err := q.Len(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 1, n)

			byText := openFile(t, Options{})
			sqltest.Exec(t, &byText.db, q.Schema())
			const all = "SELECT group_concat(name || coalesce(sql, '') ORDER BY name) FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'"
			assert.Equal(t, sqltest.One[string](t, &db.db, all), sqltest.One[string](t, &byText.db, all))
			sqltest.Exec(t, &byText.db, "INSERT INTO jobs (payload"+group(p, ", queue")+") VALUES ('by hand'"+group(p, ", 'main'")+")")
			c := sqltest.Open(t, byText.Queue(p.Table), settle.Registration{})
			assert.Equal(t, []string{"by hand"}, sqltest.Bodies(sqltest.Receive(t, c, 1)), "the defaults make a row that is due")
		})
	}
}

func group(p sqltest.Golden, s string) string {
	if p.Table.Group == "" {
		return ""
	}
	return s
}

// Several processes may make one file at the same time.
func TestOneFileMadeByManyAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	errs := make(chan error, 8)
	for range cap(errs) {
		db := openPath(t, path, Options{})
		go func() { errs <- db.Queue(leased(time.Minute)).CreateTable(context.Background()) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
}

func TestPathsHoldAnything(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"a b.db", "q?mode=ro.db", "100%.db", "a#b&c=d.db", "é;'\".db"} {
		path := filepath.Join(dir, name)
		q := newQueue(t, openPath(t, path, Options{}), leased(time.Minute))
		sqltest.Publish(t, q, fmt.Sprint(i))
		_, err := os.Stat(path)
		require.NoError(t, err)
	}
}

// A relative path is that of the directory where Open was called, also for
// connections that are made later.
func TestARelativePathStaysWhereItWas(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	t.Chdir(here)
	db := openPath(t, "q.db", Options{})
	q := newQueue(t, db, leased(time.Minute))
	t.Chdir(there)
	sqltest.Publish(t, q, "a")
	var held []*sql.Conn
	for range 3 {
		conn, err := db.SQL().Conn(t.Context())
		require.NoError(t, err)
		held = append(held, conn)
		var n int
		require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT count(*) FROM jobs").Scan(&n))
		assert.Equal(t, 1, n)
	}
	for _, conn := range held {
		require.NoError(t, conn.Close())
	}
}

// An attached database is a schema.
func TestATableInAnAttachedDatabase(t *testing.T) {
	dir := t.TempDir()
	pool, err := sql.Open("sqlite", dsn(filepath.Join(dir, "main.db"), time.Second, "NORMAL")+"&_pragma="+
		"foreign_keys(0)%3BATTACH+'"+filepath.Join(dir, "side.db")+"'+AS+side")
	require.NoError(t, err)
	defer pool.Close()
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	table := leased(time.Minute)
	table.Schema = "side"
	q := newQueue(t, db, table)
	require.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT count(*) FROM side.sqlite_schema WHERE name = 'jobs'"))
	sqltest.Publish(t, q, "a")
	require.Len(t, sqltest.Weakened(t, q, settle.Options{}), 0)
	c := sqltest.Open(t, q, settle.Registration{})
	require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
}
