package postgres

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// Each part of the fence counts: a row with the same id, and with the same attempt or the same
// token, is not the delivery's, for any verdict, alone or with others, nor for its renewal.
func TestTheFence(t *testing.T) {
	for _, change := range []string{
		"UPDATE jobs SET attempt = attempt + 1",
		"UPDATE jobs SET locked_until = locked_until + interval '1 microsecond'",
		"UPDATE jobs SET locked_until = NULL",
		"DELETE FROM jobs",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			db := fresh(t, Options{})
			q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: time.Second}))
			verdicts := []settle.Verdict{ack, drop, retry, sqltest.RetryAfter(time.Hour), toDead, release}
			sqltest.Publish(t, q, make([]string, len(verdicts)+3)...)
			var lost atomic.Int64
			c := sqltest.Open(t, q, settle.Registration{Workers: 9, MaxAttempts: 5, DeadLetter: "main.dead", Notify: func(n settle.Notice) {
				if n.Kind == settle.NoticeLeaseLost {
					lost.Add(1)
				}
			}})
			ds := sqltest.Receive(t, c, 9)
			require.Len(t, ds, 9)
			sqltest.Exec(t, &db.db, change)
			const rows = "SELECT coalesce(string_agg(concat_ws(' ', id, queue, attempt, locked_until, retry_after), ',' ORDER BY id), '') FROM jobs"
			before := sqltest.One[string](t, &db.db, rows)
			for i, v := range verdicts {
				require.ErrorIs(t, sqltest.Settle(c, ds[i], v), settle.ErrLeaseLost, "%v", v)
			}
			for _, err := range sqltest.SettleAll(c, ack, ds[6:8]...) {
				require.ErrorIs(t, err, settle.ErrLeaseLost)
			}
			require.Eventually(t, func() bool { return lost.Load() > 0 }, deadline, time.Millisecond, "the one in work is told of")
			assert.Equal(t, before, sqltest.One[string](t, &db.db, rows), "nothing was touched")
		})
	}
}
