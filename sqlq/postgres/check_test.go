package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

const ownDDL = `CREATE TABLE own (id bigserial PRIMARY KEY, body text, try int, due timestamptz, lock timestamptz, prio int, grp text, key text, head jsonb,
	strict timestamptz NOT NULL DEFAULT now(), gen int GENERATED ALWAYS AS (1 + 1) STORED, score real, day date, stamp timestamp(0), doc xml, again bigint, done timestamptz)`

func ownTable() sqlq.Table {
	return sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "lock"}
}

// What a table cannot have is refused at Open, with the setting and what to do.
func TestTablesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		before  string // SQL
		change  func(*sqlq.Table)
		setting string
		says    string
	}{
		{"no such table", "", func(t *sqlq.Table) { t.Name = "nope" }, "Name", "no such table"},
		{"no such schema", "", func(t *sqlq.Table) { t.Schema = "nope" }, "Name", "no such table"},
		{"a name that the server would cut", "", func(t *sqlq.Table) { t.Name = strings.Repeat("x", 64) }, "Name", "63 bytes"},
		{"a view", "CREATE VIEW seen AS SELECT * FROM own", func(t *sqlq.Table) { t.Name = "seen" }, "Name", "a view"},
		{"a materialized view", "CREATE MATERIALIZED VIEW kept AS SELECT * FROM own", func(t *sqlq.Table) { t.Name = "kept" }, "Name", "a materialized view"},
		{"a partitioned table whose id is not unique alone", "CREATE TABLE parted (LIKE own INCLUDING DEFAULTS, PRIMARY KEY (id, strict)) PARTITION BY RANGE (strict)", func(t *sqlq.Table) { t.Name = "parted" }, "ID", "not unique"},
		{"no such column", "", func(t *sqlq.Table) { t.Attempt = "nope" }, "Attempt", `"try"`},
		{"an id that is not unique", "", func(t *sqlq.Table) { t.ID = "again" }, "ID", "not unique"},
		{"an id that is unique in part", "CREATE UNIQUE INDEX ON own (again) WHERE again > 0", func(t *sqlq.Table) { t.ID = "again" }, "ID", "not unique"},
		{"an id that is a fraction", "CREATE UNIQUE INDEX ON own (score)", func(t *sqlq.Table) { t.ID = "score" }, "ID", "exactly"},
		{"an id that is a list", "ALTER TABLE own ADD list int[] UNIQUE", func(t *sqlq.Table) { t.ID = "list" }, "ID", "a list"},
		{"an attempt that is text", "", func(t *sqlq.Table) { t.Attempt = "key" }, "Attempt", "type text"},
		{"a generated attempt", "", func(t *sqlq.Table) { t.Attempt = "gen" }, "Attempt", "generated"},
		{"a time that is a date", "", func(t *sqlq.Table) { t.RetryAfter = "day" }, "RetryAfter", "type date"},
		{"a lock that is NOT NULL", "", func(t *sqlq.Table) { t.LockedUntil = "strict" }, "LockedUntil", "NOT NULL"},
		{"a priority that is a fraction", "", func(t *sqlq.Table) { t.Priority = "score" }, "Priority", "type real"},
		{"a payload that is XML", "", func(t *sqlq.Table) { t.Payload = "doc" }, "Payload", "type xml"},
		{"headers that are a number", "", func(t *sqlq.Table) { t.Headers = "prio" }, "Headers", "type integer"},
		{"a cause that is JSON", "", func(t *sqlq.Table) { t.Cause = "head" }, "Cause", "type jsonb"},
		{"a lock's name of another column", "", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.AdvisoryLock{Key: "{nope}"} }, "AdvisoryLock.Key", `"nope"`},
		{"FIFO with a RetryAfter that may be NULL", "", func(t *sqlq.Table) { t.FIFO = true }, "RetryAfter", "NULL"},
		{"FIFO with row locks", "", func(t *sqlq.Table) { t.FIFO, t.LockedUntil, t.Form = true, "", sqlq.RowLock{} }, "FIFO", "Lease"},
		{"row locks with a lease's column", "", func(t *sqlq.Table) { t.Form = sqlq.RowLock{} }, "LockedUntil", "lease"},
		{"a statement with another name", "", func(t *sqlq.Table) { t.Statements.Ack = []string{"DELETE FROM own WHERE id = :nope"} }, "Statements.Ack", ":nope"},
		{"a statement without a fence", "", func(t *sqlq.Table) { t.Statements.Ack = []string{"DELETE FROM own WHERE id = :id AND try = :attempt"} }, "Statements.Ack", ":token"},
		{"a statement that is no SQL", "", func(t *sqlq.Table) {
			t.Statements.Retry = []string{"UPDATE own SET nope = 1 WHERE id = :id AND try = :attempt AND lock = :token"}
		}, "Statements.Retry", "does not take it"},
		{"a claim with row locks", "", func(t *sqlq.Table) {
			t.LockedUntil, t.Form = "", sqlq.RowLock{}
			t.Statements.Claim = "SELECT 1"
		}, "Statements", "a lease's"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := fresh(t, Options{})
			sqltest.Exec(t, &db.db, ownDDL)
			if c.before != "" {
				sqltest.Exec(t, &db.db, c.before)
			}
			table := ownTable()
			c.change(&table)
			err := sqltest.Refusal(t, db.Queue(table), settle.Registration{})
			assert.Equal(t, c.setting, err.Setting, "%v", err)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestPoolsThatAreTooSmallAreRefused(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		small := openURL(t, db.Pool().Config().ConnString(), Options{MaxConns: 8})
		q = small.Queue(q.Table())
		if q.Table().LockedUntil != "" { // a lease keeps no connection
			sqltest.Open(t, q, settle.Registration{Workers: 500})
			return
		}
		e := sqltest.Refusal(t, q, settle.Registration{Workers: 8})
		assert.Equal(t, "Workers", e.Setting)
		assert.ErrorContains(t, e, "let the pool have 10 connections or more")
		sqltest.Open(t, q, settle.Registration{Workers: 6})
	})
}

// A pool of the caller's that its handlers may use up is told of: leases need it too.
func TestAPoolThatHandlersMayUseUpIsTold(t *testing.T) {
	db := fresh(t, Options{})
	table := sqlq.Standard("jobs", "main")
	newQueue(t, db, table)
	pool, err := pgxpool.New(t.Context(), with(db.Pool().Config().ConnString(), "pool_max_conns", "4"))
	require.NoError(t, err)
	defer pool.Close()
	wrapped, err := Wrap(pool, Options{})
	require.NoError(t, err)
	defer wrapped.Close()
	for workers, told := range map[int]int{2: 0, 4: 1} {
		var all []settle.Notice
		sqltest.Open(t, wrapped.Queue(table), settle.Registration{Workers: workers, Notify: func(n settle.Notice) { all = append(all, n) }})
		require.Len(t, all, told)
		if told > 0 {
			assert.ErrorContains(t, all[0].Err, "let it have 6 or more")
		}
	}
}

// Privileges that are missing are told at the start, each with the table.
func TestPrivilegesThatAreMissing(t *testing.T) {
	h := newHome(t, services.Postgres)
	db := h.open(t, Options{})
	sqltest.Exec(t, &db.db, ownDDL)
	sqltest.Exec(t, &db.db, "CREATE TABLE dead (LIKE own)")
	role := h.schema
	sqltest.Exec(t, &db.db, "CREATE ROLE "+role+" LOGIN PASSWORD 'settle'")
	t.Cleanup(func() { sqltest.Exec(t, &db.db, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	poor := openURL(t, strings.Replace(h.url, "://settle:settle@", "://"+role+":settle@", 1), Options{})
	q := poor.Queue(ownTable())
	r := settle.Registration{MaxAttempts: 3, DeadLetter: "dead"}

	e := sqltest.Refusal(t, q, r)
	assert.ErrorContains(t, e, "no such table", "a schema that it may not use shows nothing")
	sqltest.Exec(t, &db.db, "GRANT USAGE ON SCHEMA "+role+" TO "+role)
	e = sqltest.Refusal(t, q, r)
	assert.Equal(t, "database", e.Setting)
	for _, says := range []string{`SELECT on "own"`, `UPDATE on "own"`, `DELETE on "own"`, `INSERT on "dead"`} {
		assert.ErrorContains(t, e, says)
	}
	sqltest.Exec(t, &db.db, "GRANT SELECT, UPDATE, DELETE ON own TO "+role+"; GRANT INSERT ON dead TO "+role)
	sqltest.Open(t, q, r)
	err := q.Publish(t.Context(), settle.Message{Body: []byte("x")})
	require.ErrorContains(t, err, "permission denied")
	assert.False(t, settle.IsPermanent(err), "it may be granted")
	assert.ErrorContains(t, q.CreateTable(t.Context()), "grant")
}

// A database that takes no writes is refused where that is a setting, and waited for where it may pass.
func TestADatabaseThatTakesNoWrites(t *testing.T) {
	h := newHome(t, services.Postgres)
	db := h.open(t, Options{})
	q := newQueue(t, db, sqlq.Standard("jobs", "main"))
	sqltest.Publish(t, q, "a")
	readOnly := openURL(t, with(h.url, "default_transaction_read_only", "on"), Options{}).Queue(q.Table())
	e := sqltest.Refusal(t, readOnly, settle.Registration{})
	assert.Equal(t, "default_transaction_read_only", e.Setting)
	err := readOnly.Publish(t.Context(), settle.Message{Body: []byte("b")})
	require.ErrorContains(t, err, "takes no writes now")
	assert.False(t, settle.IsPermanent(err))
	assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"))
}

// A connection whose session takes no writes, as after a failover, is not used again.
func TestASessionThatTakesNoWritesIsGivenUp(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs := openURL(t, with(db.Pool().Config().ConnString(), "pool_max_conns", "3"), Options{MaxConns: 3})
		c := sqltest.Open(t, theirs.Queue(q.Table()), settle.Registration{})
		for _, idle := range theirs.pool.AcquireAllIdle(t.Context()) {
			_, err := idle.Exec(t.Context(), "SET default_transaction_read_only = on")
			require.NoError(t, err)
			idle.Release()
		}
		sqltest.Publish(t, q, "a")
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			n, _ := c.Receive(ctx, make([]*settle.Delivery, 1))
			return n == 1
		}, deadline, time.Millisecond)
	})
}

// What comes to be read-only under a running consumer loses nothing, and goes on when it can.
func TestADatabaseThatBecomesReadOnly(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a", "b")
		schema := sqltest.One[string](t, &db.db, "SELECT current_schema()::text")
		role := schema
		sqltest.Exec(t, &db.db, "CREATE ROLE "+role+" LOGIN SUPERUSER PASSWORD 'settle'")
		t.Cleanup(func() { sqltest.Exec(t, &db.db, "DROP ROLE "+role) })
		theirs := openURL(t, strings.Replace(db.Pool().Config().ConnString(), "://settle:settle@", "://"+role+":settle@", 1), Options{})
		c := sqltest.Open(t, theirs.Queue(q.Table()), settle.Registration{Workers: 2})
		d := sqltest.Receive(t, c, 1)[0]
		end := func(setting string) {
			sqltest.Exec(t, &db.db, "ALTER ROLE "+role+" SET default_transaction_read_only = "+setting)
			if q.Table().LockedUntil != "" { // sessions that hold nothing have to connect again
				sqltest.Exec(t, &db.db, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1", role)
			}
		}
		end("on")
		err := sqltest.Settle(c, d, ack)
		end("off")
		if err != nil {
			require.Eventually(t, func() bool { return sqltest.Settle(c, d, ack) == nil }, deadline, 10*time.Millisecond)
		}
		require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
		assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
	})
}

func TestOptionsAndDSNsThatAreRefused(t *testing.T) {
	var config *settle.ConfigError
	for _, o := range []Options{{Poll: -1}, {MaxConns: -1}, {NotifyEvery: -1}} {
		_, err := Open("postgres://x", o)
		require.ErrorAs(t, err, &config)
		assert.ErrorContains(t, err, "negative")
	}
	_, err := Open("postgres://user:secret@host:nope/", Options{})
	require.ErrorAs(t, err, &config)
	assert.NotContains(t, err.Error(), "secret")
	_, err = Wrap(nil, Options{})
	require.ErrorAs(t, err, &config)
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nowhere")
	require.NoError(t, err)
	defer pool.Close()
	_, err = Wrap(pool, Options{MaxConns: 5})
	require.ErrorAs(t, err, &config)
}

// Who cannot come in is told so at once; who reaches nobody tries again.
func TestServersThatDoNotAnswerOrLetNobodyIn(t *testing.T) {
	url := services.URL(t, services.Postgres)
	for _, c := range []struct {
		url   string
		final bool
	}{
		{strings.Replace(url, ":settle@", ":wrong@", 1), true},
		{strings.Replace(url, "/settle?", "/nowhere?", 1), true},
		{"postgres://settle:secret@127.0.0.1:1/settle?sslmode=disable", false},
	} {
		db := openURL(t, c.url, Options{})
		_, err := db.Queue(sqlq.Standard("jobs", "main")).Open(t.Context(), sqltest.Registration(settle.Registration{}))
		require.Error(t, err)
		var config *settle.ConfigError
		assert.Equal(t, c.final, errors.As(err, &config), "%v", err)
		assert.NotContains(t, err.Error(), "wrong")
		assert.NotContains(t, err.Error(), "secret")
	}
}

// What is weaker than it should be is said once, at the start, with what to do.
func TestWhatIsWeakenedIsTold(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings []string
		ddl      string // of own; empty: as ownDDL with an index
		change   func(*sqlq.Table)
		says     string // empty: nothing
	}{
		{"nothing", nil, "", nil, ""},
		{"no index", nil, ownDDL, nil, `run: CREATE INDEX IF NOT EXISTS "own_claim" ON "own" ("due", "id")`},
		{"no index by priority", nil, "", func(t *sqlq.Table) { t.Priority, t.RetryAfter = "prio", "strict" }, `("prio" DESC, "strict", "id")`},
		{"an index by priority", nil, ownDDL + "; CREATE INDEX ON own (prio DESC, strict, id)", func(t *sqlq.Table) { t.Priority, t.RetryAfter = "prio", "strict" }, ""},
		{"priorities where RetryAfter may be NULL", nil, ownDDL + "; CREATE INDEX ON own (prio DESC, due NULLS FIRST, id)", func(t *sqlq.Table) { t.Priority = "prio" }, "declare it NOT NULL"},
		{"no index of the group", nil, "", func(t *sqlq.Table) { t.Group, t.GroupValue = "grp", "x" }, `("grp", "due", "id")`},
		{"an index over processed rows", nil, "", func(t *sqlq.Table) { t.ProcessedAt = "done" }, `("due", "id") WHERE "done" IS NULL`},
		{"nothing to index but the id", nil, ownDDL, func(t *sqlq.Table) { t.RetryAfter = "" }, ""},
		{"commits that do not wait for the disk", []string{"synchronous_commit", "off"}, "", nil, "synchronous_commit"},
		{"a timeout in transactions", []string{"idle_in_transaction_session_timeout", "10s"}, "", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.RowLock{} }, "10s"},
		{"a timeout in transactions that leases do not have", []string{"idle_in_transaction_session_timeout", "10s"}, "", nil, ""},
		{"a time without zone beside another zone", []string{"timezone", "Asia/Tokyo"}, ownDDL + "; CREATE INDEX ON own (stamp, id)", func(t *sqlq.Table) { t.RetryAfter = "stamp" }, "use timestamptz"},
		{"a time without zone in UTC", []string{"timezone", "UTC"}, ownDDL + "; CREATE INDEX ON own (stamp NULLS FIRST, id); CREATE INDEX ON own (stamp, id)", func(t *sqlq.Table) { t.RetryAfter = "stamp" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHome(t, services.Postgres)
			url := h.url
			if c.settings != nil {
				url = with(url, c.settings[0], c.settings[1])
			}
			db := openURL(t, url, Options{})
			if c.ddl == "" {
				c.ddl = ownDDL + "; CREATE INDEX ON own (due, id)"
			}
			sqltest.Exec(t, &db.db, c.ddl)
			table := ownTable()
			if c.change != nil {
				c.change(&table)
			}
			var told []string
			sqltest.Open(t, db.Queue(table), settle.Registration{Notify: func(n settle.Notice) {
				if n.Kind == settle.NoticeWeakened {
					told = append(told, n.Err.Error())
				}
			}})
			if c.says == "" {
				assert.Empty(t, told)
				return
			}
			require.Len(t, told, 1)
			assert.Contains(t, told[0], c.says)
			if _, sql, ok := strings.Cut(told[0], "run: "); ok {
				sqltest.Exec(t, &db.db, sql)
				told = nil
				sqltest.Open(t, db.Queue(table), settle.Registration{Notify: func(n settle.Notice) { told = append(told, fmt.Sprint(n.Err)) }})
				assert.Empty(t, told, "the index it asked for serves")
			}
		})
	}
}

// Publishing waits for the disk also where the session's commits do not.
func TestPublishIsDurable(t *testing.T) {
	h := newHome(t, services.Postgres)
	db := openURL(t, with(h.url, "synchronous_commit", "off"), Options{})
	q := newQueue(t, db, sqlq.Standard("jobs", "main"))
	sqltest.Exec(t, &db.db, `CREATE TABLE seen (level text)`)
	sqltest.Exec(t, &db.db, `CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$`)
	sqltest.Exec(t, &db.db, `CREATE TRIGGER see BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION see()`)
	sqltest.Publish(t, q, "a")
	assert.Equal(t, "on", sqltest.One[string](t, &db.db, "SELECT level FROM seen"))
	assert.Equal(t, "off", sqltest.One[string](t, &db.db, "SHOW synchronous_commit"), "and only then")
}
