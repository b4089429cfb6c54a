package sqlite

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// What may stand in a table of the user's. Every row is delivered and can be settled, or is left alone;
// none keeps the others from going on.
func TestOddRows(t *testing.T) {
	for _, c := range []struct {
		name    string
		columns string
		values  string
		body    string
		attempt int
	}{
		{"a NULL payload", "body", "NULL", "", 1},
		{"a whole number as payload", "body", "42", "42", 1},
		{"a blob as payload", "body", "x'00ff'", "\x00\xff", 1},
		{"attempt NULL", "body, attempt", "'x', NULL", "x", 1},
		{"attempt 0", "body, attempt", "'x', 0", "x", 1},
		{"attempt -7", "body, attempt", "'x', -7", "x", 1},
		{"attempt 4", "body, attempt", "'x', 4", "x", 4},
		{"attempt as text", "body, attempt", "'x', 'many'", "x", 1},
		{"attempt as a fraction", "body, attempt", "'x', 2.5", "x", 2},
		{"the highest attempt", "body, attempt", "'x', 2147483646", "x", 2147483646},
		{"attempt beyond the range", "body, attempt", "'x', 9223372036854775807", "x", 2147483646},
		{"attempt beyond all numbers", "body, attempt", "'x', 9e999", "x", 2147483646},
		{"headers that are no JSON", "body, headers", "'x', '{'", "x", 1},
		{"headers that are a list", "body, headers", "'x', '[1]'", "x", 1},
		{"headers null", "body, headers", "'x', 'null'", "x", 1},
		{"a key that is a number", "body, key", "'x', 5", "x", 1},
		{"due long ago", "body, due", "'x', -9223372036854775808", "x", 1},
		{"locked long ago", "body, lock", "'x', 0", "x", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, "CREATE TABLE own (id INTEGER PRIMARY KEY, body, attempt INTEGER, due INTEGER, lock INTEGER, headers TEXT, key TEXT)")
			sqltest.Exec(t, &db.db, fmt.Sprintf("INSERT INTO own (%s) VALUES (%s)", c.columns, c.values))
			sqltest.Exec(t, &db.db, "INSERT INTO own (body) VALUES ('good')")
			q := db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "attempt", RetryAfter: "due", LockedUntil: "lock", Headers: "headers", Key: "key"})
			consumer := sqltest.Open(t, q, settle.Registration{})
			seen := map[string]*settle.Delivery{}
			for range 2 {
				d := sqltest.Receive(t, consumer, 1)[0]
				seen[d.ID] = d
			}
			d := seen["1"]
			assert.Equal(t, c.body, string(d.Body))
			assert.Equal(t, c.attempt, d.Attempt)
			assert.Nil(t, d.Headers)
			assert.Equal(t, "good", string(seen["2"].Body))
			require.NoError(t, sqltest.Settle(consumer, d, retry), "it can be settled")
			again := sqltest.Receive(t, consumer, 1)[0]
			assert.Equal(t, min(c.attempt+1, math.MaxInt32-1), again.Attempt, "and counts on")
			require.NoError(t, sqltest.Settle(consumer, again, ack))
			require.NoError(t, sqltest.Settle(consumer, seen["2"], ack))
			assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own"))
		})
	}
}

// SQLite lets a text primary key be NULL. Such a row cannot be settled; it must
// not stand before the others either.
func TestRowsWithoutAnIDAreLeftAlone(t *testing.T) {
	db := openFile(t, Options{})
	sqltest.Exec(t, &db.db, "CREATE TABLE own (id TEXT PRIMARY KEY, body TEXT, lock INTEGER)")
	sqltest.Exec(t, &db.db, "INSERT INTO own VALUES (NULL, 'bad', NULL), (NULL, 'bad', NULL), ('x', 'good', NULL)")
	q := db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", LockedUntil: "lock"})
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	assert.Equal(t, "good", string(d.Body))
	require.NoError(t, sqltest.Settle(c, d, ack))
	sqltest.Nothing(t, c, "the others have no id")
	assert.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own"))
}

func TestIDsOfEveryType(t *testing.T) {
	for _, c := range []struct {
		ddl  string
		id   any
		text string
	}{
		{"INTEGER PRIMARY KEY", int64(math.MaxInt64), "9223372036854775807"},
		{"BIGINT NOT NULL UNIQUE", int64(-1), "-1"},
		{"TEXT PRIMARY KEY", "it's; \"so\"", "it's; \"so\""},
		{"BLOB PRIMARY KEY", []byte{0, 0xff}, "00ff"},
		{"PRIMARY KEY", "any", "any"},
	} {
		t.Run(c.ddl, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, "CREATE TABLE own (id "+c.ddl+", body TEXT, lock INTEGER, attempt INTEGER)")
			sqltest.Exec(t, &db.db, "INSERT INTO own (id, body) VALUES (?, 'x')", c.id)
			consumer := sqltest.Open(t, db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", LockedUntil: "lock", Attempt: "attempt"}), settle.Registration{})
			d := sqltest.Receive(t, consumer, 1)[0]
			assert.Equal(t, c.text, d.ID)
			var row sqlq.Row
			require.True(t, d.As(&row))
			assert.Equal(t, c.id, row.ID)
			require.NoError(t, sqltest.Settle(consumer, d, ack))
			assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own"))
		})
	}
}

func TestAsFindsTheRow(t *testing.T) {
	db := openFile(t, Options{})
	table := leased(time.Minute)
	table.Priority = "priority"
	q := newQueue(t, db, table)
	before := time.Now().Add(-time.Microsecond)
	require.NoError(t, q.Publish(t.Context(), settle.Message{Priority: 3, Key: "k"}))
	d := sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{}), 1)[0]
	var row sqlq.Row
	require.True(t, d.As(&row))
	assert.Equal(t, sqlq.Row{ID: int64(1), Table: "jobs", Group: "main", Priority: 3, RetryAfter: row.RetryAfter}, row)
	assert.WithinRange(t, row.RetryAfter, before, time.Now())
	assert.Equal(t, "k", d.Key)
	var other *strings.Builder
	assert.False(t, d.As(&other))
}

// Names are quoted and group values are data, whatever they hold.
func TestNamesHoldAnything(t *testing.T) {
	const evil = `x"; DROP TABLE "victim"; --' [:id] ?1 $1 %s`
	table := sqlq.Table{
		Name: evil, ID: evil + "1", Payload: evil + "2", Group: evil + "3", GroupValue: evil, Attempt: evil + "4", RetryAfter: evil + "5",
		LockedUntil: evil + "6", ProcessedAt: evil + "7", Priority: evil + "8", Headers: evil + "9", Key: evil + "10", Cause: evil + "11",
	}
	for _, form := range []sqlq.Form{sqlq.Lease{}, sqlq.AdvisoryLock{Key: "it's {" + evil + "1}"}} {
		t.Run(fmt.Sprintf("%T", form), func(t *testing.T) {
			table := table
			table.Form = form
			if _, ok := form.(sqlq.AdvisoryLock); ok {
				table.LockedUntil = ""
			}
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, "CREATE TABLE victim (id INTEGER)")
			q := newQueue(t, db, table)
			deadTable := table
			deadTable.Name += " dead"
			newQueue(t, db, deadTable)
			require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("a"), Key: evil, Headers: settle.Headers{evil: evil}}, settle.Message{Body: []byte("b")}, settle.Message{Body: []byte("c")}))
			c := sqltest.Open(t, q, settle.Registration{Workers: 3, MaxAttempts: 3, DeadLetter: "table:" + deadTable.Name})
			ds := sqltest.Receive(t, c, 3)
			require.Equal(t, []string{"a", "b", "c"}, sqltest.Bodies(ds))
			assert.Equal(t, evil, ds[0].Key)
			assert.Equal(t, settle.Headers{evil: evil}, ds[0].Headers)
			require.NoError(t, sqltest.Settle(c, ds[0], retry))
			require.NoError(t, sqltest.Settle(c, ds[1], bury))
			require.NoError(t, sqltest.Settle(c, ds[2], ack))
			n, err := db.Queue(deadTable).Len(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			require.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT count(*) FROM sqlite_schema WHERE name = 'victim'"))
		})
	}
}
