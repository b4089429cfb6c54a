package sqlite

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/settlemq/settle/sqlq"
)

// dialect is SQLite's SQL. It implements sqlq.Dialect together with claim.go,
// schema.go and check.go.
type dialect struct {
	path string // of the file, for errors; empty where the caller opened it
}

var _ sqlq.Dialect = dialect{}

func (dialect) Name() string { return "sqlite" }

func (dialect) Quote(name string) string { return quote(name) }

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// OneName folds case as SQLite does with names, and an empty schema into main.
func (dialect) OneName(schema, table string) (string, string) {
	if schema == "" {
		schema = "main"
	}
	return strings.ToLower(schema), strings.ToLower(table)
}

// DeadID lets the dead table make a new id where the old one is taken: a table
// without AUTOINCREMENT uses the ids of deleted rows again.
func (dialect) DeadID(c sqlq.Column, table, id string) string {
	if !c.Unique || !c.Default || !strings.EqualFold(c.Type, "INTEGER") {
		return id
	}
	return fmt.Sprintf("iif((SELECT count(*) FROM %s AS x WHERE x.%s = t.%s), NULL, t.%s)", table, id, id, id)
}

// Follow implements sqlq.Follower.
func (dialect) Follow(first, _, second string) []string {
	return []string{first, strings.Replace(second, sqlq.NewRowID, "last_insert_rowid()", 1)}
}

func (dialect) Literal(text string) string { return literal(text) }

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func (dialect) Placeholder(n int) string { return "?" + strconv.Itoa(n) }

func (dialect) Now(sqlq.Column) string { return ":now" }

func (dialect) Later(_ sqlq.Column, micros string) string { return ":now + " + micros }

func (dialect) Out(r sqlq.Role, _ sqlq.Column, ref string) string {
	if r == sqlq.RoleRetryAfter {
		return "coalesce(" + ref + ", -9223372036854775808)"
	}
	return ref
}

func (dialect) In(_ sqlq.Role, _ sqlq.Column, param string) string { return param }

func (dialect) NextAttempt(_ sqlq.Column, ref string) string {
	return fmt.Sprintf("min(max(CAST(coalesce(%s, 1) AS INTEGER), 1), %d) + 1", ref, sqlq.MostAttempt-1)
}

func (dialect) Join(parts []string) string {
	all := make([]string, len(parts))
	for i, p := range parts {
		if strings.HasPrefix(p, "'") {
			all[i] = p
		} else {
			all[i] = "coalesce(CAST(" + p + " AS TEXT), '')"
		}
	}
	return strings.Join(all, " || ")
}

func (dialect) Advance(_ sqlq.Column, token any, by time.Duration) any {
	at, _ := token.(int64)
	return at + by.Microseconds()
}

func (dialect) Body(c sqlq.Column, body []byte) any {
	if textual(c.Type) && utf8.Valid(body) {
		return string(body)
	}
	if body == nil {
		body = []byte{}
	}
	return body
}

func (dialect) TakesID(c sqlq.Column) bool { return textual(c.Type) }

// textual reports whether a column of the declared type has text affinity.
func textual(declared string) bool {
	t := strings.ToUpper(declared)
	return strings.Contains(t, "CHAR") || strings.Contains(t, "CLOB") || strings.Contains(t, "TEXT")
}

// whole reports whether a column of the declared type has integer affinity.
func whole(declared string) bool { return strings.Contains(strings.ToUpper(declared), "INT") }

func (dialect) Unusable(r sqlq.Role, c sqlq.Column) (reason, fix string) {
	switch r {
	case sqlq.RoleAttempt, sqlq.RolePriority:
		if !whole(c.Type) {
			return fmt.Sprintf("is declared as %q, and the queue counts in it", c.Type), "declare it INTEGER"
		}
	case sqlq.RoleRetryAfter, sqlq.RoleLockedUntil, sqlq.RoleProcessedAt:
		if !whole(c.Type) {
			return fmt.Sprintf("is declared as %q, and times are whole microseconds since 1970", c.Type), "declare it INTEGER, and convert what is in it"
		}
	case sqlq.RoleGroup, sqlq.RoleHeaders, sqlq.RoleCause:
		if whole(c.Type) {
			return fmt.Sprintf("is declared as %q, and takes text", c.Type), "declare it TEXT"
		}
	case sqlq.RoleID:
		if strings.Contains(strings.ToUpper(c.Type), "REAL") || strings.Contains(strings.ToUpper(c.Type), "FLOA") || strings.Contains(strings.ToUpper(c.Type), "DOUB") {
			return fmt.Sprintf("is declared as %q, which does not tell rows apart exactly", c.Type), "use INTEGER, TEXT or BLOB"
		}
	}
	return "", ""
}

func (dialect) Refuses(f sqlq.Form) (reason, fix string) {
	if _, ok := f.(sqlq.RowLock); ok {
		return "SQLite has no row locks", "use Lease, or AdvisoryLock in a single process"
	}
	return "", ""
}

func (dialect) Prepare(ctx context.Context, db sqlq.Execer, query string, args []any) error {
	rows, err := db.Query(ctx, "EXPLAIN "+query, args...)
	if err != nil {
		return err
	}
	return rows.Close()
}

func (dialect) Purge(l *sqlq.Layout) string {
	mine := ""
	if l.Has(sqlq.RoleGroup) {
		mine = " AND " + l.Q(sqlq.RoleGroup) + " = :group"
	}
	return fmt.Sprintf("DELETE FROM %s WHERE %s IN (SELECT %s FROM %s WHERE %s < :now - :before%s LIMIT :limit)",
		l.Ref(), l.Q(sqlq.RoleID), l.Q(sqlq.RoleID), l.Ref(), l.Q(sqlq.RoleProcessedAt), mine)
}
