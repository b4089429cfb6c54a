// Command sql-transfer moves money between accounts in PostgreSQL. A row lock holds each
// message, and its handler writes in the transaction that has the lock: an Ack commits the transfer and
// the end of its message together, and anything else undoes what the handler wrote. An auditor adds up the
// accounts all the while.
//
//	go run ./examples/sql-transfer
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/sqlserver"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/postgres"
)

const accounts = `
CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0));
INSERT INTO accounts VALUES ('ann', 100), ('bob', 50), ('cleo', 0);`

const total = 150

type transfer struct {
	From, To string
	Amount   int
}

var transfers = []transfer{
	{"ann", "bob", 30},
	{"bob", "cleo", 60},  // which bob has as soon as ann's has come
	{"cleo", "ann", 500}, // which cleo never has
	{"ann", "dora", 10},  // who has no account
	{"ann", "cleo", 25},  // whose handler panics in the middle, once
}

func main() { sqlserver.Postgres("sql-transfer", run) }

func run(ctx context.Context, db *postgres.DB, out io.Writer) error {
	if _, err := db.Pool().Exec(ctx, accounts); err != nil {
		return err
	}
	table := sqlq.Standard("transfers", "transfers")
	table.Form, table.LockedUntil = sqlq.RowLock{}, "" // the lock is the database's, and needs no column
	queue := db.Queue(table)
	if err := queue.CreateTable(ctx); err != nil {
		return err
	}
	for _, t := range transfers {
		body, err := json.Marshal(t)
		if err == nil {
			err = queue.Publish(ctx, settle.Message{Body: body})
		}
		if err != nil {
			return err
		}
	}

	rt := &settle.Runtime{}
	postgres.HandleTx(rt, queue, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
		outcome := move(ctx, tx, d)
		fmt.Fprintf(out, "%s, attempt %d: %v\n", d.Body, d.Attempt, outcome)
		return outcome
	}, settle.Options{Workers: 4, MaxAttempts: 3, DeadLetter: "transfers.dead"})

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 2)
	var audits atomic.Int64
	for _, work := range []func() error{
		func() error { return rt.Run(ctx) },
		func() error { return audit(ctx, db, &audits) },
	} {
		go func() {
			defer stop() // where one cannot go on, neither does the other
			running <- work()
		}()
	}
	err := sqlserver.Empty(ctx, queue)
	stop()
	if err := cmp.Or(<-running, <-running, err); err != nil {
		return err
	}
	fmt.Fprintf(out, "the accounts were added up %d times and always had %d\n", audits.Load(), total)
	return report(context.WithoutCancel(ctx), db, out)
}

var errNoAccount = errors.New("there is no such account")

// move is one transfer. What it writes is undone unless it returns an Ack.
func move(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
	var t transfer
	if err := json.Unmarshal(d.Body, &t); err != nil {
		return settle.DeadLetter(err)
	}
	// Both accounts are locked in one order, so that two transfers do not wait for each other in a circle.
	if _, err := tx.Exec(ctx, "SELECT FROM accounts WHERE name IN ($1, $2) ORDER BY name FOR UPDATE", t.From, t.To); err != nil {
		return settle.Retry(err)
	}
	// Where the balance does not suffice the CHECK fails, and with it the transaction; the retry is kept all the same.
	if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - $1 WHERE name = $2", t.Amount, t.From); err != nil {
		return settle.RetryAfter(100*time.Millisecond, err)
	}
	if t.To == "cleo" && t.From == "ann" && d.Attempt == 1 {
		panic("in the middle of a transfer")
	}
	paid, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE name = $2", t.Amount, t.To)
	switch {
	case err != nil:
		return settle.Retry(err)
	case paid.RowsAffected() == 0:
		return settle.DeadLetter(errNoAccount) // the debit above is undone
	}
	return settle.Ack()
}

// audit adds up the accounts until ctx ends. No transfer is ever seen half done.
func audit(ctx context.Context, db *postgres.DB, audits *atomic.Int64) error {
	for ctx.Err() == nil {
		var sum int
		if err := db.Pool().QueryRow(context.WithoutCancel(ctx), "SELECT sum(balance) FROM accounts").Scan(&sum); err != nil {
			return err
		}
		if sum != total {
			return fmt.Errorf("the accounts have %d together, and not %d", sum, total)
		}
		audits.Add(1)
		time.Sleep(time.Millisecond)
	}
	return nil
}

// report prints the accounts and the dead letters.
func report(ctx context.Context, db *postgres.DB, out io.Writer) error {
	rows, err := db.Pool().Query(ctx, `SELECT name || ' has ' || balance FROM accounts UNION ALL
		SELECT 'dead after attempt ' || attempt - 1 || ': ' || convert_from(payload, 'UTF8') || ', because: ' || cause FROM transfers WHERE queue = 'transfers.dead'`)
	if err != nil {
		return err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	return err
}
