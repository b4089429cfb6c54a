package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
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

// Side by side claims get rows of their own: none locks what it does not take. A sort would lock all.
func TestClaimsLeaveTheOtherRowsToOthers(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q.Queue, "a", "b", "c", "d", "e", "f")
		c := sqltest.Open(t, q, settle.Registration{Workers: 6})
		for _, want := range []string{"a", "b", "c", "d", "e", "f"} {
			assert.Equal(t, []string{want}, sqltest.Bodies(sqltest.Receive(t, c, 1)))
		}
	})
}

// A table without the index of claims works, and is told of with the index to make; with it the warning is gone.
func TestAMissingIndexIsNamed(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Exec(t, &db.db, "DROP INDEX jobs_claim ON jobs")
		sqltest.Publish(t, q.Queue, "a", "b")
		said := sqltest.Weakened(t, q, settle.Options{})
		require.Len(t, said, 1)
		_, fix, ok := strings.Cut(said[0], "run: ")
		require.True(t, ok, said[0])
		assert.Equal(t, "CREATE INDEX `jobs_claim` ON `jobs` (`queue`, `retry_after`, `id`)", fix)
		c := sqltest.Open(t, q, settle.Registration{})
		assert.Equal(t, []string{"a", "b"}, sqltest.Drain(t, c, 2))
		sqltest.Exec(t, &db.db, fix)
		assert.Empty(t, sqltest.Weakened(t, q, settle.Options{}))
	})
}

// The index of the claims may be made anew under another name while a consumer runs.
func TestTheIndexOfClaimsIsReplaced(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		h := func(rt *settle.Runtime) {
			rt.Handle(q, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }, settle.Options{})
		}
		stop := sqltest.Serve(t, h)
		sqltest.Publish(t, q.Queue, "a")
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		sqltest.Exec(t, &db.db, "CREATE INDEX other ON jobs (queue, retry_after)")
		sqltest.Exec(t, &db.db, "DROP INDEX jobs_claim ON jobs")
		sqltest.Publish(t, q.Queue, "b")
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
	})
}

// While rows are in work, others can be inserted anywhere: there are no gap locks, whatever the server's default is.
func TestRowsInWorkDoNotKeepInsertsWaiting(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q.Queue, "a", "b")
		c := sqltest.Open(t, q, settle.Registration{})
		d := sqltest.Receive(t, c, 1)[0]
		tx, err := db.SQL().BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1")
		require.NoError(t, err)
		require.NoError(t, q.PublishTx(t.Context(), tx, settle.Message{Body: []byte("c")}))
		require.NoError(t, tx.Commit())
		require.NoError(t, sqltest.Settle(c, d, ack))
	})
}

// A lease is renewed and settled whatever its column keeps of a second.
func TestLeasesInColumnsOfAnyPrecision(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		for _, kind := range []string{"DATETIME", "DATETIME(1)", "DATETIME(3)", "DATETIME(6)", "TIMESTAMP NULL", "TIMESTAMP(3) NULL", "TIMESTAMP(6) NULL"} {
			t.Run(kind, func(t *testing.T) {
				db := fresh(t, s, Options{})
				sqltest.Exec(t, &db.db, fmt.Sprintf("CREATE TABLE own (id INT AUTO_INCREMENT PRIMARY KEY, body TEXT, try INT DEFAULT 1, due %s, until %s)", kind, kind))
				q := db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "until", Form: sqlq.Lease{For: 2 * time.Second}})
				sqltest.Publish(t, q.Queue, "a", "b", "c", "d")
				c := sqltest.Open(t, q, settle.Registration{Workers: 4})
				ds := sqltest.Receive(t, c, 1)
				for len(ds) < 4 {
					ds = append(ds, sqltest.Receive(t, c, 4-len(ds))...)
				}
				var before string
				sqltest.Eventually(t, &db.db, 4, "SELECT COUNT(*) FROM own WHERE until IS NOT NULL")
				before = sqltest.One[string](t, &db.db, "SELECT CAST(MIN(until) AS CHAR) FROM own")
				sqltest.Eventually(t, &db.db, 1, "SELECT MIN(until) > ? FROM own", before)
				assert.Equal(t, make([]error, 2), sqltest.SettleAll(c, sqltest.RetryAfter(time.Hour), ds[:2]...))
				assert.Equal(t, make([]error, 2), sqltest.SettleAll(c, ack, ds[2:]...))
				assert.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT COUNT(*) FROM own WHERE due >= NOW(6) + INTERVAL 3590 SECOND"), "no sooner than it should")
			})
		}
	})
}

// Ids beyond an int64, of bytes, of MariaDB's UUIDs, and text in another character set.
func TestIDsOfAllTypes(t *testing.T) {
	for _, c := range []struct {
		kind, values string
		only         services.Service
	}{
		{"BIGINT UNSIGNED", "(18446744073709551000), (7), (9223372036854775808)", ""},
		{"SMALLINT", "(-3), (0), (7)", ""},
		{"BINARY(16)", "(X'00112233445566778899AABBCCDDEEFF'), (X'FF000000000000000000000000000000'), (X'27270000000000000000000000005C00')", ""},
		{"CHAR(36)", "('a'), (UUID()), ('it''s \\\\')", ""},
		{"VARCHAR(60) CHARACTER SET latin1", "('ä'), ('B'), ('c')", ""},
		{"VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "('😀'), ('B'), ('c')", ""},
		{"UUID", "('00112233-4455-6677-8899-aabbccddeeff'), (UUID()), (UUID())", services.MariaDB},
	} {
		eachServer(t, func(t *testing.T, s services.Service) {
			if c.only != "" && c.only != s {
				return
			}
			for name, f := range forms() {
				t.Run(c.kind+" "+name, func(t *testing.T) {
					db := fresh(t, s, Options{})
					sqltest.Exec(t, &db.db, "CREATE TABLE own (id "+c.kind+" PRIMARY KEY, body TEXT, try INT DEFAULT 1, due DATETIME(6), until DATETIME(6), KEY (due))")
					sqltest.Exec(t, &db.db, "INSERT INTO own (id) VALUES "+c.values)
					table := sqltest.In(sqlq.Table{Name: "own", ID: "id", Payload: "body", Attempt: "try", RetryAfter: "due", LockedUntil: "until"}, f)
					consumer := sqltest.Open(t, db.Queue(table), settle.Registration{Workers: 3})
					var ds []*settle.Delivery
					for len(ds) < 3 {
						ds = append(ds, sqltest.Receive(t, consumer, 1)...)
					}
					ids := map[string]bool{ds[0].ID: true, ds[1].ID: true, ds[2].ID: true}
					assert.Len(t, ids, 3)
					for _, d := range ds[:2] { // one by one, in the row lock each has a connection
						require.NoError(t, sqltest.Settle(consumer, d, retry))
					}
					require.NoError(t, sqltest.Settle(consumer, ds[2], ack))
					again := append(sqltest.Receive(t, consumer, 1), sqltest.Receive(t, consumer, 1)...)
					for _, d := range again {
						assert.Equal(t, 2, d.Attempt)
						require.NoError(t, sqltest.Settle(consumer, d, ack))
					}
					assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT COUNT(*) FROM own"))
				})
			}
		})
	}
}

// Names of locks are the server's own, fold case and end at 64 characters: two databases, or two
// keys that differ in case or far behind, have locks of their own.
func TestAdvisoryLocksAreOfOneDatabaseAndOneKey(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		long := strings.Repeat("x", 200)
		keys := []string{"a", "A", "ä", long + "1", long + "2", "it's"}
		for range 2 { // two databases at once
			db := fresh(t, s, Options{})
			q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.AdvisoryLock{}))
			table := q.Table()
			table.Form = sqlq.AdvisoryLock{Key: "account-{msg_key}"}
			q = db.Queue(table)
			for _, key := range keys {
				for range 2 {
					require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte(key), Key: key}))
				}
			}
			c := sqltest.Open(t, q, settle.Registration{Workers: 12})
			var got []string
			for range keys {
				got = append(got, sqltest.Bodies(sqltest.Receive(t, c, 1))...)
			}
			assert.ElementsMatch(t, keys, got, "one of each key")
			sqltest.Nothing(t, c, "the others wait")
		}
	})
}

// Rows that somebody has read in an old snapshot stay in the index until he is done. Claims do not walk over them.
func TestClaimsDoNotWalkOverRowsThatAnOldSnapshotKeeps(t *testing.T) {
	for name, f := range forms() {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(t *testing.T, s services.Service) {
				db := fresh(t, s, Options{})
				q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), f))
				sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT 'main', '' FROM n AS a JOIN (SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b")
				old, err := db.SQL().BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
				require.NoError(t, err)
				defer old.Rollback()
				var n int
				require.NoError(t, old.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM jobs").Scan(&n))
				c := sqltest.Open(t, q, settle.Registration{Workers: 1, Batch: 100})
				for range 20 {
					ds := sqltest.Receive(t, c, 100)
					for _, err := range sqltest.SettleAll(c, ack, ds...) {
						require.NoError(t, err)
					}
				}
				left := sqltest.One[int](t, &db.db, sqltest.Queued)
				require.Equal(t, n-2000, left)
				// A claim above the floor reads about as many rows as it takes.
				text, err := q.SQL(t.Context(), settle.Options{})
				require.NoError(t, err)
				statement := map[string]string{"lease": "claim", "row lock": "claim", "advisory lock": "candidates"}[name]
				first := sqltest.One[int64](t, &db.db, "SELECT MIN(id) FROM jobs")
				due := sqltest.One[int64](t, &db.db, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(retry_after)) FROM jobs")
				query, args := sqltest.Statement(t, text, statement, map[string]any{
					"group": "main", "lease": int64(1e6), "limit": int64(5), "scan": int64(5), "held": list{}, "floor": due, "floor_id": first,
				})
				beginsAt(t, db, s, first, query, args)
			})
		})
	}
}

// beginsAt checks that a statement begins its walk at the id: by its plan on MySQL, by the pages it reads on MariaDB.
func beginsAt(t *testing.T, db *DB, s services.Service, id int64, query string, args []any) {
	t.Helper()
	conn, err := db.db.DB.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	explain := "EXPLAIN FORMAT=TREE "
	if s == services.MariaDB {
		explain = "ANALYZE FORMAT=JSON "
	}
	rows, err := conn.Query(t.Context(), explain+query, args...)
	require.NoError(t, err)
	var plan string
	require.True(t, rows.Next())
	require.NoError(t, rows.Scan(&plan))
	require.NoError(t, rows.Close())
	conn.Kill() // an advisory lock may have been taken
	if s == services.MySQL {
		assert.Contains(t, plan, fmt.Sprintf("%d <= id", id))
		return
	}
	read := regexp.MustCompile(`"pages_accessed": (\d+)`).FindAllStringSubmatch(plan, -1)
	require.NotEmpty(t, read, plan)
	for _, r := range read {
		n, err := strconv.Atoi(r[1])
		require.NoError(t, err)
		assert.Less(t, n, 100, "of %s", plan)
	}
}

// What an idle consumer asks begins where the delayed rows begin, and does not walk over the others.
func TestALookForTheNextRowBeginsWhereItIs(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, retry_after) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT 'other', '', UTC_TIMESTAMP(6) + INTERVAL i HOUR FROM n")
		sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, retry_after) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT 'main', '', UTC_TIMESTAMP(6) + INTERVAL i HOUR FROM n")
		text, err := q.SQL(t.Context(), settle.Options{})
		require.NoError(t, err)
		query, args := sqltest.Statement(t, text, "due", map[string]any{"group": "main"})
		conn, err := db.db.DB.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		for _, do := range []string{"FLUSH STATUS", query} {
			given := args
			if do != query {
				given = nil
			}
			rows, err := conn.Query(t.Context(), do, given...)
			require.NoError(t, err)
			for rows.Next() {
			}
			require.NoError(t, rows.Close())
		}
		rows, err := conn.Query(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read_next'")
		require.NoError(t, err)
		var name string
		var n int
		require.True(t, rows.Next())
		require.NoError(t, rows.Scan(&name, &n))
		require.NoError(t, rows.Close())
		assert.Less(t, n, 20)
	})
}
