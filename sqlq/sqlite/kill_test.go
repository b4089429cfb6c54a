package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// This file kills other processes that work off the queue in a file.

// roles are what another process can be; the file is its argument.
var roles = map[string]func(args []string) error{
	"worker":   role(func(db *DB) error { return sqltest.Worker(handleKilled(db.Queue(killTable()))) }),
	"suicide":  role(func(db *DB) error { return sqltest.Suicide(db.Queue(leased(200 * time.Millisecond)).Queue) }),
	"advisory": role(childAdvisory),
}

func role(play func(*DB) error) func(args []string) error {
	return func(args []string) error {
		db, err := Open(args[0], Options{})
		if err != nil {
			return err
		}
		return play(db)
	}
}

func killTable() sqlq.Table { return sqltest.Acked(leased(500 * time.Millisecond)) }

func handleKilled(q *Queue) sqltest.Handle {
	return func(rt *settle.Runtime, told func(*settle.Delivery), o settle.Options) {
		rt.Handle(q, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			told(d)
			return settle.Ack()
		}, o)
	}
}

// childAdvisory opens an advisory queue, says so, and goes on until it is killed.
func childAdvisory(db *DB) error {
	rt := &settle.Runtime{Logger: sqltest.Quiet, StartTimeout: 100 * time.Millisecond}
	rt.Handle(db.Queue(advisory("{id}")), func(context.Context, *settle.Delivery) settle.Outcome {
		fmt.Println("working")
		select {}
	}, settle.Options{})
	return rt.Run(context.Background())
}

func killed(t *testing.T, table sqlq.Table) (path string, db *DB, q *Queue) {
	path = filepath.Join(t.TempDir(), "q.db")
	db = openPath(t, path, Options{})
	return path, db, newQueue(t, db, table)
}

func TestKilledWorkersLoseNothingAndSettleNothingTwice(t *testing.T) {
	path, db, q := killed(t, killTable())
	sqltest.KilledWorkers(t, &db.db, q.Queue, handleKilled(q), func() *sqltest.Process { return sqltest.Spawn(t, "worker", path) })
}

func TestARowThatKillsItsProcessEndsAtItsCap(t *testing.T) {
	path, db, q := killed(t, leased(200*time.Millisecond))
	sqltest.Poison(t, &db.db, q.Queue, func() *sqltest.Process { return sqltest.Spawn(t, "suicide", path) })
}

func TestTwoProcessesShareAFile(t *testing.T) {
	path, db, q := killed(t, killTable())
	sqltest.SharedTable(t, &db.db, q.Queue, func() *sqltest.Process { return sqltest.Spawn(t, "worker", path) })
}

// Advisory locks live in one process: another one on the same table is refused,
// until the first has ended, however that was.
func TestAnAdvisoryTableIsOneProcesss(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	db := openPath(t, path, Options{})
	q := newQueue(t, db, advisory("{id}"))
	sqltest.Publish(t, q, "a")
	p := sqltest.Spawn(t, "advisory", path)
	require.Equal(t, []string{"working"}, p.Lines(1))
	config := sqltest.Refusal(t, q, settle.Registration{})
	assert.Equal(t, "AdvisoryLock", config.Setting)
	assert.ErrorContains(t, config, "another process")
	other := advisory("{id}")
	other.Name = "elsewhere"
	sqltest.Open(t, newQueue(t, db, other), settle.Registration{}) // another table is another matter
	p.Kill()
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	assert.Equal(t, 2, d.Attempt, "the crash spent one, and its lock went with it")

	second := sqltest.Spawn(t, "advisory", path)
	out := strings.Join(second.Lines(3), "\n")
	assert.Contains(t, out, "another process", "and the other way round")
}
