package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq/outbox"
)

// sentOne records a message, has it sent and returns its delivery.
func sentOne(t *testing.T, db *database, box *outbox.Box) *settle.Delivery {
	t.Helper()
	db.record(t, box, text("m"))
	p := &script{}
	stop := start(t, &outbox.Relay{Box: box, Publisher: p})
	sent := p.await(t, 1)[0]
	stop()
	return &settle.Delivery{Body: sent.Body, Headers: sent.Headers, Attempt: 1}
}

// sides are a table with a column for the mark and one without: there the mark is in the side table.
func eachTable(t *testing.T, test func(t *testing.T, db *database, box *outbox.Box, log *events)) {
	eachStore(t, func(t *testing.T, s store) {
		t.Run("marked in the table", func(t *testing.T) {
			db, box, log := standard(t, s)
			test(t, db, box, log)
		})
		t.Run("marked beside it", func(t *testing.T) {
			db, log := s.open(t), new(events)
			test(t, db, newBox(t, db, outbox.Table{Name: "bare", ID: "id", To: "name", Payload: "payload"}, log), log)
		})
	})
}

// An outcome that ends the message marks its record, one that does not leaves it, unless it was the last attempt.
// A record that is marked is not handled again.
func TestWhatAHandlersOutcomeMarks(t *testing.T) {
	oops := errors.New("ack: not this word")
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		for name, c := range map[string]struct {
			outcome settle.Outcome
			final   bool
			panics  bool
			marks   bool
		}{
			"ack":                {outcome: settle.Ack(), marks: true},
			"drop":               {outcome: settle.Drop(oops), marks: true},
			"dead-letter":        {outcome: settle.DeadLetter(oops), marks: true},
			"retry":              {outcome: settle.Retry(oops)},
			"retry_after":        {outcome: settle.RetryAfter(time.Second, oops)},
			"none":               {},
			"panic":              {panics: true},
			"final retry":        {outcome: settle.Retry(oops), final: true, marks: true},
			"final retry_after":  {outcome: settle.RetryAfter(time.Second, nil), final: true, marks: true},
			"final none":         {final: true, marks: true},
			"final panic":        {panics: true, final: true, marks: true},
			"final ack":          {outcome: settle.Ack(), final: true, marks: true},
			"final dead-letter ": {outcome: settle.DeadLetter(nil), final: true, marks: true},
		} {
			d := sentOne(t, db, box)
			d.Final = c.final
			calls, failing := 0, c.panics
			handler := box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome {
				if calls++; failing {
					panic("oops")
				}
				return c.outcome
			})
			if c.panics {
				assert.PanicsWithValue(t, "oops", func() { handler(context.Background(), d) }, name)
			} else {
				assert.Equal(t, c.outcome, handler(context.Background(), d), name)
			}
			failing = false
			marks := len(log.of(outbox.EventMarked))
			again := handler(context.Background(), d)
			if c.marks {
				assert.Equal(t, 1, calls, "%s: a copy of what is marked does not reach the handler", name)
				assert.Equal(t, settle.Ack(), again, name)
				assert.Len(t, log.of(outbox.EventMarked), marks, name)
			} else {
				assert.Equal(t, 2, calls, "%s: what is not marked comes again", name)
			}
			assert.Equal(t, settle.Ack(), box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() })(context.Background(), d), name)
			awaitCounts(t, box, outbox.Counts{})
		}
	})
}

// A delivery that carries no id, or none that can be one of the table's, is the handler's.
func TestForeignDeliveriesAreHandled(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		for _, headers := range []settle.Headers{nil, {outbox.DefaultHeader: "no number"}, {outbox.DefaultHeader: "4711"}} {
			calls := 0
			o := box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { calls++; return settle.Ack() })(
				context.Background(), &settle.Delivery{Headers: headers})
			assert.Equal(t, settle.Ack(), o)
			assert.Equal(t, 1, calls)
			first, err := box.MarkIn(context.Background(), db.Database().DB, &settle.Delivery{Headers: headers})
			if headers.Get(outbox.DefaultHeader) == "no number" {
				assert.ErrorContains(t, err, "no id of this table")
			} else {
				assert.NoError(t, err)
				assert.True(t, first)
			}
		}
		assert.Len(t, log.of(outbox.EventMarkFailed), 1)
	})
}

// A mark that fails keeps the outcome, and is told.
func TestAMarkThatFailsKeepsTheOutcome(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		d := sentOne(t, db, box)
		table, column := "outbox", "processed_at"
		if nameOf(box) == "bare" {
			table, column = "bare_relay", "state"
		}
		handled := false
		o := box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome {
			handled = true
			db.exec(t, "ALTER TABLE "+table+" RENAME COLUMN "+column+" TO elsewhere")
			return settle.Drop(errBroken)
		})(context.Background(), d)
		assert.Equal(t, settle.Drop(errBroken), o)
		failed := log.of(outbox.EventMarkFailed)
		require.Len(t, failed, 1)
		assert.Error(t, failed[0].Err)
		assert.Equal(t, d.Headers.Get(outbox.DefaultHeader), failed[0].Record)
		assert.Contains(t, log.log(), "cannot be marked")

		handled = false // and where the mark cannot be read the handler is called
		box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { handled = true; return settle.Retry(nil) })(context.Background(), d)
		assert.True(t, handled)
		db.exec(t, "ALTER TABLE "+table+" RENAME COLUMN elsewhere TO "+column)
	})
}

// A handler's context that has ended does not keep the mark from being written.
func TestTheMarkOutlivesTheHandlersContext(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		d := sentOne(t, db, box)
		ctx, cancel := context.WithCancel(context.Background())
		box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { cancel(); return settle.Ack() })(ctx, d)
		assert.Len(t, log.of(outbox.EventMarked), 1)
	})
}

// In a handler's own transaction the mark is there if that commits, and says whether it is the first.
func TestTheMarkInATransactionGoesWithIt(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, _ *events) {
		d := sentOne(t, db, box)
		mark := func(commit bool) bool {
			tx, err := db.begin(context.Background())
			require.NoError(t, err)
			first, err := box.MarkIn(context.Background(), tx, d)
			require.NoError(t, err)
			if commit {
				require.NoError(t, tx.commit())
			} else {
				require.NoError(t, tx.rollback())
			}
			return first
		}
		assert.True(t, mark(false))
		awaitCounts(t, box, outbox.Counts{Waiting: 1})
		assert.True(t, mark(true))
		awaitCounts(t, box, outbox.Counts{})
		assert.False(t, mark(true))
	})
}

// A consumer that is faster than the relay's own settlement changes nothing, and a record marked
// while it waits is not sent again.
func TestAMarkBeforeTheRelayKnowsEndsTheRecord(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		handler := box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() })
		p := &script{answer: func(m settle.Message) error {
			handler(context.Background(), &settle.Delivery{Headers: m.Headers})
			return nil
		}}
		db.record(t, box, texts(20, "m")...)
		start(t, &outbox.Relay{Box: box, Publisher: p, Pause: time.Millisecond})
		require.Eventually(t, func() bool { return len(log.of(outbox.EventMarked)) == 20 }, sqltest.Deadline, time.Millisecond)
		awaitCounts(t, box, outbox.Counts{})
		assert.Len(t, p.copies(), 20)
		assert.Empty(t, log.log())
	})
}
