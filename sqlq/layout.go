package sqlq

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Column is one column as it was found in the database.
type Column struct {
	Name     string
	Type     string // as it was declared
	NotNull  bool
	Unique   bool // alone, by a primary key or unique index
	Default  bool // the database fills it in
	ReadOnly bool // generated: it cannot be inserted
	Digits   int  // of the fraction of a second that a time column keeps

	// What follows a dialect fills in where it has a use for it.

	Collation string // of a text column
	Index     string // the unique index that it has to itself
	Length    int    // of a text column, in characters; 0: not known
}

// Layout is a [Table] with its columns as they were found. Dialects build their SQL from it.
type Layout struct {
	Table
	Index string // what an [Indexer] found
	d     Dialect
	found map[string]Column
	dead  *deadTable // nil: no dead table
}

// Column returns the column of the role; its Name is empty where there is none.
func (l *Layout) Column(r Role) Column {
	return l.found[l.Columns()[r]]
}

// Has reports whether the table has a column for the role.
func (l *Layout) Has(r Role) bool { return l.Columns()[r] != "" }

// Q returns the quoted name of the role's column.
func (l *Layout) Q(r Role) string { return l.d.Quote(l.Columns()[r]) }

// Ref returns the quoted name of the table.
func (l *Layout) Ref() string { return ref(l.d, l.Schema, l.Name) }

func ref(d Dialect, schema, name string) string {
	if schema == "" {
		return d.Quote(name)
	}
	return d.Quote(schema) + "." + d.Quote(name)
}

// Mine returns the condition that a row is of this queue and not processed. The
// alias stands before each column; empty for none.
func (l *Layout) Mine(alias string) string {
	if alias != "" {
		alias += "."
	}
	var all []string
	if l.Has(RoleGroup) {
		all = append(all, alias+l.Q(RoleGroup)+" = "+l.In(RoleGroup, ":group"))
	}
	if l.Has(RoleProcessedAt) {
		all = append(all, alias+l.Q(RoleProcessedAt)+" IS NULL")
	}
	if !l.Column(RoleID).NotNull { // a row without an id cannot be settled; it must not stand in the way
		all = append(all, alias+l.Q(RoleID)+" IS NOT NULL")
	}
	if len(all) == 0 {
		return "1 = 1"
	}
	return strings.Join(all, " AND ")
}

// claimed are the roles of what a claim returns of each row, in the order that
// this package scans it.
var claimed = [...]Role{RoleID, RolePayload, RoleAttempt, RoleLockedUntil, RoleRetryAfter, RolePriority, RoleHeaders, RoleKey}

// Fields returns what a claim returns of each row. The alias stands before each column;
// empty for none.
func (l *Layout) Fields(alias string) string { return strings.Join(l.FieldList(alias), ", ") }

// FieldList is Fields, one by one.
func (l *Layout) FieldList(alias string) []string {
	var all []string
	for _, r := range claimed {
		if l.Has(r) {
			all = append(all, l.Out(r, alias))
		}
	}
	return all
}

// Out returns the role's column as a claim returns it.
func (l *Layout) Out(r Role, alias string) string {
	ref := l.Q(r)
	if alias != "" {
		ref = alias + "." + ref
	}
	return l.d.Out(r, l.Column(r), ref)
}

// In returns a parameter as the role's column takes it.
func (l *Layout) In(r Role, param string) string { return l.d.In(r, l.Column(r), param) }

// Fence returns the roles of the columns that say that a delivery still has its
// row: all of them are as its claim left them. A row that is locked is its delivery's anyway.
func (l *Layout) Fence() []Role {
	fence := []Role{RoleID}
	if l.Has(RoleAttempt) && !l.Locked() {
		fence = append(fence, RoleAttempt)
	}
	if l.Has(RoleLockedUntil) {
		fence = append(fence, RoleLockedUntil)
	}
	return fence
}

// Dead returns the table that dead letters move to and the columns that both
// tables have and that can be inserted; empty where there is none.
func (l *Layout) Dead() (table string, columns []Column) {
	if l.dead == nil {
		return "", nil
	}
	return l.dead.ref, l.dead.columns
}

// deadTable is the other table that dead letters move to.
type deadTable struct {
	ref     string
	columns []Column // those that both tables have and that can be inserted
}

// load reads the table's columns and checks that they can have their roles.
func load(ctx context.Context, db Execer, d Dialect, t Table, source string) (*Layout, error) {
	if reason, fix := d.Refuses(t.Form); reason != "" {
		return nil, refuse(source, "Form", reason, fix)
	}
	if _, rows := t.Form.(RowLock); rows && t.LockedUntil != "" {
		return nil, refuse(source, "LockedUntil", "it is a lease's, and the form is RowLock", "leave LockedUntil out, or use Lease")
	}
	columns, err := d.Found(ctx, db, t.Schema, t.Name)
	if err != nil {
		return nil, d.Explain(source, fmt.Errorf("reading the table's columns: %w", err))
	}
	if len(columns) == 0 {
		return nil, refuse(source, "Name", "there is no such table", "make it with CreateTable or with the SQL of Schema, or correct the name")
	}
	l := &Layout{Table: t, d: d, found: make(map[string]Column, len(columns))}
	for _, c := range columns {
		l.found[c.Name] = c
	}
	for i, name := range t.Columns() {
		if name == "" {
			continue
		}
		role := Role(i)
		c, ok := l.found[name]
		if !ok {
			return nil, refuse(source, role.String(), fmt.Sprintf("the table has no column %q; it has %s", name, columnNames(columns)), "correct the name, or add the column")
		}
		if reason, fix := l.unusable(role, c); reason != "" {
			return nil, refuse(source, role.String(), fmt.Sprintf("column %q %s", name, reason), fix)
		}
	}
	if lock, ok := t.Form.(AdvisoryLock); ok {
		parts, _ := parseKey(lock.Key)
		for _, p := range parts {
			if _, ok := l.found[p.text]; p.column && !ok {
				return nil, refuse(source, "AdvisoryLock.Key", fmt.Sprintf("the table has no column %q; it has %s", p.text, columnNames(columns)), "correct the name between the braces")
			}
		}
	}
	return l, nil
}

// nameless returns a column that every row must have a value for and that has no role:
// this queue can put nothing into the table. Empty: there is none.
func (l *Layout) nameless() string {
	roles := l.Columns()
	var all []string
	for name, c := range l.found {
		if c.NotNull && !c.Default && !c.ReadOnly && !slices.Contains(roles[:], name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all[:min(1, len(all))], "")
}

// unusable says why c cannot have the role, by the rules of every database and
// then by those of this one.
func (l *Layout) unusable(r Role, c Column) (reason, fix string) {
	switch {
	case r == RoleID && !c.Unique:
		return "is not unique", "make it the primary key, or give it a unique index of its own"
	case (r == RoleLockedUntil || r == RoleProcessedAt) && c.NotNull:
		return "is NOT NULL, and NULL is what a row has that nobody holds or has processed", "let it be NULL"
	case r == RoleRetryAfter && l.FIFO && !c.NotNull:
		return "may be NULL, which leaves the order of a FIFO queue open", "declare it NOT NULL"
	case c.ReadOnly && r != RoleID && r != RolePayload && r != RoleKey:
		return "is generated, and the queue writes it", "use a plain column"
	}
	return l.d.Unusable(r, c)
}

// withDead returns the layout with a dead table, whose columns it checks.
func (l *Layout) withDead(ctx context.Context, db Execer, name, source string) (*Layout, error) {
	columns, err := l.d.Found(ctx, db, l.Schema, name)
	if err != nil {
		return nil, l.d.Explain(source, fmt.Errorf("reading the columns of table %q: %w", name, err))
	}
	if len(columns) == 0 {
		return nil, refuse(source, "DeadLetter", fmt.Sprintf("there is no table %q", name), "make it with the same columns, or correct the name")
	}
	dead := &deadTable{ref: ref(l.d, l.Schema, name)}
	for _, c := range columns {
		if _, ok := l.found[c.Name]; ok && !c.ReadOnly {
			dead.columns = append(dead.columns, c)
		}
	}
	for i, column := range l.Columns() {
		has := slices.ContainsFunc(dead.columns, func(c Column) bool { return c.Name == column })
		if column != "" && !has {
			return nil, refuse(source, "DeadLetter", fmt.Sprintf("table %q has no column %q, which has the role %v", name, column, Role(i)), "give it the same columns")
		}
	}
	for _, c := range columns {
		_, copied := l.found[c.Name]
		switch {
		case c.Name == l.LockedUntil && c.NotNull:
			return nil, refuse(source, "DeadLetter", fmt.Sprintf("column %q of table %q is NOT NULL, and nobody holds a dead letter", c.Name, name), "let it be NULL")
		case !copied && c.NotNull && !c.Default && !c.ReadOnly:
			return nil, refuse(source, "DeadLetter", fmt.Sprintf("column %q of table %q is NOT NULL, and the queue's table has none that fills it", c.Name, name), "give it a default, or let it be NULL")
		case copied && c.NotNull && !l.found[c.Name].NotNull && c.Name != l.Payload && c.Name != l.ID:
			return nil, refuse(source, "DeadLetter", fmt.Sprintf("column %q of table %q is NOT NULL, and in the queue's table it may be NULL", c.Name, name), "let it be NULL in both, or in neither")
		}
	}
	for column, c := range l.found {
		if !c.ReadOnly && !slices.ContainsFunc(columns, func(d Column) bool { return d.Name == column }) {
			return nil, refuse(source, "DeadLetter", fmt.Sprintf("table %q has no column %q, so that what is in it would be lost with each dead letter", name, column), "add the column")
		}
	}
	with := *l
	with.dead = dead
	return &with, nil
}

func columnNames(columns []Column) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = fmt.Sprintf("%q", c.Name)
	}
	return strings.Join(names, ", ")
}
