package sqlq

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// inserts are the statements that publish, and what they depend on.
type inserts struct {
	layout      *Layout
	plain, byID *statement // without and with a value for the ID column
}

// Publish implements [settle.Publisher]: it inserts the messages in one
// transaction and returns when that is committed, on the disk. Consumers in this
// process see them at once. Message.To is a group, if the table has a Group column; empty means this
// queue's. A message that the table cannot carry, such as a Delay without a
// RetryAfter column, is refused with a permanent error; the others go. Priority
// is kept where the table has it. Message.ID is the row's id where that is text, else a header.
//
// Body, Headers and Key are kept as they are: a payload column of a text type
// takes text.
func (q *Queue) Publish(ctx context.Context, msgs ...settle.Message) error {
	return q.publish(ctx, q.db.DB, msgs, func(rows []outgoing) error {
		for todo := rows; len(todo) > 0; {
			err := q.batch(ctx, q.db.Durable, "publishing", func() []Step { return q.insertions(todo) })
			var bad *StepError
			switch {
			case err == nil:
				q.wakeAll(ctx, todo)
				return nil
			case !errors.As(err, &bad) || q.db.Dialect.Down(err):
				return err
			}
			// The database does not take this one; the others go without it.
			todo[bad.Index].fail(settle.Permanent(err))
			todo = append(todo[:bad.Index:bad.Index], todo[bad.Index+1:]...)
		}
		return nil
	})
}

// PublishIn is [Queue.Publish] in the caller's own transaction: the messages are
// there once that commits, as durable as it is. Call [Queue.Wake] then to have
// consumers in this process see them at once. After an error roll back. The packages of
// databases have a method for their own type of transaction.
func (q *Queue) PublishIn(ctx context.Context, tx Execer, msgs ...settle.Message) error {
	if tx == nil {
		return fmt.Errorf("%s: publishing in a transaction needs the one that the messages belong to, and it is nil; Publish has one of its own", q.name)
	}
	return q.publish(ctx, tx, msgs, func(rows []outgoing) error {
		if err := tx.Batch(q.db.bound(ctx), q.insertions(rows)); err != nil {
			return fmt.Errorf("%s: publishing: %w", q.name, err)
		}
		return nil
	})
}

// outgoing is a message on its way into the table.
type outgoing struct {
	values
	err *error // of its message
}

func (o *outgoing) fail(err error) { *o.err = err }

// publish sorts out what cannot be carried and sends the rest. An error of send is that of all it
// was to send; what it takes out of them has its own.
func (q *Queue) publish(ctx context.Context, db Execer, msgs []settle.Message, send func([]outgoing) error) error {
	if len(msgs) == 0 {
		return nil
	}
	in, err := q.prepare(ctx, db)
	if err != nil {
		return err
	}
	errs := make([]error, len(msgs))
	rows := make([]outgoing, 0, len(msgs))
	for i := range msgs {
		v, err := in.row(q, &msgs[i])
		if err != nil {
			errs[i] = settle.Permanent(fmt.Errorf("%s: message %d: %w", q.name, i, err))
			continue
		}
		rows = append(rows, outgoing{values: v, err: &errs[i]})
	}
	if len(rows) > 0 {
		if err := send(rows); err != nil {
			for i := range errs {
				errs[i] = cmp.Or(errs[i], err)
			}
		}
	}
	all := &settle.PublishError{Total: len(msgs)}
	for i, err := range errs {
		if err != nil {
			all.Failed = append(all.Failed, settle.FailedMessage{Index: i, Err: err})
		}
	}
	if len(all.Failed) == 0 {
		return nil
	}
	return all
}

// prepare reads the table's columns and builds the statements, once. It reads on db, because
// a caller in a transaction may have the pool's last connection.
func (q *Queue) prepare(ctx context.Context, db Execer) (*inserts, error) {
	if q.invalid != nil {
		return nil, q.invalid
	}
	q.mu.Lock()
	in := q.inserts
	q.mu.Unlock()
	if in != nil {
		return in, nil
	}
	l, err := load(ctx, db, q.db.Dialect, q.table, q.name)
	if err != nil {
		return nil, err
	}
	in = &inserts{layout: l}
	if in.plain, err = compile(q.db.Dialect, l.insertion(false)); err == nil {
		in.byID, err = compile(q.db.Dialect, l.insertion(true))
	}
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	q.inserts = in
	q.mu.Unlock()
	return in, nil
}

// insertion is the statement that inserts a row.
func (l *Layout) insertion(withID bool) string {
	var columns, exprs []string
	add := func(r Role, expr string) {
		if l.Has(r) {
			columns, exprs = append(columns, l.Q(r)), append(exprs, expr)
		}
	}
	if withID {
		add(RoleID, l.In(RoleID, ":id"))
	}
	add(RoleGroup, l.In(RoleGroup, ":group"))
	add(RoleAttempt, "1")
	if l.Has(RoleRetryAfter) {
		add(RoleRetryAfter, l.d.Later(l.Column(RoleRetryAfter), ":delay"))
	}
	add(RolePriority, l.In(RolePriority, ":priority"))
	add(RoleHeaders, l.In(RoleHeaders, ":headers"))
	add(RoleKey, l.In(RoleKey, ":key"))
	add(RolePayload, l.In(RolePayload, ":payload"))
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", l.Ref(), strings.Join(columns, ", "), strings.Join(exprs, ", "))
}

// row makes of a message what its row takes.
func (in *inserts) row(q *Queue, m *settle.Message) (values, error) {
	l := in.layout
	v := values{group: q.table.GroupValue, priority: int64(m.Priority)}
	if m.To != "" && m.To != v.group {
		if !l.Has(RoleGroup) {
			return v, fmt.Errorf("it goes to %q, and the table has no Group column", m.To)
		}
		v.group = m.To
	}
	if m.Delay > 0 {
		if !l.Has(RoleRetryAfter) {
			return v, errors.New("it has a Delay, and the table has no RetryAfter column")
		}
		v.delay = micros(m.Delay)
	}
	if m.Key != "" {
		if !l.Has(RoleKey) {
			return v, errors.New("it has a Key, and the table has no Key column")
		}
		v.key = m.Key
	}
	header := m.ID
	if column := l.Column(RoleID); l.d.TakesID(column) {
		header = ""
		if m.ID != "" {
			v.id = m.ID
		} else if !column.Default {
			v.id = newID()
		}
	}
	if len(m.Headers) > 0 || header != "" {
		if !l.Has(RoleHeaders) {
			return v, errors.New("it has Headers or an ID, and the table has no Headers column")
		}
		var err error
		if v.headers, err = encodeHeaders(m.Headers, header); err != nil {
			return v, err
		}
	}
	v.payload = l.d.Body(l.Column(RolePayload), m.Body)
	return v, nil
}

// insertions are the steps that insert rows, in order.
func (q *Queue) insertions(rows []outgoing) []Step {
	q.mu.Lock()
	in := q.inserts
	q.mu.Unlock()
	steps := make([]Step, len(rows))
	for i := range rows {
		v := &rows[i].values
		v.now = time.Now().UnixMicro()
		st := in.plain
		if v.id != nil {
			st = in.byID
		}
		steps[i] = Step{SQL: st.sql, Args: st.args(v)}
	}
	return steps
}

// wakeAll tells the consumers of every queue that got a row.
func (q *Queue) wakeAll(ctx context.Context, rows []outgoing) {
	shared, err := q.db.Shared(ctx)
	if err != nil {
		return
	}
	soonest := make(map[string]time.Duration, 1)
	for i := range rows {
		after := time.Duration(rows[i].delay) * time.Microsecond
		if known, ok := soonest[rows[i].group]; !ok || after < known {
			soonest[rows[i].group] = after
		}
	}
	for group, after := range soonest {
		line := q.line
		line.group = group
		shared.wake(line, after)
	}
}

// lastID is the time of the last id that this process made, in microseconds, or a little more.
var lastID atomic.Int64

// newID makes an id for a table whose ids are text: 32 hexadecimal digits, the time and
// then a random number. Those of one process sort in the order they were made.
func newID() string {
	var at int64
	for {
		last := lastID.Load()
		at = max(time.Now().UnixMicro(), last+1)
		if lastID.CompareAndSwap(last, at) {
			break
		}
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(at))
	_, _ = rand.Read(b[8:]) // it never fails
	return hex.EncodeToString(b[:])
}
