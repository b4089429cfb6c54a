package sqlite

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// leased is the standard table with the given lease.
func leased(d time.Duration) sqlq.Table {
	t := sqlq.Standard("jobs", "main")
	t.Form = sqlq.Lease{For: d}
	return t
}

func TestClaimCountsTheAttemptAndTakesTheLease(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Minute))
	sqltest.Publish(t, q, "a")
	require.EqualValues(t, 1, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"), "a new row's next delivery is its first")
	before := time.Now()
	d := sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{}), 1)[0]
	assert.Equal(t, 1, d.Attempt)
	assert.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"), "a crash now must have spent the attempt")
	until := time.UnixMicro(sqltest.One[int64](t, &db.db, "SELECT locked_until FROM jobs"))
	assert.WithinRange(t, until, before.Add(time.Minute), time.Now().Add(time.Minute))
}

func TestVerdictsOnALeasedRow(t *testing.T) {
	for _, c := range []struct {
		name    string
		verdict settle.Verdict
		want    string // group, attempt, free, cause of the row; empty: no row
	}{
		{"ack", ack, ""},
		{"drop", drop, ""},
		{"retry", settle.Verdict{Action: settle.ActionRetry, Cause: assert.AnError}, "main 2 free " + assert.AnError.Error()},
		{"release", release, "main 1 free -"},
		{"dead-letter", settle.Verdict{Action: settle.ActionDeadLetter, Cause: assert.AnError}, "main.dead 2 free " + assert.AnError.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{})
			q := newQueue(t, db, leased(time.Minute))
			sqltest.Publish(t, q, "a")
			consumer := sqltest.Open(t, q, settle.Registration{MaxAttempts: 5, DeadLetter: "main.dead"})
			d := sqltest.Receive(t, consumer, 1)[0]
			due := sqltest.One[int64](t, &db.db, "SELECT retry_after FROM jobs")
			require.NoError(t, sqltest.Settle(consumer, d, c.verdict))
			if c.want == "" {
				require.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
				return
			}
			assert.Equal(t, c.want, sqltest.One[string](t, &db.db,
				"SELECT queue || ' ' || attempt || ' ' || iif(locked_until IS NULL, 'free', 'held') || ' ' || coalesce(cause, '-') FROM jobs"))
			assert.Equal(t, due, sqltest.One[int64](t, &db.db, "SELECT retry_after FROM jobs"), "it keeps its place")
		})
	}
}

func TestADelayedRetryIsDueThatMuchLater(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Minute))
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	before := time.Now()
	require.NoError(t, sqltest.Settle(c, d, settle.Verdict{Action: settle.ActionRetry, Delay: time.Hour + time.Nanosecond}))
	due := time.UnixMicro(sqltest.One[int64](t, &db.db, "SELECT retry_after FROM jobs"))
	assert.WithinRange(t, due, before.Add(time.Hour+time.Nanosecond).Truncate(time.Microsecond), time.Now().Add(time.Hour+time.Microsecond))
	sqltest.Nothing(t, c, "a row that is not due is nobody's")
}

// A settlement whose lease was taken over settles nothing, and does not stand in the
// way of the others in its batch.
func TestALostLeaseIsLostForItsRowAlone(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Minute))
	sqltest.Publish(t, q, "a", "b", "c")
	c := sqltest.Open(t, q, settle.Registration{Workers: 3})
	ds := sqltest.Receive(t, c, 3)
	require.Len(t, ds, 3)
	// Another process has b now: a later token.
	sqltest.Exec(t, &db.db, "UPDATE jobs SET locked_until = locked_until + 1 WHERE payload = 'b'")
	batch := []settle.Settlement{{Delivery: ds[0], Verdict: ack}, {Delivery: ds[1], Verdict: ack}, {Delivery: ds[2], Verdict: ack}}
	c.Settle(t.Context(), batch)
	assert.NoError(t, batch[0].Err)
	require.ErrorIs(t, batch[1].Err, settle.ErrLeaseLost)
	assert.Contains(t, batch[1].Err.Error(), "row 2")
	assert.NoError(t, batch[2].Err)
	assert.Equal(t, "b", sqltest.One[string](t, &db.db, "SELECT group_concat(payload) FROM jobs"))
	require.ErrorIs(t, sqltest.Settle(c, ds[1], ack), settle.ErrLeaseLost, "and it stays lost")
}

// Each part of the fence counts: the row that comes back with the same id, with
// the same attempt or with the same token is not the delivery's.
func TestTheFence(t *testing.T) {
	for _, change := range []string{
		"UPDATE jobs SET attempt = attempt + 1",
		"UPDATE jobs SET locked_until = locked_until - 1",
		"UPDATE jobs SET locked_until = NULL",
		"DELETE FROM jobs",
	} {
		for _, v := range []settle.Verdict{ack, drop, retry, release, bury, {Action: settle.ActionRetry, Delay: time.Hour}} {
			t.Run(fmt.Sprintf("%s/%s%v", change, v.Action, v.Delay), func(t *testing.T) {
				db := openFile(t, Options{})
				q := newQueue(t, db, leased(time.Minute))
				sqltest.Publish(t, q, "a")
				c := sqltest.Open(t, q, settle.Registration{MaxAttempts: 9, DeadLetter: "main.dead"})
				d := sqltest.Receive(t, c, 1)[0]
				sqltest.Exec(t, &db.db, change)
				rows := "SELECT coalesce(group_concat(queue || attempt || coalesce(locked_until, '-') || retry_after), 'none') FROM jobs"
				was := sqltest.One[string](t, &db.db, rows)
				require.ErrorIs(t, sqltest.Settle(c, d, v), settle.ErrLeaseLost)
				assert.Equal(t, was, sqltest.One[string](t, &db.db, rows), "a settlement that is lost changes nothing")
			})
		}
	}
}

// A lease that ended and that nobody took is still good: the message need not come twice.
func TestALeaseThatEndedUntakenStillSettles(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Minute))
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	past := time.Now().Add(-time.Hour).UnixMicro()
	sqltest.Exec(t, &db.db, "UPDATE jobs SET locked_until = ?", past)
	require.ErrorIs(t, sqltest.Settle(c, d, ack), settle.ErrLeaseLost, "with another token it is not ours")

	sqltest.Publish(t, q, "b")
	short := sqltest.Open(t, db.Queue(leased(100*time.Millisecond)), settle.Registration{})
	got := sqltest.Receive(t, short, 1)[0]
	require.NoError(t, sqltest.Settle(short, got, ack))
}

func TestAnEndedLeaseComesAgainAsTheNextAttempt(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour}) // the end of the lease must wake the consumer, not the poll
	q := newQueue(t, db, leased(time.Minute))
	sqltest.Publish(t, q, "a")
	// What a process leaves that was killed: an attempt counted and a lease.
	sqltest.Exec(t, &db.db, "UPDATE jobs SET attempt = 2, locked_until = ?", time.Now().Add(150*time.Millisecond).UnixMicro())
	d := sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{}), 1)[0]
	assert.Equal(t, 2, d.Attempt)
}

func TestALeaseIsRenewedAsLongAsItsHandlerWorks(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(200*time.Millisecond))
	sqltest.Publish(t, q, "a")
	c, other := sqltest.Open(t, q, settle.Registration{}), sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	first := sqltest.One[int64](t, &db.db, "SELECT locked_until FROM jobs")
	// Five leases later it is still ours.
	require.Eventually(t, func() bool {
		return sqltest.One[int64](t, &db.db, "SELECT locked_until FROM jobs") > first+time.Second.Microseconds()
	}, deadline, 10*time.Millisecond)
	sqltest.Nothing(t, other, "nobody else may have it")
	require.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"), "a renewal counts nothing")
	require.NoError(t, sqltest.Settle(c, d, ack))
}

func TestARenewalThatFindsTheRowGoneTellsTheHandler(t *testing.T) {
	for _, gone := range []string{"DELETE FROM jobs WHERE payload = 'a'", "UPDATE jobs SET locked_until = NULL WHERE payload = 'a'"} {
		t.Run(gone, func(t *testing.T) {
			db := openFile(t, Options{})
			q := newQueue(t, db, leased(200*time.Millisecond))
			sqltest.Publish(t, q, "a", "b")
			lost := make(chan settle.Notice, 8)
			c := sqltest.Open(t, q, settle.Registration{Workers: 2, Notify: func(n settle.Notice) { lost <- n }})
			ds := sqltest.Receive(t, c, 2)
			sqltest.Exec(t, &db.db, gone)
			select {
			case n := <-lost:
				assert.Equal(t, settle.NoticeLeaseLost, n.Kind)
				assert.Same(t, ds[0], n.Delivery)
				assert.ErrorIs(t, n.Err, settle.ErrLeaseLost)
			case <-time.After(deadline):
				require.Fail(t, "nobody was told")
			}
			require.ErrorIs(t, sqltest.Settle(c, ds[0], ack), settle.ErrLeaseLost)
			require.NoError(t, sqltest.Settle(c, ds[1], ack), "the other row's renewal goes on")
			assert.Empty(t, lost, "each loss is told once")
		})
	}
}

// While the database cannot be written to, leases end. Their handlers are told
// when that is so, and what nobody took meanwhile settles all the same.
func TestALeaseThatCannotBeRenewedIsTold(t *testing.T) {
	db := openFile(t, Options{BusyTimeout: 50 * time.Millisecond})
	q := newQueue(t, db, leased(200*time.Millisecond))
	sqltest.Publish(t, q, "a")
	lost := make(chan settle.Notice, 8)
	c := sqltest.Open(t, q, settle.Registration{Notify: func(n settle.Notice) { lost <- n }})
	d := sqltest.Receive(t, c, 1)[0]
	tx, err := db.SQL().Begin() // a writer that stays
	require.NoError(t, err)
	select {
	case n := <-lost:
		assert.Equal(t, settle.NoticeLeaseLost, n.Kind)
		assert.ErrorIs(t, n.Err, settle.ErrLeaseLost)
	case <-time.After(deadline):
		require.Fail(t, "nobody was told")
	}
	err = sqltest.Settle(c, d, ack)
	require.Error(t, err)
	require.NotErrorIs(t, err, settle.ErrLeaseLost, "the database was busy: that can be tried again")
	require.NoError(t, tx.Rollback())
	require.NoError(t, sqltest.Settle(c, d, ack))
}

// Renewals and settlements of the same rows, as fast as they go: no lease is
// lost, because neither sees the other half done.
func TestRenewalAndSettlementKeepOutOfEachOthersWay(t *testing.T) {
	const rows = 400
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(100*time.Millisecond))
	all := make([]string, rows)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	sqltest.Publish(t, q, all...)
	var lost atomic.Int64
	c := sqltest.Open(t, q, settle.Registration{Workers: rows, Notify: func(n settle.Notice) {
		if n.Kind == settle.NoticeLeaseLost {
			lost.Add(1)
		}
	}})
	ds := sqltest.Receive(t, c, rows)
	require.Len(t, ds, rows)
	var settling sync.WaitGroup
	for i := range 4 {
		settling.Go(func() {
			for j := i; j < rows; j += 4 {
				assert.NoError(t, sqltest.Settle(c, ds[j], ack))
				time.Sleep(time.Millisecond) // spreads the settlements over several renewals
			}
		})
	}
	settling.Wait()
	assert.Zero(t, lost.Load())
	assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
}

func TestClaimsComeInOrderAndNoMoreThanAsked(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Minute))
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("%02d", i))
	}
	sqltest.Publish(t, q, want...)
	c := sqltest.Open(t, q, settle.Registration{Workers: 50})
	var got []string
	for len(got) < 50 {
		ds := sqltest.Receive(t, c, 7)
		require.LessOrEqual(t, len(ds), 7)
		got = append(got, sqltest.Bodies(ds)...)
	}
	assert.Equal(t, want, got)
	assert.Equal(t, 50, c.Traits().Prefetch, "a claim takes no more than the free workers")
}

func TestCloseGivesBackWhatWasNeverSettled(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Hour))
	sqltest.Publish(t, q, "a")
	c, err := q.Open(t.Context(), sqltest.Registration(settle.Registration{}))
	require.NoError(t, err)
	d := sqltest.Receive(t, c, 1)[0]
	require.NoError(t, c.Close(t.Context()))
	require.ErrorIs(t, sqltest.Settle(c, d, ack), settle.ErrLeaseLost)
	again := sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{}), 1)[0]
	assert.Equal(t, 2, again.Attempt, "its handler may have begun")
}

func TestAShutdownReturnsPromptlyWhileAnotherProcessWrites(t *testing.T) {
	db := openFile(t, Options{BusyTimeout: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	c := sqltest.Open(t, q, settle.Registration{})
	tx, err := db.SQL().Begin()
	require.NoError(t, err)
	defer tx.Rollback()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Receive(ctx, make([]*settle.Delivery, 1))
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		require.Error(t, err)
	case <-time.After(deadline):
		require.Fail(t, "Receive still waits for the other writer")
	}
}
