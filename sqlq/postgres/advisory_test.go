package postgres

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

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

	c := sqltest.Open(t, q, settle.Registration{Workers: 8, Prefetch: 8})
	ds := sqltest.Receive(t, c, 8)
	require.Equal(t, []string{"7"}, sqltest.Bodies(ds), "one row of a key at a time, and none of a key that somebody has")
	sqltest.Nothing(t, c, "another row of the keys that are held")
	_, err = other.Exec(t.Context(), "SELECT pg_advisory_unlock_all()")
	require.NoError(t, err)
	require.Equal(t, []string{"8"}, sqltest.Bodies(sqltest.Receive(t, c, 8)))
	require.NoError(t, sqltest.Settle(c, ds[0], ack))
	require.Equal(t, []string{"7"}, sqltest.Bodies(sqltest.Receive(t, c, 8)))
}

// TestALockOfColumnsWithCollationsOfTheirOwn: its name is made of bytes.
func TestALockOfColumnsWithCollationsOfTheirOwn(t *testing.T) {
	db := fresh(t, Options{})
	sqltest.Exec(t, &db.db, `CREATE TABLE own (id bigserial PRIMARY KEY, body text, a text COLLATE "C", b text COLLATE "POSIX")`)
	sqltest.Exec(t, &db.db, "INSERT INTO own (body, a, b) VALUES ('x', 'a', 'b')")
	c := sqltest.Open(t, db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", Form: sqlq.AdvisoryLock{Key: "{a}-{b}"}}), settle.Registration{})
	assert.Equal(t, []string{"x"}, sqltest.Drain(t, c, 1))
	assert.True(t, sqltest.One[bool](t, &db.db, "SELECT hashtextextended('jobs-7' COLLATE \"C\", 0) = hashtextextended('jobs-7', 0)"), "the number that others reckon")
}

// TestALockIsGivenBackWithItsRow: no lock stays behind in the pool, whatever the verdict.
func TestALockIsGivenBackWithItsRow(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.AdvisoryLock{}))
	const locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = current_schema())"
	q = db.Queue(q.Table())
	sqltest.Publish(t, q, "a", "b", "c", "d", "e", "f")
	c := sqltest.Open(t, q, settle.Registration{Workers: 6, Prefetch: 6, MaxAttempts: 9, DeadLetter: "dead"})
	ds := sqltest.Receive(t, c, 6)
	require.Len(t, ds, 6)
	require.Equal(t, 6, sqltest.One[int](t, &db.db, locks))
	for i, v := range []settle.Verdict{ack, drop, retry, {Action: settle.ActionRetry, Delay: time.Hour}, toDead, release} {
		require.NoError(t, sqltest.Settle(c, ds[i], v))
		require.Equal(t, 5-i, sqltest.One[int](t, &db.db, locks), "%v", v)
	}
}

// TestACandidateThatWasSettledMeanwhile: the row is read again once it is locked.
func TestARowIsCountedOnceItIsLocked(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.AdvisoryLock{}))
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{})
	for attempt := 1; attempt <= 3; attempt++ {
		d := sqltest.Receive(t, c, 1)[0]
		require.Equal(t, attempt, d.Attempt)
		require.Equal(t, attempt+1, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"))
		require.NoError(t, sqltest.Settle(c, d, retry))
	}
	d := sqltest.Receive(t, c, 1)[0]
	require.NoError(t, sqltest.Settle(c, d, release))
	require.Equal(t, 4, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"), "a release costs no attempt")
}

// TestALockThatIsNotThereAnyMore: somebody gave it back behind our back, so the connection cannot be trusted.
func TestALockThatIsNotThereAnyMore(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.AdvisoryLock{}))
	sqltest.Publish(t, q, "a", "b")
	var mu sync.Mutex
	var lost []string
	c := sqltest.Open(t, q, settle.Registration{Workers: 2, Prefetch: 2, Notify: func(n settle.Notice) {
		mu.Lock()
		defer mu.Unlock()
		if n.Kind == settle.NoticeLeaseLost {
			lost = append(lost, string(n.Delivery.Body))
		}
	}})
	ds := sqltest.Receive(t, c, 2)
	require.Len(t, ds, 2)
	cutAdvisory(t, db)
	require.ErrorIs(t, sqltest.Settle(c, ds[0], ack), settle.ErrLeaseLost)
	mu.Lock()
	assert.Contains(t, lost, "b", "the other row of the connection has lost its lock too")
	mu.Unlock()
	require.ErrorIs(t, sqltest.Settle(c, ds[1], ack), settle.ErrLeaseLost)
	again := sqltest.Receive(t, c, 2)
	require.Equal(t, 2, again[0].Attempt)
}

// cutAdvisory ends every connection that has an advisory lock of this schema's tests.
func cutAdvisory(t *testing.T, db *DB) {
	t.Helper()
	n := sqltest.One[int](t, &db.db, `SELECT count(pg_terminate_backend(pid, 5000)) FROM (SELECT DISTINCT l.pid FROM pg_locks AS l, jobs AS j
		WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended('jobs-' || j.id, 0) AND l.pid <> pg_backend_pid()) AS p`)
	require.NotZero(t, n, "nobody had a lock")
}

// TestOneAccountAtATime is the promise with two processes and eight workers each.
func TestOneAccountAtATime(t *testing.T) {
	h := newHome(t, "postgres")
	db := h.open(t, Options{})
	q := byAccount(t, db)
	const accounts, each = 7, 30
	sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, msg_key, payload) SELECT 'main', i % $1, 'x' FROM generate_series(1, $1 * $2::int) AS i`, accounts, each)
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
	sqltest.Serve(t, func(rt *settle.Runtime) {
		rt.Handle(q, handler, settle.Options{Workers: 8})
		rt.Handle(h.open(t, Options{}).Queue(q.Table()), handler, settle.Options{Workers: 8})
	})
	sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs")
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, accounts*each, handled)
}

// TestALongLineOfOneAccountDoesNotHideOthers.
func TestALongLineOfOneAccountDoesNotHideOthers(t *testing.T) {
	h := newHome(t, "postgres")
	db := h.open(t, Options{})
	q := byAccount(t, db)
	sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, msg_key, payload) SELECT 'main', 'busy', 'busy' FROM generate_series(1, 6000)`)
	sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, msg_key, payload) VALUES ('main', 'other', 'other')`)
	c := sqltest.Open(t, q, settle.Registration{Workers: 2})
	require.Equal(t, []string{"busy"}, sqltest.Bodies(sqltest.Receive(t, c, 1)))
	second := sqltest.Open(t, h.open(t, Options{}).Queue(q.Table()), settle.Registration{})
	require.Equal(t, []string{"other"}, sqltest.Bodies(sqltest.Receive(t, second, 1)), "another process, which does not know what is held here")
}
