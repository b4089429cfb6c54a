package sqlq

import (
	"fmt"
	"strings"
)

// This file is what the recommended tables of all databases have in common: which
// columns, and which indexes their queries need. A dialect says how that is written.

// Index is one that the queries of a table need.
type Index struct {
	Suffix string // of its name, behind the table's
	What   string // needs it
	// Columns are in the order of the index, Priority the highest first.
	Columns []Role
	// Only says which rows it holds, where a database has partial indexes; nil: all.
	Only *Condition
}

// Condition is that a column is NULL, or that it is not.
type Condition struct {
	Role Role
	Null bool
}

// Indexes are those that serve the table's queries: that of claims first, if one is needed.
func (t *Table) Indexes() []Index {
	has := t.Columns()
	var all []Index
	add := func(suffix, what string, only *Condition, columns ...Role) {
		i := Index{Suffix: suffix, What: what, Only: only}
		for _, r := range columns {
			if has[r] != "" {
				i.Columns = append(i.Columns, r)
			}
		}
		all = append(all, i)
	}
	var waiting *Condition
	if t.ProcessedAt != "" {
		waiting = &Condition{RoleProcessedAt, true}
	}
	if t.Group != "" || t.RetryAfter != "" || t.Priority != "" || t.ProcessedAt != "" {
		add("claim", "claims", waiting, RoleGroup, RolePriority, RoleRetryAfter, RoleID)
	}
	if t.FIFO {
		if t.Key != "" {
			add("line", "the first row of a key", waiting, RoleGroup, RoleKey, RoleRetryAfter, RoleID)
		}
		add("held", "the rows in work", &Condition{RoleLockedUntil, false}, RoleGroup, RoleKey, RoleLockedUntil)
	}
	if t.ProcessedAt != "" {
		add("processed", "Purge", &Condition{RoleProcessedAt, false}, RoleGroup, RoleProcessedAt)
	}
	return all
}

// SQL is the statement that makes the index name on the table on where it is
// missing. column writes a role's column.
func (i *Index) SQL(name, on string, column func(Role) string) string {
	var columns []string
	for _, r := range i.Columns {
		c := column(r)
		if r == RolePriority {
			c += " DESC"
		}
		columns = append(columns, c)
	}
	text := fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s (%s)", name, on, strings.Join(columns, ", "))
	switch {
	case i.Only == nil:
		return text
	case i.Only.Null:
		return text + " WHERE " + column(i.Only.Role) + " IS NULL"
	default:
		return text + " WHERE " + column(i.Only.Role) + " IS NOT NULL"
	}
}

// Missing is what is told of a table without the index; sql makes it.
func (i *Index) Missing(source, sql string) error {
	return fmt.Errorf("%s: no index serves %s, so each costs more the more rows there are; run: %s", source, i.What, sql)
}

// Definition is what a role's column is declared as.
type Definition struct {
	Role Role
	As   string
}

// CreateSQL is the statement that makes the table where it is missing, with the
// columns of the roles it has, in the given order. IDType goes before what is said of the ID.
func (t *Table) CreateSQL(d Dialect, definitions []Definition) string {
	columns := t.Columns()
	var lines []string
	for _, c := range definitions {
		if c.Role == RoleID && t.IDType != "" {
			c.As = t.IDType + " NOT NULL PRIMARY KEY"
		}
		if name := columns[c.Role]; name != "" {
			lines = append(lines, "    "+d.Quote(name)+" "+c.As)
		}
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n%s\n)", ref(d, t.Schema, t.Name), strings.Join(lines, ",\n"))
}

// QuotedName is the table's name as statements have it.
func (t *Table) QuotedName(d Dialect) string { return ref(d, t.Schema, t.Name) }
