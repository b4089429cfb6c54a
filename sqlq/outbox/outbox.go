// Package outbox keeps what a service publishes in the service's own database
// until a consumer has processed it: a message is recorded in the transaction of what it tells about, sent
// by a relay, and marked by its consumer. Whatever crashes in between, it is sent again.
//
//	box := outbox.New(db, outbox.Standard("outbox"), outbox.Options{}) // db of postgres.Open, sqlite.Open, ...
//	err := box.CreateTable(ctx)
//
//	// The service: the order and its event are committed together, or neither is.
//	err = box.Record(ctx, postgres.Tx(tx), settle.Message{To: "orders", Key: customer, Body: body})
//	err = tx.Commit(ctx)
//	box.Wake()
//
//	// The same process or another: sends what is recorded.
//	relay := &outbox.Relay{Box: box, Publisher: &rabbit.Publisher{Broker: broker}}
//	err = relay.Run(ctx)
//
//	// The consumer: marks what is processed.
//	rt.Handle(queue, handler, settle.Options{Middleware: []settle.Middleware{box.Middleware()}})
//
// # What is promised
//
// A record whose transaction is committed is sent until it is done, or set
// aside with a reason after a cap. It is done when a consumer has marked it or, by choice
// (see [OnConfirm]), when the broker has confirmed it. It may be sent more than once, under
// the same id; a consumer with [Box.Middleware] does not handle again what is marked. Two copies that are in work
// at the same time are both handled. A record has one mark, so one consumer marks it.
//
// Records of one key are sent in the order they were recorded, one at a time,
// over all relays. One that is sent again, or was set aside, does not hold up those behind it.
//
// # Two tables
//
// What a record is stands in a table of the user's own, or the one that CreateTable
// makes. What has become of it so far stands in a second one beside that, under the
// same id: when it is due, how often it was sent, who has it now, why it was set
// aside. The relay's work does
// not grow with the records that are done and kept.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// DefaultHeader is the header that a record's id travels in.
const DefaultHeader = "x-ruststream-outbox-id"

// DB is an opened database, such as a *postgres.DB or a *sqlite.DB.
type DB interface{ Database() *sqlq.Database }

// Table names the table of records and what its columns are for. Schema, Headers, Key,
// ProcessedAt and Side may be empty. Names are taken as they are and quoted.
type Table struct {
	// Schema is the schema, database or attached database that both tables are in.
	// Empty: where the connection looks first.
	Schema string
	// Name is the table's.
	Name string

	// ID is a primary key or a unique column. Record gives it a value: text of 32 characters, a UUID, or 16
	// bytes. An integer is counted by the database; then give the outbox an [Options.Header] of its own, because
	// the numbers of two outboxes are the same.
	ID string
	// To is where the record goes, see [settle.Message.To]. Text.
	To string
	// Payload is the message's body.
	Payload string
	// Headers holds the message's headers as a JSON object. Without it they are kept in the side table.
	Headers string
	// Key takes a copy of the message's ordering key, for those who look at the table.
	Key string
	// ProcessedAt is when the record was marked; NULL until then. Without it the mark is kept in the
	// side table.
	ProcessedAt string

	// Side is the name of the table for the rest, which CreateTable makes. Empty: Name with "_relay" after it.
	Side string
}

// Standard returns the table that this package recommends, under the given
// name: with id, name, payload, headers, msg_key and processed_at.
func Standard(name string) Table {
	return Table{Name: name, ID: "id", To: "name", Payload: "payload", Headers: "headers", Key: "msg_key", ProcessedAt: "processed_at"}
}

// Options are the settings that all who use an outbox have in common. The zero
// value of each means the default that stands beside it.
type Options struct {
	// Header is the header that a record's id travels in. Default
	// [DefaultHeader]. Outboxes whose ids are integers need a header each: their ids tell
	// the records of one table apart, not those of two.
	Header string
	// Logger takes what a person should know. Default slog.Default().
	Logger *slog.Logger
	// Observe is told what happens to records. It is called by several goroutines at once and must be
	// quick. Nil: nobody is.
	Observe func(Event)
}

// Box is an outbox in a database. It may be used by several goroutines at once.
type Box struct {
	db      *sqlq.Database
	table   Table
	o       Options
	name    string
	waker   *sqlq.Queue // the side table, to wake relays
	invalid error       // what is wrong with the table, told by whatever is called first

	mu     sync.Mutex // guards tables
	tables *tables    // nil: not read yet
}

// New returns the outbox in a table. It does no I/O: what is wrong with the
// table is the error of the first call that needs it.
func New(db DB, t Table, o Options) *Box {
	if t.Side == "" && t.Name != "" {
		t.Side = t.Name + "_relay"
	}
	if o.Header == "" {
		o.Header = DefaultHeader
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	b := &Box{table: t, o: o, name: fmt.Sprintf("outbox %q", t.Name)}
	if db == nil {
		b.invalid = b.refuse("db", "it is nil", "pass the database you opened")
		return b
	}
	b.db = db.Database()
	b.name = fmt.Sprintf("%s: outbox %q", b.db.Dialect.Name(), t.Name)
	b.waker = sqlq.NewQueue(b.db, b.sideTable("", 0))
	b.invalid = b.check()
	return b
}

// Name is what errors and logs call the outbox.
func (b *Box) Name() string { return b.name }

// Wake has the relays of this process look for records now. Call it after the commit of a transaction that
// messages were recorded in; without it they look within the database's Poll.
func (b *Box) Wake() {
	if b.invalid == nil {
		b.waker.Wake()
	}
}

func (b *Box) refuse(setting, reason, fix string) *settle.ConfigError {
	return &settle.ConfigError{Source: b.name, Setting: setting, Reason: reason, Fix: fix}
}

// explain names the outbox in what goes wrong with the database.
func (b *Box) explain(doing string, err error) error {
	var config *settle.ConfigError
	if err == nil || errors.As(err, &config) {
		return err
	}
	return b.db.Dialect.Explain(b.name, fmt.Errorf("%s: %w", doing, err))
}

// check returns the first reason why no database could serve the table.
func (b *Box) check() error {
	t := &b.table
	taken := make(map[string]string)
	for _, c := range []struct {
		role, name string
		needed     bool
	}{
		{"ID", t.ID, true},
		{"To", t.To, true},
		{"Payload", t.Payload, true},
		{"Headers", t.Headers, false},
		{"Key", t.Key, false},
		{"ProcessedAt", t.ProcessedAt, false},
	} {
		switch other, ok := taken[c.name]; {
		case c.name == "" && c.needed:
			return b.refuse(c.role, "it is empty", "name the column")
		case c.name == "":
		case strings.ContainsRune(c.name, 0):
			return b.refuse(c.role, "the name holds a NUL byte", "take it out")
		case ok:
			return b.refuse(c.role, fmt.Sprintf("column %q has the role %s already", c.name, other), "give each role a column of its own")
		default:
			taken[c.name] = c.role
		}
	}
	switch {
	case t.Name == "":
		return b.refuse("Name", "it is empty", "name the table")
	case strings.ContainsRune(t.Schema+t.Name+t.Side, 0):
		return b.refuse("Name", "a name holds a NUL byte", "take it out")
	case strings.EqualFold(t.Side, t.Name):
		return b.refuse("Side", "it is the table of records itself", "give the side table a name of its own")
	case strings.EqualFold(b.o.Header, sqlq.MessageIDHeader) || strings.EqualFold(b.o.Header, priorityHeader):
		return b.refuse("Header", fmt.Sprintf("%q carries something else already", b.o.Header), "use another name")
	}
	return nil
}

// ids is a padded list of ids, so that the database sees few different statements: each is as
// long as a power of two.
func padded(ids []any) []any {
	size := 1
	for size < len(ids) {
		size *= 2
	}
	all := append(make([]any, 0, size), ids...)
	for len(all) < size {
		all = append(all, ids[len(ids)-1])
	}
	return all
}

// among is the condition that a row, in the alias if there is one, has one of some ids, which it adds to args.
func among(l *sqlq.Layout, alias string, ids []any, args sqlq.Args) string {
	if alias != "" {
		alias += "."
	}
	all := padded(ids)
	params := make([]string, len(all))
	for i, id := range all {
		name := fmt.Sprintf("id%d", i)
		params[i] = l.In(sqlq.RoleID, ":"+name)
		args[name] = id
	}
	return alias + l.Q(sqlq.RoleID) + " IN (" + strings.Join(params, ", ") + ")"
}

// step makes a statement of a text, which may name the process's time and the states of the side table beside args.
func (b *Box) step(text string, args sqlq.Args, rows func(sqlq.Rows) error) (sqlq.Step, error) {
	args["now"] = time.Now().UnixMicro()
	args["waiting"], args["aside"], args["done"], args["dead"] = stateWaiting, stateAside, stateDone, stateDead
	query, values, err := sqlq.Bind(b.db.Dialect, text, args)
	if err != nil {
		return sqlq.Step{}, fmt.Errorf("%s: %w", b.name, err)
	}
	return sqlq.Step{SQL: query, Args: values, Rows: rows}, nil
}

// query runs a text and has read called with each row.
func (b *Box) query(ctx context.Context, ex sqlq.Execer, text string, args sqlq.Args, read func(sqlq.Rows) error) error {
	s, err := b.step(text, args, nil)
	if err != nil {
		return err
	}
	rows, err := ex.Query(ctx, s.SQL, s.Args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := read(rows); err != nil {
			_ = rows.Close()
			return err
		}
	}
	err = rows.Err()
	if closed := rows.Close(); err == nil {
		err = closed
	}
	return err
}
