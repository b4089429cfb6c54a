package postgres

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// waiting opens a consumer with a poll of an hour and waits until it listens and waits.
func waiting(t *testing.T, h home, db *DB, table sqlq.Table) (got chan string) {
	t.Helper()
	listener := openURL(t, with(h.url, "application_name", "listener_"+sqltest.One[string](t, &db.db, "SELECT current_schema()")), Options{Notify: true, Poll: time.Hour})
	c := sqltest.Open(t, listener.Queue(table), settle.Registration{Workers: 4}) // what it has received stays in work
	got = make(chan string, 10)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			buf := make([]*settle.Delivery, 1)
			n, err := c.Receive(ctx, buf)
			if err != nil {
				return
			}
			if n > 0 {
				got <- string(buf[0].Body)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	listens(t, db)
	return got
}

// listens waits until somebody listens and has nothing else to do.
func listens(t *testing.T, db *DB) {
	t.Helper()
	sqltest.Eventually(t, &db.db, true, `SELECT count(*) FILTER (WHERE query LIKE 'LISTEN%') > 0 AND count(*) FILTER (WHERE state = 'active') = 0
		AND count(*) FILTER (WHERE query LIKE '%settle_a%') > 0 FROM pg_stat_activity WHERE application_name = 'listener_' || current_schema()`)
}

func hears(t *testing.T, got chan string, want string) {
	t.Helper()
	select {
	case body := <-got:
		require.Equal(t, want, body)
	case <-time.After(deadline):
		t.Fatal("nobody was woken")
	}
}

// With a poll of an hour, what other processes publish wakes a consumer that listens.
func TestAConsumerIsWokenByOtherProcesses(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		h := home{url: db.Pool().Config().ConnString()}
		publisher := h.open(t, Options{Notify: true}).Queue(q.Table())
		got := waiting(t, h, db, q.Table())
		sqltest.Publish(t, publisher, "a")
		hears(t, got, "a")

		tx, err := db.Pool().Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, publisher.PublishTx(t.Context(), tx, settle.Message{Body: []byte("b")}))
		require.NoError(t, tx.Commit(t.Context()))
		publisher.Wake()
		hears(t, got, "b")

		sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload) VALUES ('main', 'c')")
		sqltest.Exec(t, &db.db, "SELECT pg_notify($1, 'main')", q.Channel())
		hears(t, got, "c")
	})
}

// After its connection was lost a listener listens again, and looks for what it did not hear of.
func TestAListenerComesBack(t *testing.T) {
	h := newHome(t, "postgres")
	db := h.open(t, Options{})
	q := newQueue(t, db, sqlq.Standard("jobs", "main"))
	got := waiting(t, h, db, q.Table())
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload) VALUES ('main', 'unheard')")
	sqltest.Exec(t, &db.db, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'listener_' || current_schema() AND query LIKE 'LISTEN%'")
	hears(t, got, "unheard")
	listens(t, db)
	sqltest.Publish(t, h.open(t, Options{Notify: true}).Queue(q.Table()), "heard")
	hears(t, got, "heard")
}

// Notifications are bounded: those of one queue go together for as long as NotifyEvery.
func TestNotificationsAreBounded(t *testing.T) {
	h := newHome(t, "postgres")
	publisher := h.open(t, Options{Notify: true, NotifyEvery: time.Hour})
	q := newQueue(t, publisher, sqlq.Standard("jobs", "main"))
	listener, err := publisher.Pool().Acquire(t.Context())
	require.NoError(t, err)
	defer listener.Release()
	_, err = listener.Exec(t.Context(), "LISTEN "+quote(q.Channel()))
	require.NoError(t, err)
	var heard atomic.Int64
	sqltest.Publish(t, q, "a", "b", "c")
	n, err := listener.Conn().WaitForNotification(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "main", n.Payload)
	for range 50 {
		sqltest.Publish(t, q, "x")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := listener.Conn().WaitForNotification(ctx); err == nil {
		heard.Add(1)
	}
	assert.Zero(t, heard.Load(), "the next may come in an hour")
}

// Nobody listens, and nobody is told, where that was not asked for.
func TestWithoutNotifyNobodyListens(t *testing.T) {
	h := newHome(t, "postgres")
	db := openURL(t, h.url, Options{})
	q := newQueue(t, db, sqlq.Standard("jobs", "main"))
	c := sqltest.Open(t, q, settle.Registration{})
	sqltest.Publish(t, q, "a")
	sqltest.Receive(t, c, 1)
	assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = current_schema() AND query ILIKE 'LISTEN%'"))
}

func TestChannelsAreNotCut(t *testing.T) {
	db := fresh(t, Options{})
	long := sqlq.Standard("a_table_with_a_name_that_is_as_long_as_the_server_keeps_1234567", "main")
	a, b := db.Queue(long), db.Queue(sqlq.Standard(long.Name[:62]+"8", "main"))
	assert.LessOrEqual(t, len(a.Channel()), 63)
	assert.NotEqual(t, a.Channel(), b.Channel())
	assert.Equal(t, "settle:jobs", db.Queue(sqlq.Standard("jobs", "main")).Channel())
}
