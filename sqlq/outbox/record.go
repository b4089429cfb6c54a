package outbox

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// priorityHeader keeps Message.Priority until the record is sent.
const priorityHeader = "x-settle-priority"

// Record writes messages in the caller's own transaction, such as
// postgres.Tx(tx) or sqlq.SQLTx(tx): they are there once that commits, as durable as its settings
// make it, and are sent from then on. A message's Delay counts from now. Its
// ID, Headers and Priority are kept with it; where it has no ID, the record's id is sent as one.
//
// A message that cannot be kept is refused with an error marked by [settle.Permanent], before anything is written.
// After an error of the database roll back.
func (b *Box) Record(ctx context.Context, tx sqlq.Execer, msgs ...settle.Message) error {
	if b.invalid != nil || len(msgs) == 0 {
		return b.invalid
	}
	if tx == nil {
		return fmt.Errorf("%s: Record needs the transaction that the messages belong to, such as postgres.Tx(tx)", b.name)
	}
	steps, of, err := b.insertions(ctx, tx, msgs)
	if err != nil {
		return err
	}
	if b.db.OneWriter { // a statement that is interrupted would end the caller's transaction
		ctx = context.WithoutCancel(ctx)
	}
	return b.recorded(tx.Batch(ctx, steps), of)
}

// recorded says which message an error of the database is about.
func (b *Box) recorded(err error, of []int) error {
	var step *sqlq.StepError
	if errors.As(err, &step) && step.Index < len(of) {
		return b.explain(fmt.Sprintf("recording message %d", of[step.Index]), err)
	}
	return b.explain("recording messages", err)
}

// Publisher returns a publisher for callers without a transaction, which takes the place of the one that
// the relay sends with: Publish records the messages in a transaction of its own, on the disk, all or none of them,
// and has the relays of this process send them at once. They go by way of a relay, and not straight
// to the broker, because those that were recorded before them go first.
func (b *Box) Publisher() settle.Publisher { return publisher{b} }

type publisher struct{ b *Box }

// Publish implements [settle.Publisher].
func (p publisher) Publish(ctx context.Context, msgs ...settle.Message) error {
	b := p.b
	if b.invalid != nil || len(msgs) == 0 {
		return b.invalid
	}
	steps, of, err := b.insertions(ctx, b.db.DB, msgs)
	if err != nil {
		return err
	}
	err = b.db.Batch(ctx, b.db.Durable, func() []sqlq.Step { return steps })
	if err == nil {
		b.Wake()
		return nil
	}
	if !b.db.Dialect.Down(err) {
		return settle.Permanent(b.recorded(err, of))
	}
	return b.recorded(err, of)
}

// insertions are the steps that record messages, and the index of the message that each is of.
func (b *Box) insertions(ctx context.Context, ex sqlq.Execer, msgs []settle.Message) (steps []sqlq.Step, of []int, err error) {
	t, err := b.open(ctx, ex)
	if err != nil {
		return nil, nil, err
	}
	for i := range msgs {
		args, err := b.args(t, &msgs[i])
		if err != nil {
			return nil, nil, settle.Permanent(fmt.Errorf("%s: message %d: %w", b.name, i, err))
		}
		for _, text := range t.insert {
			s, err := b.step(text, args, nil)
			if err != nil {
				return nil, nil, err
			}
			steps, of = append(steps, s), append(of, i)
		}
	}
	return steps, of, nil
}

// args are what the statements of [tables.insertion] name.
func (b *Box) args(t *tables, m *settle.Message) (sqlq.Args, error) {
	headers := m.Headers
	if m.Priority != 0 {
		headers = headers.Clone()
		if headers == nil {
			headers = settle.Headers{}
		}
		headers[priorityHeader] = m.Priority
	}
	kept, err := sqlq.EncodeHeaders(headers, m.ID)
	if err != nil {
		return nil, err
	}
	args := sqlq.Args{
		"to": m.To, "headers": kept, "delay": int64((max(m.Delay, 0) + time.Microsecond - 1) / time.Microsecond), "key": nil,
		"payload": b.db.Dialect.Body(t.records.Column(sqlq.RolePayload), m.Body),
	}
	if m.Key != "" {
		args["key"] = m.Key
	}
	for _, text := range []string{m.To, m.Key} {
		if strings.ContainsRune(text, 0) {
			return nil, errors.New("its To or its Key holds a NUL byte")
		}
	}
	if !t.counted {
		if args["id"], err = newID(t.records.Column(sqlq.RoleID)); err != nil {
			return nil, err
		}
	}
	return args, nil
}

// newID makes an id for a column that the database does not count. A uuid is one of version 7 by its form: it
// begins with the time, and a database that checks takes it.
func newID(c sqlq.Column) (any, error) {
	id := sqlq.NewID()
	if strings.EqualFold(c.Type, "uuid") {
		at, random := id[3:16], id[16:] // the time has three zeros before it, for some thousand years
		id = fmt.Sprintf("%s-%s-7%s%s-8%s-%s0", at[:8], at[8:12], at[12:], random[:2], random[2:5], random[5:])
	}
	return idOf(c, id)
}

// idOf makes of an id's text what the ID column is compared with.
func idOf(c sqlq.Column, text string) (any, error) {
	switch {
	case integer(c):
		return strconv.ParseInt(text, 10, 64)
	case binary(c):
		return hex.DecodeString(text)
	default:
		return text, nil
	}
}
