package postgres

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/sqlq"
)

// proxy puts a network that can fail in front of a server.
func proxy(t *testing.T, url string) *faults.Line {
	t.Helper()
	return faults.Proxy(t, url)
}

func byAccount(t *testing.T, db *DB) *Queue {
	table := sqlq.Standard("jobs", "main")
	table.LockedUntil, table.Form = "", sqlq.AdvisoryLock{Key: "account-{msg_key}"}
	return newQueue(t, db, table)
}

func TestAnAdvisoryLockIsOfTheName(t *testing.T) {
	db := fresh(t, Options{})
	q := byAccount(t, db)
	for _, key := range []string{"7", "7", "8"} {
		require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte(key), Key: key}))
	}
	// Others take part by the name.
	other, err := db.Pool().Acquire(t.Context())
	require.NoError(t, err)
	defer other.Release()
	_, err = other.Exec(t.Context(), "SELECT pg_advisory_lock(hashtextextended('account-8', 0))")
	require.NoError(t, err)

	c := open(t, q, settle.Registration{Workers: 8, Prefetch: 8})
	ds := receive(t, c, 8)
	require.Equal(t, []string{"7"}, bodies(ds), "one row of a key at a time, and none of a key that somebody has")
	nothing(t, c, "another row of the keys that are held")
	_, err = other.Exec(t.Context(), "SELECT pg_advisory_unlock_all()")
	require.NoError(t, err)
	require.Equal(t, []string{"8"}, bodies(receive(t, c, 8)))
	require.NoError(t, settleOne(c, ds[0], ack))
	require.Equal(t, []string{"7"}, bodies(receive(t, c, 8)))
}

// TestALockIsGivenBackWithItsRow: no lock stays behind in the pool, whatever the verdict.
func TestALockIsGivenBackWithItsRow(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, in(sqlq.Standard("jobs", "main"), sqlq.AdvisoryLock{}))
	const locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = 'here')"
	db = openURL(t, with(db.Pool().Config().ConnString(), "application_name", "here"), Options{})
	q = db.Queue(q.Table())
	publish(t, q, "a", "b", "c", "d", "e", "f")
	c := open(t, q, settle.Registration{Workers: 6, Prefetch: 6, MaxAttempts: 9, DeadLetter: "dead"})
	ds := receive(t, c, 6)
	require.Len(t, ds, 6)
	require.Equal(t, 6, one[int](t, db, locks))
	for i, v := range []settle.Verdict{ack, drop, retry, {Action: settle.ActionRetry, Delay: time.Hour}, toDead, release} {
		require.NoError(t, settleOne(c, ds[i], v))
		require.Equal(t, 5-i, one[int](t, db, locks), "%v", v)
	}
}

// TestACandidateThatWasSettledMeanwhile: the row is read again once it is locked.
func TestARowIsCountedOnceItIsLocked(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, in(sqlq.Standard("jobs", "main"), sqlq.AdvisoryLock{}))
	publish(t, q, "a")
	c := open(t, q, settle.Registration{})
	for attempt := 1; attempt <= 3; attempt++ {
		d := receive(t, c, 1)[0]
		require.Equal(t, attempt, d.Attempt)
		require.Equal(t, attempt+1, one[int](t, db, "SELECT attempt FROM jobs"))
		require.NoError(t, settleOne(c, d, retry))
	}
	d := receive(t, c, 1)[0]
	require.NoError(t, settleOne(c, d, release))
	require.Equal(t, 4, one[int](t, db, "SELECT attempt FROM jobs"), "a release costs no attempt")
}

// TestALockThatIsNotThereAnyMore: somebody gave it back behind our back, so the connection cannot be trusted.
func TestALockThatIsNotThereAnyMore(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, in(sqlq.Standard("jobs", "main"), sqlq.AdvisoryLock{}))
	publish(t, q, "a", "b")
	var mu sync.Mutex
	var lost []string
	c := open(t, q, settle.Registration{Workers: 2, Prefetch: 2, Notify: func(n settle.Notice) {
		mu.Lock()
		defer mu.Unlock()
		if n.Kind == settle.NoticeLeaseLost {
			lost = append(lost, string(n.Delivery.Body))
		}
	}})
	ds := receive(t, c, 2)
	require.Len(t, ds, 2)
	cutAdvisory(t, db)
	require.ErrorIs(t, settleOne(c, ds[0], ack), settle.ErrLeaseLost)
	mu.Lock()
	assert.Contains(t, lost, "b", "the other row of the connection has lost its lock too")
	mu.Unlock()
	require.ErrorIs(t, settleOne(c, ds[1], ack), settle.ErrLeaseLost)
	again := receive(t, c, 2)
	require.Equal(t, 2, again[0].Attempt)
}

// cutAdvisory ends every connection that has an advisory lock of this schema's tests.
func cutAdvisory(t *testing.T, db *DB) {
	t.Helper()
	n := one[int](t, db, `SELECT count(pg_terminate_backend(pid, 5000)) FROM (SELECT DISTINCT l.pid FROM pg_locks AS l, jobs AS j
		WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended('jobs-' || j.id, 0) AND l.pid <> pg_backend_pid()) AS p`)
	require.NotZero(t, n, "nobody had a lock")
}

// TestOneAccountAtATime is the promise with two processes and eight workers each.
func TestOneAccountAtATime(t *testing.T) {
	h := newHome(t, "postgres")
	db := h.open(t, Options{})
	q := byAccount(t, db)
	const accounts, each = 7, 30
	exec(t, db, `INSERT INTO jobs (queue, msg_key, payload) SELECT 'main', i % $1, 'x' FROM generate_series(1, $1 * $2::int) AS i`, accounts, each)
	var mu sync.Mutex
	busy := make(map[string]int)
	handled := 0
	handler := func(_ context.Context, d *settle.Delivery) settle.Outcome {
		mu.Lock()
		handled++
		if busy[d.Key]++; busy[d.Key] > 1 {
			t.Errorf("%d rows of account %s are in work", busy[d.Key], d.Key)
		}
		mu.Unlock()
		time.Sleep(500 * time.Microsecond)
		mu.Lock()
		busy[d.Key]--
		mu.Unlock()
		return settle.Ack()
	}
	serve(t, func(rt *settle.Runtime) {
		rt.Handle(q, handler, settle.Options{Workers: 8})
		rt.Handle(h.open(t, Options{}).Queue(q.Table()), handler, settle.Options{Workers: 8})
	})
	eventually(t, db, 0, "SELECT count(*) FROM jobs")
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, accounts*each, handled)
}

// TestALongLineOfOneAccountDoesNotHideOthers.
func TestALongLineOfOneAccountDoesNotHideOthers(t *testing.T) {
	h := newHome(t, "postgres")
	db := h.open(t, Options{})
	q := byAccount(t, db)
	exec(t, db, `INSERT INTO jobs (queue, msg_key, payload) SELECT 'main', 'busy', 'busy' FROM generate_series(1, 300)`)
	exec(t, db, `INSERT INTO jobs (queue, msg_key, payload) VALUES ('main', 'other', 'other')`)
	c := open(t, q, settle.Registration{Workers: 2})
	require.Equal(t, []string{"busy"}, bodies(receive(t, c, 1)))
	second := open(t, h.open(t, Options{}).Queue(q.Table()), settle.Registration{})
	require.Equal(t, []string{"other"}, bodies(receive(t, second, 1)), "another process, which does not know what is held here")
}
