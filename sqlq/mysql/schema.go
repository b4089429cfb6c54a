package mysql

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// Create makes the table with its indexes in one statement: MySQL has no CREATE
// INDEX IF NOT EXISTS. Groups and keys are told apart to the letter.
func (d dialect) Create(t *sqlq.Table) []string {
	const name = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
	text := t.CreateSQL(d, []sqlq.Definition{
		{Role: sqlq.RoleID, As: "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"},
		{Role: sqlq.RoleRetryAfter, As: "DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))"},
		{Role: sqlq.RoleLockedUntil, As: "DATETIME(6)"},
		{Role: sqlq.RoleProcessedAt, As: "DATETIME(6)"},
		{Role: sqlq.RoleAttempt, As: "INT NOT NULL DEFAULT 1"},
		{Role: sqlq.RolePriority, As: "INT NOT NULL DEFAULT 0"},
		{Role: sqlq.RoleGroup, As: name + " NOT NULL"},
		{Role: sqlq.RoleKey, As: name},
		{Role: sqlq.RoleHeaders, As: "JSON"},
		{Role: sqlq.RoleCause, As: "TEXT CHARACTER SET utf8mb4"},
		{Role: sqlq.RolePayload, As: "LONGBLOB NOT NULL"},
	})
	text = strings.TrimSuffix(text, "\n)")
	for _, i := range t.Indexes() {
		text += ",\n    KEY " + quote(indexName(t.Name, i.Suffix)) + " " + indexColumns(t, &i)
	}
	return []string{text + "\n) ENGINE=InnoDB"}
}

// Follow implements sqlq.Follower.
func (dialect) Follow(first, _, second string) []string {
	return []string{first, strings.ReplaceAll(second, sqlq.NewRowID, "LAST_INSERT_ID()")}
}

// indexColumns are those of an index. MySQL has no partial indexes: what an index
// is for goes in front where it is one value.
func indexColumns(t *sqlq.Table, i *sqlq.Index) string {
	columns := t.Columns()
	var all []string
	add := func(r sqlq.Role) {
		c := quote(columns[r])
		if r == sqlq.RolePriority {
			c += " DESC"
		}
		all = append(all, c)
	}
	null := i.Only != nil && i.Only.Null
	for _, r := range i.Columns {
		if null && r != sqlq.RoleGroup {
			add(i.Only.Role)
			null = false
		}
		add(r)
	}
	return "(" + strings.Join(all, ", ") + ")"
}

func addIndex(d dialect, t *sqlq.Table, i *sqlq.Index) string {
	return fmt.Sprintf("CREATE INDEX %s ON %s %s", quote(indexName(t.Name, i.Suffix)), t.QuotedName(d), indexColumns(t, i))
}

// mostName is how many characters a name may have.
const mostName = 64

// indexName makes a name that the server takes.
func indexName(table, suffix string) string {
	name := table + "_" + suffix
	if utf8.RuneCountInString(name) <= mostName {
		return name
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(table))
	tail := fmt.Sprintf("_%08x_%s", sum.Sum32(), suffix)
	return string([]rune(table)[:mostName-len(tail)]) + tail
}

// Found implements sqlq.Dialect.
func (dialect) Found(ctx context.Context, db sqlq.Execer, schema, table string) ([]sqlq.Column, error) {
	for _, name := range []string{schema, table} {
		if utf8.RuneCountInString(name) > mostName {
			return nil, &settle.ConfigError{Setting: "Name", Reason: fmt.Sprintf("%q is longer than the %d characters that a name may have", name, mostName), Fix: "use the name that the table has"}
		}
	}
	in := any(nil)
	if schema != "" {
		in = schema
	}
	rows, err := db.Query(ctx, `SELECT t.TABLE_TYPE, COALESCE(t.ENGINE, ''), c.COLUMN_NAME, c.DATA_TYPE, c.COLUMN_TYPE, c.EXTRA, c.IS_NULLABLE = 'NO',
		COALESCE(c.COLUMN_DEFAULT, 'NULL') <> 'NULL', COALESCE(c.DATETIME_PRECISION, 0), COALESCE(c.COLLATION_NAME, ''), COALESCE(c.CHARACTER_MAXIMUM_LENGTH, 0)
		FROM information_schema.TABLES AS t JOIN information_schema.COLUMNS AS c ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME
		WHERE t.TABLE_SCHEMA = COALESCE(?, DATABASE()) AND t.TABLE_NAME = ? AND (@@lower_case_table_names <> 0 OR BINARY t.TABLE_NAME = ?)
		ORDER BY c.ORDINAL_POSITION`, in, table, table)
	if err != nil {
		return nil, err
	}
	var all []sqlq.Column
	var relation, engine string
	for rows.Next() {
		var c sqlq.Column
		var declared, extra string
		var length uint64
		if err := rows.Scan(&relation, &engine, &c.Name, &c.Type, &declared, &extra, &c.NotNull, &c.Default, &c.Digits, &c.Collation, &length); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		c.Type, c.Length = strings.ToLower(c.Type), int(min(length, 1<<31-1))
		if strings.Contains(strings.ToLower(declared), unsigned) {
			c.Type += unsigned
		}
		extra = strings.ToLower(extra)
		if strings.Contains(extra, onUpdate[1:]) {
			c.Type += onUpdate
		}
		c.Default = c.Default || strings.Contains(extra, "auto_increment")
		c.ReadOnly = strings.Contains(extra, "virtual generated") || strings.Contains(extra, "stored generated")
		all = append(all, c)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, hasDatabase(ctx, db, schema)
	}
	switch {
	case relation != "BASE TABLE":
		return nil, &settle.ConfigError{Setting: "Name", Reason: fmt.Sprintf("it is a %s, whose rows cannot be locked and deleted", strings.ToLower(relation)), Fix: "name the table below it"}
	case !strings.EqualFold(engine, "InnoDB"):
		return nil, &settle.ConfigError{Setting: "Name", Reason: fmt.Sprintf("the table's engine is %s, which has no transactions and no row locks", engine), Fix: "run: ALTER TABLE " + quote(table) + " ENGINE=InnoDB"}
	}
	found, err := indexesOf(ctx, db, schema, table)
	if err != nil {
		return nil, err
	}
	for i := range all {
		for _, x := range found {
			if x.unique && len(x.columns) == 1 && x.columns[0].name == all[i].Name && x.columns[0].whole {
				all[i].Unique = true
				if all[i].Index == "" { // the primary key comes first
					all[i].Index = x.name
				}
			}
		}
	}
	return all, nil
}

// hasDatabase returns an error where a table without a schema is in no database at all.
func hasDatabase(ctx context.Context, db sqlq.Execer, schema string) error {
	if schema != "" {
		return nil
	}
	rows, err := db.Query(ctx, "SELECT COALESCE(DATABASE(), '')")
	if err != nil {
		return err
	}
	name := ""
	if rows.Next() {
		err = rows.Scan(&name)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil || name != "" {
		return err
	}
	return noDatabase("", nil)
}

// noDatabase is what is wrong with a DSN that ends with a slash.
func noDatabase(source string, err error) error {
	return &settle.ConfigError{Source: source, Setting: "database", Reason: "the DSN names none", Fix: "write it behind the slash, or set Table.Schema", Err: err}
}

// foundIndex is an index of a table as the server tells it.
type foundIndex struct {
	name    string
	unique  bool
	columns []foundColumn
}

type foundColumn struct {
	name       string // empty: an expression
	descending bool
	whole      bool // not just the start of it
}

// indexesOf are a table's indexes that the server uses, the primary key first.
func indexesOf(ctx context.Context, db sqlq.Execer, schema, table string) ([]foundIndex, error) {
	rows, err := db.Query(ctx, "SHOW INDEX FROM "+(&sqlq.Table{Schema: schema, Name: table}).QuotedName(dialect{}))
	if err != nil {
		return nil, err
	}
	named, ok := rows.(interface{ Columns() ([]string, error) })
	if !ok {
		return nil, errors.Join(errors.New("mysql: the names of a result's columns are not told"), rows.Close())
	}
	names, err := named.Columns()
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	var all []foundIndex
	for rows.Next() {
		values := make([]any, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		of := make(map[string]string, len(names))
		for i, name := range names {
			if values[i] != nil {
				of[strings.ToLower(name)] = fmt.Sprint(values[i])
			}
		}
		if of["visible"] == "NO" || of["ignored"] == "YES" || of["index_type"] != "BTREE" {
			continue
		}
		if len(all) == 0 || all[len(all)-1].name != of["key_name"] {
			all = append(all, foundIndex{name: of["key_name"], unique: of["non_unique"] == "0"})
		}
		x := &all[len(all)-1]
		x.columns = append(x.columns, foundColumn{name: of["column_name"], descending: of["collation"] == "D", whole: of["sub_part"] == ""})
	}
	return all, errors.Join(rows.Err(), rows.Close())
}

// primary is the name of a primary key. Each other index ends with its columns.
const primary = "PRIMARY"

// Index implements sqlq.Indexer.
func (dialect) Index(ctx context.Context, db sqlq.Execer, l *sqlq.Layout) (string, error) {
	all, err := indexesOf(ctx, db, l.Schema, l.Name)
	if err != nil {
		return "", err
	}
	clustered := len(all) > 0 && all[0].name == primary && len(all[0].columns) == 1 && all[0].columns[0].name == l.ID
	for _, x := range all {
		if x.serves(l, clustered) {
			return x.name, nil
		}
	}
	return "", nil
}

// serves reports whether the index has the rows of l in the order of claims: what has
// one value first, then Priority downwards, RetryAfter and ID. clustered says that the ID is the primary key.
func (x *foundIndex) serves(l *sqlq.Layout, clustered bool) bool {
	left := x.columns
	next := func(r sqlq.Role, descending bool) bool {
		if len(left) == 0 || left[0].name != l.Columns()[r] || !left[0].whole || left[0].descending != descending {
			return false
		}
		left = left[1:]
		return true
	}
	fixed := make(map[string]bool)
	for _, r := range []sqlq.Role{sqlq.RoleGroup, sqlq.RoleProcessedAt} {
		if l.Has(r) {
			fixed[l.Columns()[r]] = true
		}
	}
	for len(fixed) > 0 {
		if len(left) == 0 || !fixed[left[0].name] || !left[0].whole {
			return false
		}
		delete(fixed, left[0].name)
		left = left[1:]
	}
	if l.Has(sqlq.RolePriority) && !next(sqlq.RolePriority, true) || l.Has(sqlq.RoleRetryAfter) && !next(sqlq.RoleRetryAfter, false) {
		return false
	}
	return next(sqlq.RoleID, false) || len(left) == 0 && clustered && x.name != primary
}
