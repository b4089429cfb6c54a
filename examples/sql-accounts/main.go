// Command sql-accounts books payments so that those of one account go one at a time, in two
// services that know nothing of each other, while other accounts go side by side. The rows are held by advisory locks of
// the database whose names are made of the account.
//
//	go run ./examples/sql-accounts
//
// It runs on PostgreSQL, MySQL and MariaDB, whichever the DSN leads to.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/program"
	"github.com/settlemq/settle/examples/internal/sqlserver"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/mysql"
	"github.com/settlemq/settle/sqlq/postgres"
)

var (
	names    = []string{"Ada", "Ben"} // of the services
	accounts = []string{"7", "8", "9", "10", "11", "12"}
)

const (
	each    = 15 // payments of an account
	workers = 4  // of a service: one alone does not have a payment of each account in work
)

func main() {
	dsn := flag.String("dsn", "", "the database: postgres://user:password@host/database or, of MySQL and MariaDB, user:password@tcp(host:port)/database "+
		"(default SETTLE_POSTGRES_DSN, SETTLE_MYSQL_DSN, else a PostgreSQL on this machine)")
	program.Main("sql-accounts", sqlserver.Absent, func(ctx context.Context, out io.Writer) error {
		return run(ctx, cmp.Or(*dsn, os.Getenv("SETTLE_POSTGRES_DSN"), os.Getenv("SETTLE_MYSQL_DSN"), sqlserver.Local), out)
	})
}

// payments is the recommended table with a column of ours for the account. There is no lease, so
// it has no column for one.
func payments() sqlq.Table {
	table := sqlq.Standard("settle_example_payments", "")
	table.Key, table.LockedUntil = "account_id", ""
	table.Form = sqlq.AdvisoryLock{Key: "account-{account_id}"}
	return table
}

// service is one that books payments. It has the database to itself, as a process of its own would.
type service struct {
	queue *sqlq.Queue
	exec  func(ctx context.Context, text string) error
	close func() error
}

func open(dsn string) (*service, error) {
	if strings.HasPrefix(dsn, "postgres") {
		db, err := postgres.Open(dsn, postgres.Options{})
		if err != nil {
			return nil, err
		}
		exec := func(ctx context.Context, text string) error {
			_, err := db.Pool().Exec(ctx, text)
			return err
		}
		return &service{db.Queue(payments()).Queue, exec, db.Close}, nil
	}
	db, err := mysql.Open(dsn, mysql.Options{})
	if err != nil {
		return nil, err
	}
	exec := func(ctx context.Context, text string) error {
		_, err := db.SQL().ExecContext(ctx, text)
		return err
	}
	return &service{db.Queue(payments()).Queue, exec, db.Close}, nil
}

func run(ctx context.Context, dsn string, out io.Writer) (err error) {
	services := make([]*service, len(names))
	for i := range services {
		if services[i], err = open(dsn); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, services[i].close()) }()
	}
	first := services[0]
	const drop = "DROP TABLE IF EXISTS settle_example_payments"
	if err := first.exec(ctx, drop); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.exec(context.WithoutCancel(ctx), drop)) }()
	if err := publish(ctx, first.queue); err != nil {
		return err
	}

	ledger := &ledger{inWork: make(map[string]int), by: make(map[string]map[string]int), began: make(map[string]bool), together: make(chan struct{})}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, len(services))
	for i, s := range services {
		rt := &settle.Runtime{}
		rt.Handle(s.queue, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
			return ledger.book(ctx, names[i], d)
		}, settle.Options{Workers: workers})
		go func() {
			defer stop()
			running <- rt.Run(ctx)
		}()
	}
	err = sqlserver.Empty(ctx, first.queue)
	stop()
	for range services {
		err = cmp.Or(err, <-running)
	}
	if err == nil {
		ledger.report(out)
	}
	return err
}

// publish puts the payments of all accounts into the table, one account after the other in turns.
func publish(ctx context.Context, queue *sqlq.Queue) error {
	if err := queue.CreateTable(ctx); err != nil {
		return err
	}
	var msgs []settle.Message
	for n := 1; n <= each; n++ {
		for _, account := range accounts {
			msgs = append(msgs, settle.Message{Key: account, Body: fmt.Appendf(nil, "%d", n)})
		}
	}
	return queue.Publish(ctx, msgs...)
}

// ledger is what both services see of each other here.
type ledger struct {
	together chan struct{} // closed when each has begun

	mu           sync.Mutex // guards what follows
	began        map[string]bool
	inWork       map[string]int
	by           map[string]map[string]int // how many of an account were booked by whom
	most, beside int                       // the most payments of one account, and of all, that were in work at once
}

// book is a handler that takes some time.
func (l *ledger) book(ctx context.Context, who string, d *settle.Delivery) settle.Outcome {
	l.begin(who, d.Key)
	select { // the first payments wait for the other service, so that there is something to see
	case <-l.together:
	case <-ctx.Done():
	}
	time.Sleep(time.Duration(1+rand.IntN(10)) * time.Millisecond)
	l.end(who, d.Key)
	return settle.Ack()
}

func (l *ledger) begin(who, account string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.began[who] {
		l.began[who] = true
		if len(l.began) == len(names) {
			close(l.together)
		}
	}
	l.inWork[account]++
	l.most = max(l.most, l.inWork[account])
	all := 0
	for _, n := range l.inWork {
		all += n
	}
	l.beside = max(l.beside, all)
}

func (l *ledger) end(who, account string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inWork[account]--
	if l.by[account] == nil {
		l.by[account] = make(map[string]int)
	}
	l.by[account][who]++
}

func (l *ledger) report(out io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, account := range accounts {
		fmt.Fprintf(out, "account %s: %d payments by %s, %d by %s\n", account, l.by[account][names[0]], names[0], l.by[account][names[1]], names[1])
	}
	fmt.Fprintf(out, "at most %d payment of one account and %d of all were in work at once\n", l.most, l.beside)
}
