package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// metered opens the database of a test with a module of the server's that tells, after each
// statement, how many pages it read. They add up in the counter.
func metered(t *testing.T, url string) (*DB, *atomic.Int64) {
	t.Helper()
	var pages atomic.Int64
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_analyze": "on", "auto_explain.log_timing": "off",
		"auto_explain.log_buffers": "on", "auto_explain.log_format": "json", "auto_explain.log_level": "notice", "client_min_messages": "notice",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		text := n.Message
		for i := range text {
			if text[i] != '{' {
				continue
			}
			var told struct {
				Plan struct {
					Hit  int64 `json:"Shared Hit Blocks"`
					Read int64 `json:"Shared Read Blocks"`
				}
			}
			if json.Unmarshal([]byte(text[i:]), &told) == nil {
				pages.Add(told.Plan.Hit + told.Plan.Read)
			}
			return
		}
	}
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db, &pages
}

// cost is how many pages the claim of one row and its settlement read, the median of some.
func cost(t *testing.T, c settle.Consumer, pages *atomic.Int64) int64 {
	t.Helper()
	var all []int64
	for range 21 {
		before := pages.Load()
		require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
		all = append(all, pages.Load()-before)
	}
	slices.Sort(all)
	require.NotZero(t, all[0], "nothing was told")
	return all[len(all)/2]
}

// atMost checks that a cost is not more than half as much again, with room for a tree that
// is a level deeper in each of its indexes.
func atMost(t *testing.T, after, before int64, what string) {
	t.Helper()
	t.Logf("pages read: %d; %s: %d", before, what, after)
	assert.LessOrEqual(t, float64(after), 1.5*float64(before)+12, what)
}

// many is a number of rows that make test-all has more of.
func many(n, all int) int {
	if os.Getenv("SETTLE_TEST_ALL") == "1" {
		return all
	}
	return n
}

// fill puts rows into jobs that wait, and others that are delayed or processed or of another group.
func fill(t *testing.T, db *DB, table sqlq.Table, rows int) {
	t.Helper()
	insert := func(group, due, more, values string) {
		sqltest.Exec(t, &db.db, fmt.Sprintf("INSERT INTO jobs (queue, payload, msg_key, retry_after%s) SELECT '%s', 'x', 'k' || i %% 50, now() %s%s FROM generate_series(1, %d) AS i", more, group, due, values, rows))
	}
	if table.ProcessedAt != "" {
		insert("main", "- interval '2 days'", ", processed_at", ", now()")
	}
	if table.Priority != "" {
		insert("main", "+ interval '1 day'", ", priority", ", 9")
	}
	insert("main", "+ interval '1 day'", "", "")
	insert("other", "- interval '1 day'", "", "")
	insert("main", "- interval '1 day' + i * interval '1 millisecond'", "", "")
}

// A claim reads as many pages whether a thousand rows wait or many more, whatever else is in the table.
func TestClaimsReadNoMoreWhereMoreRowsWait(t *testing.T) {
	for name, change := range map[string]func(*sqlq.Table){
		"plain": nil,
		"full":  func(table *sqlq.Table) { table.Priority, table.ProcessedAt = "priority", "processed_at" },
		"FIFO": func(table *sqlq.Table) {
			table.FIFO, table.Form = true, sqlq.Lease{For: time.Minute}
		},
	} {
		for _, f := range forms() {
			t.Run(fmt.Sprintf("%s %T", name, f), func(t *testing.T) {
				beside(t, f)
				if _, lease := f.(sqlq.Lease); name == "FIFO" && !lease {
					return // as it is for leases alone
				}
				var before int64
				for _, rows := range []int{1_000, many(10_000, 300_000)} {
					inForm(t, f, change, func(t *testing.T, db *DB, q *Queue) {
						fill(t, db, q.Table(), rows)
						theirs, pages := metered(t, db.Pool().Config().ConnString())
						c := sqltest.Open(t, theirs.Queue(q.Table()), settle.Registration{})
						after := cost(t, c, pages)
						if rows == 1_000 {
							before = after
							return
						}
						atMost(t, after, before, fmt.Sprintf("%d rows", rows))
					})
				}
			})
		}
	}
}

// Rows that are gone, and that an old snapshot keeps in the table, are not walked over; and
// a row that comes in below those that were claimed is not left behind.
func TestClaimsReadNoMoreWhereAnOldSnapshotPinsRows(t *testing.T) {
	gone := many(6_000, 150_000)
	eachForm(t, func(table *sqlq.Table) {
		if table.LockedUntil != "" {
			table.Form = sqlq.Lease{For: time.Minute}
		}
	}, func(t *testing.T, db *DB, q *Queue) {
		const insert = "INSERT INTO jobs (queue, payload) SELECT 'main', 'x' FROM generate_series(1, $1)"
		theirs, pages := metered(t, db.Pool().Config().ConnString())
		const batch = 500
		c := sqltest.Open(t, theirs.Queue(q.Table()), settle.Registration{Workers: 1, Batch: batch})
		sqltest.Exec(t, &db.db, insert, 1000)
		before := cost(t, c, pages)

		old, err := db.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		defer old.Rollback(t.Context())
		_, err = old.Exec(t.Context(), "SELECT count(*) FROM jobs")
		require.NoError(t, err)
		sqltest.Exec(t, &db.db, insert, gone)
		for range gone / batch {
			for _, err := range sqltest.SettleAll(c, ack, sqltest.Receive(t, c, batch)...) {
				require.NoError(t, err)
			}
		}
		sqltest.Exec(t, &db.db, insert, 1000)
		atMost(t, cost(t, c, pages), before, fmt.Sprintf("after %d rows that are gone", gone))

		sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, retry_after) VALUES ('main', 'below', now() - interval '1 hour')")
		require.Eventually(t, func() bool {
			d := sqltest.Receive(t, c, 1)[0]
			require.NoError(t, sqltest.Settle(c, d, ack))
			return string(d.Body) == "below"
		}, deadline, time.Millisecond, "it comes before the rest is worked off")
		left := sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs")
		assert.NotZero(t, left)
		for left > 0 {
			ds := sqltest.Receive(t, c, batch)
			for _, err := range sqltest.SettleAll(c, ack, ds...) {
				require.NoError(t, err)
			}
			left -= len(ds)
		}
	})
}

// Claims of a pool of our own do without what reads all of a table, and handlers and
// users of the database have their transactions as usual.
func TestOnlyClaimsAreKeptToTheirIndex(t *testing.T) {
	const set = "SELECT concat_ws(' ', current_setting('enable_seqscan'), current_setting('enable_bitmapscan'), current_setting('enable_sort'))"
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		assert.Equal(t, "off off off", sqltest.One[string](t, &db.db, set))
		var users string
		require.NoError(t, db.Pool().QueryRow(t.Context(), set).Scan(&users))
		assert.Equal(t, "on on on", users)
		for _, own := range []bool{true, false} {
			theirs := q
			if !own {
				pool, err := pgxpool.New(t.Context(), with(db.Pool().Config().ConnString(), "pool_max_conns", "8"))
				require.NoError(t, err)
				defer pool.Close()
				wrapped, err := Wrap(pool, Options{})
				require.NoError(t, err)
				defer wrapped.Close()
				theirs = wrapped.Queue(q.Table())
			}
			sqltest.Publish(t, q, "a")
			handlers := make(chan string, 1)
			stop := handleTx(t, theirs, func(ctx context.Context, tx pgx.Tx, _ *settle.Delivery) settle.Outcome {
				var got string
				err := tx.QueryRow(ctx, set).Scan(&got)
				handlers <- got
				if err != nil {
					return settle.Drop(err)
				}
				return settle.Ack()
			}, settle.Options{Workers: 1})
			assert.Equal(t, "on on on", <-handlers)
			require.NoError(t, stop())
		}
	})
}

// An index that a FIFO queue needs, or that holds processed rows as well, is told of.
func TestMissingIndexesAreTold(t *testing.T) {
	for _, g := range goldens() {
		if g.DDL != "" {
			continue
		}
		g.Table.Schema = ""
		t.Run(g.Name, func(t *testing.T) {
			db := newHome(t, services.Postgres).open(t, Options{})
			q := g.Create(t, &db.db)
			require.Empty(t, sqltest.Weakened(t, q, g.Options()), "the recommended indexes serve")
			drop := sqltest.One[string](t, &db.db, "SELECT coalesce(string_agg('DROP INDEX ' || indexname, ';'), 'SELECT 1') FROM pg_indexes WHERE schemaname = current_schema() AND tablename = 'jobs' AND indexname NOT LIKE '%pkey'")
			sqltest.Exec(t, &db.db, drop)
			said := sqltest.Weakened(t, q, g.Options())
			if len(g.Table.Indexes()) == 0 {
				require.Empty(t, said, "the primary key is the order of claims")
				return
			}
			require.NotEmpty(t, said)
			for _, s := range said {
				_, create, ok := strings.Cut(s, "; run: ")
				require.True(t, ok, s)
				sqltest.Exec(t, &db.db, create)
			}
			assert.Empty(t, sqltest.Weakened(t, q, g.Options()))
		})
	}
}
