// Command quickstart delivers webhooks from a queue in a SQLite file.
//
//	go run ./examples/quickstart
//
// It starts a flaky endpoint in this process, puts webhooks into a queue and
// delivers them with several workers. An answer of 2xx is done, of 3xx or 4xx a dead
// letter; 5xx, a timeout or no answer is tried again after a backoff, up to a cap.
//
// With -db the file stays, and what is in it is not enqueued again: kill the
// process in mid-work, run it again, and it delivers the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/sqlite"
)

// settings are what the command line says.
type settings struct {
	db, events, url string
	workers         int
	attempts        int
	timeout         time.Duration
	verbose         bool
}

const deadGroup = "webhooks.dead"

// lease is how long a process that was killed keeps what it had in work.
const lease = 5 * time.Second

func main() {
	var s settings
	flag.StringVar(&s.db, "db", "", "the SQLite file; empty: a temporary one, deleted at the end")
	flag.StringVar(&s.events, "events", "", "a file of events, each line one JSON value; empty: a sample")
	flag.StringVar(&s.url, "url", "", "where to deliver; empty: a flaky endpoint in this process")
	flag.IntVar(&s.workers, "workers", 8, "deliveries at once")
	flag.IntVar(&s.attempts, "attempts", 5, "attempts before an event is a dead letter")
	flag.DurationVar(&s.timeout, "timeout", time.Second, "how long an endpoint may take to answer")
	flag.BoolVar(&s.verbose, "v", false, "log what happens to standard error")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "quickstart: unexpected argument %q; -help lists the flags\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// redacted is an address without its password.
func redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Redacted()
}

// run delivers until the queue is empty, or until ctx ends.
func run(ctx context.Context, s settings, out, errs io.Writer) (err error) {
	endpoint := s.url
	if endpoint == "" {
		flaky, err := startFlaky(s.timeout)
		if err != nil {
			return err
		}
		defer flaky.close()
		endpoint = flaky.url
	} else if u, err := url.Parse(endpoint); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("-url %q is not the address of an HTTP endpoint, such as http://localhost:8080/hooks", endpoint)
	}
	switch {
	case s.timeout <= 0:
		return fmt.Errorf("-timeout %v: say how long an endpoint may take, such as 1s", s.timeout)
	case s.workers < 1:
		return fmt.Errorf("-workers %d: at least one has to deliver", s.workers)
	case s.attempts < 1:
		return fmt.Errorf("-attempts %d: at least one has to be made", s.attempts)
	}
	path := s.db
	if path == "" {
		dir, err := os.MkdirTemp("", "quickstart")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		path = filepath.Join(dir, "webhooks.db")
	}

	db, err := sqlite.Open(path, sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	table := sqlq.Standard("webhooks", "webhooks")
	table.Form = sqlq.Lease{For: lease}
	queue := db.Queue(table)
	if err := queue.CreateTable(ctx); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	added, err := enqueue(ctx, db, queue, s.events, errs)
	if err != nil {
		return fmt.Errorf("enqueuing into %s: %w", path, err)
	}
	fmt.Fprintf(out, "%d webhooks enqueued, %d were in the file before; delivering to %s\n", added.fresh, added.known, redacted(endpoint))

	level := slog.LevelError
	if s.verbose {
		level = slog.LevelDebug
	}
	tally := &tally{}
	rt := &settle.Runtime{
		Logger:   slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: level})),
		Observer: tally,
	}
	deliver := &deliverer{
		client:  newClient(s.timeout),
		url:     endpoint,
		backoff: settle.Backoff{Base: 200 * time.Millisecond, Max: 2 * time.Second},
	}
	defer deliver.client.CloseIdleConnections()
	rt.Handle(queue, deliver.handle, settle.Options{Workers: s.workers, MaxAttempts: s.attempts, DeadLetter: deadGroup})

	running, done := context.WithCancel(ctx)
	defer done()
	go func() {
		defer done()
		watch(running, queue, tally, lease, out)
	}()
	if err := rt.Run(running); err != nil {
		return err
	}
	return tally.summary(context.WithoutCancel(ctx), db, queue, path, s.db != "", out)
}
