// Command sql-existing makes a queue of a table that an application has had for years: with
// names and types of its own, a UUID for an id, a JSON document for a payload, and a state that reports are made
// of. Nothing is added to the table. Its other users go on as before: they insert rows with plain SQL, and
// find in the state what became of them.
//
//	go run ./examples/sql-existing
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/sqlserver"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/postgres"
)

// old is what the application made when it was young, and what it has in it today.
const old = `
CREATE TABLE mail_tasks (
    task_id   uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    state     text NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'sent', 'failed')),
    document  jsonb NOT NULL,
    tries     smallint NOT NULL DEFAULT 0,
    due       timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    busy_till timestamp,
    trouble   text
);
CREATE TABLE mail_log (at timestamptz NOT NULL DEFAULT now(), task_id uuid NOT NULL, line text NOT NULL);
INSERT INTO mail_tasks (document) VALUES ('{"to": "ann"}'), ('{"to": "busy"}'), ('{"to": "nobody"}'), ('{"to": "down"}');`

const attempts = 3

// tasks gives the columns their roles. The queue is the rows in state new, so a dead letter is a change of state; the
// word for what is done is set by statements of our own, in one transaction with the line in the log.
var tasks = sqlq.Table{
	Name: "mail_tasks", ID: "task_id", Payload: "document",
	Group: "state", GroupValue: "new",
	Attempt: "tries", RetryAfter: "due", LockedUntil: "busy_till", Cause: "trouble",
	Form: sqlq.Lease{For: 10 * time.Second},
	Statements: sqlq.Statements{Ack: []string{
		// The first one says by :attempt and :token that the row is still this delivery's.
		"UPDATE mail_tasks SET state = 'sent', busy_till = NULL WHERE task_id = :id AND tries = :attempt AND busy_till = :token",
		"INSERT INTO mail_log (task_id, line) VALUES (:id, 'sent')",
	}},
}

func main() { sqlserver.Postgres("sql-existing", run) }

func run(ctx context.Context, db *postgres.DB, out io.Writer) error {
	if _, err := db.Pool().Exec(ctx, old); err != nil {
		return err
	}
	queue := db.Queue(tasks)
	rt := &settle.Runtime{Observer: &advice{out: out}}
	rt.Handle(queue, settle.JSON(func(_ context.Context, m mail, d *settle.Delivery) settle.Outcome {
		outcome := send(m, d.Attempt)
		fmt.Fprintf(out, "to %s, attempt %d: %v\n", m.To, d.Attempt, outcome)
		return outcome
	}), settle.Options{Workers: 2, MaxAttempts: attempts, DeadLetter: "failed"})

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 1)
	go func() {
		defer stop()
		running <- rt.Run(ctx)
	}()
	// Another user of the table. It knows of no library; a consumer looks twice a second.
	if _, err := db.Pool().Exec(ctx, `INSERT INTO mail_tasks (document) VALUES ('{"to": "late"}')`); err != nil {
		return err
	}
	err := sqlserver.Empty(ctx, queue)
	stop()
	if err := cmp.Or(<-running, err); err != nil {
		return err
	}
	return report(context.WithoutCancel(ctx), db, out)
}

type mail struct{ To string }

// send is what a service does for its living.
func send(m mail, attempt int) settle.Outcome {
	switch {
	case m.To == "nobody":
		return settle.DeadLetter(errors.New("there is no such address"))
	case m.To == "down", m.To == "busy" && attempt == 1:
		return settle.RetryAfter(200*time.Millisecond, errors.New("the server is busy"))
	default:
		return settle.Ack()
	}
}

// report is what the application has always shown of its tasks.
func report(ctx context.Context, db *postgres.DB, out io.Writer) error {
	rows, err := db.Pool().Query(ctx, `SELECT concat_ws(' ', document->>'to', 'is', state, trouble) FROM mail_tasks
		UNION ALL SELECT 'the log has ' || count(*) || ' lines' FROM mail_log`)
	if err != nil {
		return err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	return err
}

// advice prints what the library has to say of the table when it starts: what holds, but less well than it could.
type advice struct{ out io.Writer }

// Noticed implements settle.Observer.
func (a *advice) Noticed(n settle.Notice) {
	if n.Kind == settle.NoticeWeakened {
		fmt.Fprintln(a.out, "at the start:", n.Err)
	}
}

// Received implements settle.Observer.
func (a *advice) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }

// Settled implements settle.Observer.
func (a *advice) Settled(context.Context, settle.Settled) {}
