package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// This file runs the test binary again as other processes, which it kills. Such
// a process works off the queue in a file; what it is to do stands in its environment.

const (
	childRole = "SETTLE_SQLITE_TEST_CHILD"
	childFile = "SETTLE_SQLITE_TEST_FILE"
)

// roles are what a child process can be.
var roles = map[string]func(db *DB) error{
	"worker":   childWorker,
	"suicide":  childSuicide,
	"advisory": childAdvisory,
}

func child(role string) {
	db, err := Open(os.Getenv(childFile), Options{})
	if err == nil {
		err = roles[role](db)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childWorker acknowledges rows in a transaction that also writes down that it
// did, so that a row which is acknowledged twice shows. It tells of each, and goes on until it is killed.
func childWorker(db *DB) error {
	rt := &settle.Runtime{Logger: quiet}
	table := killTable()
	rt.Handle(db.Queue(table), func(_ context.Context, d *settle.Delivery) settle.Outcome {
		fmt.Println(d.ID)
		return settle.Ack()
	}, settle.Options{Workers: 4, MaxAttempts: 50, DeadLetter: "main.dead"})
	return rt.Run(context.Background())
}

// killTable writes a line for each acknowledgement, in its transaction.
func killTable() sqlq.Table {
	table := leased(500 * time.Millisecond)
	table.Statements.Ack = []string{
		"DELETE FROM jobs WHERE id = :id AND attempt = :attempt AND locked_until = :token",
		"INSERT INTO acked VALUES (:id)",
	}
	return table
}

// childSuicide has a row that kills its process.
func childSuicide(db *DB) error {
	rt := &settle.Runtime{Logger: quiet}
	ctx, cancel := context.WithCancel(context.Background())
	q := db.Queue(leased(200 * time.Millisecond))
	rt.Handle(q, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if string(d.Body) == "poison" {
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

// childAdvisory opens an advisory queue, says so, and goes on until it is killed.
func childAdvisory(db *DB) error {
	rt := &settle.Runtime{Logger: quiet, StartTimeout: 100 * time.Millisecond}
	rt.Handle(db.Queue(advisory("{id}")), func(context.Context, *settle.Delivery) settle.Outcome {
		fmt.Println("working")
		select {}
	}, settle.Options{})
	return rt.Run(context.Background())
}

// process is a child process.
type process struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

func spawn(t testing.TB, role, path string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childFile+"="+path)
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

// Workers are killed in the middle of their work, again and again: in the end
// every row is acknowledged, none twice, none lost.
func TestKilledWorkersLoseNothingAndSettleNothingTwice(t *testing.T) {
	rows, kills := 1500, 4
	if os.Getenv(everything) != "" {
		rows, kills = 10_000, 20
	} else {
		t.Logf("%d kills over %d rows; set %s=1 for 20 over 10,000", kills, rows, everything)
	}
	path := filepath.Join(t.TempDir(), "q.db")
	db := openPath(t, path, Options{})
	q := newQueue(t, db, killTable())

	execute(t, db, "CREATE TABLE acked (id INTEGER)")
	execute(t, db, fmt.Sprintf("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) INSERT INTO jobs (queue, payload) SELECT 'main', '{}' FROM n", rows))
	for range kills {
		p := spawn(t, "worker", path)
		require.NotEmpty(t, p.lines(rows/(kills+2)))
		p.kill()
	}
	assert.NotZero(t, one[int](t, db, "SELECT count(*) FROM jobs"), "the kills came before the end")
	stop := serve(t, func(rt *settle.Runtime) {
		rt.Handle(q, func(context.Context, *settle.Delivery) settle.Outcome {
			return settle.Ack()
		}, settle.Options{Workers: 8, MaxAttempts: 50, DeadLetter: "main.dead"})
	})
	eventually(t, db, 0, "SELECT count(*) FROM jobs")
	require.NoError(t, stop())
	assert.Equal(t, rows, one[int](t, db, "SELECT count(DISTINCT id) FROM acked"), "every row is acknowledged")
	assert.Equal(t, rows, one[int](t, db, "SELECT count(*) FROM acked"), "and none twice")
}

// A row whose handler kills the process ends at its cap, because the claim counts the attempt.
func TestARowThatKillsItsProcessEndsAtItsCap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	db := openPath(t, path, Options{})
	q := newQueue(t, db, leased(200*time.Millisecond))
	publish(t, q, "poison", "good", "good")
	deaths := 0
	for {
		p := spawn(t, "suicide", path)
		err := p.cmd.Wait()
		if err == nil {
			break
		}
		deaths++
		require.LessOrEqual(t, deaths, 3, "the cap counts crashes")
	}
	assert.Equal(t, 3, deaths)
	assert.Equal(t, "main.dead poison 5", one[string](t, db, "SELECT group_concat(queue || ' ' || payload || ' ' || attempt) FROM jobs"))
	assert.Contains(t, one[string](t, db, "SELECT cause FROM jobs"), "past its maximum")
}

// Advisory locks live in one process: another one on the same table is refused,
// until the first has ended, however that was.
func TestAnAdvisoryTableIsOneProcesss(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	db := openPath(t, path, Options{})
	q := newQueue(t, db, advisory("{id}"))
	publish(t, q, "a")
	p := spawn(t, "advisory", path)
	require.Equal(t, []string{"working"}, p.lines(1))
	config := refusal(t, q, settle.Registration{})
	assert.Equal(t, "AdvisoryLock", config.Setting)
	assert.ErrorContains(t, config, "another process")
	other := advisory("{id}")
	other.Name = "elsewhere"
	open(t, newQueue(t, db, other), settle.Registration{}) // another table is another matter
	p.kill()
	c := open(t, q, settle.Registration{})
	d := receive(t, c, 1)[0]
	assert.Equal(t, 2, d.Attempt, "the crash spent one, and its lock went with it")

	second := spawn(t, "advisory", path)
	out := strings.Join(second.lines(3), "\n")
	assert.Contains(t, out, "another process", "and the other way round")
}

// Two processes work on one file with leases, until both have done some of it.
func TestTwoProcessesShareAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	db := openPath(t, path, Options{})
	q := newQueue(t, db, killTable())
	execute(t, db, "CREATE TABLE acked (id INTEGER)")
	var handled [2]atomic.Int64
	for i := range handled {
		p := spawn(t, "worker", path)
		go func() {
			for p.out.Scan() {
				handled[i].Add(1)
			}
		}()
	}
	rows := 0
	require.Eventually(t, func() bool {
		publish(t, q, make([]string, 50)...)
		rows += 50
		return handled[0].Load() > 0 && handled[1].Load() > 0
	}, deadline, 10*time.Millisecond)
	eventually(t, db, 0, "SELECT count(*) FROM jobs")
	assert.Equal(t, rows, one[int](t, db, "SELECT count(*) FROM acked"))
	assert.Equal(t, rows, one[int](t, db, "SELECT count(DISTINCT id) FROM acked"))
}
