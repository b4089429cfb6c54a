package sqlite

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// lossy is a database whose commits answer with an error when told so: SQLite
// itself cannot be brought to that. The commit took effect, or it did not.
type lossy struct {
	sqlq.DB
	mode *atomic.Int32
}

const (
	answers     int32 = iota
	committed         // the commit takes effect, and its answer is lost
	uncommitted       // it does not, and the answer is lost too
)

var errAnswerLost = errors.New("the answer is lost")

func (l lossy) Conn(ctx context.Context) (sqlq.Conn, error) {
	conn, err := l.DB.Conn(ctx)
	return lossyConn{conn, l.mode}, err
}

type lossyConn struct {
	sqlq.Conn
	mode *atomic.Int32
}

func (l lossyConn) Begin(ctx context.Context, first ...sqlq.Step) (sqlq.Tx, error) {
	tx, err := l.Conn.Begin(ctx, first...)
	return lossyTx{tx, l.mode}, err
}

type lossyTx struct {
	sqlq.Tx
	mode *atomic.Int32
}

func (l lossyTx) Commit(ctx context.Context, last, after []sqlq.Step) error {
	switch l.mode.Load() {
	case committed:
		if err := l.Tx.Commit(ctx, last, after); err != nil {
			return err
		}
		return sqlq.Unsure(errAnswerLost)
	case uncommitted:
		return errors.Join(sqlq.Unsure(errAnswerLost), l.Tx.Rollback(ctx))
	default:
		return l.Tx.Commit(ctx, last, after)
	}
}

// A settlement whose commit had no answer is asked for again, and then says how
// it went, whichever it was.
func TestALostAnswerIsResolvedWhenAskedAgain(t *testing.T) {
	for name, mode := range map[string]int32{"committed": committed, "not committed": uncommitted} {
		for _, v := range []settle.Verdict{ack, drop, retry, release, bury, {Action: settle.ActionRetry, Delay: time.Hour}} {
			for _, table := range []sqlq.Table{leased(time.Minute), advisory("{id}")} {
				t.Run(name+"/"+v.Action.String()+v.Delay.String(), func(t *testing.T) {
					db := openFile(t, Options{})
					q := newQueue(t, db, table)
					var lose atomic.Int32
					db.db.DB = lossy{db.db.DB, &lose}
					sqltest.Publish(t, q, "a")
					c := sqltest.Open(t, q, settle.Registration{MaxAttempts: 5, DeadLetter: "main.dead"})
					d := sqltest.Receive(t, c, 1)[0]
					lose.Store(mode)
					err := sqltest.Settle(c, d, v)
					if table.LockedUntil == "" && v == retry && err == nil {
						t.Skip("an advisory retry may need no statement")
					}
					require.ErrorIs(t, err, errAnswerLost)
					require.NotErrorIs(t, err, settle.ErrLeaseLost)
					lose.Store(answers)
					require.NoError(t, sqltest.Settle(c, d, v))
					want := map[settle.Action]string{
						settle.ActionAck: "", settle.ActionDrop: "", settle.ActionRetry: "main 2", settle.ActionRelease: "main 1", settle.ActionDeadLetter: "main.dead 2",
					}[v.Action]
					assert.Equal(t, want, sqltest.One[string](t, &db.db, "SELECT coalesce(group_concat(queue || ' ' || attempt), '') FROM jobs"), "once and no more")
				})
			}
		}
	}
}

// Where the answer was lost and the lease has ended meanwhile, somebody else may
// have done what the row shows: then it is lost.
func TestALostAnswerAfterTheLeaseIsALostLease(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(200*time.Millisecond))
	var lose atomic.Int32
	db.db.DB = lossy{db.db.DB, &lose}
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	lose.Store(uncommitted) // renewals get no answer either
	require.ErrorIs(t, sqltest.Settle(c, d, ack), errAnswerLost)
	ended := func() bool {
		return sqltest.One[int](t, &db.db, "SELECT locked_until < ? FROM jobs", time.Now().UnixMicro()) == 1
	}
	require.Eventually(t, ended, deadline, time.Millisecond)
	sqltest.Exec(t, &db.db, "UPDATE jobs SET attempt = attempt + 1, locked_until = locked_until + 60000000")
	lose.Store(answers)
	require.ErrorIs(t, sqltest.Settle(c, d, ack), settle.ErrLeaseLost)
	assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
}

// A renewal without an answer leaves two tokens that may be true. Neither a
// settlement nor the next renewal takes the lease for lost.
func TestALostAnswerOfARenewal(t *testing.T) {
	for name, mode := range map[string]int32{"committed": committed, "not committed": uncommitted} {
		t.Run(name, func(t *testing.T) {
			db := openFile(t, Options{})
			q := newQueue(t, db, leased(400*time.Millisecond))
			var lose atomic.Int32
			db.db.DB = lossy{db.db.DB, &lose}
			sqltest.Publish(t, q, "a", "b")
			lost := make(chan settle.Notice, 10)
			c := sqltest.Open(t, q, settle.Registration{Workers: 2, Notify: func(n settle.Notice) { lost <- n }})
			ds := sqltest.Receive(t, c, 2)
			token := sqltest.One[int64](t, &db.db, "SELECT max(locked_until) FROM jobs")
			lose.Store(mode)
			if mode == committed {
				require.Eventually(t, func() bool { return sqltest.One[int64](t, &db.db, "SELECT max(locked_until) FROM jobs") > token }, deadline, time.Millisecond)
			} else {
				time.Sleep(250 * time.Millisecond) // a renewal falls into it; if none did, the rest must hold all the same
			}
			lose.Store(answers)
			require.NoError(t, sqltest.Settle(c, ds[0], ack))
			now := sqltest.One[int64](t, &db.db, "SELECT max(locked_until) FROM jobs")
			require.Eventually(t, func() bool { return sqltest.One[int64](t, &db.db, "SELECT max(locked_until) FROM jobs") > now }, deadline, time.Millisecond, "renewal goes on")
			require.NoError(t, sqltest.Settle(c, ds[1], ack))
			assert.Empty(t, lost)
		})
	}
}

// A claim without an answer may have counted an attempt; the row comes again
// when its lease ends, and is not lost.
func TestALostAnswerOfAClaim(t *testing.T) {
	for name, mode := range map[string]int32{"committed": committed, "not committed": uncommitted} {
		t.Run(name, func(t *testing.T) {
			db := openFile(t, Options{})
			q := newQueue(t, db, leased(100*time.Millisecond))
			var lose atomic.Int32
			db.db.DB = lossy{db.db.DB, &lose}
			sqltest.Publish(t, q, "a")
			c := sqltest.Open(t, q, settle.Registration{})
			lose.Store(mode)
			n, err := c.Receive(t.Context(), make([]*settle.Delivery, 1))
			require.ErrorIs(t, err, errAnswerLost)
			require.Zero(t, n)
			lose.Store(answers)
			d := sqltest.Receive(t, c, 1)[0]
			assert.Equal(t, map[int32]int{committed: 2, uncommitted: 1}[mode], d.Attempt)
			require.NoError(t, sqltest.Settle(c, d, ack))
		})
	}
}
