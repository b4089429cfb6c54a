package sqlq

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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
	guard, claim, second, mark *statement // of the lease form, and claim of the row lock; nil: none
	unguard                    *statement // after the commit of a claim; nil: the commit does it
	due                        *statement
	candidates, take           *statement // of the advisory form
	renew                      *statement // of the lease form
	confirm                    *statement // for a handler's transaction where there is one writer
	events                     [eventCount][]*statement

	// What follows is of a Server.
	many                   [eventCount]*statement // in the place of events; nil: none
	renewMany              *statement
	holding, holdingLong   *statement // before a settlement, and before a renewal; nil: locks are waited for
	present                *statement // counts a row as its claim found it
	relock, count, bump    *statement // of the row lock
	claimFull              *statement // claim with the most rows it takes written out: the database can tell its cost, and keep its plan
	seize, takeAll, unlock *statement // of the advisory form
	busy                   *statement // of the advisory form; nil: none
	committed              *statement
}

// build makes the statements of a layout, for claims of up to batch rows where rows are
// locked. source is for errors.
func build(l *Layout, batch int, source string) (*texts, error) {
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
	server, _ := l.d.(Server)
	t.due = make1("", l.d.Due(l))
	switch form := l.Form.(type) {
	case Lease:
		c := l.d.Claim(l)
		if own.Claim != "" {
			c = Claim{Take: own.Claim}
		}
		t.guard, t.claim, t.second, t.mark = make1("", c.Guard), make1("Statements.Claim", c.Take), make1("", c.Second), make1("", c.Mark)
		t.unguard = make1("", c.Unguard)
		t.renew = make1("Statements.Renew", either(own.Renew, l.update(l.renewal(one))))
		if server != nil && own.Renew == "" {
			t.renewMany = make1("", server.Many(l, l.renewal(PerRow)))
			if all, ok := l.d.(Skipper); ok {
				t.holding, t.holdingLong = make1("", all.Holding(l, false)), make1("", all.Holding(l, true))
			}
		}
	case AdvisoryLock, RowLock:
		if own.Claim != "" || own.Renew != "" {
			return nil, refuse(source, "Statements", fmt.Sprintf("Claim and Renew are a lease's, and the form is %s", form.form()), "leave them out")
		}
		switch lock, advisory := form.(AdvisoryLock); {
		case advisory && server != nil:
			t.seize, t.takeAll, t.unlock = make1("", server.Seize(l, l.lock(lock.Key))), make1("", server.TakeAll(l)), make1("", server.Unlock())
			if all, ok := l.d.(Watcher); ok {
				t.busy = make1("", all.Busy())
			}
		case advisory:
			t.candidates, t.take = make1("", l.d.Candidates(l, l.lock(lock.Key))), make1("", l.d.Take(l))
		case server != nil:
			t.claim, t.claimFull = make1("", server.LockRows(l, ":limit")), make1("", server.LockRows(l, strconv.Itoa(batch)))
			t.relock, t.count = make1("", server.Relock(l)), make1("", server.Count(l))
			if l.Has(RoleAttempt) {
				t.bump = make1("", l.update(l.next()))
			}
		}
	}
	if server == nil {
		t.confirm = make1("", l.confirmation())
	}
	for e, mine := range own.byEvent() {
		if len(mine) == 0 {
			mine = l.settlement(event(e))
			if c, ok := l.change(event(e), PerRow); ok && server != nil {
				t.many[e] = make1("", server.Many(l, c))
			}
		}
		for _, text := range mine {
			t.events[e] = append(t.events[e], make1("Statements."+eventNames[e], text))
		}
	}
	if len(t.events[eventRetryAfter]) == 0 {
		t.events[eventRetryAfter], t.many[eventRetryAfter] = t.events[eventRetry], t.many[eventRetry]
	}
	if server != nil {
		t.present = make1("", l.presence())
		t.committed = make1("", server.Committed())
	}
	return &t, err
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// perRow are the parameters that the columns of a fence are compared with.
var perRow = map[Role]string{RoleID: "id", RoleAttempt: "attempt", RoleLockedUntil: "token"}

// Locked reports whether rows are held by the database's own locks, so that a
// claim writes nothing and the settlement counts the attempt.
func (l *Layout) Locked() bool {
	_, ok := l.Form.(RowLock)
	return ok
}

// fence is the condition that a delivery still has its row.
func (l *Layout) fence() string {
	var all []string
	for _, r := range l.Fence() {
		all = append(all, l.Q(r)+" = "+l.In(r, ":"+perRow[r]))
	}
	return strings.Join(all, " AND ")
}

// renewal is the change that holds rows for longer.
func (l *Layout) renewal(per func(string) string) Change {
	next := l.In(RoleLockedUntil, per("next_token"))
	return Change{Set: []string{l.Q(RoleLockedUntil) + " = " + next}, Lists: []string{"next_token"}}
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

// presence counts a row that is as its claim found it, or was when only its settlement
// could have changed it since.
func (l *Layout) presence() string {
	same := l.Q(RoleID) + " = " + l.In(RoleID, ":id")
	if l.Has(RoleAttempt) && l.Locked() {
		same += " AND " + l.Out(RoleAttempt, "") + " = :attempt"
	}
	return fmt.Sprintf("SELECT count(*) FROM %s WHERE %s AND %s", l.Ref(), l.Mine(""), same)
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

// one names what is known of a single row, as the parameters of a statement do.
func one(name string) string { return ":" + name }

// change returns what an event makes of a row, and false where it makes nothing of
// it. per names what is known of the row.
func (l *Layout) change(e event, per func(string) string) (Change, bool) {
	var c Change
	set := func(r Role, expr, list string) {
		if l.Has(r) {
			c.Set = append(c.Set, l.Q(r)+" = "+expr)
			if list != "" {
				c.Lists = append(c.Lists, list)
			}
		}
	}
	next := func() {
		if l.Locked() {
			c.Set = append(c.Set, l.next().Set...)
		}
	}
	unlock := func() { set(RoleLockedUntil, "NULL", "") }
	cause := func() { set(RoleCause, l.In(RoleCause, per("cause")), "cause") }
	switch e {
	case eventAck, eventDrop:
		if !l.Has(RoleProcessedAt) {
			return c, true
		}
		set(RoleProcessedAt, l.d.Now(l.Column(RoleProcessedAt)), "")
		unlock()
		if e == eventDrop {
			cause()
		}
	case eventRetry:
		next()
		unlock()
		cause()
	case eventRetryAfter:
		if !l.Has(RoleRetryAfter) {
			return c, false
		}
		next()
		set(RoleRetryAfter, l.d.Later(l.Column(RoleRetryAfter), per("delay")), "delay")
		unlock()
		cause()
	case eventDeadLetter:
		switch {
		case l.dead != nil:
			c.Dead, c.Lists = true, []string{"cause"}
			return c, true
		case !l.Has(RoleGroup):
			return c, false
		}
		next()
		set(RoleGroup, l.In(RoleGroup, ":dead"), "")
		unlock()
		cause()
	case eventRelease:
		if l.Has(RoleAttempt) && !l.Locked() {
			set(RoleAttempt, per("attempt")+" - 1", "")
		}
		unlock()
	case eventFree:
		unlock()
	}
	return c, len(c.Set) > 0
}

// next is the change that counts an attempt of a row that is locked.
func (l *Layout) next() Change {
	if !l.Has(RoleAttempt) {
		return Change{}
	}
	return Change{Set: []string{l.Q(RoleAttempt) + " = " + l.d.NextAttempt(l.Column(RoleAttempt), l.Q(RoleAttempt))}}
}

// settlement is the library's own statements for an event, for one row.
func (l *Layout) settlement(e event) []string {
	c, ok := l.change(e, one)
	remove := fmt.Sprintf("DELETE FROM %s WHERE %s", l.Ref(), l.fence())
	switch {
	case !ok:
		return nil
	case c.Dead:
		return []string{l.bury(), remove}
	case len(c.Set) == 0:
		return []string{remove}
	default:
		return []string{l.update(c)}
	}
}

// update makes a change to one row.
func (l *Layout) update(c Change) string {
	return fmt.Sprintf("UPDATE %s SET %s WHERE %s", l.Ref(), strings.Join(c.Set, ", "), l.fence())
}

// bury copies a row to the dead table.
func (l *Layout) bury() string {
	var into, from []string
	for _, c := range l.dead.columns {
		name := l.d.Quote(c.Name)
		into = append(into, name)
		switch {
		case c.Name == l.ID:
			if b, ok := l.d.(Burier); ok {
				name = b.DeadID(c, l.dead.ref, name)
			}
		case c.Name == l.LockedUntil:
			name = "NULL"
		case c.Name == l.Attempt && l.Locked():
			name = l.d.NextAttempt(c, name)
		case c.Name == l.Cause:
			name = l.In(RoleCause, ":cause")
		}
		from = append(from, name)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s AS t WHERE %s",
		l.dead.ref, strings.Join(into, ", "), strings.Join(from, ", "), l.Ref(), l.fence())
}

// checkOwn checks the user's statements: that they are fenced, and that the database takes them.
func (t *texts) checkOwn(ctx context.Context, db Execer, l *Layout, source string) error {
	own := &l.Statements
	check := func(setting string, s *statement, fenced bool) error {
		if fenced {
			for _, r := range l.Fence() {
				if name := perRow[r]; !s.names(param(slices.Index(paramNames[:], name))) {
					return refuse(source, setting, fmt.Sprintf("its first statement does not name :%s, so it would settle rows that are another's by now", name), "add it to the WHERE")
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
