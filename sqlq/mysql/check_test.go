package mysql

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// asUser is the DSN for another user, whose password is settle.
func asUser(dsn, user string) string {
	_, at, _ := strings.Cut(dsn, "@")
	return user + ":settle@" + at
}

const ownDDL = `CREATE TABLE own (id BIGINT AUTO_INCREMENT PRIMARY KEY, body LONGTEXT, try INT, due DATETIME(6), until DATETIME(6), prio INT, grp VARCHAR(20), k VARCHAR(20), head JSON,
	strict DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)), gen INT AS (1 + 1) STORED, score DOUBLE, day DATE, stamp TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, doc GEOMETRY, again BIGINT)`

func ownTable() sqlq.Table {
	return sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "until"}
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
		{"no such database", "", func(t *sqlq.Table) { t.Schema = "nope" }, "Name", "no such table"},
		{"a name that is too long", "", func(t *sqlq.Table) { t.Name = strings.Repeat("x", 65) }, "Name", "64 characters"},
		{"a view", "CREATE VIEW seen AS SELECT * FROM own", func(t *sqlq.Table) { t.Name = "seen" }, "Name", "a view"},
		{"an engine without transactions", "CREATE TABLE loose (id INT PRIMARY KEY, body TEXT, try INT, due DATETIME, until DATETIME) ENGINE=MyISAM", func(t *sqlq.Table) { t.Name = "loose" }, "Name", "ENGINE=InnoDB"},
		{"a partitioned table whose id is not unique alone", "CREATE TABLE parted (id INT, body TEXT, try INT, due DATETIME NOT NULL, until DATETIME, PRIMARY KEY (id, due)) PARTITION BY HASH (TO_DAYS(due)) PARTITIONS 2", func(t *sqlq.Table) { t.Name = "parted" }, "ID", "not unique"},
		{"no such column", "", func(t *sqlq.Table) { t.Attempt = "nope" }, "Attempt", `"try"`},
		{"an id that is not unique", "", func(t *sqlq.Table) { t.ID = "again" }, "ID", "not unique"},
		{"an id that is unique in its first letters", "CREATE UNIQUE INDEX u ON own (grp(3))", func(t *sqlq.Table) { t.ID = "grp" }, "ID", "not unique"},
		{"an id that is a fraction", "CREATE UNIQUE INDEX u ON own (score)", func(t *sqlq.Table) { t.ID = "score" }, "ID", "exactly"},
		{"an attempt that is text", "", func(t *sqlq.Table) { t.Attempt = "k" }, "Attempt", "varchar"},
		{"a generated attempt", "", func(t *sqlq.Table) { t.Attempt = "gen" }, "Attempt", "generated"},
		{"a time that is a date", "", func(t *sqlq.Table) { t.RetryAfter = "day" }, "RetryAfter", "date"},
		{"a time that changes by itself", "", func(t *sqlq.Table) { t.RetryAfter = "stamp" }, "RetryAfter", "ON UPDATE"},
		{"a lock that is NOT NULL", "", func(t *sqlq.Table) { t.LockedUntil = "strict" }, "LockedUntil", "NOT NULL"},
		{"a payload that is no payload", "", func(t *sqlq.Table) { t.Payload = "doc" }, "Payload", "no payload"},
		{"headers that are a number", "", func(t *sqlq.Table) { t.Headers = "prio" }, "Headers", "int"},
		{"a lock's name of another column", "", func(t *sqlq.Table) { t.LockedUntil, t.Form = "", sqlq.AdvisoryLock{Key: "{nope}"} }, "AdvisoryLock.Key", `"nope"`},
		{"FIFO with a RetryAfter that may be NULL", "", func(t *sqlq.Table) { t.FIFO = true }, "RetryAfter", "NULL"},
		{"a statement with another name", "", func(t *sqlq.Table) { t.Statements.Ack = []string{"DELETE FROM own WHERE id = :nope"} }, "Statements.Ack", ":nope"},
		{"a statement without a fence", "", func(t *sqlq.Table) { t.Statements.Ack = []string{"DELETE FROM own WHERE id = :id AND try = :attempt"} }, "Statements.Ack", ":token"},
		{"a statement that is no SQL", "", func(t *sqlq.Table) {
			t.Statements.Retry = []string{"UPDATE own SET nope = 1 WHERE id = :id AND try = :attempt AND until = :token"}
		}, "Statements.Retry", "does not take it"},
	} {
		eachServer(t, func(t *testing.T, s services.Service) {
			t.Run(c.name, func(t *testing.T) {
				db := fresh(t, s, Options{})
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
		})
	}
}

func TestPoolsThatAreTooSmallAreRefused(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		q = h.open(t, Options{MaxConns: 8}).Queue(q.Table())
		if q.Table().LockedUntil != "" { // a lease keeps no connection
			sqltest.Open(t, q, settle.Registration{Workers: 5})
			return
		}
		e := sqltest.Refusal(t, q, settle.Registration{Workers: 8})
		assert.Equal(t, "Workers", e.Setting)
		assert.ErrorContains(t, e, "10")
		sqltest.Open(t, q, settle.Registration{Workers: 6})
	})
}

// Privileges that are missing are told at the start, each with the table.
func TestPrivilegesThatAreMissing(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		h := newHome(t, s)
		db := h.open(t, Options{})
		sqltest.Exec(t, &db.db, ownDDL)
		sqltest.Exec(t, &db.db, "CREATE TABLE dead LIKE own")
		user := h.name
		sqltest.Exec(t, &db.db, fmt.Sprintf("CREATE USER %s IDENTIFIED BY 'settle'", user))
		t.Cleanup(func() { sqltest.Exec(t, &db.db, "DROP USER "+user) })
		q := openDSN(t, asUser(h.dsn, user), Options{}).Queue(ownTable())
		r := settle.Registration{MaxAttempts: 3, DeadLetter: "dead"}
		grant := func(what, on string) {
			sqltest.Exec(t, &db.db, fmt.Sprintf("GRANT %s ON %s.%s TO %s", what, h.name, on, user))
		}

		e := sqltest.Refusal(t, q, r)
		assert.Equal(t, "database", e.Setting)
		grant("SELECT", "own")
		grant("SELECT", "dead")
		e = sqltest.Refusal(t, q, r)
		for _, says := range []string{"UPDATE on `own`", "DELETE on `own`", "INSERT on `dead`"} {
			assert.ErrorContains(t, e, says)
		}
		grant("SELECT, UPDATE, DELETE", "own")
		grant("INSERT", "dead")
		sqltest.Open(t, q, r)
		err := q.Publish(t.Context(), settle.Message{Body: []byte("x")})
		require.ErrorContains(t, err, "grant")
		assert.False(t, errors.Is(err, settle.ErrUnroutable))
	})
}

// What the session cannot keep is refused, with the setting.
func TestSessionsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, value, setting string }{
		{"sql_mode", "%27%27", "sql_mode"},
		{"autocommit", "0", "autocommit"},
		{"charset", "latin1", "charset"},
		{"transaction_read_only", "1", "transaction_read_only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachServer(t, func(t *testing.T, s services.Service) {
				h := newHome(t, s)
				newQueue(t, h.open(t, Options{}), sqlq.Standard("jobs", "main"))
				name := c.name
				if s == services.MariaDB && name == "transaction_read_only" {
					name = "tx_read_only"
				}
				pool, err := sql.Open("mysql", with(h.dsn, name, c.value))
				require.NoError(t, err)
				defer pool.Close()
				db, err := Wrap(pool, Options{})
				require.NoError(t, err)
				e := sqltest.Refusal(t, db.Queue(sqlq.Standard("jobs", "main")), settle.Registration{})
				assert.Equal(t, c.setting, e.Setting, "%v", e)
			})
		})
	}
}

// A pool of the caller's does all, one statement a round trip.
func TestAPoolOfTheCallers(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		pool, err := sql.Open("mysql", h.dsn)
		require.NoError(t, err)
		defer pool.Close()
		pool.SetMaxOpenConns(20)
		wrapped, err := Wrap(pool, Options{})
		require.NoError(t, err)
		work(t, db, wrapped.Queue(q.Table()), 60, func(func() int) {})
		sqltest.Publish(t, q.Queue, "a", "b", "c")
		c := sqltest.Open(t, wrapped.Queue(q.Table()), settle.Registration{Workers: 3, MaxAttempts: 2, DeadLetter: "main.dead"})
		for _, v := range []settle.Verdict{ack, drop, release} {
			require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], v))
		}
		require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], toDead))
		assert.Equal(t, "main.dead", sqltest.One[string](t, &db.db, "SELECT queue FROM jobs"))
	})
}

func TestOptionsAndDSNsThatAreRefused(t *testing.T) {
	var config *settle.ConfigError
	for _, o := range []Options{{Poll: -1}, {MaxConns: -1}} {
		_, err := Open("tcp(127.0.0.1:1)/x", o)
		require.ErrorAs(t, err, &config)
		assert.ErrorContains(t, err, "negative")
	}
	_, err := Open("user:secret@tcp(host/x", Options{})
	require.ErrorAs(t, err, &config)
	assert.NotContains(t, err.Error(), "secret")
	_, err = Wrap(nil, Options{})
	require.ErrorAs(t, err, &config)
}

// Who cannot come in is told so at once; who reaches nobody tries again.
func TestServersThatDoNotAnswerOrLetNobodyIn(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		h := newHome(t, s)
		for _, c := range []struct {
			dsn     string
			setting string // empty: it is tried again
		}{
			{strings.Replace(h.dsn, ":settle@", ":wrong@", 1), "database"},
			{h.dsn + "_nowhere", "database"},
			{strings.TrimSuffix(h.dsn, h.name), "database"},
			{"settle:secret@tcp(127.0.0.1:1)/settle", ""},
		} {
			db := openDSN(t, c.dsn, Options{})
			_, err := db.Queue(sqlq.Standard("jobs", "main")).Open(t.Context(), sqltest.Registration(settle.Registration{}))
			require.Error(t, err)
			var config *settle.ConfigError
			assert.Equal(t, c.setting != "", errors.As(err, &config), "%v", err)
			if c.setting != "" {
				assert.Equal(t, c.setting, config.Setting)
			}
			assert.NotContains(t, err.Error(), "wrong")
			assert.NotContains(t, err.Error(), "secret")
		}
	})
}

// Statements of the user's own count the rows that they find, which the driver has to be told.
func TestAPoolOfTheCallersWithStatementsCountsFoundRows(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		h := newHome(t, s)
		table := sqlq.Standard("jobs", "main")
		table.Statements.Retry = []string{"UPDATE jobs SET locked_until = locked_until WHERE id = :id AND attempt = :attempt AND locked_until = :token"}
		newQueue(t, h.open(t, Options{}), sqlq.Standard("jobs", "main"))
		for _, found := range []bool{false, true} {
			pool, err := sql.Open("mysql", with(h.dsn, "clientFoundRows", fmt.Sprint(found)))
			require.NoError(t, err)
			defer pool.Close()
			db, err := Wrap(pool, Options{})
			require.NoError(t, err)
			if found {
				sqltest.Publish(t, db.Queue(table).Queue, "a")
				c := sqltest.Open(t, db.Queue(table), settle.Registration{})
				require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], retry))
				continue
			}
			assert.Equal(t, "clientFoundRows", sqltest.Refusal(t, db.Queue(table), settle.Registration{}).Setting)
		}
	})
}
