package sqlite

import (
	"context"
	"fmt"
	"strings"

	"github.com/settlemq/settle/sqlq"
)

// Create makes the table in the order of its roles, the payload last: SQLite
// reads a row from its start, and a claim needs the short columns. A payload that is
// text is kept as text, so that SQL can look into it; any other as a blob.
func (dialect) Create(t *sqlq.Table) []string {
	columns := t.Columns()
	id := "INTEGER PRIMARY KEY AUTOINCREMENT"
	if t.IDType != "" {
		id = t.IDType + " NOT NULL PRIMARY KEY"
	}
	var lines []string
	for _, c := range []struct {
		role sqlq.Role
		as   string
	}{
		{sqlq.RoleID, id},
		{sqlq.RoleGroup, "TEXT NOT NULL"},
		{sqlq.RoleAttempt, "INTEGER NOT NULL DEFAULT 1"},
		{sqlq.RolePriority, "INTEGER NOT NULL DEFAULT 0"},
		{sqlq.RoleRetryAfter, "INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))"},
		{sqlq.RoleLockedUntil, "INTEGER"},
		{sqlq.RoleProcessedAt, "INTEGER"},
		{sqlq.RoleKey, "TEXT"},
		{sqlq.RoleHeaders, "TEXT"},
		{sqlq.RoleCause, "TEXT"},
		{sqlq.RolePayload, "TEXT NOT NULL"},
	} {
		if name := columns[c.role]; name != "" {
			lines = append(lines, "    "+quote(name)+" "+c.as)
		}
	}
	all := []string{fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n%s\n)", tableRef(t), strings.Join(lines, ",\n"))}
	for _, i := range indexes(t) {
		all = append(all, i.sql)
	}
	return all
}

func tableRef(t *sqlq.Table) string {
	if t.Schema == "" {
		return quote(t.Name)
	}
	return quote(t.Schema) + "." + quote(t.Name)
}

// index is one that a table's queries need, and what for.
type index struct {
	what string
	sql  string
}

// indexed quotes a column's name where an index is made. In double quotes SQLite
// would take a name that is no column for a text constant, and index that.
func indexed(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// indexes are those that serve the table's queries: that of claims first, if one is needed.
func indexes(t *sqlq.Table) []index {
	var all []index
	add := func(suffix, what, condition string, columns ...string) {
		var given []string
		for _, c := range columns {
			if c != "" {
				given = append(given, c)
			}
		}
		name := quote(t.Name + "_" + suffix)
		if t.Schema != "" {
			name = quote(t.Schema) + "." + name
		}
		text := fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s (%s)", name, quote(t.Name), strings.Join(given, ", "))
		if condition != "" {
			text += " WHERE " + condition
		}
		all = append(all, index{what, text})
	}
	column := func(name, suffix string) string {
		if name == "" {
			return ""
		}
		return indexed(name) + suffix
	}
	waiting := column(t.ProcessedAt, " IS NULL")
	if t.Group != "" || t.RetryAfter != "" || t.Priority != "" || t.ProcessedAt != "" {
		add("claim", "claims", waiting,
			column(t.Group, ""), column(t.Priority, " DESC"), column(t.RetryAfter, ""), indexed(t.ID))
	}
	if t.FIFO {
		if t.Key != "" {
			add("line", "the first row of a key", waiting, column(t.Group, ""), indexed(t.Key), column(t.RetryAfter, ""), indexed(t.ID))
		}
		add("held", "the rows in work", indexed(t.LockedUntil)+" IS NOT NULL", column(t.Group, ""), column(t.Key, ""), indexed(t.LockedUntil))
	}
	if t.ProcessedAt != "" {
		add("processed", "Purge", indexed(t.ProcessedAt)+" IS NOT NULL", column(t.Group, ""), indexed(t.ProcessedAt))
	}
	return all
}

// Found implements sqlq.Dialect.
func (d dialect) Found(ctx context.Context, db sqlq.Execer, schema, table string) ([]sqlq.Column, error) {
	var in any
	if schema != "" {
		in = schema
	}
	unique, err := d.uniqueColumns(ctx, db, in, table)
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, `SELECT name, type, "notnull", dflt_value IS NOT NULL, pk, hidden FROM pragma_table_xinfo(?1, ?2)`, table, in)
	if err != nil {
		return nil, err
	}
	var all []sqlq.Column
	keys, key := 0, -1
	for rows.Next() {
		var c sqlq.Column
		var pk, hidden int
		if err := rows.Scan(&c.Name, &c.Type, &c.NotNull, &c.Default, &pk, &hidden); err != nil {
			_ = rows.Close()
			return nil, err
		}
		c.ReadOnly = hidden > 1
		c.Unique = unique[c.Name]
		if pk > 0 {
			keys++
			key = len(all)
		}
		all = append(all, c)
	}
	if err := rows.Err(); err != nil {
		_ = rows.Close()
		return nil, err
	}
	if keys == 1 {
		all[key].Unique = true
		if strings.EqualFold(all[key].Type, "INTEGER") { // the rowid under another name
			all[key].NotNull, all[key].Default = true, true
		}
	}
	return all, rows.Close()
}

// uniqueColumns returns the columns that have a unique index to themselves.
func (dialect) uniqueColumns(ctx context.Context, db sqlq.Execer, schema any, table string) (map[string]bool, error) {
	rows, err := db.Query(ctx, `SELECT min(c.name) FROM pragma_index_list(?1, ?2) AS i JOIN pragma_index_info(i.name, ?2) AS c
		WHERE i."unique" AND NOT i.partial GROUP BY i.name HAVING count(*) = 1`, table, schema)
	if err != nil {
		return nil, err
	}
	all := make(map[string]bool)
	for rows.Next() {
		var name *string
		if err := rows.Scan(&name); err != nil {
			_ = rows.Close()
			return nil, err
		}
		if name != nil {
			all[*name] = true
		}
	}
	if err := rows.Err(); err != nil {
		_ = rows.Close()
		return nil, err
	}
	return all, rows.Close()
}
