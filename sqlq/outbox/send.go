package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// This file is what a relay does with one batch of records: read them, send
// them, and write down what became of each.

// record is one that was claimed.
type record struct {
	d       *settle.Delivery // its row in the side table
	id      any
	found   bool // in the table of records
	marked  bool
	message settle.Message
	broken  error // why it cannot be read

	verdict settle.Verdict // at first: given back
}

// send sends a batch, and reports whether that got anywhere. It returns an error where it is time to wait: the
// broker is away, or the records could not be read. They are given back then, as if they had not been claimed.
func (s *sending) send(ctx context.Context, ds []*settle.Delivery) (moved bool, held error) {
	records := make([]*record, len(ds))
	byID := make(map[string]*record, len(ds))
	for i, d := range ds {
		var row sqlq.Row
		d.As(&row)
		records[i] = &record{d: d, id: row.ID, verdict: settle.Verdict{Action: settle.ActionRelease}}
		byID[sqlq.IDText(row.ID)] = records[i]
	}
	call, done := detached(ctx, defaultTimeout)
	err := s.read(call, records, byID)
	done()
	if err != nil {
		s.conclude(ctx, records)
		return false, err
	}
	var outgoing []*record
	for _, r := range records {
		if s.decide(ctx, r) {
			outgoing = append(outgoing, r)
		}
	}
	held = s.publish(ctx, outgoing)
	s.conclude(ctx, records)
	for _, r := range records {
		moved = moved || r.verdict.Action != settle.ActionRelease
	}
	return moved, held
}

// read reads the records of a batch.
func (s *sending) read(ctx context.Context, records []*record, byID map[string]*record) error {
	b, t := s.Box, s.t.records
	ids := make([]any, len(records))
	for i, r := range records {
		ids[i] = r.id
	}
	columns := []string{t.Out(sqlq.RoleID, "t"), t.Out(sqlq.RoleCause, "t"), t.Out(sqlq.RolePayload, "t")}
	var (
		id            any
		to            sql.NullString
		body, headers []byte
		marked        int
	)
	dest := []any{&id, &to, &body}
	if t.Has(sqlq.RoleHeaders) {
		columns, dest = append(columns, t.Out(sqlq.RoleHeaders, "t")), append(dest, &headers)
	}
	if !s.t.aside { // else what is marked is not claimed
		columns, dest = append(columns, "CASE WHEN "+s.t.isMarked()+" THEN 1 ELSE 0 END"), append(dest, &marked)
	}
	args := sqlq.Args{}
	text := fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s", strings.Join(columns, ", "), t.Ref(), among(t, "t", ids, args))
	err := b.query(ctx, b.db.DB, text, args, func(rows sqlq.Rows) error {
		body, headers = nil, nil
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		r := byID[sqlq.IDText(id)]
		if r == nil {
			return fmt.Errorf("the row %s was not asked for", sqlq.IDText(id))
		}
		r.found, r.marked = true, marked > 0
		r.message = settle.Message{To: to.String, Key: r.d.Key, Body: body, Headers: r.d.Headers}
		if len(headers) > 0 {
			r.message.Headers, r.broken = sqlq.DecodeHeaders(headers)
		}
		s.address(r)
		return nil
	})
	return b.explain("reading records", err)
}

// address gives a message its ids, and what its headers kept for it.
func (s *sending) address(r *record) {
	m := &r.message
	text := sqlq.IDText(r.id)
	headers := m.Headers.Clone()
	if headers == nil {
		headers = make(settle.Headers, 1)
	}
	m.ID, _ = headers[sqlq.MessageIDHeader].(string)
	if m.ID == "" {
		m.ID = text
	}
	if p, ok := headers[priorityHeader].(int64); ok {
		m.Priority = int(p)
	}
	delete(headers, sqlq.MessageIDHeader)
	delete(headers, priorityHeader)
	headers[s.Box.o.Header] = text
	m.Headers = headers
}

// decide reports whether a record is to be sent, and gives its verdict to one that is not.
func (s *sending) decide(ctx context.Context, r *record) bool {
	switch sends := r.d.Attempt - 1; {
	case !r.found, r.marked: // somebody deleted it, or its consumer was not able to delete its row
		r.verdict = settle.Verdict{Action: settle.ActionAck}
	case r.broken != nil:
		s.setAside(r, sends, fmt.Errorf("its headers cannot be read: %w", r.broken))
	case sends >= s.MaxSends:
		s.setAside(r, sends, s.tooMany(ctx, r, sends))
	default:
		return true
	}
	return false
}

// tooMany is the reason of a record that has been tried often enough: with its last refusal, if
// there was one.
func (s *sending) tooMany(ctx context.Context, r *record, sends int) error {
	side, args := s.t.side, sqlq.Args{}
	refusal := ""
	text := fmt.Sprintf("SELECT coalesce(%s, '') FROM %s AS t WHERE %s", side.Out(sqlq.RoleCause, "t"), side.Ref(), among(side, "t", []any{r.id}, args))
	call, done := detached(ctx, defaultTimeout)
	defer done()
	err := s.Box.query(call, s.Box.db.DB, text, args, func(rows sqlq.Rows) error { return rows.Scan(&refusal) })
	if err == nil && refusal != "" {
		return fmt.Errorf("it was tried %d times; the last time: %s", sends, refusal)
	}
	return fmt.Errorf("a relay had it %d times to send, and nobody marked it", sends)
}

func (s *sending) setAside(r *record, sends int, reason error) {
	r.verdict = settle.Verdict{Action: settle.ActionDeadLetter, Cause: reason}
	id := sqlq.IDText(r.id)
	s.Box.o.Logger.Error("outbox: a record is set aside: it is sent no more until SendAgain", "outbox", s.Box.name, "record", id, "to", r.message.To, "sends", sends, "reason", reason)
	s.Box.tell(Event{Kind: EventSetAside, Record: id, Sends: sends, Err: reason})
}

// publish sends records and gives each its verdict: those of one key one after the
// other, so that none overtakes another, and with each of them one of every other key. It returns an error where the
// broker is away: what it did not take by then is given back, at no cost, and keeps its place.
func (s *sending) publish(ctx context.Context, records []*record) (held error) {
	taken := false
	for len(records) > 0 && held == nil && ctx.Err() == nil {
		wave, rest := nextOfEach(records)
		msgs := make([]settle.Message, len(wave))
		for i, r := range wave {
			msgs[i] = r.message
		}
		call, done := detached(ctx, s.PublishTimeout)
		err := s.Publisher.Publish(call, msgs...)
		done()
		errs := settle.PublishErrors(err, len(wave))
		taken = taken || slices.Contains(errs, nil)
		refused := make(map[string]bool) // keys that wait for one of this wave
		for i, err := range errs {
			gone := away(err, taken)
			if s.judge(wave[i], err, gone) {
				refused[wave[i].message.Key] = true
			}
			if gone {
				held = err
			}
		}
		records = slices.DeleteFunc(rest, func(r *record) bool { return r.message.Key != "" && refused[r.message.Key] })
	}
	return held
}

// nextOfEach returns the records without a key and the first of each key, and then the others.
func nextOfEach(records []*record) (wave, rest []*record) {
	taken := make(map[string]bool)
	for _, r := range records {
		if key := r.message.Key; key != "" {
			if taken[key] {
				rest = append(rest, r)
				continue
			}
			taken[key] = true
		}
		wave = append(wave, r)
	}
	return wave, rest
}

// judge gives a record that was offered to the publisher its verdict, and reports whether those behind it
// have to wait. gone: the error is that the broker is away.
func (s *sending) judge(r *record, err error, gone bool) (waits bool) {
	id, sends := sqlq.IDText(r.id), r.d.Attempt
	switch {
	case err == nil && s.Done == OnConfirm:
		r.verdict = settle.Verdict{Action: settle.ActionAck}
		s.Box.tell(Event{Kind: EventSent, Record: id, Sends: sends})
	case err == nil:
		r.verdict = settle.Verdict{Action: settle.ActionRetry, Delay: s.pause(sends)}
		s.Box.tell(Event{Kind: EventSent, Record: id, Sends: sends})
	case errors.Is(err, settle.ErrUnroutable):
		s.setAside(r, sends-1, fmt.Errorf("%w; declare what takes it, then call SendAgain", err))
	case settle.IsPermanent(err):
		s.setAside(r, sends-1, err)
	case gone: // it keeps the verdict it began with
		return true
	default:
		r.verdict = settle.Verdict{Action: settle.ActionRetry, Cause: err}
		s.Box.o.Logger.Warn("outbox: the broker refused a record for now; trying again later", "outbox", s.Box.name, "record", id, "to", r.message.To, "error", err)
		s.Box.tell(Event{Kind: EventParked, Record: id, Sends: sends - 1, Err: err})
		return true
	}
	return false
}

// final reports whether a publisher will refuse the same message again.
func final(err error) bool { return settle.IsPermanent(err) || errors.Is(err, settle.ErrUnroutable) }

// away reports whether an error of a publisher says that the broker cannot be
// reached or takes nothing now, rather than that it did not take one message. Where it has taken others,
// a message that was not taken in time, or that has nowhere to go, is alone with that.
func away(err error, taken bool) bool {
	if err == nil || final(err) {
		return false
	}
	for _, e := range []error{settle.ErrBlocked, settle.ErrSessionLost, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, context.Canceled} {
		if errors.Is(err, e) {
			return true
		}
	}
	var network *net.OpError
	var config *settle.ConfigError // such as an exchange that is not there
	return errors.As(err, &network) || !taken && (errors.Is(err, context.DeadlineExceeded) || errors.As(err, &config))
}

// conclude writes down what became of the records.
func (s *sending) conclude(ctx context.Context, records []*record) {
	if s.Done == OnConfirm {
		s.confirm(ctx, records)
	}
	var parked, others []settle.Settlement // apart: those that are parked are settled one by one
	for _, r := range records {
		one := settle.Settlement{Delivery: r.d, Verdict: r.verdict}
		if r.verdict.Action == settle.ActionRetry && r.verdict.Delay <= 0 {
			parked = append(parked, one)
		} else {
			others = append(others, one)
		}
	}
	s.settleAll(ctx, others)
	s.settleAll(ctx, parked)
}

// confirm marks what the broker has confirmed, before its rows in the side table
// are settled. What cannot be marked is sent again.
func (s *sending) confirm(ctx context.Context, records []*record) {
	b := s.Box
	var confirmed []*record
	var ids []any
	for _, r := range records {
		if r.found && !r.marked && r.verdict.Action == settle.ActionAck {
			confirmed, ids = append(confirmed, r), append(ids, r.id)
		}
	}
	if len(ids) == 0 {
		return
	}
	args, text := sqlq.Args{}, ""
	if s.t.aside {
		args["reason"] = nil
		text = s.t.endAside(b.db.Dialect, ":done", among(s.t.side, "", ids, args))
	} else {
		text = s.t.markRecords(b.db.Dialect, among(s.t.records, "", ids, args))
	}
	for try := 1; ; try++ {
		call, done := detached(ctx, defaultTimeout)
		_, err := b.exec(call, text, args)
		done()
		if err == nil {
			return
		}
		b.o.Logger.Warn("outbox: records that the broker confirmed cannot be marked; trying again", "outbox", b.name, "records", len(ids), "error", err)
		if !s.wait(ctx, try) {
			break
		}
	}
	for _, r := range confirmed {
		r.verdict = settle.Verdict{Action: settle.ActionRetry, Delay: s.pause(r.d.Attempt)}
	}
}
