package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/postgres"
)

// forms are the claim forms by name, with options that take many rows quickly.
var forms = []struct {
	name  string
	form  sqlq.Form
	quick settle.Options
}{
	{"lease", sqlq.Lease{}, settle.Options{Workers: 500}},
	{"row lock", sqlq.RowLock{}, settle.Options{Workers: 8, BatchSize: 100}},
	{"advisory lock", sqlq.AdvisoryLock{Key: "jobs-{id}"}, settle.Options{Workers: 8, BatchSize: 60}},
}

func postgresDepths(ctx context.Context, w io.Writer, scale int) error {
	fmt.Fprintf(w, "The time a message, 8 workers, over %d messages at the head of a queue, after %d that warm up; medians of 5.\n\n", atHead-warmUp, warmUp)
	for _, f := range forms {
		fmt.Fprintf(w, "With a %s:\n\n", f.name)
		if err := postgresDepth(ctx, w, f.form, f.quick, scale); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// atHead is how many messages at the head of a queue one measurement takes. The
// first of them warm up: a session begins with a look at all rows.
const (
	atHead = 4000
	warmUp = 1000
)

// steadily is the time a message, once a session is under way.
func steadily(ctx context.Context, queue settle.Source) (time.Duration, error) {
	var handled atomic.Int64
	var began atomic.Int64
	err := handlerRun(atHead, queue, func(context.Context, *settle.Delivery) settle.Outcome {
		if handled.Add(1) == warmUp {
			began.Store(time.Now().UnixNano())
		}
		return settle.Ack()
	}, settle.Options{Workers: 8}, nil).do(ctx)
	return time.Since(time.Unix(0, began.Load())) / (atHead - warmUp), err
}

// postgresDepth measures claims at the head of queues of several depths, and
// with dead rows before the head that an old snapshot has the server keep.
func postgresDepth(ctx context.Context, w io.Writer, form sqlq.Form, quick settle.Options, scale int) error {
	db, queue, pool, _, err := postgresQueue(ctx, 0, form)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer db.Close()
	rows := [][]string{{"waiting rows", "time a message", "over the first"}}
	var first time.Duration
	measure := func(what string, times int, refill bool) error {
		var each []time.Duration
		for range times {
			took, err := steadily(ctx, queue)
			if err != nil {
				return err
			}
			each = append(each, took)
			if !refill {
				continue
			}
			if err := insertRows(ctx, pool, atHead); err != nil {
				return err
			}
		}
		took := medianOf(each)
		if first == 0 {
			first = took
		}
		rows = append(rows, []string{what, took.String(), fmt.Sprintf("%.2f", float64(took)/float64(first))})
		return nil
	}
	waiting := 0
	for _, depth := range []int{1_000, 10_000, 100_000, 1_000_000} {
		depth /= scale
		if err := insertRows(ctx, pool, depth+atHead-waiting); err != nil {
			return err
		}
		waiting = depth + atHead
		if _, err := pool.Exec(ctx, "VACUUM ANALYZE bench_jobs"); err != nil {
			return err
		}
		if err := measure(fmt.Sprint(depth), 5, true); err != nil {
			return err
		}
	}
	dead := 150_000 / scale
	pin, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer pin.Rollback(ctx)
	if _, err := pin.Exec(ctx, "SELECT count(*) FROM (SELECT FROM bench_jobs LIMIT 1) AS one"); err != nil {
		return err
	}
	before := waiting
	if err := runtimeRun(dead, queue, quick, nil).do(ctx); err != nil {
		return err
	}
	if err := measure(fmt.Sprintf("%d, behind %d dead rows that an old snapshot pins", before-dead, dead), 5, false); err != nil {
		return err
	}
	plain, err := plainClaim(ctx, pool)
	if err != nil {
		return err
	}
	if err := pin.Rollback(ctx); err != nil {
		return err
	}
	table(w, rows)
	left, err := queue.Len(ctx)
	if err != nil {
		return err
	}
	if err := runtimeRun(left, queue, quick, nil).do(ctx); err != nil {
		return err
	}
	rest, err := queue.Len(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Must be: 1.50 at most. One claim by hand, without a lower bound, takes %v there. Rows left behind once all of the queue was taken: %d.\n\n", plain, rest)
	return nil
}

func insertRows(ctx context.Context, pool *pgxpool.Pool, n int) error {
	_, err := pool.Exec(ctx, "INSERT INTO bench_jobs (queue, payload) SELECT 'bench', $1 FROM generate_series(1, $2::bigint)", payload, n)
	return err
}

// plainClaim is the time of a claim that begins at the start of the index.
func plainClaim(ctx context.Context, pool *pgxpool.Pool) (time.Duration, error) {
	var each []time.Duration
	for range 20 {
		start := time.Now()
		tx, err := pool.Begin(ctx)
		if err != nil {
			return 0, err
		}
		_, err = lockRows(ctx, tx, 1)
		took := time.Since(start)
		if rolled := tx.Rollback(ctx); err == nil {
			err = rolled
		}
		if err != nil {
			return 0, err
		}
		each = append(each, took)
	}
	return medianOf(each), nil
}

// postgresTrips counts what a message costs in statements and round trips.
func postgresTrips(ctx context.Context, w io.Writer, _ int) error {
	const messages = 2000
	fmt.Fprintf(w, "What one process sends for %d messages, begin and commit among the statements, counted on the wire.\n\n", messages)
	rows := [][]string{{"form", "workers", "statements a message", "round trips a message"}}
	for _, f := range forms {
		for _, o := range []settle.Options{{Workers: 8}, f.quick} {
			err := throughWire(ctx, messages, f.form, func(queue *postgres.Queue, on *wire) error {
				if err := runtimeRun(messages, queue, o, nil).do(ctx); err != nil {
					return err
				}
				workers := fmt.Sprint(o.Workers)
				if o.BatchSize > 0 {
					workers += fmt.Sprintf(", batches of %d", o.BatchSize)
				}
				rows = append(rows, []string{f.name, workers, fmt.Sprintf("%.2f", float64(on.statements.Load())/messages), fmt.Sprintf("%.2f", float64(on.trips.Load())/messages)})
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	table(w, rows)
	return nil
}

// throughWire has a queue with so many messages used through a wire that counts.
func throughWire(ctx context.Context, messages int, form sqlq.Form, use func(*postgres.Queue, *wire) error) error {
	db, _, pool, _, err := postgresQueue(ctx, messages, form)
	if err != nil {
		return err
	}
	db.Close()
	pool.Close()
	on, dsn, err := newWire(os.Getenv("SETTLE_POSTGRES_DSN"))
	if err != nil {
		return err
	}
	defer on.close()
	db, queue, err := openQueue(form, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	return use(queue, on)
}

// postgresIdle counts what an empty queue costs.
func postgresIdle(ctx context.Context, w io.Writer, _ int) error {
	const span = 10 * time.Second
	fmt.Fprintf(w, "Statements a second that one process sends for one empty queue with default settings, 8 workers, over %v.\n\n", span)
	rows := [][]string{{"form", "statements a second"}}
	for _, f := range forms {
		err := throughWire(ctx, 0, f.form, func(queue *postgres.Queue, on *wire) error {
			return idleRun(ctx, queue, func() {
				before := on.statements.Load()
				wait(ctx, span)
				rows = append(rows, []string{f.name, fmt.Sprintf("%.1f", float64(on.statements.Load()-before)/span.Seconds())})
			})
		})
		if err != nil {
			return err
		}
	}
	table(w, rows)
	fmt.Fprintf(w, "Must be: 2 at most.\n\n")
	return nil
}

// idleRun calls measure while a runtime has nothing to do.
func idleRun(ctx context.Context, queue settle.Source, measure func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rt := settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	rt.Handle(queue, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }, settle.Options{Workers: 8})
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	wait(ctx, 2*time.Second) // the start is over
	measure()
	cancel()
	return <-ended
}

// wait lets time pass that is measured.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// postgresWakeUp measures how long a row waits for a handler of another process that
// is idle: without and with NOTIFY, and after its delay.
func postgresWakeUp(ctx context.Context, w io.Writer, _ int) error {
	fmt.Fprintf(w, "A lease queue that is empty; the publisher is another database value, as in another process; 8 workers; medians (and the 95th percentile).\n\n")
	rows := [][]string{{"row", "settings", "time"}}
	for _, c := range []struct {
		name   string
		notify bool
		delay  time.Duration
		times  int
	}{{"due at once", false, 0, 20}, {"due at once", true, 0, 200}, {"delayed by 300 ms, from its time on", false, 300 * time.Millisecond, 20}, {"delayed by 300 ms, from its time on", true, 300 * time.Millisecond, 50}} {
		all, err := wakeUps(ctx, c.notify, c.delay, c.times)
		if err != nil {
			return err
		}
		slices.Sort(all)
		settings := "polling, the default"
		if c.notify {
			settings = "Notify"
		}
		rows = append(rows, []string{c.name, settings, fmt.Sprintf("%v (%v)", all[len(all)/2].Round(100*time.Microsecond), all[len(all)*95/100].Round(100*time.Microsecond))})
	}
	table(w, rows)
	fmt.Fprintf(w, "Aim with Notify: 20 ms for a row that is due, 50 ms for one that is delayed.\n\n")
	return nil
}

func wakeUps(ctx context.Context, notify bool, delay time.Duration, times int) ([]time.Duration, error) {
	db, _, pool, _, err := postgresQueue(ctx, 0, sqlq.Lease{})
	if err != nil {
		return nil, err
	}
	pool.Close()
	db.Close()
	dsn, err := postgresDSN()
	if err != nil {
		return nil, err
	}
	open := func() (*postgres.DB, error) { return postgres.Open(dsn, postgres.Options{Notify: notify}) }
	consumer, err := open()
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	publisher, err := open()
	if err != nil {
		return nil, err
	}
	defer publisher.Close()
	table := sqlq.Standard("bench_jobs", "bench")
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	handled, ended := make(chan time.Time, 1), make(chan error, 1)
	rt := settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	rt.Handle(consumer.Queue(table), func(context.Context, *settle.Delivery) settle.Outcome {
		handled <- time.Now()
		return settle.Ack()
	}, settle.Options{Workers: 8})
	go func() { ended <- rt.Run(running) }()
	to := publisher.Queue(table)
	var all []time.Duration
	for i := range times + 1 {
		wait(ctx, 100*time.Millisecond) // for the queue to be idle
		before := time.Now()
		if err := to.Publish(ctx, settle.Message{Body: payload, Delay: delay}); err != nil {
			return nil, err
		}
		select {
		case at := <-handled:
			if i > 0 { // the first is the start
				all = append(all, at.Sub(before)-delay)
			}
		case err := <-ended:
			return nil, err
		}
	}
	cancel()
	return all, <-ended
}
