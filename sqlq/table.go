package sqlq

import (
	"fmt"
	"strings"
	"time"
)

// Table names a table, what its columns are for, and how the rows of one queue
// in it are claimed. ID and Payload are required; an empty name means that the table has no
// column for that. Names are taken as they are and quoted: they may hold anything.
type Table struct {
	// Schema is the schema, database or attached database that the table is in.
	// Empty: where the connection looks first.
	Schema string
	// Name is the table's.
	Name string

	// ID is the column that tells rows apart: a primary key or a unique column.
	ID string
	// IDType is the type of the ID column that CreateTable makes, in the words of the
	// database, such as "uuid". Empty: an integer that the database counts up.
	IDType string
	// Payload is the message's body. A NULL is an empty body.
	Payload string
	// NoPayload says that the rows have no payload: Payload is empty, and so are the bodies of messages.
	NoPayload bool
	// Group tells the queues of one table apart; GroupValue is this queue's
	// value in it. Both or neither.
	Group, GroupValue string
	// Attempt is the number of the row's next delivery, 1 for a new row; what is
	// not a positive number counts as 1. Without it no cap can be kept and
	// deliveries have Attempt 0.
	Attempt string
	// RetryAfter is when the row is due; NULL means since ever. Without it a
	// row cannot be delayed: a RetryAfter is a Retry, with a warning.
	RetryAfter string
	// LockedUntil is until when a claim holds. [Lease] needs it.
	LockedUntil string
	// ProcessedAt is when the row was acknowledged or dropped; such rows stay
	// until [Queue.Purge]. Without it they are deleted at once.
	ProcessedAt string
	// Priority goes before age: higher first, NULL last.
	Priority string
	// Headers holds the message's headers as a JSON object.
	Headers string
	// Key holds the message's ordering key.
	Key string
	// Cause takes the text of what made the last attempt fail, cut at 2,000
	// bytes: with each retry, drop and dead letter.
	Cause string

	// FIFO hands out the rows of one key in order and one at a time, over all
	// processes: while one is in work the others wait; one that is retried stays the first; a
	// delayed one goes behind what is due before it. Rows whose key is NULL are free of that.
	// Without a Key column the whole queue is one such line. It needs [Lease],
	// excludes Priority, and RetryAfter, if there is one, must be NOT NULL.
	FIFO bool
	// Runs lets one claim of a FIFO queue with a Key column take several rows of a key, in their order: the others
	// of the key wait until all of these are settled. It is for those who keep the order within what they received.
	Runs bool

	// Form says how a row is held while it is in work. Default Lease{}.
	Form Form
	// Statements are SQL of your own in the place of the library's.
	Statements Statements
}

// Standard returns the table this package recommends, under the given name:
// with id, payload, attempt, retry_after, locked_until, headers, msg_key and
// cause; and, if group is not empty, a column queue that holds it. Add to it what else you
// want, such as Priority or ProcessedAt, before you make a queue of it.
func Standard(name, group string) Table {
	t := Table{
		Name: name, ID: "id", Payload: "payload", Attempt: "attempt", RetryAfter: "retry_after",
		LockedUntil: "locked_until", Headers: "headers", Key: "msg_key", Cause: "cause", Form: Lease{},
	}
	if group != "" {
		t.Group, t.GroupValue = "queue", group
	}
	return t
}

// Form is how a row is held while it is in work: [Lease], [AdvisoryLock] or [RowLock].
type Form interface{ form() string }

// Lease holds a row by a time in its LockedUntil column. The claim is committed,
// so no transaction stays open while a handler runs, and a lease is renewed at half of its life as
// long as the delivery is in work. After a crash the row comes back when its lease ends.
type Lease struct {
	// For is how long a claim holds. Default 30 s; at least 100 ms.
	For time.Duration
}

// AdvisoryLock holds a row by a lock with a name, which is gone as soon as its
// holder is. Rows whose locks have the same name go one at a time.
type AdvisoryLock struct {
	// Key is the lock's name: text with columns in braces, such as "jobs-{id}"
	// or "customer-{customer_id}". It must name at least one column.
	Key string
}

// RowLock holds a row by the database's own lock on it, in a transaction that
// lasts as long as the delivery is in work. SQLite has no row locks.
type RowLock struct{}

func (Lease) form() string        { return "Lease" }
func (AdvisoryLock) form() string { return "AdvisoryLock" }
func (RowLock) form() string      { return "RowLock" }

const (
	defaultLease = 30 * time.Second
	leastLease   = 100 * time.Millisecond
)

// Role is what a column of a table is for.
type Role uint8

// The roles.
const (
	RoleID Role = iota
	RolePayload
	RoleGroup
	RoleAttempt
	RoleRetryAfter
	RoleLockedUntil
	RoleProcessedAt
	RolePriority
	RoleHeaders
	RoleKey
	RoleCause
	roleCount
)

var roleNames = [...]string{
	"ID", "Payload", "Group", "Attempt", "RetryAfter", "LockedUntil", "ProcessedAt", "Priority", "Headers", "Key", "Cause",
}

// String returns the name of the Table field.
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Columns returns the column of each role, empty where the table has none.
func (t *Table) Columns() [roleCount]string {
	return [...]string{
		t.ID, t.Payload, t.Group, t.Attempt, t.RetryAfter, t.LockedUntil, t.ProcessedAt, t.Priority, t.Headers, t.Key, t.Cause,
	}
}

// lease returns how long a claim holds; 0 where the form is another.
func (t *Table) lease() time.Duration {
	l, ok := t.Form.(Lease)
	switch {
	case !ok:
		return 0
	case l.For == 0:
		return defaultLease
	default:
		return l.For
	}
}

// check returns the first reason why no database could serve the table.
func (t *Table) check(source string) error {
	columns := t.Columns()
	if t.Name == "" {
		return refuse(source, "Name", "it is empty", "name the table")
	}
	for _, s := range []string{t.Schema, t.Name, t.GroupValue} {
		if strings.ContainsRune(s, 0) {
			return refuse(source, "Name", "a name holds a NUL byte", "take it out")
		}
	}
	taken := make(map[string]Role, len(columns))
	for i, name := range columns {
		role := Role(i)
		if name == "" {
			if role == RoleID || role == RolePayload && !t.NoPayload {
				return refuse(source, role.String(), "it is empty", "name the column")
			}
			continue
		}
		if strings.ContainsRune(name, 0) {
			return refuse(source, role.String(), "the name holds a NUL byte", "take it out")
		}
		if other, ok := taken[name]; ok {
			return refuse(source, role.String(), fmt.Sprintf("column %q has the role %v already", name, other), "give each role a column of its own")
		}
		taken[name] = role
	}
	switch {
	case t.NoPayload && t.Payload != "":
		return refuse(source, "NoPayload", fmt.Sprintf("column %q has the role Payload", t.Payload), "leave one of them out")
	case t.Group != "" && t.GroupValue == "":
		return refuse(source, "GroupValue", "the table has a Group column and this queue no value in it", "set GroupValue")
	case t.Group == "" && t.GroupValue != "":
		return refuse(source, "Group", "GroupValue is set and no column takes it", "name the Group column")
	}
	if err := t.checkForm(source); err != nil {
		return err
	}
	if t.Runs && (!t.FIFO || t.Key == "") {
		return refuse(source, "Runs", "it is about the keys of a FIFO queue", "set FIFO and name the Key column, or leave Runs out")
	}
	if t.FIFO {
		switch {
		case t.lease() == 0:
			return refuse(source, "FIFO", "it needs the Lease form", `use Lease, or AdvisoryLock{Key: "{key}"}, which works on one row a key at a time, in no order`)
		case t.Priority != "":
			return refuse(source, "FIFO", "Priority changes the order that FIFO keeps", "leave one of them out")
		}
	}
	return nil
}

func (t *Table) checkForm(source string) error {
	switch f := t.Form.(type) {
	case Lease:
		switch {
		case f.For < 0 || f.For > 0 && f.For < leastLease:
			return refuse(source, "Lease.For", fmt.Sprintf("%v is too short", f.For), fmt.Sprintf("use at least %v, or zero for %v", leastLease, defaultLease))
		case t.LockedUntil == "":
			return refuse(source, "LockedUntil", "the Lease form needs it", "name the column, or use another form")
		}
	case AdvisoryLock:
		if t.LockedUntil != "" {
			return refuse(source, "LockedUntil", "it is a lease's, and the form is AdvisoryLock", "leave LockedUntil out, or use Lease")
		}
		if _, err := parseKey(f.Key); err != nil {
			return refuse(source, "AdvisoryLock.Key", err.Error(), `write it like "jobs-{id}"`)
		}
	case RowLock:
	default:
		return refuse(source, "Form", fmt.Sprintf("%T is none of this package's", t.Form), "use Lease{}, AdvisoryLock{} or RowLock{}")
	}
	return nil
}

// keyPart is a piece of a lock's name: text, or the value of a column.
type keyPart struct {
	text   string
	column bool
}

// parseKey takes the pattern of a lock's name apart.
func parseKey(pattern string) ([]keyPart, error) {
	var parts []keyPart
	columns := 0
	for rest := pattern; rest != ""; {
		open := strings.IndexByte(rest, '{')
		if open < 0 {
			parts = append(parts, keyPart{text: rest})
			break
		}
		if open > 0 {
			parts = append(parts, keyPart{text: rest[:open]})
		}
		end := strings.IndexByte(rest[open:], '}')
		if end < 0 {
			return nil, fmt.Errorf("%q has a brace that does not close", pattern)
		}
		name := rest[open+1 : open+end]
		if name == "" {
			return nil, fmt.Errorf("%q has braces without a column", pattern)
		}
		parts = append(parts, keyPart{text: name, column: true})
		columns++
		rest = rest[open+end+1:]
	}
	if columns == 0 {
		return nil, fmt.Errorf("%q names no column, so that one row would be in work at a time in all of the table", pattern)
	}
	return parts, nil
}
