package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/mysql"
	"github.com/settlemq/settle/sqlq/outbox"
	"github.com/settlemq/settle/sqlq/postgres"
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

// eachTable runs a test on a table with a column for the mark, on one without, where the mark is in the side table, and on one whose
// ids the database counts.
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
		t.Run("counted", func(t *testing.T) {
			db, log := s.open(t), new(events)
			ids := map[string]string{inSQLite: "INTEGER PRIMARY KEY", inPostgres: "serial PRIMARY KEY", inMySQL: "int AUTO_INCREMENT PRIMARY KEY", inMariaDB: "int AUTO_INCREMENT PRIMARY KEY"}[s.kind]
			at := map[string]string{inSQLite: "INTEGER", inPostgres: "timestamptz", inMySQL: "datetime(6)", inMariaDB: "datetime(6)"}[s.kind]
			db.exec(t, "CREATE TABLE counted (id "+ids+", name text, payload text, processed_at "+at+")")
			test(t, db, newBox(t, db, outbox.Table{Name: "counted", ID: "id", To: "name", Payload: "payload", ProcessedAt: "processed_at"}, log), log)
		})
	})
}

// An outcome that ends the message marks its record, one that does not leaves it, unless it was the last attempt.
// A record that is marked is not handled again; one that ended as a dead letter is dead-lettered again.
func TestWhatAHandlersOutcomeMarks(t *testing.T) {
	oops := errors.New("ack: not this word")
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		const without = "outbox: the record ended as a dead letter"
		for name, c := range map[string]struct {
			outcome settle.Outcome
			final   bool
			panics  bool
			again   string // what a copy gets without the handler; empty: the handler gets it
		}{
			"ack":               {outcome: settle.Ack(), again: "ack"},
			"drop":              {outcome: settle.Drop(oops), again: "ack"},
			"dead-letter":       {outcome: settle.DeadLetter(oops), again: "dead-letter: " + oops.Error()},
			"retry":             {outcome: settle.Retry(oops)},
			"retry_after":       {outcome: settle.RetryAfter(time.Second, oops)},
			"none":              {},
			"panic":             {panics: true},
			"final retry":       {outcome: settle.Retry(oops), final: true, again: "dead-letter: " + oops.Error()},
			"final retry_after": {outcome: settle.RetryAfter(time.Second, nil), final: true, again: "dead-letter: " + without},
			"final none":        {final: true, again: "dead-letter: " + without},
			"final panic":       {panics: true, final: true, again: "dead-letter: the handler panicked"},
			"final ack":         {outcome: settle.Ack(), final: true, again: "ack"},
			"final dead-letter": {outcome: settle.DeadLetter(nil), final: true, again: "dead-letter: " + without},
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
			if c.again != "" {
				assert.Equal(t, 1, calls, "%s: a copy of what is marked does not reach the handler", name)
				assert.Equal(t, c.again, again.String(), "%s: nor is a dead letter lost that was not settled", name)
				assert.Len(t, log.of(outbox.EventMarked), marks, name)
			} else {
				assert.Equal(t, 2, calls, "%s: what is not marked comes again", name)
				box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() })(context.Background(), d)
			}
			awaitCounts(t, box, outbox.Counts{})
		}
	})
}

// A dead letter is put back by way of its record: a new copy is sent and handled. The old one, put back in the broker, stays dead until then.
func TestADeadLetterIsPutBack(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, _ *events) {
		d := sentOne(t, db, box)
		box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { return settle.DeadLetter(errBroken) })(context.Background(), d)
		n, err := box.SendAgain(context.Background())
		require.NoError(t, err)
		assert.Zero(t, n, "without ids dead letters stay what they are")
		n, err = box.SendAgain(context.Background(), d.Headers.Get(outbox.DefaultHeader))
		require.NoError(t, err)
		assert.EqualValues(t, 1, n)
		p := &script{}
		start(t, &outbox.Relay{Box: box, Publisher: p})
		again := p.await(t, 1)[0]
		awaitCounts(t, box, outbox.Counts{Waiting: 1})
		calls := 0
		box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { calls++; return settle.Ack() })(context.Background(), &settle.Delivery{Headers: again.Headers})
		assert.Equal(t, 1, calls)
		awaitCounts(t, box, outbox.Counts{})
	})
}

// A failure that is none, because the handler was cut off, marks nothing: the message comes again. One that ran out of its own time is the last.
func TestAHandlerThatIsCutOffMarksNothing(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		for cause, marks := range map[error]bool{
			settle.ErrDraining: false, settle.ErrLeaseLost: false, settle.ErrSessionLost: false, context.Canceled: false,
			settle.ErrTimeout: true, context.DeadlineExceeded: true,
		} {
			d := sentOne(t, db, box)
			d.Final = true
			before := len(log.of(outbox.EventMarked))
			ctx, cancel := context.WithCancelCause(context.Background())
			box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome {
				cancel(cause)
				return settle.Retry(cause)
			})(ctx, d)
			assert.Equal(t, marks, len(log.of(outbox.EventMarked)) > before, "%v", cause)
			box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() })(context.Background(), d)
			awaitCounts(t, box, outbox.Counts{})
		}
	})
}

// Of two transactions with copies of one record one is the first, whatever the isolation: the second waits, and finds the mark
// or fails.
func TestTwoTransactionsAreNotBothTheFirst(t *testing.T) {
	for _, kind := range []string{inPostgres, inMySQL, inMariaDB} {
		t.Run(kind, func(t *testing.T) {
			db, box, _ := standard(t, newStore(t, kind))
			d := sentOne(t, db, box)
			begin := func() (sqlq.Execer, func() error) {
				if kind == inPostgres {
					tx, err := db.DB.(*postgres.DB).Pool().BeginTx(context.Background(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
					require.NoError(t, err)
					return postgres.Tx(tx), func() error { return tx.Commit(context.Background()) }
				}
				tx, err := db.DB.(*mysql.DB).SQL().BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
				require.NoError(t, err)
				return mysql.Tx(tx), tx.Commit
			}
			one, commitOne := begin()
			two, commitTwo := begin()
			for _, tx := range []sqlq.Execer{one, two} { // from here on they see what is there now
				rows, err := tx.Query(context.Background(), "SELECT count(*) FROM outbox")
				require.NoError(t, err)
				require.NoError(t, rows.Close())
			}
			first, err := box.MarkIn(context.Background(), one, d)
			require.NoError(t, err)
			assert.True(t, first)
			require.NoError(t, commitOne())
			first, err = box.MarkIn(context.Background(), two, d)
			assert.False(t, first)
			if kind == inPostgres {
				assert.ErrorContains(t, err, "40001")
			} else {
				assert.NoError(t, err)
			}
			_ = commitTwo()
		})
	}
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
			if headers.Get(outbox.DefaultHeader) == "no number" && nameOf(box) == "counted" {
				assert.ErrorContains(t, err, "no id of this table")
			} else {
				assert.NoError(t, err)
				assert.True(t, first)
			}
		}
		assert.Len(t, log.of(outbox.EventMarkFailed), 2)
		assert.Empty(t, log.of(outbox.EventMarked))
	})
}

// A mark that fails keeps the outcome, and is told.
func TestAMarkThatFailsKeepsTheOutcome(t *testing.T) {
	eachTable(t, func(t *testing.T, db *database, box *outbox.Box, log *events) {
		d := sentOne(t, db, box)
		table, column := nameOf(box), "processed_at"
		if table == "bare" {
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
