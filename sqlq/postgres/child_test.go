package postgres

import (
	"bufio"
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/sqlq"
)

// This file runs the test binary again as other processes, which it kills.

const (
	childRole = "SETTLE_POSTGRES_TEST_CHILD"
	childURL  = "SETTLE_POSTGRES_TEST_URL"
	childForm = "SETTLE_POSTGRES_TEST_FORM"
)

// roles are what a child process can be.
var roles = map[string]func(db *DB, f sqlq.Form) error{
	"worker":  childWorker,
	"suicide": childSuicide,
}

func child(role string) {
	db, err := Open(os.Getenv(childURL), Options{MaxConns: 30})
	if err == nil {
		var f sqlq.Form
		for _, known := range forms() {
			if fmt.Sprintf("%T", known) == os.Getenv(childForm) {
				f = known
			}
		}
		err = roles[role](db, f)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func killTable(f sqlq.Form) sqlq.Table { return in(sqlq.Standard("jobs", "main"), f) }

// acknowledge writes down that it saw the row, in its transaction, so that a row which is acknowledged twice shows.
func acknowledge(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
	if _, err := tx.Exec(ctx, "INSERT INTO acked VALUES ($1::text::bigint)", d.ID); err != nil {
		return settle.Retry(err)
	}
	return settle.Ack()
}

// childWorker acknowledges rows, tells of each, and goes on until it is killed.
func childWorker(db *DB, f sqlq.Form) error {
	rt := &settle.Runtime{Logger: quiet}
	HandleTx(rt, db.Queue(killTable(f)), func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
		out := acknowledge(ctx, tx, d)
		fmt.Println(d.ID)
		return out
	}, settle.Options{Workers: 8, MaxAttempts: 50, DeadLetter: "main.dead"})
	return rt.Run(context.Background())
}

// childSuicide has a row that kills its process.
func childSuicide(db *DB, f sqlq.Form) error {
	rt := &settle.Runtime{Logger: quiet}
	ctx, cancel := context.WithCancel(context.Background())
	q := db.Queue(killTable(f))
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

// process is a child process.
type process struct {
	cmd *osexec.Cmd
	out *bufio.Scanner
}

func spawn(t testing.TB, role string, db *DB, f sqlq.Form) *process {
	t.Helper()
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childURL+"="+db.Pool().Config().ConnString(), childForm+"="+fmt.Sprintf("%T", f))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, out: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// lines reads up to n lines, fewer where the process ends or takes too long.
func (p *process) lines(n int) []string {
	defer time.AfterFunc(deadline, func() { _ = p.cmd.Process.Kill() }).Stop()
	var all []string
	for len(all) < n && p.out.Scan() {
		all = append(all, p.out.Text())
	}
	return all
}

// Workers are killed in the middle of their work, again and again: in the end every
// row is acknowledged, none twice, none lost.
func TestKilledWorkersLoseNothingAndSettleNothingTwice(t *testing.T) {
	rows, kills := 600, 3
	if os.Getenv("SETTLE_TEST_ALL") == "1" {
		rows, kills = 10_000, 20
	} else {
		t.Logf("%d kills over %d rows; SETTLE_TEST_ALL=1 has 20 over 10,000", kills, rows)
	}
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		f := q.Table().Form
		exec(t, db, "CREATE TABLE acked (id bigint)")
		exec(t, db, "INSERT INTO jobs (queue, payload) SELECT 'main', '' FROM generate_series(1, $1)", rows)
		for range kills {
			p := spawn(t, "worker", db, f)
			require.NotEmpty(t, p.lines(rows/(kills+2)))
			p.kill()
		}
		assert.NotZero(t, one[int](t, db, queued), "the kills came before the end")
		stop := handleTx(t, q, acknowledge, settle.Options{Workers: 8, MaxAttempts: 50, DeadLetter: "main.dead"})
		eventually(t, db, 0, queued)
		require.NoError(t, stop())
		assert.Zero(t, one[int](t, db, "SELECT count(*) FROM jobs"), "nothing is dead")
		assert.Equal(t, rows, one[int](t, db, "SELECT count(DISTINCT id) FROM acked"), "every row is acknowledged")
		assert.Equal(t, rows, one[int](t, db, "SELECT count(*) FROM acked"), "and none twice")
	})
}

// A row whose handler kills the process comes back with the attempt that its form promises: a
// lease and an advisory lock have counted it, so it ends at its cap; a row lock has not.
func TestARowThatKillsItsProcess(t *testing.T) {
	for _, f := range forms() {
		t.Run(fmt.Sprintf("%T", f), func(t *testing.T) {
			if _, lease := f.(sqlq.Lease); lease {
				f = sqlq.Lease{For: time.Second}
			}
			db := fresh(t, Options{})
			q := newQueue(t, db, killTable(f))
			publish(t, q, "poison", "good", "good")
			var attempts []string
			for range 4 {
				p := spawn(t, "suicide", db, f)
				attempts = append(attempts, p.lines(1)...)
				if p.cmd.Wait() == nil {
					break
				}
			}
			if _, rows := f.(sqlq.RowLock); rows {
				assert.Equal(t, []string{"1", "1", "1", "1"}, attempts, "a crash cannot count")
				return
			}
			assert.Equal(t, []string{"1", "2", "3"}, attempts)
			assert.Equal(t, "main.dead poison 5", one[string](t, db, "SELECT string_agg(concat_ws(' ', queue, convert_from(payload, 'UTF8'), attempt), ',') FROM jobs"))
		})
	}
}

// Two processes work on one table until both have done some of it.
func TestTwoProcessesShareATable(t *testing.T) {
	services.TestAll(t)
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		exec(t, db, "CREATE TABLE acked (id bigint)")
		exec(t, db, "INSERT INTO jobs (queue, payload) SELECT 'main', '' FROM generate_series(1, 3000)")
		a, b := spawn(t, "worker", db, q.Table().Form), spawn(t, "worker", db, q.Table().Form)
		require.Len(t, a.lines(5), 5)
		require.Len(t, b.lines(5), 5)
		go a.lines(1 << 30)
		go b.lines(1 << 30)
		eventually(t, db, 0, queued)
		assert.Equal(t, 3000, one[int](t, db, "SELECT count(*) FROM acked"))
		assert.Equal(t, 3000, one[int](t, db, "SELECT count(DISTINCT id) FROM acked"))
	})
}
