package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq/outbox"
)

// This file has the database in trouble, and changed by others' hands.

// What somebody marked or deleted by other means is not sent, and leaves nothing behind.
func TestWhatOthersMarkOrDeleteIsNotSent(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		db, box, _ := standard(t, s)
		db.record(t, box, texts(3, "m")...)
		at := "now()"
		if s.kind == inSQLite {
			at = "1"
		}
		id := func(of string) string {
			return "'" + sqltest.One[string](t, db.Database(), "SELECT "+of+"(id) FROM outbox") + "'"
		}
		db.exec(t, "UPDATE outbox SET processed_at = "+at+" WHERE id = "+id("min"))
		db.exec(t, "DELETE FROM outbox WHERE id = "+id("max"))
		p := &script{}
		start(t, &outbox.Relay{Box: box, Publisher: p})
		p.await(t, 1)
		awaitCounts(t, box, outbox.Counts{Waiting: 1})
		assert.Equal(t, []string{"m1"}, bodies(p.copies()))
	})
}

// Rows that were in the user's table before are taken up by a row in the side table.
func TestRowsThatWereThereBeforeAreTakenUp(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		db, box, _ := standard(t, s)
		db.exec(t, "INSERT INTO outbox (id, name, payload) VALUES ('1', 'orders', 'old')")
		db.record(t, box, text("new"))
		db.exec(t, "INSERT INTO outbox_relay (id, state) SELECT id, 'waiting' FROM outbox AS e WHERE processed_at IS NULL AND NOT EXISTS (SELECT 1 FROM outbox_relay AS r WHERE r.id = e.id)")
		p := &script{}
		start(t, &outbox.Relay{Box: box, Publisher: p})
		assert.ElementsMatch(t, []string{"old", "new"}, bodies(p.await(t, 2)))
	})
}

// What the broker confirmed and the database cannot mark is marked when it can be, and is not sent again meanwhile.
func TestAConfirmThatCannotBeMarkedIsNotForgotten(t *testing.T) {
	db, box, log := standard(t, newStore(t, inSQLite))
	db.exec(t, "CREATE TRIGGER never BEFORE UPDATE OF processed_at ON outbox BEGIN SELECT RAISE(ABORT, 'not now'); END")
	db.record(t, box, texts(5, "m")...)
	p := &script{}
	start(t, &outbox.Relay{Box: box, Publisher: p, Done: outbox.OnConfirm, Pause: time.Millisecond, Lease: time.Second})
	require.Eventually(t, func() bool { return strings.Contains(log.log(), "cannot be marked") }, sqltest.Deadline, time.Millisecond)
	time.Sleep(1500 * time.Millisecond) // longer than a lease: they are renewed
	awaitCounts(t, box, outbox.Counts{Waiting: 5})
	db.exec(t, "DROP TRIGGER never")
	awaitCounts(t, box, outbox.Counts{})
	assert.Len(t, p.copies(), 5)
}

// A relay that stops while the database does not take the mark leaves the record to be sent again.
func TestAConfirmThatIsNeverMarkedIsSentAgain(t *testing.T) {
	s := newStore(t, inSQLite)
	db, box, log := standard(t, s)
	db.exec(t, "CREATE TRIGGER never BEFORE UPDATE OF processed_at ON outbox BEGIN SELECT RAISE(ABORT, 'not now'); END")
	db.record(t, box, text("m"))
	p := &script{}
	r := &outbox.Relay{Box: box, Publisher: p, Done: outbox.OnConfirm, Pause: time.Millisecond}
	stop := start(t, r)
	require.Eventually(t, func() bool { return strings.Contains(log.log(), "cannot be marked") }, sqltest.Deadline, time.Millisecond)
	stop()
	awaitCounts(t, box, outbox.Counts{Waiting: 1})
	db.exec(t, "DROP TRIGGER never")
	start(t, r)
	awaitCounts(t, box, outbox.Counts{})
	assert.Len(t, p.copies(), 2)
}

// A database that is down at first is waited for, for so long; what settings it has wrong is told at once.
func TestADatabaseThatIsDownAtFirst(t *testing.T) {
	s := newStore(t, inPostgres)
	db, box, _ := standard(t, s)
	db.record(t, box, text("m"))
	proxy := faults.Proxy(t, s.url)
	proxy.Refuse()
	away := store{s.kind, proxy.URL()}.open(t)
	far := outbox.New(away, outbox.Standard("outbox"), new(events).options())
	p := &script{}
	began := time.Now()
	require.Error(t, (&outbox.Relay{Box: far, Publisher: p, StartTimeout: 300 * time.Millisecond}).Run(context.Background()))
	assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)

	start(t, &outbox.Relay{Box: far, Publisher: p, StartTimeout: time.Minute, MaxBackoff: 100 * time.Millisecond})
	proxy.Restore()
	p.await(t, 1)
	proxy.Sever()
	proxy.Refuse()
	db.record(t, box, text("while it is away"))
	proxy.Sever()
	proxy.Restore()
	assert.Equal(t, "while it is away", string(p.await(t, 2)[1].Body), "a database that breaks meanwhile does not end the relay")
}

// While the database is away handlers are called, and their outcomes stand.
func TestAConsumerWhoseDatabaseIsAway(t *testing.T) {
	s := newStore(t, inPostgres)
	proxy := faults.Proxy(t, s.url)
	db, log := store{s.kind, proxy.URL()}.open(t), new(events)
	box := newBox(t, db, outbox.Standard("outbox"), log)
	d := sentOne(t, db, box)
	proxy.Refuse()
	proxy.Sever()
	ctx, cancel := context.WithTimeout(context.Background(), sqltest.Deadline)
	defer cancel()
	calls := 0
	o := box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { calls++; return settle.Ack() })(ctx, d)
	assert.Equal(t, settle.Ack(), o)
	assert.Equal(t, 1, calls)
	assert.Len(t, log.of(outbox.EventMarkFailed), 1)
	proxy.Restore()
	awaitCounts(t, box, outbox.Counts{Waiting: 1})
}
