package sqltest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// This file is what is promised of processes that are killed. The queue is
// group "main" of the standard table jobs. Each acknowledgement is written down in table acked, in
// the transaction of the settlement, so that a row which is acknowledged twice shows.

// Handle registers a handler that acknowledges each row so, and calls told for each.
type Handle func(rt *settle.Runtime, told func(*settle.Delivery), o settle.Options)

// Acked is the table with a statement that writes acknowledgements down.
func Acked(table sqlq.Table) sqlq.Table {
	fence := "id = :id"
	if table.Form != (sqlq.RowLock{}) {
		fence += " AND attempt = :attempt"
	}
	if table.LockedUntil != "" {
		fence += " AND locked_until = :token"
	}
	table.Statements.Ack = []string{"DELETE FROM jobs WHERE " + fence, "INSERT INTO acked (id) VALUES (:id)"}
	return table
}

// CreateAcked makes the table acked.
func CreateAcked(t testing.TB, db *sqlq.Database) {
	t.Helper()
	Exec(t, db, "CREATE TABLE acked (id bigint)")
}

// Queued counts what is in the queue.
const Queued = "SELECT count(*) FROM jobs WHERE queue = 'main'"

// AckedOnce checks that so many rows were acknowledged, each once, and that none is left or dead.
func AckedOnce(t testing.TB, db *sqlq.Database, rows int) {
	t.Helper()
	assert.Zero(t, One[int](t, db, "SELECT count(*) FROM jobs"), "nothing is dead")
	assert.Equal(t, rows, One[int](t, db, "SELECT count(DISTINCT id) FROM acked"), "nothing is lost")
	assert.Equal(t, rows, One[int](t, db, "SELECT count(*) FROM acked"), "nothing is settled twice")
}

var patient = settle.Options{Workers: 8, MaxAttempts: 50, DeadLetter: "main.dead"}

// Worker is a role: it acknowledges rows, tells of each, and goes on until it is killed.
func Worker(handle Handle) error {
	rt := &settle.Runtime{Logger: Quiet}
	handle(rt, func(d *settle.Delivery) { fmt.Println(d.ID) }, patient)
	return rt.Run(context.Background())
}

// Suicide is a role: the row "poison" kills its process, which says its attempt before.
func Suicide(q *sqlq.Queue) error {
	rt := &settle.Runtime{Logger: Quiet}
	ctx, cancel := context.WithCancel(context.Background())
	rt.Handle(q, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if string(d.Body) == "poison" {
			fmt.Println(d.Attempt)
			p, _ := os.FindProcess(os.Getpid())
			_ = p.Kill()
			select {}
		}
		return settle.Ack()
	}, settle.Options{MaxAttempts: 3, DeadLetter: "main.dead"})
	go func() {
		for {
			if n, err := q.Len(ctx); n == 0 || err != nil {
				cancel()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return rt.Run(ctx)
}

// KillTable is the table of these tests, in a form.
func KillTable(f sqlq.Form) sqlq.Table { return In(sqlq.Standard("jobs", "main"), f) }

// KillRoles are the roles "worker" and "suicide" on a database server; their arguments are the DSN and the
// form, as [Spawner] gives them. open returns the queue of a table there, and how its rows are handled.
func KillRoles(forms []sqlq.Form, open func(dsn string, table sqlq.Table) (*sqlq.Queue, Handle, error)) map[string]func(args []string) error {
	role := func(play func(*sqlq.Queue, Handle) error) func(args []string) error {
		return func(args []string) error {
			for _, f := range forms {
				if fmt.Sprintf("%T", f) != args[1] {
					continue
				}
				q, handle, err := open(args[0], KillTable(f))
				if err != nil {
					return err
				}
				return play(q, handle)
			}
			return fmt.Errorf("no form %q", args[1])
		}
	}
	return map[string]func(args []string) error{
		"worker":  role(func(_ *sqlq.Queue, handle Handle) error { return Worker(handle) }),
		"suicide": role(func(q *sqlq.Queue, _ Handle) error { return Suicide(q) }),
	}
}

// Spawner starts processes in one of KillRoles, on a queue.
func Spawner(t *testing.T, role, dsn string, q *sqlq.Queue) func() *Process {
	return func() *Process { return Spawn(t, role, dsn, fmt.Sprintf("%T", q.Table().Form)) }
}

// KilledWorkers kills workers in the middle of their work, again and again: in
// the end every row is acknowledged, none twice, none lost. spawn starts a [Worker].
func KilledWorkers(t *testing.T, db *sqlq.Database, q *sqlq.Queue, handle Handle, spawn func() *Process) {
	rows, kills := 600, 3
	if os.Getenv("SETTLE_TEST_ALL") == "1" {
		rows, kills = 10_000, 20
	} else {
		t.Logf("%d kills over %d rows; SETTLE_TEST_ALL=1 has 20 over 10,000", kills, rows)
	}
	CreateAcked(t, db)
	Publish(t, q, make([]string, rows)...)
	for range kills {
		p := spawn()
		require.NotEmpty(t, p.Lines(rows/(kills+2)))
		p.Kill()
	}
	assert.NotZero(t, One[int](t, db, Queued), "the kills came before the end")
	stop := Serve(t, func(rt *settle.Runtime) { handle(rt, func(*settle.Delivery) {}, patient) })
	Eventually(t, db, 0, Queued)
	require.NoError(t, stop())
	AckedOnce(t, db, rows)
}

// Poison has a row whose handler kills its process. It comes back with the
// attempt that its form promises: a lease and an advisory lock have counted it, so that it ends at its
// cap; a row lock has not. spawn starts a [Suicide] on the queue.
func Poison(t *testing.T, db *sqlq.Database, q *sqlq.Queue, spawn func() *Process) {
	Publish(t, q, "poison", "good", "good")
	var attempts []string
	for range 4 {
		p := spawn()
		attempts = append(attempts, p.Lines(1)...)
		if p.Wait() == nil {
			break
		}
	}
	if _, rows := q.Table().Form.(sqlq.RowLock); rows {
		assert.Equal(t, []string{"1", "1", "1", "1"}, attempts, "a crash cannot count")
		return
	}
	assert.Equal(t, []string{"1", "2", "3"}, attempts)
	assert.Equal(t, 1, One[int](t, db, "SELECT count(*) FROM jobs"), "the good ones are done")
	assert.Equal(t, "main.dead", One[string](t, db, "SELECT queue FROM jobs"))
	assert.Equal(t, "poison", string(One[[]byte](t, db, "SELECT payload FROM jobs")))
	assert.Equal(t, 5, One[int](t, db, "SELECT attempt FROM jobs"))
	assert.Contains(t, One[string](t, db, "SELECT cause FROM jobs"), "past its maximum")
}

// SharedTable has two processes work on one table until both have done some of
// it. spawn starts a [Worker].
func SharedTable(t *testing.T, db *sqlq.Database, q *sqlq.Queue, spawn func() *Process) {
	CreateAcked(t, db)
	var handled [2]atomic.Int64
	for i := range handled {
		p := spawn()
		go func() {
			for p.Line() {
				handled[i].Add(1)
			}
		}()
	}
	rows := 0
	require.Eventually(t, func() bool {
		Publish(t, q, strings.Split(strings.Repeat("x", 50), "")...)
		rows += 50
		return handled[0].Load() > 0 && handled[1].Load() > 0
	}, Deadline, 10*time.Millisecond)
	Eventually(t, db, 0, Queued)
	AckedOnce(t, db, rows)
}
