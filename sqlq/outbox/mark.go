package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// markTimeout bounds the look at a mark and the writing of one: a handler's outcome does not wait longer for it.
const markTimeout = 10 * time.Second

// Middleware marks the records whose deliveries a handler is done with. A delivery that
// carries an id whose record is marked already is acknowledged without the handler.
// Ack, drop and dead-letter mark the record before they are settled; retry and
// retry_after leave it, unless the attempt was the last (see [settle.Delivery.Final]): that ends as a dead letter. A
// delivery without an id goes to the handler as it is.
//
// A mark that fails changes nothing in the outcome; it is logged and observed, and the
// record is sent once more later. While the database does not answer, handlers are called: a second time rather than not at all.
//
// It is for consumers of what this outbox's relay sends, and of nothing else that
// carries ids in the same header. A handler that has a transaction of its
// delivery (see sqlite.HandleTx) marks in that, by [Box.MarkIn]: the mark must
// not be there if the transaction does not commit.
func (b *Box) Middleware() settle.Middleware {
	return func(next settle.Handler) settle.Handler {
		return func(ctx context.Context, d *settle.Delivery) (o settle.Outcome) {
			id := d.Headers.Get(b.o.Header)
			if id == "" {
				return next(ctx, d)
			}
			if b.isMarked(ctx, id) {
				b.tell(Event{Kind: EventSkipped, Record: id})
				return settle.Ack()
			}
			returned := false
			defer func() { // a panic is a failure of this attempt, and may be the last
				if returned && ends(o) || d.Final {
					b.markAfter(ctx, id)
				}
			}()
			o = next(ctx, d)
			returned = true
			return o
		}
	}
}

// ends reports whether an outcome ends its message, whatever the attempt.
func ends(o settle.Outcome) bool {
	return o.Action() != settle.ActionRetry
}

// isMarked reports whether the record is known to be done.
func (b *Box) isMarked(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	marked, err := b.lookUp(ctx, b.db.DB, id)
	if err != nil && ctx.Err() == nil {
		b.o.Logger.Warn("outbox: whether a record is done cannot be found out; its handler is called", "outbox", b.name, "record", id, "error", err)
	}
	return marked
}

// lookUp reports whether a record is marked. One that is not there is not.
func (b *Box) lookUp(ctx context.Context, ex sqlq.Execer, id string) (bool, error) {
	t, err := b.open(ctx, ex)
	if err != nil {
		return false, err
	}
	value, err := idOf(t.records.Column(sqlq.RoleID), id)
	if err != nil {
		return false, b.foreign(id, err)
	}
	marked := 0
	err = b.query(ctx, ex, t.marked, sqlq.Args{"id": value}, func(rows sqlq.Rows) error { return rows.Scan(&marked) })
	return marked > 0, b.explain("reading a record's mark", err)
}

func (b *Box) foreign(id string, err error) error {
	return fmt.Errorf("%s: header %q holds %q, which is no id of this table: %w", b.name, b.o.Header, id, err)
}

// markAfter marks a record after its handler, on a context of its own.
func (b *Box) markAfter(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	steps, err := b.marking(ctx, b.db.DB, id)
	if err == nil {
		err = b.explain("marking a record", b.db.Batch(ctx, b.db.DB, func() []sqlq.Step { return steps }))
	}
	if err != nil {
		b.o.Logger.Warn("outbox: a record that was processed cannot be marked, so it is sent once more later", "outbox", b.name, "record", id, "error", err)
		b.tell(Event{Kind: EventMarkFailed, Record: id, Err: err})
		return
	}
	b.tell(Event{Kind: EventMarked, Record: id})
}

// MarkIn marks the record of a delivery in the handler's own transaction, so that the mark and what
// the handler wrote are committed together, or neither is. It returns false where the record was marked
// before: then the handler has nothing to do but to acknowledge. A delivery without an id, or of a record that is
// not there any more, is new to it.
func (b *Box) MarkIn(ctx context.Context, tx sqlq.Execer, d *settle.Delivery) (first bool, err error) {
	id := d.Headers.Get(b.o.Header)
	if id == "" {
		return true, nil
	}
	steps, err := b.marking(ctx, tx, id)
	if err != nil {
		return false, err
	}
	for i := range steps {
		n, err := tx.Exec(ctx, steps[i].SQL, steps[i].Args...)
		if err != nil {
			return false, b.explain("marking a record", err)
		}
		first = first || i == 0 && n > 0
	}
	if first {
		return true, nil
	}
	marked, err := b.lookUp(ctx, tx, id)
	return !marked, err
}

// marking are the steps that mark a record.
func (b *Box) marking(ctx context.Context, ex sqlq.Execer, id string) ([]sqlq.Step, error) {
	t, err := b.open(ctx, ex)
	if err != nil {
		return nil, err
	}
	value, err := idOf(t.records.Column(sqlq.RoleID), id)
	if err != nil {
		return nil, b.foreign(id, err)
	}
	steps := make([]sqlq.Step, len(t.mark))
	for i, text := range t.mark {
		if steps[i], err = b.step(text, sqlq.Args{"id": value}, nil); err != nil {
			return nil, err
		}
	}
	return steps, nil
}
