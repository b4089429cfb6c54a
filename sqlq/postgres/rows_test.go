package postgres

import (
	"errors"
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

// own makes a queue of the test's own table in a form.
func own(t *testing.T, db *DB, ddl string, f sqlq.Form) *Queue {
	t.Helper()
	sqltest.Exec(t, &db.db, ddl)
	return db.Queue(sqltest.In(sqlq.Table{
		Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "lock", Headers: "head", Key: "key",
	}, f))
}

const oddDDL = `CREATE TABLE own (id bigserial PRIMARY KEY, body bytea, try %s, due timestamptz, lock timestamptz, head text, key int)`

// What may stand in a table of the user's. Every row is delivered and can be settled; none keeps the others from going on.
func TestOddRows(t *testing.T) {
	for _, c := range []struct {
		name    string
		try     string // the type of the Attempt column
		values  string // body, try, due, head, key
		body    string
		attempt int
		next    int
	}{
		{"a NULL payload", "int", "NULL, 1, NULL, NULL, NULL", "", 1, 2},
		{"any bytes", "int", `'\x00ff', 1, NULL, NULL, NULL`, "\x00\xff", 1, 2},
		{"attempt NULL", "int", "'x', NULL, NULL, NULL, NULL", "x", 1, 2},
		{"attempt 0", "int", "'x', 0, NULL, NULL, NULL", "x", 1, 2},
		{"attempt -7", "int", "'x', -7, NULL, NULL, NULL", "x", 1, 2},
		{"attempt 4", "bigint", "'x', 4, NULL, NULL, NULL", "x", 4, 5},
		{"the highest smallint", "smallint", "'x', 32767, NULL, NULL, NULL", "x", math.MaxInt16, math.MaxInt16},
		{"the highest integer", "int", "'x', 2147483647, NULL, NULL, NULL", "x", math.MaxInt32, math.MaxInt32},
		{"a bigint beyond an integer", "bigint", "'x', 9223372036854775807, NULL, NULL, NULL", "x", math.MaxInt32, math.MaxInt32},
		{"headers that are no JSON", "int", "'x', 1, NULL, '{', NULL", "x", 1, 2},
		{"headers that are a list", "int", "'x', 1, NULL, '[1]', NULL", "x", 1, 2},
		{"headers null", "int", "'x', 1, NULL, 'null', NULL", "x", 1, 2},
		{"a key that is a number", "int", "'x', 1, NULL, NULL, 5", "x", 1, 2},
		{"due since ever", "int", "'x', 1, '-infinity', NULL, NULL", "x", 1, 2},
		{"due before all times", "int", "'x', 1, '4713-01-01 BC', NULL, NULL", "x", 1, 2},
	} {
		for _, f := range forms() {
			t.Run(fmt.Sprintf("%s %T", c.name, f), func(t *testing.T) {
				beside(t, f)
				db := fresh(t, Options{})
				q := own(t, db, fmt.Sprintf(oddDDL, c.try), f)
				sqltest.Exec(t, &db.db, "INSERT INTO own (body, try, due, head, key) VALUES ("+c.values+"), ('good', 1, now(), NULL, NULL), ('never', 1, 'infinity', NULL, NULL)")
				consumer := sqltest.Open(t, q, settle.Registration{Workers: 3})
				seen := map[string]*settle.Delivery{}
				for range 2 {
					d := sqltest.Receive(t, consumer, 1)[0]
					seen[d.ID] = d
				}
				d := seen["1"]
				require.NotNil(t, d)
				assert.Equal(t, c.body, string(d.Body))
				// A claim that counts cannot count beyond what the column holds.
				assert.InDelta(t, c.attempt, d.Attempt, 1)
				assert.Nil(t, d.Headers)
				assert.Equal(t, "good", string(seen["2"].Body))
				require.NoError(t, sqltest.Settle(consumer, d, retry), "it can be settled")
				again := sqltest.Receive(t, consumer, 1)[0]
				assert.InDelta(t, c.next, again.Attempt, 1, "and counts on")
				assert.GreaterOrEqual(t, again.Attempt, d.Attempt)
				require.NoError(t, sqltest.Settle(consumer, again, ack))
				require.NoError(t, sqltest.Settle(consumer, seen["2"], ack))
				assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own"))
			})
		}
	}
}

func TestIDsOfEveryType(t *testing.T) {
	for _, c := range []struct {
		ddl  string
		id   string // SQL
		text string
		is   any
	}{
		{"bigint PRIMARY KEY", "9223372036854775807", "9223372036854775807", int64(math.MaxInt64)},
		{"integer PRIMARY KEY", "-1", "-1", int64(-1)},
		{"smallint UNIQUE", "7", "7", int64(7)},
		{"uuid PRIMARY KEY", "'6f1ff2ee-9c0a-4b57-8d3f-2c9d0c2f8f10'", "6f1ff2ee-9c0a-4b57-8d3f-2c9d0c2f8f10", "6f1ff2ee-9c0a-4b57-8d3f-2c9d0c2f8f10"},
		{"text PRIMARY KEY", `'it''s; "so" \'`, `it's; "so" \`, `it's; "so" \`},
		{"varchar(20) PRIMARY KEY", "'ü'", "ü", "ü"},
		{"char(4) PRIMARY KEY", "'ab'", "ab", "ab"},
		{"bytea PRIMARY KEY", `'\x00ff'`, `\x00ff`, `\x00ff`},
		{"numeric PRIMARY KEY", "12345678901234567890.5", "12345678901234567890.5", "12345678901234567890.5"},
	} {
		for _, f := range forms() {
			t.Run(fmt.Sprintf("%s %T", c.ddl, f), func(t *testing.T) {
				beside(t, f)
				db := fresh(t, Options{})
				sqltest.Exec(t, &db.db, "CREATE TABLE own (id "+c.ddl+", body text, lock timestamptz, try int, due timestamptz DEFAULT now())")
				sqltest.Exec(t, &db.db, "INSERT INTO own (id, body) VALUES ("+c.id+", 'x')")
				table := sqltest.In(sqlq.Table{Name: "own", ID: "id", Payload: "body", LockedUntil: "lock", Attempt: "try", RetryAfter: "due"}, f)
				consumer := sqltest.Open(t, db.Queue(table), settle.Registration{})
				for attempt := 1; attempt <= 2; attempt++ {
					d := sqltest.Receive(t, consumer, 1)[0]
					assert.Equal(t, c.text, d.ID)
					assert.Equal(t, attempt, d.Attempt)
					var row sqlq.Row
					require.True(t, d.As(&row))
					assert.Equal(t, c.is, row.ID)
					require.NoError(t, sqltest.Settle(consumer, d, []settle.Verdict{retry, ack}[attempt-1]))
				}
				assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own"))
			})
		}
	}
}

// TestTimesOfEveryPrecision holds leases and delays in columns that round: a lease is known by what
// the column keeps, and no delay comes out shorter.
func TestTimesOfEveryPrecision(t *testing.T) {
	for _, typ := range []string{"timestamptz", "timestamp", "timestamptz(3)", "timestamptz(0)", "timestamp(1)"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			h := newHome(t, "postgres")
			db := openURL(t, with(h.url, "timezone", "America/St_Johns"), Options{})
			sqltest.Exec(t, &db.db, "CREATE TABLE own (id bigserial PRIMARY KEY, body text, try int, due "+typ+", lock "+typ+", done "+typ+")")
			table := sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "lock", ProcessedAt: "done", Form: sqlq.Lease{For: 2 * time.Second}}
			q := db.Queue(table)
			c := sqltest.Open(t, q, settle.Registration{})
			zone := ""
			if !strings.Contains(typ, "tz") {
				zone = " AT TIME ZONE 'UTC'"
			}
			for range 5 {
				require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("x")}))
				var d *settle.Delivery
				require.Eventually(t, func() bool { d = sqltest.Receive(t, c, 1)[0]; return true }, deadline, time.Millisecond)
				const delay = 1500 * time.Millisecond
				require.NoError(t, sqltest.Settle(c, d, settle.Verdict{Action: settle.ActionRetry, Delay: delay}), "the lease is known again")
				left := sqltest.One[float64](t, &db.db, "SELECT extract(epoch FROM due"+zone+" - statement_timestamp()) FROM own WHERE done IS NULL")
				assert.Greater(t, left, delay.Seconds()-0.5, "the delay is not shorter, but for the time since")
				assert.GreaterOrEqual(t, sqltest.One[float64](t, &db.db, "SELECT extract(epoch FROM due"+zone+") FROM own WHERE done IS NULL"), 0.0)
				sqltest.Exec(t, &db.db, "UPDATE own SET due = NULL WHERE done IS NULL")
				require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
			}
			// Over several renewals.
			require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("x")}))
			d := sqltest.Receive(t, c, 1)[0]
			first := sqltest.One[string](t, &db.db, "SELECT lock::text FROM own WHERE done IS NULL")
			sqltest.Eventually(t, &db.db, true, "SELECT lock::text <> $1 FROM own WHERE done IS NULL", first)
			require.NoError(t, sqltest.Settle(c, d, ack))
			assert.Equal(t, 6, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own WHERE abs(extract(epoch FROM statement_timestamp() - done"+zone+")) < 60"), "processed now, in UTC where there is no zone")
			n, err := q.Purge(t.Context(), 0)
			require.NoError(t, err)
			assert.LessOrEqual(t, n, int64(6))
		})
	}
}

func TestPublishKeepsWhatTheTableCanHold(t *testing.T) {
	db := fresh(t, Options{})
	sqltest.Exec(t, &db.db, `CREATE TABLE own (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), kind varchar(5), body jsonb NOT NULL, level smallint, key int, head jsonb)`)
	q := db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", Group: "kind", GroupValue: "main", Priority: "level", Key: "key", Headers: "head", Form: sqlq.RowLock{}})
	err := q.Publish(t.Context(),
		settle.Message{Body: []byte(`{"a":1}`)},
		settle.Message{Body: []byte(`not JSON`)},
		settle.Message{Body: []byte(`{"b":2}`), Priority: 3, Key: "42", ID: "x", Headers: settle.Headers{"h": "v"}},
		settle.Message{Body: []byte(`{}`), Priority: 100_000},
		settle.Message{Body: []byte(`{}`), To: "too long for it"},
		settle.Message{Body: []byte(`{}`), Key: "no number"},
		settle.Message{Body: []byte(`{}`), Headers: settle.Headers{"h": "\x00"}},
		settle.Message{Body: []byte(`{}`), Delay: time.Second},
	)
	var p *settle.PublishError
	require.ErrorAs(t, err, &p)
	var failed []int
	for _, f := range p.Failed {
		failed = append(failed, f.Index)
		assert.True(t, settle.IsPermanent(f.Err), "%v", f.Err)
	}
	assert.Equal(t, []int{1, 3, 4, 5, 6, 7}, failed)
	c := sqltest.Open(t, q, settle.Registration{Workers: 2})
	d := sqltest.Receive(t, c, 1)[0]
	assert.JSONEq(t, `{"b":2}`, string(d.Body), "by priority")
	assert.Equal(t, "42", d.Key)
	assert.Equal(t, "x", d.ID)
	assert.Equal(t, "v", d.Headers.Get("h"))
	assert.JSONEq(t, `{"a":1}`, string(sqltest.Receive(t, c, 1)[0].Body))
}

// Names are quoted, and groups are data, however long.
func TestNamesAndGroupsOfAnyKind(t *testing.T) {
	for _, group := range []string{strings.Repeat("g", 10_000), `'; DROP TABLE jobs; --`, `$1 :group ?`, `\`} {
		eachForm(t, func(table *sqlq.Table) {
			table.Name, table.GroupValue = `t"; DROP TABLE x; --$1 :id $25`, group
			table.Group = `q"'`
		}, func(t *testing.T, db *DB, q *Queue) {
			require.NoError(t, q.CreateTable(t.Context()), "a second time")
			sqltest.Publish(t, q, "a")
			c := sqltest.Open(t, q, settle.Registration{MaxAttempts: 2, DeadLetter: group + "d"})
			d := sqltest.Receive(t, c, 1)[0]
			require.NoError(t, sqltest.Settle(c, d, settle.Verdict{Action: settle.ActionDeadLetter, Cause: errors.New("it's\x00\xff")}))
			assert.Equal(t, group+"d", sqltest.One[string](t, &db.db, `SELECT "q""'" FROM `+quote(q.Table().Name)))
		})
	}
}

// A partitioned table works where its ids are unique, and so does an inherited one.
func TestAPartitionedTable(t *testing.T) {
	for _, f := range forms() {
		t.Run(fmt.Sprintf("%T", f), func(t *testing.T) {
			db := fresh(t, Options{})
			sqltest.Exec(t, &db.db, `CREATE TABLE own (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, body text, try int, due timestamptz, lock timestamptz, head jsonb, key text) PARTITION BY HASH (id)`)
			for i := range 3 {
				sqltest.Exec(t, &db.db, fmt.Sprintf("CREATE TABLE own%d PARTITION OF own FOR VALUES WITH (MODULUS 3, REMAINDER %d)", i, i))
			}
			sqltest.Exec(t, &db.db, "CREATE INDEX ON own (due, id)")
			q := db.Queue(sqltest.In(sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "lock"}, f))
			sqltest.Publish(t, q, "a", "b", "c", "d", "e", "f", "g")
			c := sqltest.Open(t, q, settle.Registration{Workers: 2})
			assert.Equal(t, []string{"a", "b", "c", "d", "e", "f", "g"}, sqltest.Drain(t, c, 7))
		})
	}
}

// The database's clock rules: a host whose clock is hours ahead claims nothing early. The process's clock
// appears in no statement, so a test need not turn it.
func TestTheProcesssClockIsInNoStatement(t *testing.T) {
	for _, g := range goldens() {
		db := fresh(t, Options{})
		if g.Table.Schema != "" {
			g.Table.Schema = ""
		}
		text, err := g.Create(t, &db.db).SQL(t.Context(), settle.Options{})
		require.NoError(t, err)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "-- ") {
				assert.NotContains(t, line, ":now", g.Name)
			}
		}
	}
}
