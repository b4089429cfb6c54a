package sqlite

import (
	"context"
	"database/sql"
	"errors"
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

func TestPublishKeepsTheWholeMessage(t *testing.T) {
	db := openFile(t, Options{})
	table := leased(time.Minute)
	table.Priority = "priority"
	q := newQueue(t, db, table)
	require.NoError(t, q.Publish(t.Context(), settle.Message{
		ID: "order-7", Key: "customer-1", Body: []byte(`{"n":1}`), Priority: 4,
		Headers: settle.Headers{"text": "héé<&>", "bytes": []byte("b"), "n": 7, "f": 1.5, "yes": true, "list": []any{1, "x"}},
	}))
	assert.Equal(t, "text", sqltest.One[string](t, &db.db, "SELECT typeof(payload) FROM jobs"), "SQL can look into it")
	assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT payload ->> 'n' FROM jobs"))
	d := sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{}), 1)[0]
	assert.Equal(t, "order-7", d.ID)
	assert.Equal(t, "customer-1", d.Key)
	assert.Equal(t, `{"n":1}`, string(d.Body))
	assert.Equal(t, settle.Headers{
		"text": "héé<&>", "bytes": "b", "n": int64(7), "f": 1.5, "yes": true, "list": []any{int64(1), "x"}, "message-id": "order-7",
	}, d.Headers)
}

func TestADelayedMessageIsNotDueBefore(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	c := sqltest.Open(t, q, settle.Registration{})
	sqltest.Nothing(t, c, "the queue is empty")
	const delay = 150 * time.Millisecond
	published := time.Now()
	require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("x"), Delay: delay}))
	sqltest.Receive(t, c, 1)
	assert.GreaterOrEqual(t, time.Since(published), delay)
}

func TestPublishInAnotherGroup(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	other := leased(time.Minute)
	other.GroupValue = "other"
	c := sqltest.Open(t, db.Queue(other), settle.Registration{})
	got := make(chan []*settle.Delivery, 1)
	go func() { got <- sqltest.Receive(t, c, 1) }()
	require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("x"), To: "other"}))
	assert.Equal(t, "x", string((<-got)[0].Body), "its consumer is woken")
	sqltest.Nothing(t, sqltest.Open(t, q, settle.Registration{}), "it is not in this queue")
}

func TestPublishTxIsTheCallersTransaction(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	c := sqltest.Open(t, q, settle.Registration{})

	tx, err := db.SQL().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, q.PublishTx(t.Context(), tx, settle.Message{Body: []byte("undone")}))
	require.NoError(t, tx.Rollback())
	sqltest.Nothing(t, c, "it was rolled back")

	got := make(chan []*settle.Delivery, 1)
	go func() { got <- sqltest.Receive(t, c, 1) }()
	tx, err = db.SQL().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, q.PublishTx(t.Context(), tx, settle.Message{Body: []byte("done")}))
	require.NoError(t, tx.Commit())
	q.Wake()
	assert.Equal(t, "done", string((<-got)[0].Body))
}

func TestPublishTxWithoutATransactionSaysSo(t *testing.T) {
	q := newQueue(t, openFile(t, Options{}), leased(time.Minute))
	assert.ErrorContains(t, q.PublishTx(t.Context(), nil, settle.Message{}), "it is nil; Publish has one of its own")
}

// What a table cannot carry is refused for good, message by message; the others go.
func TestPublishRefusesWhatTheTableCannotCarry(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, sqlq.Table{Name: "bare", ID: "id", Payload: "payload", LockedUntil: "locked_until"})
	msgs := []settle.Message{
		{Body: []byte("good")},
		{Delay: time.Second},
		{Key: "k"},
		{Headers: settle.Headers{"a": "b"}},
		{ID: "mine"},
		{To: "elsewhere"},
		{Body: []byte("also good"), Priority: 5},
	}
	err := q.Publish(t.Context(), msgs...)
	var p *settle.PublishError
	require.ErrorAs(t, err, &p)
	assert.Equal(t, len(msgs), p.Total)
	require.Len(t, p.Failed, 5)
	for i, word := range []string{"Delay", "Key", "Headers", "ID", "elsewhere"} {
		assert.Equal(t, i+1, p.Failed[i].Index)
		assert.True(t, settle.IsPermanent(p.Failed[i].Err))
		assert.ErrorContains(t, p.Failed[i].Err, word)
		assert.ErrorContains(t, p.Failed[i].Err, `table "bare"`)
	}
	assert.Equal(t, "good,also good", sqltest.One[string](t, &db.db, "SELECT group_concat(payload) FROM bare"))

	full := newQueue(t, db, leased(time.Minute))
	for _, h := range []settle.Headers{{"f": func() {}}, {"bad": "\xff"}, {"\xff": "bad"}, {"bad": []byte{0xff}}} {
		err := full.Publish(t.Context(), settle.Message{Headers: h})
		require.Error(t, err)
		assert.True(t, settle.IsPermanent(err), "%v", err)
	}
}

// A message that the database refuses, such as one whose id is taken, does not
// keep the others from going.
func TestPublishGoesOnWithoutWhatTheDatabaseRefuses(t *testing.T) {
	db := openFile(t, Options{})
	sqltest.Exec(t, &db.db, "CREATE TABLE own (id TEXT PRIMARY KEY, body TEXT CHECK (body <> 'no'), lock INTEGER)")
	q := db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", LockedUntil: "lock"})
	require.NoError(t, q.Publish(t.Context(), settle.Message{ID: "a", Body: []byte("1")}))
	err := q.Publish(t.Context(), settle.Message{ID: "b", Body: []byte("2")}, settle.Message{ID: "a", Body: []byte("3")}, settle.Message{ID: "c", Body: []byte("no")}, settle.Message{Body: []byte("4")})
	errs := settle.PublishErrors(err, 4)
	assert.NoError(t, errs[0])
	assert.True(t, settle.IsPermanent(errs[1]), "%v", errs[1])
	assert.True(t, settle.IsPermanent(errs[2]), "%v", errs[2])
	assert.NoError(t, errs[3])
	assert.Equal(t, "a=1,b=2", sqltest.One[string](t, &db.db, "SELECT group_concat(id || '=' || body ORDER BY id) FROM own WHERE body < '3'"))
	id := sqltest.One[string](t, &db.db, "SELECT id FROM own WHERE body = '4'")
	assert.Len(t, id, 32, "a message without an id gets one")
}

func TestIDsThatAreMadeSortByTime(t *testing.T) {
	db := openFile(t, Options{})
	sqltest.Exec(t, &db.db, "CREATE TABLE own (id TEXT PRIMARY KEY, body TEXT, lock INTEGER)")
	q := db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", LockedUntil: "lock"})
	for _, b := range []string{"1", "2", "3"} {
		sqltest.Publish(t, q, b)
		time.Sleep(2 * time.Millisecond) // ids count milliseconds
	}
	assert.Equal(t, "1,2,3", sqltest.One[string](t, &db.db, "SELECT group_concat(body ORDER BY id) FROM own"))
}

// What Publish commits is on the disk: its connections have synchronous=FULL.
func TestPublishIsDurable(t *testing.T) {
	full, normal := "2", "1"
	for _, durable := range []bool{false, true} {
		db := openFile(t, Options{Durable: durable})
		for i, want := range []string{map[bool]string{false: normal, true: full}[durable], map[bool]string{false: normal, true: full}[durable], full} {
			assert.Equal(t, want, pragma(t, db.pools[i], "synchronous"), "pool %d", i)
			assert.Equal(t, "wal", pragma(t, db.pools[i], "journal_mode"))
		}
	}
	// A wrapped database's connections are made so for as long as they publish.
	pool, err := sql.Open("sqlite", dsn(filepath.Join(t.TempDir(), "q.db"), time.Second, "NORMAL"))
	require.NoError(t, err)
	defer pool.Close()
	pool.SetMaxOpenConns(2)
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	conn, err := db.db.Durable.Conn(t.Context())
	require.NoError(t, err)
	got, err := text(t.Context(), conn, "PRAGMA synchronous")
	require.NoError(t, err)
	assert.Equal(t, full, got)
	require.NoError(t, conn.Close())
	assert.Equal(t, normal, pragma(t, pool, "synchronous"), "and put back")
}

func pragma(t testing.TB, pool *sql.DB, name string) string {
	t.Helper()
	var s string
	require.NoError(t, pool.QueryRow("PRAGMA "+name).Scan(&s))
	return s
}

func TestPurgeDeletesWhatWasProcessedLongAgo(t *testing.T) {
	table := leased(time.Minute)
	table.ProcessedAt = "processed_at"
	db := openFile(t, Options{})
	q := newQueue(t, db, table)
	other := table
	other.GroupValue = "other"
	many := make([]string, 1200)
	sqltest.Publish(t, q, many...)
	sqltest.Publish(t, db.Queue(other), "other")
	sqltest.Exec(t, &db.db, "UPDATE jobs SET processed_at = ?", time.Now().Add(-time.Hour).UnixMicro())
	sqltest.Publish(t, q, "new", "waiting")
	sqltest.Exec(t, &db.db, "UPDATE jobs SET processed_at = ? WHERE payload = 'new'", time.Now().Add(-time.Minute).UnixMicro())
	n, err := q.Purge(t.Context(), 30*time.Minute)
	require.NoError(t, err)
	assert.EqualValues(t, 1200, n)
	assert.Equal(t, "other,new,waiting", sqltest.One[string](t, &db.db, "SELECT group_concat(payload) FROM jobs"))

	_, err = q.Purge(t.Context(), -1)
	require.ErrorContains(t, err, "negative")
	_, err = db.Queue(leased(time.Minute)).Purge(t.Context(), time.Hour)
	var config *settle.ConfigError
	require.ErrorAs(t, err, &config)
	assert.Equal(t, "ProcessedAt", config.Setting)
}

func TestProcessedRowsStayAndAreNotHandedOut(t *testing.T) {
	table := leased(time.Minute)
	table.ProcessedAt = "processed_at"
	db := openFile(t, Options{})
	q := newQueue(t, db, table)
	sqltest.Publish(t, q, "a", "b")
	c := sqltest.Open(t, q, settle.Registration{Workers: 2})
	ds := sqltest.Receive(t, c, 2)
	before := time.Now()
	require.NoError(t, sqltest.Settle(c, ds[0], ack))
	require.NoError(t, sqltest.Settle(c, ds[1], settle.Verdict{Action: settle.ActionDrop, Cause: errors.New("not wanted")}))
	sqltest.Nothing(t, c, "both are processed")
	for _, b := range []string{"a", "b"} {
		at := time.UnixMicro(sqltest.One[int64](t, &db.db, "SELECT processed_at FROM jobs WHERE payload = ? AND locked_until IS NULL", b))
		assert.WithinRange(t, at, before.Add(-time.Microsecond), time.Now())
	}
	assert.Equal(t, "-,not wanted", sqltest.One[string](t, &db.db, "SELECT group_concat(coalesce(cause, '-')) FROM jobs"))
	n, err := q.Len(t.Context())
	require.NoError(t, err)
	assert.Zero(t, n)
	require.ErrorIs(t, sqltest.Settle(c, ds[0], retry), settle.ErrLeaseLost, "a processed row is nobody's any more")
}

func TestACauseIsCutAndCleaned(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Minute))
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	require.NoError(t, sqltest.Settle(c, d, settle.Verdict{Action: settle.ActionRetry, Cause: errors.New("\x00\xff" + strings.Repeat("é", 2000))}))
	cause := sqltest.One[string](t, &db.db, "SELECT cause FROM jobs")
	assert.True(t, strings.HasPrefix(cause, "\uFFFD\uFFFDé"), "%q", cause[:20])
	assert.InDelta(t, 2000, len(cause), 10)
}

func TestPublishOfNothingAndAfterTheEnd(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, leased(time.Minute))
	require.NoError(t, q.Publish(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, q.Publish(ctx, settle.Message{}), context.Canceled)
	assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
}
