package sqlite

import (
	"context"
	"strings"

	"github.com/settlemq/settle/sqlq"
)

// Create makes the table in the order of its roles, the payload last: SQLite
// reads a row from its start, and a claim needs the short columns. A payload that is
// text is kept as text, so that SQL can look into it; any other as a blob.
func (d dialect) Create(t *sqlq.Table) []string {
	all := []string{t.CreateSQL(d, []sqlq.Definition{
		{Role: sqlq.RoleID, As: "INTEGER PRIMARY KEY AUTOINCREMENT"},
		{Role: sqlq.RoleGroup, As: "TEXT NOT NULL"},
		{Role: sqlq.RoleAttempt, As: "INTEGER NOT NULL DEFAULT 1"},
		{Role: sqlq.RolePriority, As: "INTEGER NOT NULL DEFAULT 0"},
		{Role: sqlq.RoleRetryAfter, As: "INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))"},
		{Role: sqlq.RoleLockedUntil, As: "INTEGER"},
		{Role: sqlq.RoleProcessedAt, As: "INTEGER"},
		{Role: sqlq.RoleKey, As: "TEXT"},
		{Role: sqlq.RoleHeaders, As: "TEXT"},
		{Role: sqlq.RoleCause, As: "TEXT"},
		{Role: sqlq.RolePayload, As: "TEXT NOT NULL"},
	})}
	for _, i := range t.Indexes() {
		all = append(all, createIndex(t, &i))
	}
	return all
}

// createIndex makes an index, which is in the schema of its table.
func createIndex(t *sqlq.Table, i *sqlq.Index) string {
	name := quote(t.Name + "_" + i.Suffix)
	if t.Schema != "" {
		name = quote(t.Schema) + "." + name
	}
	columns := t.Columns()
	return i.SQL(name, quote(t.Name), func(r sqlq.Role) string { return indexed(columns[r]) })
}

// indexed quotes a column's name where an index is made. In double quotes SQLite
// would take a name that is no column for a text constant, and index that.
func indexed(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

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
