// Command sql-reports writes reports that take longer than a lease on their rows in
// PostgreSQL. No connection and no transaction is kept while a handler works: the lease is a time
// in the row, which is renewed at half of its life. From one report the lease is taken away, as from a
// process that was cut off for too long: its handler's context ends, what it decides settles
// nothing, and the report is written by who has the row then.
//
//	go run ./examples/sql-reports
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/sqlserver"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/postgres"
)

const (
	lease = time.Second
	pages = 10 // of a report
	page  = 250 * time.Millisecond
)

func main() { sqlserver.Postgres("sql-reports", run) }

func run(ctx context.Context, db *postgres.DB, out io.Writer) error {
	if _, err := db.Pool().Exec(ctx, "CREATE TABLE archive (report text PRIMARY KEY)"); err != nil {
		return err
	}
	table := sqlq.Standard("reports", "")
	table.Form = sqlq.Lease{For: lease} // the default, 30 s, would be long to watch
	queue := db.Queue(table)
	if err := queue.CreateTable(ctx); err != nil {
		return err
	}
	if err := queue.Publish(ctx, settle.Message{Body: []byte("quarter")}, settle.Message{Body: []byte("year")}); err != nil {
		return err
	}

	p := &press{db: db, out: out}
	rt := &settle.Runtime{Observer: p}
	rt.Handle(queue, p.write, settle.Options{Workers: 3})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 1)
	go func() {
		defer stop()
		running <- rt.Run(ctx)
	}()
	err := sqlserver.Empty(ctx, queue)
	stop()
	if err := cmp.Or(<-running, err); err != nil {
		return err
	}
	var written int
	err = db.Pool().QueryRow(context.WithoutCancel(ctx), "SELECT count(*) FROM archive").Scan(&written)
	fmt.Fprintf(out, "%d reports are in the archive\n", written)
	return err
}

// press writes reports, and watches what becomes of their deliveries.
type press struct {
	db  *postgres.DB
	out io.Writer
}

func (p *press) write(ctx context.Context, d *settle.Delivery) settle.Outcome {
	leases := make(map[time.Time]bool)
	taken := false
	for n := 1; n <= pages || taken; n++ { // from whom it is taken works on until he is told
		select {
		case <-time.After(page):
		case <-ctx.Done():
			fmt.Fprintf(p.out, "%s, attempt %d: stopped at page %d: %v\n", d.Body, d.Attempt, n, context.Cause(ctx))
			return settle.Retry(context.Cause(ctx))
		}
		var until time.Time
		if err := p.db.Pool().QueryRow(ctx, "SELECT coalesce(locked_until, 'epoch') FROM reports WHERE id = $1::bigint", d.ID).Scan(&until); err == nil {
			leases[until] = true
		}
		if string(d.Body) == "year" && d.Attempt == 1 && n == 2 {
			fmt.Fprintf(p.out, "%s, attempt %d: its lease is taken away\n", d.Body, d.Attempt)
			if _, err := p.db.Pool().Exec(ctx, "UPDATE reports SET locked_until = NULL WHERE id = $1::bigint", d.ID); err != nil {
				return settle.Retry(err)
			}
			taken = true
		}
	}
	// Who has lost a lease may learn of it too late, so a report may be written twice; it is archived once.
	if _, err := p.db.Pool().Exec(ctx, "INSERT INTO archive VALUES ($1) ON CONFLICT DO NOTHING", string(d.Body)); err != nil {
		return settle.RetryAfter(page, err)
	}
	fmt.Fprintf(p.out, "%s, attempt %d: written in %v, its lease of %v renewed %d times\n", d.Body, d.Attempt, pages*page, lease, len(leases)-1)
	return settle.Ack()
}

// Settled implements settle.Observer.
func (p *press) Settled(_ context.Context, s settle.Settled) {
	if errors.Is(s.Err, settle.ErrLeaseLost) {
		fmt.Fprintf(p.out, "%s, attempt %d: its %v settles nothing\n", s.Delivery.Body, s.Delivery.Attempt, s.Verdict.Action)
	}
}

// Received implements settle.Observer.
func (p *press) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }

// Noticed implements settle.Observer.
func (p *press) Noticed(settle.Notice) {}
