package sqlq

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/settlemq/settle"
)

// Statements are SQL of your own in the place of what the queue would run, event
// by event. An empty one leaves the library's. They run where it would:
// claims in the claim's transaction, the statements of one settlement in one
// transaction, in their order.
//
// They name their parameters:
//
//	:id          the row's id
//	:attempt     what the Attempt column holds while the delivery is in work:
//	             one more than Delivery.Attempt
//	:token       what LockedUntil holds for this claim
//	:next_token  what a renewal writes there
//	:now         the process's clock, in microseconds since 1970
//	:delay       the delay of a retry, in microseconds
//	:lease       how long a claim holds, in microseconds
//	:limit       how many rows a claim may take
//	:group       GroupValue
//	:dead        Options.DeadLetter, without "table:"
//	:cause       the text of the cause; NULL without one
//
// The first statement of a settlement must touch the row only as long as this
// claim has it, and so must name :id and what the table has of :attempt and
// :token. Where it touches no row the lease counts as lost, and nothing is settled.
type Statements struct {
	// Claim takes up to :limit rows and returns ID, Payload and then what the
	// table has of Attempt (as it is after the claim), LockedUntil, RetryAfter
	// in whole microseconds, Priority, Headers, Key: in this order. Lease only.
	Claim string
	// Renew holds a row for longer: it writes :next_token where it finds :token.
	Renew string

	Ack        []string
	Drop       []string
	Retry      []string // at once
	RetryAfter []string // after :delay
	DeadLetter []string
	Release    []string // given back as if it had not been claimed
}

// event is what is made true of a row.
type event uint8

const (
	eventAck event = iota
	eventDrop
	eventRetry
	eventRetryAfter
	eventDeadLetter
	eventRelease
	eventFree // given back, the attempt spent
	eventCount
)

var eventNames = [eventCount]string{"Ack", "Drop", "Retry", "RetryAfter", "DeadLetter", "Release", "free"}

func (s *Statements) byEvent() [eventCount][]string {
	return [...][]string{s.Ack, s.Drop, s.Retry, s.RetryAfter, s.DeadLetter, s.Release, nil}
}

// eventOf returns the event that makes the verdict true.
func eventOf(v settle.Verdict, deadLetter bool) event {
	switch v.Action {
	case settle.ActionAck:
		return eventAck
	case settle.ActionDrop:
		return eventDrop
	case settle.ActionRetry:
		if v.Delay > 0 {
			return eventRetryAfter
		}
		return eventRetry
	case settle.ActionDeadLetter:
		if deadLetter {
			return eventDeadLetter
		}
		return eventDrop
	default:
		return eventRelease
	}
}

// texts are all statements of one session.
type texts struct {
	claim, second    *statement // second: nil for none
	due              *statement
	candidates, take *statement // of the advisory form
	renew            *statement // of the lease form
	confirm          *statement
	events           [eventCount][]*statement
}

// build makes the statements of a layout. source is for errors.
func build(l *Layout, source string) (*texts, error) {
	var t texts
	var err error
	make1 := func(setting, text string) *statement {
		if err != nil || text == "" {
			return nil
		}
		s, e := compile(l.d, text)
		if e != nil {
			err = refuse(source, setting, e.Error(), "correct the statement")
		}
		return s
	}
	own := &l.Statements
	t.due = make1("", l.d.Due(l))
	switch form := l.Form.(type) {
	case Lease:
		first, second := l.d.Claim(l)
		if own.Claim != "" {
			first, second = own.Claim, ""
		}
		t.claim, t.second = make1("Statements.Claim", first), make1("", second)
		t.renew = make1("Statements.Renew", either(own.Renew, l.renewal()))
	case AdvisoryLock:
		if own.Claim != "" || own.Renew != "" {
			return nil, refuse(source, "Statements", "Claim and Renew are a lease's, and the form is AdvisoryLock", "leave them out")
		}
		t.candidates = make1("", l.d.Candidates(l, l.lock(form.Key)))
		t.take = make1("", l.d.Take(l))
	}
	t.confirm = make1("", l.confirmation())
	settlements := l.settlements()
	for e, mine := range own.byEvent() {
		if len(mine) == 0 {
			mine = settlements[e]
		}
		for _, text := range mine {
			t.events[e] = append(t.events[e], make1("Statements."+eventNames[e], text))
		}
	}
	if len(t.events[eventRetryAfter]) == 0 {
		t.events[eventRetryAfter] = t.events[eventRetry]
	}
	return &t, err
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// same is the condition that a row is the one of a delivery, claimed or not.
func (l *Layout) same() string {
	if l.Has(RoleAttempt) {
		return l.Q(RoleID) + " = :id AND " + l.Q(RoleAttempt) + " = :attempt"
	}
	return l.Q(RoleID) + " = :id"
}

// fence is the condition that a delivery still has its row.
func (l *Layout) fence() string {
	if l.Has(RoleLockedUntil) {
		return l.same() + " AND " + l.Q(RoleLockedUntil) + " = :token"
	}
	return l.same()
}

func (l *Layout) renewal() string {
	return fmt.Sprintf("UPDATE %s SET %s = :next_token WHERE %s", l.Ref(), l.Q(RoleLockedUntil), l.fence())
}

// confirmation changes nothing in a row, and so finds out whether it is still the
// delivery's, and takes the right to write to it.
func (l *Layout) confirmation() string {
	column := l.Q(RoleID)
	switch {
	case l.Has(RoleLockedUntil):
		column = l.Q(RoleLockedUntil)
	case l.Has(RoleAttempt):
		column = l.Q(RoleAttempt)
	}
	return fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s", l.Ref(), column, column, l.fence())
}

// lock is the expression of a lock's name, over a row called t.
func (l *Layout) lock(pattern string) string {
	parts, _ := parseKey(pattern)
	var all []string
	for _, p := range parts {
		if p.column {
			all = append(all, "t."+l.d.Quote(p.text))
		} else {
			all = append(all, l.d.Literal(p.text))
		}
	}
	return l.d.Join(all)
}

// settlements are the library's own statements of each event. An event without
// one needs none.
func (l *Layout) settlements() (all [eventCount][]string) {
	unlock, cause := "", ""
	if l.Has(RoleLockedUntil) {
		unlock = l.Q(RoleLockedUntil) + " = NULL"
	}
	if l.Has(RoleCause) {
		cause = l.Q(RoleCause) + " = :cause"
	}
	update := func(set ...string) []string {
		var given []string
		for _, s := range set {
			if s != "" {
				given = append(given, s)
			}
		}
		if len(given) == 0 {
			return nil
		}
		return []string{fmt.Sprintf("UPDATE %s SET %s WHERE %s", l.Ref(), strings.Join(given, ", "), l.fence())}
	}
	remove := fmt.Sprintf("DELETE FROM %s WHERE %s", l.Ref(), l.fence())

	all[eventAck], all[eventDrop] = []string{remove}, []string{remove}
	if l.Has(RoleProcessedAt) {
		processed := l.Q(RoleProcessedAt) + " = " + l.d.Now()
		all[eventAck], all[eventDrop] = update(processed, unlock), update(processed, unlock, cause)
	}
	all[eventRetry] = update(unlock, cause)
	if l.Has(RoleRetryAfter) {
		all[eventRetryAfter] = update(l.Q(RoleRetryAfter)+" = "+l.d.Later(":delay"), unlock, cause)
	}
	switch {
	case l.dead != nil:
		all[eventDeadLetter] = []string{l.bury(), remove}
	case l.Has(RoleGroup):
		all[eventDeadLetter] = update(l.Q(RoleGroup)+" = :dead", unlock, cause)
	}
	giveBack := ""
	if l.Has(RoleAttempt) {
		giveBack = l.Q(RoleAttempt) + " = :attempt - 1"
	}
	all[eventRelease], all[eventFree] = update(giveBack, unlock), update(unlock)
	return all
}

// bury copies a row to the dead table.
func (l *Layout) bury() string {
	var into, from []string
	for _, c := range l.dead.columns {
		name := l.d.Quote(c.Name)
		into = append(into, name)
		switch {
		case c.Name == l.LockedUntil:
			name = "NULL"
		case c.Name == l.Cause:
			name = ":cause"
		}
		from = append(from, name)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s WHERE %s",
		l.dead.ref, strings.Join(into, ", "), strings.Join(from, ", "), l.Ref(), l.fence())
}

// checkOwn checks the user's statements: that they are fenced, and that the database takes them.
func (t *texts) checkOwn(ctx context.Context, db Execer, l *Layout, source string) error {
	own := &l.Statements
	check := func(setting string, s *statement, fenced bool) error {
		if fenced {
			for _, need := range []struct {
				p   param
				has bool
			}{{paramID, true}, {paramAttempt, l.Has(RoleAttempt)}, {paramToken, l.Has(RoleLockedUntil)}} {
				if need.has && !s.names(need.p) {
					return refuse(source, setting, fmt.Sprintf("its first statement does not name :%s, so it would settle rows that are another's by now", paramNames[need.p]), "add it to the WHERE")
				}
			}
		}
		if err := l.d.Prepare(ctx, db, s.sql, s.args(&values{})); err != nil {
			e := refuse(source, setting, "the database does not take it", "correct the statement")
			e.Err = err
			return e
		}
		return nil
	}
	if own.Claim != "" {
		if err := check("Statements.Claim", t.claim, false); err != nil {
			return err
		}
	}
	if own.Renew != "" {
		if err := check("Statements.Renew", t.renew, true); err != nil {
			return err
		}
	}
	for e, mine := range own.byEvent() {
		for i := range mine {
			if err := check("Statements."+eventNames[e], t.events[e][i], i == 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// causeBytes is how much of a cause's text is kept with its row.
const causeBytes = 2000

// causeText returns what the Cause column takes.
func causeText(err error) any {
	if err == nil {
		return nil
	}
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) > causeBytes {
		text = strings.ToValidUTF8(text[:causeBytes], "")
	}
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}

// micros returns a duration in the microseconds that statements take, rounded up:
// a delay never comes out shorter.
func micros(d time.Duration) int64 {
	us := d.Microseconds()
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}
