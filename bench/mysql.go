package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/mysql"
)

// mysqlServer is MySQL or MariaDB.
type mysqlServer struct{ name, variable string }

var (
	mysqlPart   = mysqlServer{"mysql", "SETTLE_MYSQL_DSN"}.part()
	mariadbPart = mysqlServer{"mariadb", "SETTLE_MARIADB_DSN"}.part()
)

func (s mysqlServer) part() part {
	return part{name: s.name, about: s.about, comparisons: s.comparisons, extras: []extra{{"claim time by depth", s.depths}, {"idle cost", s.idle}}}
}

const mysqlConns = 16

// open is a pool for loops by hand: READ COMMITTED, and arguments in the text, which saves
// a round trip a statement.
func (s mysqlServer) open() (*sql.DB, error) {
	dsn := os.Getenv(s.variable)
	if dsn == "" {
		return nil, noServiceError{s.variable + " names no server"}
	}
	config, err := mysqldriver.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.InterpolateParams, config.MultiStatements = true, true
	if config.Params == nil {
		config.Params = make(map[string]string)
	}
	isolation := "transaction_isolation"
	if s.name == "mariadb" {
		isolation = "tx_isolation"
	}
	config.Params[isolation], config.Params["time_zone"] = "'READ-COMMITTED'", "'+00:00'"
	connector, err := mysqldriver.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(mysqlConns)
	db.SetMaxIdleConns(mysqlConns)
	return db, nil
}

// about says which server it is, with the settings that decide what a commit costs.
func (s mysqlServer) about(ctx context.Context) (string, error) {
	db, err := s.open()
	if err != nil {
		return "", err
	}
	defer db.Close()
	var about string
	err = db.QueryRowContext(ctx, `SELECT CONCAT(VERSION(), ', innodb_flush_log_at_trx_commit ', @@innodb_flush_log_at_trx_commit, ', sync_binlog ', @@sync_binlog,
		', log_bin ', @@log_bin, ', innodb_buffer_pool_size ', @@innodb_buffer_pool_size DIV 1048576, ' MB')`).Scan(&about)
	return s.name + " " + about, err
}

func (s mysqlServer) comparisons(context.Context) ([]comparison, error) {
	pool := fmt.Sprintf("pool of %d", mysqlConns)
	ours := func(form sqlq.Form, o settle.Options, done string) contestant {
		settings := fmt.Sprintf("%d workers, pools of %d", o.Workers, mysqlConns)
		if o.BatchSize > 0 {
			settings += fmt.Sprintf(", batches of %d", o.BatchSize)
		}
		return contestant{name: "settle", settings: settings, done: done, prepare: func(ctx context.Context, n int) (run, error) {
			db, queue, err := s.queue(ctx, n, form)
			if err != nil {
				return run{}, err
			}
			return s.counted(ctx, n, runtimeRun(n, queue, o, func() { db.Close() }))
		}}
	}
	hand := func(settings, done string, form sqlq.Form, loops func(context.Context, *sql.DB) error) contestant {
		return contestant{name: "by hand", settings: settings + ", " + pool, done: done, prepare: func(ctx context.Context, n int) (run, error) {
			filled, _, err := s.queue(ctx, n, form)
			if err != nil {
				return run{}, err
			}
			filled.Close()
			db, err := s.open()
			if err != nil {
				return run{}, err
			}
			return s.counted(ctx, n, run{do: func(ctx context.Context) error { return loops(ctx, db) }, end: func() { db.Close() }})
		}}
	}
	locked := "the row's DELETE is committed in the transaction that locks it"
	fenced := "the row's DELETE is committed, fenced on its attempt and lease"
	return []comparison{
		{
			part: s.name, name: "lease, 8 workers", messages: 5000, base: "by hand",
			work: "Take a row of 200 bytes on lease, do nothing with it, and delete it; 8 at once.",
			contestants: []contestant{
				ours(sqlq.Lease{}, settle.Options{Workers: 8}, fenced),
				hand("8 loops of BEGIN, SELECT .. FOR UPDATE SKIP LOCKED, UPDATE .. locked_until, COMMIT, then DELETE by id, attempt and locked_until", fenced, sqlq.Lease{}, leaseLoops),
			},
			bars: []bar{{"settle", "by hand", 0.9, false}},
		},
		{
			part: s.name, name: "row lock one by one, 8 workers", messages: 5000, base: "by hand",
			work: "Lock a row of 200 bytes in a transaction, do nothing with it, delete it and commit; 8 at once.",
			contestants: []contestant{
				ours(sqlq.RowLock{}, settle.Options{Workers: 8}, locked),
				hand("8 loops of BEGIN, SELECT .. FOR UPDATE SKIP LOCKED, DELETE, COMMIT", locked, sqlq.RowLock{}, rowLoops(1)),
			},
			bars: []bar{{"settle", "by hand", 0.9, false}},
		},
		{
			part: s.name, name: "row lock in batches of 16, 8 workers", messages: 20000, base: "by hand",
			work: "Lock 16 rows of 200 bytes in a transaction, do nothing with them, delete them and commit; 8 at once.",
			contestants: []contestant{
				ours(sqlq.RowLock{}, settle.Options{Workers: 8, BatchSize: 16}, locked),
				hand("8 loops of BEGIN, SELECT .. LIMIT 16 FOR UPDATE SKIP LOCKED, DELETE .. IN, COMMIT", locked, sqlq.RowLock{}, rowLoops(16)),
			},
			bars: []bar{{"settle", "by hand", 0.9, false}},
		},
		{
			part: s.name, name: "advisory lock, 8 workers", messages: 3000, base: "by hand",
			work: "Lock a row of 200 bytes by name, do nothing with it, delete it and unlock; 8 at once.",
			contestants: []contestant{
				ours(sqlq.AdvisoryLock{Key: "jobs-{id}"}, settle.Options{Workers: 8}, "the row's DELETE is committed on the connection that has its lock"),
				hand("8 loops, a connection each: SELECT of 16 candidates, GET_LOCK of one after the other with no wait until one is free, SELECT the row again, DELETE, RELEASE_LOCK", "the row's DELETE is committed on the connection that has its lock", sqlq.AdvisoryLock{Key: "jobs-{id}"}, namedLoops),
			},
		},
	}, nil
}

// counted adds what the server counted of statements to a run. Those of transactions are among them.
func (s mysqlServer) counted(ctx context.Context, n int, r run) (run, error) {
	before, err := s.questions(ctx)
	if err != nil {
		return run{}, err
	}
	r.notes = func() map[string]float64 {
		after, err := s.questions(ctx)
		if err != nil {
			return nil
		}
		return map[string]float64{"statements": float64(after-before) / float64(n)}
	}
	return r, nil
}

// questions is how many statements the server has had from clients.
func (s mysqlServer) questions(ctx context.Context) (n int64, err error) {
	db, err := s.open()
	if err != nil {
		return 0, err
	}
	defer db.Close()
	var name string
	err = db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	return n, err
}

// queue makes a table anew and fills it.
func (s mysqlServer) queue(ctx context.Context, n int, form sqlq.Form) (*mysql.DB, *mysql.Queue, error) {
	db, err := s.open()
	if err != nil {
		return nil, nil, err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS bench_jobs"); err != nil {
		return nil, nil, err
	}
	opened, err := mysql.Open(os.Getenv(s.variable), mysql.Options{MaxConns: mysqlConns})
	if err != nil {
		return nil, nil, err
	}
	table := sqlq.Standard("bench_jobs", "bench")
	table.Form = form
	if _, lease := form.(sqlq.Lease); !lease {
		table.LockedUntil = ""
	}
	queue := opened.Queue(table)
	if err := queue.CreateTable(ctx); err != nil {
		return nil, nil, err
	}
	if err := fill(ctx, queue, n); err != nil {
		return nil, nil, err
	}
	_, err = db.ExecContext(ctx, "ANALYZE TABLE bench_jobs")
	return opened, queue, err
}

const byHandLoops = 8

// handRow is what a loop by hand reads of a row.
type handRow struct {
	id, attempt int64
	headers     sql.NullString
	body        []byte
}

func selectRows(ctx context.Context, q interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}, rest string,
) (all []handRow, err error) {
	rows, err := q.QueryContext(ctx, fmt.Sprintf("SELECT id, attempt, headers, payload FROM bench_jobs WHERE queue = ? AND retry_after <= UTC_TIMESTAMP(6) %s", rest), "bench")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r handRow
		if err := rows.Scan(&r.id, &r.attempt, &r.headers, &r.body); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

func rowLoops(batch int) func(context.Context, *sql.DB) error {
	return func(ctx context.Context, db *sql.DB) error {
		return loop(byHandLoops, func() (bool, error) {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return false, err
			}
			defer tx.Rollback()
			rows, err := selectRows(ctx, tx, fmt.Sprintf("ORDER BY retry_after, id LIMIT %d FOR UPDATE SKIP LOCKED", batch))
			if err != nil || len(rows) == 0 {
				return false, err
			}
			ids, marks := make([]any, len(rows)), ""
			for i, r := range rows {
				ids[i] = r.id
				marks += ",?"
			}
			if _, err := tx.ExecContext(ctx, "DELETE FROM bench_jobs WHERE id IN ("+marks[1:]+")", ids...); err != nil {
				return false, err
			}
			return true, tx.Commit()
		})
	}
}

// leaseLoops are what one writes by hand for rows on lease.
func leaseLoops(ctx context.Context, db *sql.DB) error {
	return loop(byHandLoops, func() (bool, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		defer tx.Rollback()
		rows, err := selectRows(ctx, tx, "AND (locked_until IS NULL OR locked_until <= UTC_TIMESTAMP(6)) ORDER BY retry_after, id LIMIT 1 FOR UPDATE SKIP LOCKED")
		if err != nil || len(rows) == 0 {
			return false, err
		}
		r := rows[0]
		until := time.Now().UTC().Add(30 * time.Second).Format("2006-01-02 15:04:05.000000")
		if _, err := tx.ExecContext(ctx, "UPDATE bench_jobs SET attempt = attempt + 1, locked_until = ? WHERE id = ?", until, r.id); err != nil {
			return false, err
		}
		if err := tx.Commit(); err != nil {
			return false, err
		}
		done, err := db.ExecContext(ctx, "DELETE FROM bench_jobs WHERE id = ? AND attempt = ? AND locked_until = ?", r.id, r.attempt+1, until)
		if err != nil {
			return false, err
		}
		if n, err := done.RowsAffected(); err != nil || n != 1 {
			return false, errors.Join(err, errors.New("a lease was lost"))
		}
		return true, nil
	})
}

// namedLoops take rows by GET_LOCK.
func namedLoops(ctx context.Context, db *sql.DB) error {
	conns := make(chan *sql.Conn, byHandLoops)
	for range byHandLoops {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		conns <- conn
	}
	return loop(byHandLoops, func() (bool, error) {
		conn := <-conns
		defer func() { conns <- conn }()
		rows, err := selectRows(ctx, conn, "ORDER BY retry_after, id LIMIT 16")
		if err != nil || len(rows) == 0 {
			return false, err
		}
		for _, r := range rows {
			name := fmt.Sprintf("bench/jobs-%d", r.id)
			var got sql.NullInt64
			if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 0)", name).Scan(&got); err != nil {
				return false, err
			}
			if got.Int64 != 1 {
				continue
			}
			still, err := selectRows(ctx, conn, fmt.Sprintf("AND id = %d", r.id))
			if err == nil && len(still) > 0 {
				_, err = conn.ExecContext(ctx, "DELETE FROM bench_jobs WHERE id = ?", r.id)
			}
			if err != nil {
				return false, err
			}
			return true, conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", name).Scan(&got)
		}
		return true, nil
	})
}

// depths measures claims at the head of queues of several depths.
func (s mysqlServer) depths(ctx context.Context, w io.Writer, scale int) error {
	fmt.Fprintf(w, "The time a message, 8 workers, over %d messages at the head of a queue; medians of 5.\n\n", atHead)
	hand, err := s.open()
	if err != nil {
		return err
	}
	defer hand.Close()
	for _, f := range forms {
		db, queue, err := s.queue(ctx, 0, f.form)
		if err != nil {
			return err
		}
		rows := [][]string{{f.name + ", waiting rows", "time a message", "over the first"}}
		var first time.Duration
		waiting := 0
		for _, depth := range []int{1_000, 10_000, 100_000} {
			depth /= scale
			if err := doubleRows(ctx, hand, waiting, depth+atHead); err != nil {
				return err
			}
			waiting = depth + atHead
			if _, err := hand.ExecContext(ctx, "ANALYZE TABLE bench_jobs"); err != nil {
				return err
			}
			var each []time.Duration
			for range 5 {
				start := time.Now()
				if err := runtimeRun(atHead, queue, settle.Options{Workers: 8}, nil).do(ctx); err != nil {
					return err
				}
				each = append(each, time.Since(start)/atHead)
				if err := fill(ctx, queue, atHead); err != nil {
					return err
				}
			}
			took := medianOf(each)
			if first == 0 {
				first = took
			}
			rows = append(rows, []string{fmt.Sprint(depth), took.String(), fmt.Sprintf("%.2f", float64(took)/float64(first))})
		}
		db.Close()
		table(w, rows)
	}
	fmt.Fprintf(w, "Must be: 1.50 at most.\n\n")
	return nil
}

// doubleRows brings the table from so many rows to as many as are wanted.
func doubleRows(ctx context.Context, db *sql.DB, have, want int) error {
	for have < want {
		var err error
		if have < 1000 {
			_, err = db.ExecContext(ctx, "INSERT INTO bench_jobs (queue, payload) VALUES (?, ?)", "bench", payload)
			have++
		} else {
			n := min(have, want-have, 100_000)
			_, err = db.ExecContext(ctx, fmt.Sprintf("INSERT INTO bench_jobs (queue, payload) SELECT queue, payload FROM bench_jobs LIMIT %d", n))
			have += n
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// idle counts what an empty queue costs.
func (s mysqlServer) idle(ctx context.Context, w io.Writer, _ int) error {
	const span = 10 * time.Second
	fmt.Fprintf(w, "Statements a second that the server gets for one empty queue of one process with default settings, over %v.\n\n", span)
	rows := [][]string{{"form", "workers", "statements a second"}}
	for _, f := range forms {
		db, queue, err := s.queue(ctx, 0, f.form)
		if err != nil {
			return err
		}
		var before, after int64
		err = idleRun(ctx, queue, func() {
			if before, err = s.questions(ctx); err == nil {
				wait(ctx, span)
				after, err = s.questions(ctx)
			}
		})
		if err != nil {
			return err
		}
		db.Close()
		const ofOurs = 3 // what the second look itself sends: the settings of its connection and the question
		rows = append(rows, []string{f.name, "8", fmt.Sprintf("%.1f", float64(after-before-ofOurs)/span.Seconds())})
	}
	table(w, rows)
	fmt.Fprintf(w, "Must be: 2 at most.\n\n")
	return nil
}
