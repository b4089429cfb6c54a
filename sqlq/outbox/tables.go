package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// This file is what an outbox knows of its two tables: what they look like, how
// they are made, and what is refused of the user's own.

// The values of the side table's state. Every statement may name them, by its word.
const (
	stateWaiting = "waiting"   // to be sent, or sent and not marked: due_at says when it is sent next
	stateAside   = "set aside" // sent no more
	stateDone    = "done"      // marked at due_at, where the table of records has no column for that
	stateDead    = "dead"      // marked, and its delivery is a dead letter, because of the reason
)

// recordsTable is the table of records by the roles that package sqlq knows. Cause, a
// role for text, stands for To.
func (b *Box) recordsTable() sqlq.Table {
	t := &b.table
	return sqlq.Table{
		Schema: t.Schema, Name: t.Name, ID: t.ID, Payload: t.Payload, Headers: t.Headers, Key: t.Key, ProcessedAt: t.ProcessedAt, Cause: t.To,
	}
}

// sideTable is the queue of what is not done: its claims are the relay's leases,
// its due times the pauses, its FIFO the order of each key.
func (b *Box) sideTable(idType string, lease time.Duration) sqlq.Table {
	t := &b.table
	side := sqlq.Table{
		Schema: t.Schema, Name: t.Side, ID: "id", IDType: idType, NoPayload: true, Group: "state", GroupValue: stateWaiting,
		Attempt: "next_send", RetryAfter: "due_at", LockedUntil: "locked_until", Key: "msg_key", Cause: "reason",
		FIFO: true, Runs: true, Form: sqlq.Lease{For: lease},
	}
	if t.Headers == "" {
		side.Headers = "headers"
	}
	return side
}

// tables are both tables as they were found, and the statements that follow from that.
type tables struct {
	records, side *sqlq.Layout
	counted       bool // the database makes the ids
	aside         bool // the marks are in the side table

	insert []string    // a record and its row in the side table
	ended  string      // how a record ended, see [ending], and the reason; no row where there is no record
	mark   [2][]string // by [ending]: ends a record; the first touches a row if it had not ended
	exists string      // a row if there is such a record, the latest whatever the transaction has seen of it
}

// open returns the tables, read on ex the first time.
func (b *Box) open(ctx context.Context, ex sqlq.Execer) (*tables, error) {
	if b.invalid != nil {
		return nil, b.invalid
	}
	b.mu.Lock()
	known := b.tables
	b.mu.Unlock()
	if known != nil {
		return known, nil
	}
	t, err := b.read(ctx, ex)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.tables = t
	b.mu.Unlock()
	return t, nil
}

// read reads and checks the tables.
func (b *Box) read(ctx context.Context, ex sqlq.Execer) (*tables, error) {
	t := &tables{}
	var err error
	if t.records, err = b.db.Layout(ctx, ex, b.recordsTable(), b.name); err != nil {
		return nil, inOurWords(err)
	}
	all, err := b.db.Dialect.Found(ctx, ex, b.table.Schema, b.table.Name)
	if err != nil {
		return nil, b.explain("reading the table's columns", err)
	}
	id := t.records.Column(sqlq.RoleID)
	t.counted = id.Default && integer(id)
	if integer(id) && !t.counted {
		return nil, b.refuse("ID", fmt.Sprintf("column %q is an integer that the database does not count up", id.Name), "let the database make its values, or use text")
	}
	if need := len(sqlq.NewID()); b.db.Dialect.TakesID(id) && id.Length > 0 && id.Length < need {
		return nil, b.refuse("ID", fmt.Sprintf("column %q has room for %d characters, and an id has %d", id.Name, id.Length, need), "make it longer")
	}
	filled := []string{b.table.ID, b.table.To, b.table.Payload, b.table.Key, b.table.Headers}
	for _, c := range all {
		if c.NotNull && !c.Default && !c.ReadOnly && !slices.Contains(filled, c.Name) {
			return nil, b.refuse("Name", fmt.Sprintf("column %q is NOT NULL, and no record fills it", c.Name), "give it a default, or let it be NULL")
		}
	}
	for _, r := range []sqlq.Role{sqlq.RoleKey, sqlq.RoleHeaders} {
		if t.records.Has(r) && t.records.Column(r).NotNull {
			return nil, b.refuse(r.String(), fmt.Sprintf("column %q is NOT NULL, and not every message has one", t.records.Column(r).Name), "let it be NULL")
		}
	}
	if t.side, err = b.db.Layout(ctx, ex, b.sideTable("", 0), b.name); err != nil {
		return nil, inTheirs(err, b.table.Side)
	}
	if sideID := t.side.Column(sqlq.RoleID); integer(sideID) != integer(id) {
		return nil, b.refuse("Side", fmt.Sprintf("the ids of table %q are of the type %s, and those of the records %s", b.table.Side, sideID.Type, id.Type), "make it anew with CreateTable")
	}
	t.aside = !t.records.Has(sqlq.RoleProcessedAt)
	if err := t.insertion(b.db.Dialect, b.name); err != nil {
		return nil, err
	}
	t.marks(b.db.Dialect)
	return t, nil
}

// ourIDs is the type of the ids of the table that CreateTable makes, in the words of every
// database. They are no small numbers, so that an id of another outbox is never taken for one of this.
const ourIDs = "varchar(32)"

// inOurWords names the field of [Table] that an error about a role is about.
func inOurWords(err error) error {
	var config *settle.ConfigError
	if errors.As(err, &config) && config.Setting == sqlq.RoleCause.String() {
		config.Setting = "To"
	}
	return err
}

// inTheirs says of an error that it is about the side table.
func inTheirs(err error, side string) error {
	var config *settle.ConfigError
	if !errors.As(err, &config) {
		return err
	}
	config.Setting, config.Reason = "Side", fmt.Sprintf("table %q: %s", side, config.Reason)
	config.Fix = "make it with CreateTable or with the SQL of Schema"
	return config
}

// integer reports whether a column holds whole numbers.
func integer(c sqlq.Column) bool {
	t := strings.ToLower(c.Type)
	return strings.Contains(t, "int") || strings.Contains(t, "serial")
}

// binary reports whether a column holds bytes, whose text is hexadecimal.
func binary(c sqlq.Column) bool {
	t := strings.ToLower(c.Type)
	return strings.Contains(t, "blob") || strings.Contains(t, "binary")
}

// insertion makes the statements that record a message: its :id, unless the
// database makes that, :to, :payload, :headers, :key and :delay.
func (t *tables) insertion(d sqlq.Dialect, source string) error {
	var columns, exprs []string
	for _, p := range []struct {
		role sqlq.Role
		name string
	}{
		{sqlq.RoleID, ":id"},
		{sqlq.RoleCause, ":to"},
		{sqlq.RoleKey, ":key"},
		{sqlq.RoleHeaders, ":headers"},
		{sqlq.RolePayload, ":payload"},
	} {
		if !t.records.Has(p.role) || p.role == sqlq.RoleID && t.counted {
			continue
		}
		columns, exprs = append(columns, t.records.Q(p.role)), append(exprs, t.records.In(p.role, p.name))
	}
	first := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", t.records.Ref(), strings.Join(columns, ", "), strings.Join(exprs, ", "))

	id := sqlq.NewRowID
	if !t.counted {
		id = t.side.In(sqlq.RoleID, ":id")
	}
	into := []string{t.side.Q(sqlq.RoleID), t.side.Q(sqlq.RoleGroup), t.side.Q(sqlq.RoleAttempt), t.side.Q(sqlq.RoleRetryAfter), t.side.Q(sqlq.RoleKey)}
	from := []string{
		id, t.side.In(sqlq.RoleGroup, ":waiting"), "1",
		d.Later(t.side.Column(sqlq.RoleRetryAfter), ":delay"), t.side.In(sqlq.RoleKey, ":key"),
	}
	if t.side.Has(sqlq.RoleHeaders) {
		into, from = append(into, t.side.Q(sqlq.RoleHeaders)), append(from, t.side.In(sqlq.RoleHeaders, ":headers"))
	}
	second := fmt.Sprintf("INSERT INTO %s (%s) SELECT %s", t.side.Ref(), strings.Join(into, ", "), strings.Join(from, ", "))
	if !t.counted {
		t.insert = []string{first, second}
		return nil
	}
	f, ok := d.(sqlq.Follower)
	if !ok {
		return &settle.ConfigError{Source: source, Setting: "ID", Reason: "it is counted by the database, which cannot say what it came to", Fix: "use an ID column of a text type"}
	}
	t.insert = f.Follow(first, t.records.Q(sqlq.RoleID), second)
	return nil
}

// ending is how a record ended.
type ending int

const (
	endedDone ending = iota
	endedDead
	notEnded
)

// marks makes the statements about the end of the record :id. Columns that are read have their table's
// alias before them: SQLite takes a quoted name that is no column for a text.
func (t *tables) marks(d sqlq.Dialect) {
	side, records := t.side, t.records
	isSide := func(alias string) string { return alias + side.Q(sqlq.RoleID) + " = " + side.In(sqlq.RoleID, ":id") }
	isRecord := func(alias string) string {
		return alias + records.Q(sqlq.RoleID) + " = " + records.In(sqlq.RoleID, ":id")
	}
	if t.aside {
		state, reason := "t."+side.Q(sqlq.RoleGroup), "t."+side.Q(sqlq.RoleCause)
		t.ended = fmt.Sprintf("SELECT CASE WHEN %s = %s THEN %d WHEN %s = %s THEN %d ELSE %d END, coalesce(%s, '') FROM %s AS t WHERE %s",
			state, t.state(":done"), endedDone, state, t.state(":dead"), endedDead, notEnded, reason, side.Ref(), isSide("t."))
		t.mark[endedDone] = []string{t.endAside(d, ":done", isSide(""))}
		t.mark[endedDead] = []string{t.endAside(d, ":dead", isSide(""))}
		t.exists = fmt.Sprintf("SELECT 1 FROM %s AS t WHERE %s", side.Ref(), isSide("t."))
	} else {
		dead := fmt.Sprintf("FROM %s AS s WHERE %s AND s.%s = %s", side.Ref(), isSide("s."), side.Q(sqlq.RoleGroup), t.state(":dead"))
		t.ended = fmt.Sprintf("SELECT CASE WHEN EXISTS (SELECT 1 %s) THEN %d WHEN %s THEN %d ELSE %d END, coalesce((SELECT s.%s %s), '') FROM %s AS t WHERE %s",
			dead, endedDead, t.isMarked(), endedDone, notEnded, side.Q(sqlq.RoleCause), dead, records.Ref(), isRecord("t."))
		mark := t.markRecords(d, isRecord(""))
		t.mark[endedDone] = []string{mark, fmt.Sprintf("DELETE FROM %s WHERE %s", side.Ref(), isSide(""))}
		t.mark[endedDead] = []string{mark, t.endAside(d, ":dead", isSide(""))}
		t.exists = fmt.Sprintf("SELECT 1 FROM %s AS t WHERE %s", records.Ref(), isRecord("t."))
	}
	if _, several := d.(sqlq.Server); several { // writers at once: a transaction may have an older view
		t.exists += " FOR UPDATE"
	}
}

// state is a state as the side table's column is compared with it.
func (t *tables) state(param string) string { return t.side.In(sqlq.RoleGroup, param) }

// isMarked is the condition that a record t has its mark in its own table.
func (t *tables) isMarked() string {
	return "t." + t.records.Q(sqlq.RoleProcessedAt) + " IS NOT NULL"
}

// markRecords marks those records that a condition finds and that are not marked.
func (t *tables) markRecords(d sqlq.Dialect, which string) string {
	at := t.records.Q(sqlq.RoleProcessedAt)
	return fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s AND %s IS NULL", t.records.Ref(), at, d.Now(t.records.Column(sqlq.RoleProcessedAt)), which, at)
}

// endAside writes an end, and :reason, into those rows of the side table that a condition finds and that have none. The lease
// ends as well, so that the relay does not write over it.
func (t *tables) endAside(d sqlq.Dialect, end, which string) string {
	side := t.side
	return fmt.Sprintf("UPDATE %s SET %s = %s, %s = %s, %s = %s, %s = NULL WHERE %s AND %s NOT IN (%s, %s)", side.Ref(),
		side.Q(sqlq.RoleGroup), t.state(end), side.Q(sqlq.RoleRetryAfter), d.Now(side.Column(sqlq.RoleRetryAfter)),
		side.Q(sqlq.RoleCause), side.In(sqlq.RoleCause, ":reason"), side.Q(sqlq.RoleLockedUntil),
		which, side.Q(sqlq.RoleGroup), t.state(":done"), t.state(":dead"))
}

// schema returns the statements that make what is missing. The ids of the side
// table have the type of those of the records.
func (b *Box) schema(ctx context.Context, ex sqlq.Execer) ([]string, error) {
	there, err := b.db.Dialect.Found(ctx, ex, b.table.Schema, b.table.Name)
	if err != nil {
		return nil, err
	}
	var all []string
	idType := ""
	if len(there) == 0 {
		t := b.recordsTable()
		t.IDType, idType = ourIDs, ourIDs
		all = b.db.Dialect.Create(&t)
	}
	beside, err := b.db.Dialect.Found(ctx, ex, b.table.Schema, b.table.Side)
	if err != nil {
		return nil, err
	}
	if len(beside) > 0 {
		if _, err := b.db.Layout(ctx, ex, b.sideTable("", 0), b.name); err != nil {
			return nil, inTheirs(err, b.table.Side)
		}
	}
	for _, c := range there {
		if c.Name == b.table.ID && !integer(c) {
			idType = c.Type
			if c.Length > 0 {
				idType = fmt.Sprintf("%s(%d)", c.Type, c.Length)
			}
		}
	}
	t := b.sideTable(idType, 0)
	return append(all, b.db.Dialect.Create(&t)...), nil
}

// Schema returns the SQL that makes the tables and indexes that are missing, for those who migrate
// by other means. It reads what is there.
func (b *Box) Schema(ctx context.Context) (string, error) {
	if b.invalid != nil {
		return "", b.invalid
	}
	all, err := b.schema(ctx, b.db.DB)
	if err != nil {
		return "", b.explain("reading the tables", err)
	}
	return strings.Join(all, ";\n\n") + ";\n", nil
}

// CreateTable makes the table of records, where it is missing, and the side
// table with its indexes. It changes no table that exists, and refuses one that cannot serve.
func (b *Box) CreateTable(ctx context.Context) error {
	if b.invalid != nil {
		return b.invalid
	}
	return b.explain("creating the tables", b.db.Transact(ctx, b.db.Durable, func(ex sqlq.Execer) error {
		all, err := b.schema(ctx, ex)
		if err != nil {
			return err
		}
		for _, text := range all {
			if _, err := ex.Exec(ctx, text); err != nil {
				return err
			}
		}
		_, err = b.read(ctx, ex)
		return err
	}))
}
