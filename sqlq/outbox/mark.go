package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// markTimeout bounds the look at a mark and the writing of one: a handler's outcome does not wait longer for it.
const markTimeout = 10 * time.Second

// errDead is the cause of a dead letter that comes again, where the first had none.
var errDead = errors.New("outbox: the record ended as a dead letter")

// Middleware marks the records whose deliveries a handler is done with. Ack, drop and
// dead-letter mark the record before they are settled; retry and retry_after leave it, unless the
// attempt was the last (see [settle.Delivery.Final]): that ends as a dead letter. What a handler
// returns because its runtime stops, or because its lease or session is lost, is no failure and marks nothing.
//
// A delivery whose record is marked already does not reach the handler: it is
// acknowledged, or dead-lettered again where it ended so, because the settlement of the first may not have been made true. A
// delivery without an id goes to the handler as it is.
//
// A mark that fails changes nothing in the outcome; it is logged and observed, and the
// record is sent once more later. While the database does not answer, handlers are called: a second time rather than not at all.
//
// One consumer marks: a record has one mark. Where an event goes to several queues, their consumers would
// keep it from each other; all but one do without the middleware, or each queue gets a record of its own. And it is for consumers of
// what this outbox's relay sends, and of nothing else that carries ids in the same header.
//
// A handler that has a transaction of its delivery (see sqlite.HandleTx) marks in that, by [Box.MarkIn]: the mark must
// not be there if the transaction does not commit.
func (b *Box) Middleware() settle.Middleware {
	return func(next settle.Handler) settle.Handler {
		return func(ctx context.Context, d *settle.Delivery) (o settle.Outcome) {
			id := d.Headers.Get(b.o.Header)
			if id == "" {
				return next(ctx, d)
			}
			switch end, cause := b.endOf(ctx, id); end {
			case endedDone:
				b.tell(Event{Kind: EventSkipped, Record: id})
				return settle.Ack()
			case endedDead:
				b.tell(Event{Kind: EventSkipped, Record: id, Err: cause})
				return settle.DeadLetter(cause)
			}
			returned := false
			defer func() {
				if !returned { // a panic is a failure of this attempt, and may be the last
					o = settle.Retry(errors.New("the handler panicked"))
				}
				switch o.Action() {
				case settle.ActionAck, settle.ActionDrop:
					b.markAfter(ctx, id, endedDone, nil)
				case settle.ActionDeadLetter:
					b.markAfter(ctx, id, endedDead, o.Cause())
				default:
					if d.Final && !void(ctx) {
						b.markAfter(ctx, id, endedDead, o.Cause())
					}
				}
			}()
			o = next(ctx, d)
			returned = true
			return o
		}
	}
}

// void reports whether a handler's context was ended by something else than its time: then its
// failure is not counted, and the message comes again.
func void(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return cause != nil && !errors.Is(cause, settle.ErrTimeout) && !errors.Is(cause, context.DeadlineExceeded)
}

// endOf returns how a record ended, as far as can be found out, and why it is a dead letter.
func (b *Box) endOf(ctx context.Context, id string) (ending, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	end, cause, _, err := b.lookUp(ctx, id)
	if err != nil && ctx.Err() == nil {
		b.o.Logger.Warn("outbox: whether a record is done cannot be found out; its handler is called", "outbox", b.name, "record", id, "error", err)
	}
	return end, cause
}

// lookUp reads how a record ended.
func (b *Box) lookUp(ctx context.Context, id string) (end ending, cause error, found bool, err error) {
	t, value, err := b.recordOf(ctx, b.db.DB, id)
	if err != nil {
		return notEnded, nil, false, err
	}
	state, reason := int(notEnded), ""
	err = b.query(ctx, b.db.DB, t.ended, sqlq.Args{"id": value}, func(rows sqlq.Rows) error {
		found = true
		return rows.Scan(&state, &reason)
	})
	if err != nil {
		return notEnded, nil, false, b.explain("reading a record's mark", err)
	}
	cause = errDead
	if reason != "" {
		cause = errors.New(reason)
	}
	return ending(state), cause, found, nil
}

// recordOf returns the tables, and a record's id as they have it.
func (b *Box) recordOf(ctx context.Context, ex sqlq.Execer, id string) (*tables, any, error) {
	t, err := b.open(ctx, ex)
	if err != nil {
		return nil, nil, err
	}
	value, err := idOf(t.records.Column(sqlq.RoleID), id)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: header %q holds %q, which is no id of this table: %w", b.name, b.o.Header, id, err)
	}
	return t, value, nil
}

// markAfter marks a record after its handler, on a context of its own.
func (b *Box) markAfter(ctx context.Context, id string, end ending, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	if err := b.markNow(ctx, id, end, cause); err != nil {
		b.o.Logger.Warn("outbox: a record that was processed cannot be marked, so it is sent once more later", "outbox", b.name, "record", id, "error", err)
		b.tell(Event{Kind: EventMarkFailed, Record: id, Err: err})
		return
	}
	b.tell(Event{Kind: EventMarked, Record: id})
}

func (b *Box) markNow(ctx context.Context, id string, end ending, cause error) error {
	t, value, err := b.recordOf(ctx, b.db.DB, id)
	if err != nil {
		return err
	}
	steps, err := b.marking(t, value, end, cause)
	if err != nil {
		return err
	}
	var touched int64
	steps[0].Touched = func(n int64) { touched = n }
	err = b.db.Batch(ctx, b.db.DB, func() []sqlq.Step { return steps })
	if err != nil || touched > 0 {
		return b.explain("marking a record", err)
	}
	if _, _, found, err := b.lookUp(ctx, id); err != nil || found { // a copy was faster
		return err
	}
	return fmt.Errorf("%s: there is no record %q: it was purged, or header %q is another outbox's", b.name, id, b.o.Header)
}

// MarkIn marks the record of a delivery as processed in the handler's own transaction, so that the mark and what
// the handler wrote are committed together, or neither is. It returns false where the record was marked
// before: then the handler has nothing to do but to acknowledge. A delivery without an id, or of a record that is
// not there any more, is new to it. It waits for a transaction that has just marked the record, at any level of isolation. Call it
// first in the transaction.
func (b *Box) MarkIn(ctx context.Context, tx sqlq.Execer, d *settle.Delivery) (first bool, err error) {
	id := d.Headers.Get(b.o.Header)
	if id == "" {
		return true, nil
	}
	t, value, err := b.recordOf(ctx, tx, id)
	if err != nil {
		return false, err
	}
	steps, err := b.marking(t, value, endedDone, nil)
	if err != nil {
		return false, err
	}
	for i := range steps {
		n, err := tx.Exec(ctx, steps[i].SQL, steps[i].Args...)
		switch {
		case err != nil:
			return false, b.explain("marking a record", err)
		case i == 0 && n == 0:
			exists := false
			err := b.query(ctx, tx, t.exists, sqlq.Args{"id": value}, func(sqlq.Rows) error { exists = true; return nil })
			return !exists && err == nil, b.explain("reading a record's mark", err)
		}
	}
	return true, nil
}

// marking are the steps that end a record.
func (b *Box) marking(t *tables, id any, end ending, cause error) ([]sqlq.Step, error) {
	steps := make([]sqlq.Step, len(t.mark[end]))
	var err error
	for i, text := range t.mark[end] {
		if steps[i], err = b.step(text, sqlq.Args{"id": id, "reason": sqlq.CauseText(cause)}, nil); err != nil {
			return nil, err
		}
	}
	return steps, nil
}
