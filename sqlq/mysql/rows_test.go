package mysql

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// What may stand in a table of the user's. Every row is delivered and can be settled; none keeps the others from going on.
func TestOddRows(t *testing.T) {
	for _, c := range []struct {
		name    string
		try     string // the type of the Attempt column
		values  string // body, try, due, head, k
		body    string
		attempt int
		next    int
	}{
		{"a NULL payload", "INT", "NULL, 1, NULL, NULL, NULL", "", 1, 2},
		{"any bytes", "INT", `X'00FF', 1, NULL, NULL, NULL`, "\x00\xff", 1, 2},
		{"attempt NULL", "INT", "'x', NULL, NULL, NULL, NULL", "x", 1, 2},
		{"attempt 0", "INT", "'x', 0, NULL, NULL, NULL", "x", 1, 2},
		{"attempt -7", "INT", "'x', -7, NULL, NULL, NULL", "x", 1, 2},
		{"attempt 4", "BIGINT", "'x', 4, NULL, NULL, NULL", "x", 4, 5},
		{"the highest TINYINT", "TINYINT", "'x', 127, NULL, NULL, NULL", "x", math.MaxInt8, math.MaxInt8},
		{"the highest TINYINT UNSIGNED", "TINYINT UNSIGNED", "'x', 255, NULL, NULL, NULL", "x", math.MaxUint8, math.MaxUint8},
		{"the highest SMALLINT", "SMALLINT", "'x', 32767, NULL, NULL, NULL", "x", math.MaxInt16, math.MaxInt16},
		{"the highest INT", "INT", "'x', 2147483647, NULL, NULL, NULL", "x", math.MaxInt32, math.MaxInt32},
		{"a BIGINT beyond an INT", "BIGINT", "'x', 9223372036854775807, NULL, NULL, NULL", "x", math.MaxInt32, math.MaxInt32},
		{"headers that are no JSON", "INT", "'x', 1, NULL, '{', NULL", "x", 1, 2},
		{"headers that are a list", "INT", "'x', 1, NULL, '[1]', NULL", "x", 1, 2},
		{"a key that is a number", "INT", "'x', 1, NULL, NULL, 5", "x", 1, 2},
		{"due before all times", "INT", "'x', 1, '1000-01-01', NULL, NULL", "x", 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachServer(t, func(t *testing.T, s services.Service) {
				for name, f := range forms() {
					t.Run(name, func(t *testing.T) {
						db := fresh(t, s, Options{})
						sqltest.Exec(t, &db.db, fmt.Sprintf("CREATE TABLE own (id INT AUTO_INCREMENT PRIMARY KEY, body BLOB, try %s, due DATETIME(6), until DATETIME(6), head TEXT, k INT, KEY (due))", c.try))
						sqltest.Exec(t, &db.db, "INSERT INTO own (body, try, due, head, k) VALUES ("+c.values+"), ('good', 1, UTC_TIMESTAMP(6), NULL, NULL), ('never', 1, '9999-12-31', NULL, NULL)")
						q := db.Queue(sqltest.In(sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "until", Headers: "head", Key: "k"}, f))
						consumer := sqltest.Open(t, q, settle.Registration{Workers: 3})
						seen := map[string]*settle.Delivery{}
						for range 2 {
							d := sqltest.Receive(t, consumer, 1)[0]
							seen[string(d.Body)] = d
						}
						d := seen[c.body]
						require.NotNil(t, d)
						require.NotNil(t, seen["good"])
						// A claim that counts cannot count beyond what the column holds.
						assert.InDelta(t, c.attempt, d.Attempt, 1)
						first := d.Attempt
						require.NoError(t, sqltest.Settle(consumer, d, retry))
						require.NoError(t, sqltest.Settle(consumer, seen["good"], ack))
						d = sqltest.Receive(t, consumer, 1)[0]
						assert.Equal(t, c.body, string(d.Body))
						assert.InDelta(t, c.next, d.Attempt, 1)
						assert.GreaterOrEqual(t, d.Attempt, first)
						require.NoError(t, sqltest.Settle(consumer, d, ack))
						assert.Equal(t, "never", sqltest.One[string](t, &db.db, "SELECT CAST(body AS CHAR) FROM own"))
					})
				}
			})
		})
	}
}

// A message that the table does not take is refused for itself, for good; the others go.
func TestMessagesThatTheTableDoesNotTake(t *testing.T) {
	eachForm(t, func(table *sqlq.Table) { table.Payload = "payload" }, func(t *testing.T, db *DB, q *Queue) {
		long := strings.Repeat("x", 10_000)
		err := q.Publish(t.Context(),
			settle.Message{Body: []byte("a")},
			settle.Message{Body: []byte("to a group that is too long"), To: long},
			settle.Message{Body: []byte("b"), Key: "k"},
			settle.Message{Body: []byte("with a key that is too long"), Key: long},
			settle.Message{Body: []byte("c"), Headers: settle.Headers{"x": strings.Repeat("ä", 5000)}},
		)
		var failed *settle.PublishError
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed.Failed, 2)
		for i, at := range []int{1, 3} {
			assert.Equal(t, at, failed.Failed[i].Index)
			assert.True(t, settle.IsPermanent(failed.Failed[i].Err), "%v", failed.Failed[i].Err)
		}
		c := sqltest.Open(t, q, settle.Registration{})
		assert.Equal(t, []string{"a", "b", "c"}, sqltest.Drain(t, c, 3))
	})
}

// A cause that is longer than its column is cut, and the row settles.
func TestACauseIsCutToItsColumn(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Exec(t, &db.db, "ALTER TABLE jobs MODIFY cause VARCHAR(10) CHARACTER SET utf8mb4")
		sqltest.Publish(t, q.Queue, "a", "b")
		c := sqltest.Open(t, q, settle.Registration{Workers: 2, MaxAttempts: 3, DeadLetter: "main.dead"})
		ds := append(sqltest.Receive(t, c, 1), sqltest.Receive(t, c, 1)...)
		for _, err := range sqltest.SettleAll(c, settle.Verdict{Action: settle.ActionDeadLetter, Cause: fmt.Errorf("größer als 😀 die Spalte")}, ds...) {
			require.NoError(t, err)
		}
		assert.Equal(t, "größer als", sqltest.One[string](t, &db.db, "SELECT MIN(cause) FROM jobs"))
	})
}

// A body of some megabytes comes back as it went, byte by byte, at once or in a transaction of its own.
func TestLargeBodies(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		db := fresh(t, s, Options{})
		q := newQueue(t, db, sqlq.Standard("jobs", "main"))
		body := make([]byte, 3<<20)
		for i := range body {
			body[i] = byte(i * 7)
		}
		require.NoError(t, q.Publish(t.Context(), settle.Message{Body: body}, settle.Message{Body: body[:1025]}, settle.Message{Body: body[:1024]}, settle.Message{}))
		c := sqltest.Open(t, q, settle.Registration{})
		for _, want := range [][]byte{body, body[:1025], body[:1024], nil} {
			d := sqltest.Receive(t, c, 1)[0]
			assert.True(t, string(want) == string(d.Body), "%d bytes", len(want))
			require.NoError(t, sqltest.Settle(c, d, ack))
		}
	})
}

// A row that somebody else has locked keeps no other from being settled.
func TestARowThatSomebodyElseHasLocked(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		db := fresh(t, s, Options{})
		q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 2 * time.Second}))
		sqltest.Publish(t, q.Queue, "a", "b", "c", "d")
		c := sqltest.Open(t, q, settle.Registration{Workers: 4})
		var ds []*settle.Delivery
		for len(ds) < 4 {
			ds = append(ds, sqltest.Receive(t, c, 4-len(ds))...)
		}
		tx, err := db.SQL().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		var id int
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT id FROM jobs WHERE id = ? FOR UPDATE", ds[1].ID).Scan(&id))
		errs := sqltest.SettleAll(c, ack, ds...)
		require.ErrorContains(t, errs[1], "somebody else has the row locked")
		for i, d := range ds { // a statement that was cut off may still be at its end
			if i != 1 && errs[i] != nil {
				require.Eventually(t, func() bool { return sqltest.Settle(c, d, ack) == nil }, deadline, 10*time.Millisecond, "%v", errs[i])
			}
		}
		assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT COUNT(*) FROM jobs"))
		require.NoError(t, tx.Rollback())
		require.Eventually(t, func() bool { return sqltest.Settle(c, ds[1], ack) == nil }, deadline, 10*time.Millisecond)
		assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT COUNT(*) FROM jobs"))
	})
}

// The clock of the process plays no part: no statement asks for it.
func TestTimesAreTheServers(t *testing.T) {
	for _, g := range goldens() {
		t.Run(g.Name, func(t *testing.T) {
			db := fresh(t, services.MySQL, Options{})
			text, err := g.Create(t, &db.db).SQL(t.Context(), g.Options())
			require.NoError(t, err)
			assert.NotContains(t, text, " :now")
		})
	}
}

// The dead letters of two tables may have the same id in one dead table.
func TestDeadLettersOfTwoTablesInOne(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		other, dead := q.Table(), q.Table()
		other.Name, dead.Name = "other", "dead"
		newQueue(t, db, dead)
		for _, q := range []*Queue{q, newQueue(t, db, other)} {
			sqltest.Publish(t, q.Queue, q.Table().Name+"1", q.Table().Name+"2")
			c := sqltest.Open(t, q, settle.Registration{Workers: 2, Batch: 2, MaxAttempts: 3, DeadLetter: "table:dead"})
			ds := sqltest.Receive(t, c, 2)
			for len(ds) < 2 {
				ds = append(ds, sqltest.Receive(t, c, 1)...)
			}
			for _, err := range sqltest.SettleAll(c, toDead, ds...) {
				require.NoError(t, err)
			}
		}
		assert.Equal(t, "jobs1 jobs2 other1 other2", sqltest.One[string](t, &db.db, "SELECT GROUP_CONCAT(CAST(payload AS CHAR) ORDER BY payload SEPARATOR ' ') FROM dead"))
		assert.Equal(t, 0, sqltest.One[int](t, &db.db, "SELECT (SELECT COUNT(*) FROM jobs) + (SELECT COUNT(*) FROM other)"))
	})
}
