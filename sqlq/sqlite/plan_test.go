package sqlite

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	driver "modernc.org/sqlite"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
)

// A table without the index of its claims is told so, with the statement that makes it; and
// with that there is nothing left to say.
func TestAMissingIndexIsTold(t *testing.T) {
	for _, p := range plans() {
		t.Run(p.Name, func(t *testing.T) {
			db := openFile(t, Options{})
			q := p.Create(t, &db.db)
			require.Empty(t, sqltest.Weakened(t, q, p.Options()), "the recommended indexes serve")
			rows, err := db.SQL().Query("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ?", p.Table.Name)
			require.NoError(t, err)
			var names []string
			for rows.Next() {
				var name string
				require.NoError(t, rows.Scan(&name))
				names = append(names, name)
			}
			require.NoError(t, rows.Close())
			for _, name := range names {
				sqltest.Exec(t, &db.db, "DROP INDEX "+quote(name))
			}
			said := sqltest.Weakened(t, q, p.Options())
			if p.Name == "bare" || p.Name == "advisory-bare" {
				require.Empty(t, said, "the primary key is the order of claims")
				return
			}
			require.NotEmpty(t, said)
			for _, s := range said {
				_, create, ok := strings.Cut(s, "; run: ")
				require.True(t, ok, s)
				sqltest.Exec(t, &db.db, create)
			}
			assert.Empty(t, sqltest.Weakened(t, q, p.Options()))
		})
	}
}

// An index that holds the processed rows too has a claim walk over all of them.
func TestAnIndexOverProcessedRowsIsTold(t *testing.T) {
	db := openFile(t, Options{})
	table := leased(time.Minute)
	table.ProcessedAt = "processed_at"
	q := newQueue(t, db, table)
	sqltest.Exec(t, &db.db, "DROP INDEX jobs_claim")
	sqltest.Exec(t, &db.db, "CREATE INDEX jobs_claim ON jobs (queue, retry_after, id)")
	assert.Len(t, sqltest.Weakened(t, q, settle.Options{}), 1)
	sqltest.Exec(t, &db.db, "CREATE INDEX jobs_other ON jobs (queue, processed_at, retry_after, id)")
	sqltest.Exec(t, &db.db, "DROP INDEX jobs_claim")
	assert.Empty(t, sqltest.Weakened(t, q, settle.Options{}), "one that has processed_at before the order serves")
}

// pages returns how many pages a function reads on a connection.
func pages(t testing.TB, conn *sql.Conn, run func()) int {
	t.Helper()
	count := func() (n int) {
		require.NoError(t, conn.Raw(func(c any) error {
			for _, op := range []driver.DBStatusOp{driver.DBStatusCacheHit, driver.DBStatusCacheMiss} {
				v, _, err := c.(driver.DBStatus).Status(op, false)
				if err != nil {
					return err
				}
				n += v
			}
			return nil
		}))
		return n
	}
	before := count()
	run()
	return count() - before
}

// A claim, and a look for the next row, read as many pages whether a thousand
// rows wait or a hundred thousand, whatever else is in the table.
func TestClaimsReadNoMoreWhereMoreRowsWait(t *testing.T) {
	now := time.Now().UnixMicro()
	few, many := 1_000, 100_000
	if raced {
		few, many = 100, 5_000
	}
	for _, p := range plans() {
		t.Run(p.Name, func(t *testing.T) {
			var cost [2]map[string]int
			for i, rows := range []int{few, many} {
				db := openFile(t, Options{})
				q := p.Create(t, &db.db)
				fill(t, db, p, rows, now)
				text, err := q.SQL(t.Context(), p.Options())
				require.NoError(t, err)
				conn, err := db.SQL().Conn(t.Context())
				require.NoError(t, err)
				cost[i] = make(map[string]int)
				args := map[string]any{"now": now, "lease": int64(1e6), "group": "main", "limit": 8, "scan": 96, "held": "[]"}
				for _, name := range []string{"due", "claim", "claim again", "candidates"} {
					if !strings.Contains(text, "-- "+name+" :") {
						continue
					}
					query, values := sqltest.Statement(t, text, name, args)
					cost[i][name] = pages(t, conn, func() {
						rows, err := conn.QueryContext(t.Context(), query, values...)
						require.NoError(t, err)
						n := 0
						for rows.Next() {
							n++
						}
						require.NoError(t, rows.Err())
						require.NoError(t, rows.Close())
						require.NotZero(t, n, name)
					})
				}
				require.NoError(t, conn.Close())
			}
			t.Logf("pages read with %d rows: %v; with %d: %v", few, cost[0], many, cost[1])
			for name, was := range cost[0] {
				// A tree of a hundred times as many rows is one or two levels deeper.
				assert.LessOrEqual(t, float64(cost[1][name]), 1.5*float64(was)+12, name)
			}
		})
	}
}

// fill puts rows into a table: those that wait, as many that are not due, of a higher priority where
// there is one, and, where they stay, as many that are processed.
func fill(t testing.TB, db *DB, p sqltest.Golden, rows int, now int64) {
	t.Helper()
	table := p.Table
	insert := func(due, processed int64, priority, from int) {
		columns, values := []string{quote(table.Payload)}, []string{"'{}'"}
		add := func(name, value string) {
			if name != "" {
				columns, values = append(columns, quote(name)), append(values, value)
			}
		}
		if p.DDL != "" {
			add(table.ID, "printf('%09d', i + :from)")
		}
		add(table.Group, "'main'")
		add(table.RetryAfter, ":due + i")
		if processed != 0 {
			add(table.ProcessedAt, ":processed")
		}
		add(table.Priority, ":priority")
		add(table.Key, "'k' || (i % 50)")
		sqltest.Exec(t, &db.db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows) INSERT INTO "+quote(table.Name)+
			" ("+strings.Join(columns, ", ")+") SELECT "+strings.Join(values, ", ")+" FROM n",
			sql.Named("from", from), sql.Named("due", due), sql.Named("processed", processed), sql.Named("priority", priority), sql.Named("rows", rows))
	}
	long := int64(time.Hour / time.Microsecond)
	if table.ProcessedAt != "" {
		insert(now-3*long, now, 7, 0)
	}
	if table.RetryAfter != "" {
		insert(now+long, 0, 9, rows)
	}
	insert(now-2*long, 0, 5, 2*rows)
}

// What has come and gone leaves nothing behind that a claim has to walk over.
func TestClaimsReadNoMoreAfterManyRowsCameAndWent(t *testing.T) {
	db := openFile(t, Options{})
	p := plans()[0]
	q := p.Create(t, &db.db)
	now := time.Now().UnixMicro()
	text, err := q.SQL(t.Context(), p.Options())
	require.NoError(t, err)
	query, values := sqltest.Statement(t, text, "claim", map[string]any{"now": now, "lease": int64(1e6), "group": "main", "limit": 8})
	conn, err := db.SQL().Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	claim := func() int {
		return pages(t, conn, func() {
			rows, err := conn.QueryContext(t.Context(), query, values...)
			require.NoError(t, err)
			for rows.Next() {
			}
			require.NoError(t, rows.Close())
		})
	}
	fill(t, db, p, 1000, now)
	fresh := claim()
	gone := 20_000
	if raced {
		gone = 1_000
	}
	for range 5 {
		fill(t, db, p, gone, now)
		sqltest.Exec(t, &db.db, "DELETE FROM jobs")
	}
	fill(t, db, p, 1000, now)
	after := claim()
	t.Logf("pages read fresh: %d; after %d rows came and went: %d", fresh, 10*gone, after)
	assert.LessOrEqual(t, float64(after), 1.5*float64(fresh)+12)
}
