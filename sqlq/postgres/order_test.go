package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

func TestOrderIsOfTimeThenID(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "b", "c")
		sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, payload, retry_after) VALUES ('main', 'a', '-infinity'), ('main', 'never', 'infinity'), ('main', 'old', '1962-01-01'), ('other', 'x', now())`)
		c := sqltest.Open(t, q, settle.Registration{})
		assert.Equal(t, []string{"a", "old", "b", "c"}, sqltest.Drain(t, c, 4))
		sqltest.Nothing(t, c, "a row that is never due, or of another group")
	})
}

func TestPriorityGoesBeforeAge(t *testing.T) {
	eachForm(t, func(table *sqlq.Table) { table.Priority = "priority" }, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, payload, priority, retry_after) SELECT 'main', 'delayed', 9, now() + interval '1 day' FROM generate_series(1, 50)`)
		require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("low")}, settle.Message{Body: []byte("mid"), Priority: 5}, settle.Message{Body: []byte("high"), Priority: 9}, settle.Message{Body: []byte("mid2"), Priority: 5}))
		c := sqltest.Open(t, q, settle.Registration{})
		first := sqltest.Drain(t, c, 3)
		// A level that is new, and a row before the place that claims have come to.
		sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, payload, priority, retry_after) VALUES ('main', 'top', 100, now()), ('main', 'lowest', -7, now() - interval '1 day')`)
		assert.Equal(t, []string{"high", "mid", "mid2"}, first)
		assert.ElementsMatch(t, []string{"top", "low", "lowest"}, sqltest.Drain(t, c, 3))
	})
}

// TestOwnColumnsThatMayBeNull claims rows without a time or a priority, in a table with such columns.
func TestOwnColumnsThatMayBeNull(t *testing.T) {
	for _, priority := range []string{"", "level"} {
		for _, f := range forms() {
			t.Run(fmt.Sprintf("%T %s", f, priority), func(t *testing.T) {
				db := fresh(t, Options{})
				sqltest.Exec(t, &db.db, `CREATE TABLE own (id bigserial PRIMARY KEY, payload text, due timestamptz, lock timestamptz, try int, level int)`)
				sqltest.Exec(t, &db.db, `INSERT INTO own (payload, due, level) VALUES ('due2', now() - interval '1 hour', NULL), ('null1', NULL, NULL), ('due1', now() - interval '2 hours', NULL),
					('later', now() + interval '1 hour', 5), ('null2', NULL, NULL), ('high due', now() - interval '1 minute', 5), ('high null', NULL, 5)`)
				table := sqltest.In(sqlq.Table{Name: "own", ID: "id", Payload: "payload", Attempt: "try", RetryAfter: "due", LockedUntil: "lock", Priority: priority}, f)
				c := sqltest.Open(t, db.Queue(table), settle.Registration{})
				want := []string{"null1", "null2", "high null", "due1", "due2", "high due"}
				if priority != "" {
					want = []string{"high null", "high due", "null1", "null2", "due1", "due2"}
				}
				assert.Equal(t, want, sqltest.Drain(t, c, len(want)))
				sqltest.Nothing(t, c, "a row that is not due")
			})
		}
	}
}

func fifoQueue(t *testing.T, db *DB, key string) *Queue {
	table := sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 2 * time.Second})
	table.FIFO, table.Key = true, key
	return newQueue(t, db, table)
}

func TestFIFOKeepsOneRowOfAKeyInWork(t *testing.T) {
	db := fresh(t, Options{})
	q := fifoQueue(t, db, "msg_key")
	for _, m := range []string{"a1", "a2", "b1", "a3", "b2"} {
		require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte(m), Key: m[:1]}))
	}
	require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("free1")}, settle.Message{Body: []byte("free2")}))
	c := sqltest.Open(t, q, settle.Registration{Workers: 8, Prefetch: 8})
	ds := sqltest.Receive(t, c, 8)
	assert.ElementsMatch(t, []string{"a1", "b1", "free1", "free2"}, sqltest.Bodies(ds))
	sqltest.Nothing(t, c, "the second row of a key while the first is in work")
	byBody := make(map[string]*settle.Delivery)
	for _, d := range ds {
		byBody[string(d.Body)] = d
	}
	require.NoError(t, sqltest.Settle(c, byBody["b1"], ack))
	b := sqltest.Receive(t, c, 8)
	require.Equal(t, []string{"b2"}, sqltest.Bodies(b))

	require.NoError(t, sqltest.Settle(c, byBody["a1"], retry))
	a := sqltest.Receive(t, c, 8)
	require.Equal(t, []string{"a1"}, sqltest.Bodies(a), "a head that is retried stays the head")
	require.NoError(t, sqltest.Settle(c, a[0], settle.Verdict{Action: settle.ActionRetry, Delay: time.Hour}))
	a = sqltest.Receive(t, c, 8)
	require.Equal(t, []string{"a2"}, sqltest.Bodies(a), "a head that is delayed goes behind what is due before it")
	require.NoError(t, sqltest.Settle(c, a[0], ack))
	require.Equal(t, []string{"a3"}, sqltest.Bodies(sqltest.Receive(t, c, 8)))
}

func TestFIFOWithoutKeysIsOneLine(t *testing.T) {
	db := fresh(t, Options{})
	q := fifoQueue(t, db, "")
	sqltest.Publish(t, q, "1", "2", "3")
	c := sqltest.Open(t, q, settle.Registration{Workers: 8, Prefetch: 8})
	d := sqltest.Receive(t, c, 8)
	require.Equal(t, []string{"1"}, sqltest.Bodies(d))
	sqltest.Nothing(t, c, "a second row of the line")
	require.NoError(t, sqltest.Settle(c, d[0], ack))
	require.Equal(t, []string{"2"}, sqltest.Bodies(sqltest.Receive(t, c, 8)))
}

// TestFIFOFindsKeysBehindABusyOne has more due rows of one key that is in work than a claim looks at first.
func TestFIFOFindsKeysBehindABusyOne(t *testing.T) {
	db := fresh(t, Options{})
	q := fifoQueue(t, db, "msg_key")
	sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, msg_key, payload, retry_after) SELECT 'main', 'busy', 'busy', now() - interval '1 hour' FROM generate_series(1, 500)`)
	sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, msg_key, payload) VALUES ('main', 'other', 'other')`)
	c := sqltest.Open(t, q, settle.Registration{})
	require.Equal(t, []string{"busy"}, sqltest.Bodies(sqltest.Receive(t, c, 1)))
	require.Equal(t, []string{"other"}, sqltest.Bodies(sqltest.Receive(t, c, 1)))
}

// TestFIFOOverProcesses claims from two consumers at once, with rows that are
// inserted out of order meanwhile: no key has two rows in work at any time.
func TestFIFOOverProcesses(t *testing.T) {
	h := newHome(t, "postgres")
	db := h.open(t, Options{})
	q := fifoQueue(t, db, "msg_key")
	const keys, each = 5, 40
	for i := range each {
		for k := range keys {
			// Each row comes before those that are there already.
			sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, msg_key, payload, retry_after) VALUES ('main', $1, 'x', now() - $2 * interval '1 second')`, fmt.Sprint("k", k), i)
		}
	}
	var mu sync.Mutex
	busy := make(map[string]int)
	handled := 0
	handler := func(_ context.Context, d *settle.Delivery) settle.Outcome {
		mu.Lock()
		busy[d.Key]++
		if busy[d.Key] > 1 {
			t.Errorf("%d rows of key %s are in work", busy[d.Key], d.Key)
		}
		handled++
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		busy[d.Key]--
		mu.Unlock()
		return settle.Ack()
	}
	other := h.open(t, Options{}).Queue(q.Table())
	sqltest.Serve(t, func(rt *settle.Runtime) {
		rt.Handle(q, handler, settle.Options{Workers: 8})
		rt.Handle(other, handler, settle.Options{Workers: 8})
	})
	for i := range 40 {
		sqltest.Exec(t, &db.db, `INSERT INTO jobs (queue, msg_key, payload, retry_after) VALUES ('main', $1, 'x', now() - interval '1 day')`, fmt.Sprint("k", i%keys))
	}
	sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs")
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, keys*each+40, handled)
}
