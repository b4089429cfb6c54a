package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq/outbox"
)

// confirmed has n records recorded and done.
func confirmed(t *testing.T, db *database, box *outbox.Box, n int) {
	t.Helper()
	db.record(t, box, texts(n, "m")...)
	stop := start(t, &outbox.Relay{Box: box, Publisher: &script{}, Done: outbox.OnConfirm})
	awaitCounts(t, box, outbox.Counts{})
	stop()
}

// Purge deletes what was marked long enough ago, all of it, and nothing else.
func TestPurgeDeletesWhatIsMarkedAndOld(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		confirmed(t, db, box, 503)
		db.record(t, box, texts(5, "waits")...)
		n, err := box.Purge(context.Background(), time.Hour)
		require.NoError(t, err)
		assert.Zero(t, n)
		c := sqltest.Count(db.Database())
		n, err = box.Purge(context.Background(), 0)
		require.NoError(t, err)
		assert.EqualValues(t, 503, n)
		assert.LessOrEqual(t, c.Calls.Load()+c.Queries.Load()+c.Begins.Load(), int64(20), "in small batches, not one by one")
		assert.Len(t, log.of(outbox.EventPurged), 1)
		awaitCounts(t, box, outbox.Counts{Waiting: 5})
		table := nameOf(box)
		assert.Equal(t, 5, sqltest.One[int](t, db.Database(), "SELECT count(*) FROM "+table))
		assert.Equal(t, 5, sqltest.One[int](t, db.Database(), "SELECT count(*) FROM "+table+"_relay"))
		_, err = box.Purge(context.Background(), -1)
		var config *settle.ConfigError
		assert.ErrorAs(t, err, &config)
	})
}

// A relay that keeps marked records for a while deletes them afterwards, what was set aside and then marked too.
func TestTheRelayPurgesWhatIsOld(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		db.record(t, box, texts(20, "m")...)
		p := &script{answer: func(m settle.Message) error {
			if string(m.Body) == "m0" {
				return settle.Permanent(errBroken)
			}
			return nil
		}}
		stop := start(t, &outbox.Relay{Box: box, Publisher: p, Done: outbox.OnConfirm})
		awaitCounts(t, box, outbox.Counts{SetAside: 1})
		stop()
		aside, err := box.SetAside(context.Background(), 1)
		require.NoError(t, err)
		// Somebody has processed it by other means.
		first, err := box.MarkIn(context.Background(), db.Database().DB, &settle.Delivery{Headers: settle.Headers{outbox.DefaultHeader: aside[0].ID}})
		require.NoError(t, err)
		assert.True(t, first)
		awaitCounts(t, box, outbox.Counts{})
		start(t, &outbox.Relay{Box: box, Publisher: p, Keep: 100 * time.Millisecond})
		require.Eventually(t, func() bool {
			n := 0
			for _, e := range log.of(outbox.EventPurged) {
				n += e.Records
			}
			return n == 20
		}, sqltest.Deadline, 5*time.Millisecond)
	})
}

// What is done costs nothing more: however many such records are kept, all that claims, sends,
// marks and purges finds its rows by indexes.
func TestNothingReadsWhatIsDone(t *testing.T) {
	s := newStore(t, inPostgres)
	db, box, _ := standard(t, s)
	const done = 30000
	db.exec(t, "INSERT INTO outbox (id, name, payload, processed_at) SELECT md5(n::text), 'orders', 'x', now() FROM generate_series(1, 30000) AS n")
	db.exec(t, "ANALYZE outbox")
	read := func() int {
		return sqltest.One[int](t, db.Database(), "SELECT sum(seq_tup_read)::int FROM pg_stat_user_tables WHERE schemaname = current_schema()")
	}
	before := read()
	other, err := connect(s)
	require.NoError(t, err)
	same := outbox.New(other, outbox.Standard("outbox"), new(events).options())
	db.record(t, box, texts(100, "m")...)
	handler := same.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() })
	p := &script{answer: func(m settle.Message) error {
		if len(m.Body) == 2 { // ten of them
			handler(context.Background(), &settle.Delivery{Headers: m.Headers})
		}
		return nil
	}}
	stop := start(t, &outbox.Relay{Box: same, Publisher: p, Pause: 10 * time.Millisecond, MaxSends: 2, Keep: time.Hour})
	awaitCounts(t, box, outbox.Counts{SetAside: 90})
	stop()
	require.NoError(t, other.close()) // which has its connections tell what they read
	require.Eventually(t, func() bool {
		return sqltest.One[int](t, db.Database(), "SELECT n_tup_upd::int FROM pg_stat_user_tables WHERE relname = 'outbox' AND schemaname = current_schema()") == 10
	}, sqltest.Deadline, 10*time.Millisecond)
	assert.Less(t, read()-before, done)
}
