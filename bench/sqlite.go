package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"maragu.dev/goqite"
	_ "modernc.org/sqlite"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/sqlite"
)

// Everybody works on the same driver, a file of its own on the same disk, and
// the same pragmas.
const pragmas = "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate"

var payload = []byte(`{"order":1000,"amount":"12.50","items":["` + strings.Repeat("x", 150) + `"]}`)

var sqlitePart = part{name: "sqlite", comparisons: sqliteComparisons, extras: []extra{{"claim time by depth", sqliteDepth}}}

func sqliteComparisons(context.Context) ([]comparison, error) {
	settings := "WAL, synchronous=NORMAL, busy timeout 5 s"
	ours := func(workers int) contestant {
		return contestant{
			name: "settle", settings: fmt.Sprintf("lease, %d workers, %s", workers, settings),
			done:    "the row's DELETE is committed, fenced on its attempt and lease",
			prepare: func(ctx context.Context, n int) (run, error) { return settleSQLite(ctx, n, workers) },
		}
	}
	return []comparison{
		{
			part: "sqlite", name: "8 workers", messages: 20000, base: "goqite",
			work: "Take a row of 200 bytes, do nothing with it, and delete it; 8 at once.",
			contestants: []contestant{
				ours(8),
				{
					name: "goqite", settings: "8 loops of Receive and Delete, " + settings, done: "the row's DELETE by id is committed",
					prepare: func(ctx context.Context, n int) (run, error) { return goqiteLoops(ctx, n, 8) },
				},
			},
			bars: []bar{{"settle", "goqite", 3, true}},
		},
		{
			part: "sqlite", name: "1 worker", messages: 10000, base: "by hand",
			work: "Take a row of 200 bytes, do nothing with it, and delete it; one after another.",
			contestants: []contestant{
				ours(1),
				{
					name: "by hand", settings: "BEGIN IMMEDIATE, SELECT, DELETE, COMMIT with prepared statements, " + settings, done: "the row's DELETE is committed",
					prepare: func(ctx context.Context, n int) (run, error) { return sqliteByHand(ctx, n) },
				},
				{
					name: "goqite", settings: "one loop of Receive and Delete, " + settings, done: "the row's DELETE by id is committed",
					prepare: func(ctx context.Context, n int) (run, error) { return goqiteLoops(ctx, n, 1) },
				},
			},
			bars: []bar{{"settle", "by hand", 1, true}},
			missed: "with one worker each message is a commit of its own, of the settlement of one row and the claim of the next. Of the time 70 % is in that transaction. The claim writes the attempt and " +
				"the lease, which is what brings the row back after a crash with its attempt counted: that is written beside what the loop by hand writes, which holds its transaction open " +
				"while it works, and with it the database's only write lock. Two hand-overs between goroutines are the rest. With 8 workers 8 rows share a commit.",
		},
	}, nil
}

// file returns the path of a new database and what deletes it.
func file() (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(dir, "queue.db"), func() { os.RemoveAll(dir) }, nil
}

func settleSQLite(ctx context.Context, n, workers int) (run, error) {
	path, remove, err := file()
	if err != nil {
		return run{}, err
	}
	db, err := sqlite.Open(path, sqlite.Options{})
	if err != nil {
		return run{}, err
	}
	queue := db.Queue(sqlq.Standard("jobs", "bench"))
	if err := queue.CreateTable(ctx); err != nil {
		return run{}, err
	}
	if err := fill(ctx, queue, n); err != nil {
		return run{}, err
	}
	return plainRun(n, queue, settle.Options{Workers: workers}, func() {
		db.Close()
		remove()
	}), nil
}

// fill publishes n messages.
func fill(ctx context.Context, to settle.Publisher, n int) error {
	batch := make([]settle.Message, 0, 1000)
	for n > 0 {
		batch = batch[:0]
		for range min(n, cap(batch)) {
			batch = append(batch, settle.Message{Body: payload})
		}
		if err := to.Publish(ctx, batch...); err != nil {
			return err
		}
		n -= len(batch)
	}
	return nil
}

func goqiteLoops(ctx context.Context, n, loops int) (run, error) {
	path, remove, err := file()
	if err != nil {
		return run{}, err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?"+pragmas)
	if err != nil {
		return run{}, err
	}
	db.SetMaxOpenConns(1) // as its documentation has it
	if err := goqiteSchema(ctx, db); err != nil {
		return run{}, err
	}
	q := goqite.New(goqite.NewOpts{DB: db, Name: "bench"})
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return run{}, err
	}
	for range n {
		if err := q.SendTx(ctx, tx, goqite.Message{Body: payload}); err != nil {
			return run{}, err
		}
	}
	if err := tx.Commit(); err != nil {
		return run{}, err
	}
	return run{
		do: func(ctx context.Context) error {
			return loop(loops, func() (bool, error) {
				m, err := q.Receive(ctx)
				if m == nil || err != nil {
					return false, err
				}
				return true, q.Delete(ctx, m.ID)
			})
		},
		end: func() {
			db.Close()
			remove()
		},
	}, nil
}

// goqiteSchema makes goqite's table with the schema that its module ships.
func goqiteSchema(ctx context.Context, db *sql.DB) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "maragu.dev/goqite").Output()
	if err != nil {
		return fmt.Errorf("finding goqite's schema: %w", err)
	}
	schema, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema_sqlite.sql"))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, string(schema))
	return err
}

// loop runs step in several goroutines until it says that there is no more.
func loop(loops int, step func() (more bool, err error)) error {
	var all sync.WaitGroup
	errs := make(chan error, loops)
	for range loops {
		all.Go(func() {
			for {
				more, err := step()
				if err != nil {
					errs <- err
				}
				if !more || err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// sqliteByHand is the loop one writes oneself: a row a transaction, held by the
// transaction while it is in work, on the same table with the same index. Attempts are not counted.
func sqliteByHand(ctx context.Context, n int) (run, error) {
	path, remove, err := file()
	if err != nil {
		return run{}, err
	}
	if err := func() error {
		db, err := sqlite.Open(path, sqlite.Options{})
		if err != nil {
			return err
		}
		defer db.Close()
		queue := db.Queue(sqlq.Standard("jobs", "bench"))
		if err := queue.CreateTable(ctx); err != nil {
			return err
		}
		return fill(ctx, queue, n)
	}(); err != nil {
		return run{}, err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?"+pragmas)
	if err != nil {
		return run{}, err
	}
	db.SetMaxOpenConns(1)
	pick, err := db.PrepareContext(ctx, "SELECT id, attempt, headers, payload FROM jobs WHERE queue = ? AND retry_after <= ? ORDER BY retry_after, id LIMIT 1")
	if err != nil {
		return run{}, err
	}
	done, err := db.PrepareContext(ctx, "DELETE FROM jobs WHERE id = ?")
	if err != nil {
		return run{}, err
	}
	return run{
		do: func(ctx context.Context) error {
			for range n {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				var id, attempt int64
				var headers sql.NullString
				var body []byte
				if err := tx.StmtContext(ctx, pick).QueryRowContext(ctx, "bench", time.Now().UnixMicro()).Scan(&id, &attempt, &headers, &body); err != nil {
					return err
				}
				if _, err := tx.StmtContext(ctx, done).ExecContext(ctx, id); err != nil {
					return err
				}
				if err := tx.Commit(); err != nil {
					return err
				}
			}
			return nil
		},
		end: func() {
			pick.Close()
			done.Close()
			db.Close()
			remove()
		},
	}, nil
}

// sqliteDepth measures claims at the head of queues of several depths, and
// after many rows came and went.
func sqliteDepth(ctx context.Context, w io.Writer, scale int) error {
	fmt.Fprintf(w, "The time a message, 8 workers, over 2,000 messages at the head of a queue.\n\n")
	rows := [][]string{{"waiting rows", "time a message", "over the first"}}
	var first time.Duration
	const taken = 2000
	measure := func(queue settle.Source) (time.Duration, error) {
		start := time.Now()
		err := runtimeRun(taken, queue, settle.Options{Workers: 8}, nil).do(ctx)
		return time.Since(start) / taken, err
	}
	for _, depth := range []int{1_000, 10_000, 100_000, 1_000_000} {
		depth /= scale
		path, remove, err := file()
		if err != nil {
			return err
		}
		db, err := sqlite.Open(path, sqlite.Options{})
		if err != nil {
			return err
		}
		queue := db.Queue(sqlq.Standard("jobs", "bench"))
		if err := queue.CreateTable(ctx); err != nil {
			return err
		}
		if err := fill(ctx, queue, depth+taken); err != nil {
			return err
		}
		var each []time.Duration
		for range 5 {
			took, err := measure(queue)
			if err != nil {
				return err
			}
			each = append(each, took)
			if err := fill(ctx, queue, taken); err != nil {
				return err
			}
		}
		median := medianOf(each)
		if first == 0 {
			first = median
		}
		rows = append(rows, []string{fmt.Sprint(depth), median.String(), fmt.Sprintf("%.2f", float64(median)/float64(first))})
		if depth == 1_000_000/scale {
			if err := runtimeRun(500_000/scale, queue, settle.Options{Workers: 500}, nil).do(ctx); err != nil {
				return err
			}
			took, err := measure(queue)
			if err != nil {
				return err
			}
			rows = append(rows, []string{fmt.Sprintf("the same after %d came and went", 500_000/scale), took.String(), fmt.Sprintf("%.2f", float64(took)/float64(first))})
		}
		db.Close()
		remove()
	}
	table(w, rows)
	fmt.Fprintln(w, "Aim: 1.50 at most.")
	fmt.Fprintln(w)
	return nil
}
