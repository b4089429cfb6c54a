package mysql

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/settlemq/settle/sqlq"
)

// dialect is the SQL of MySQL and of MariaDB, in words that both take. It
// implements sqlq.Server together with literal.go, claim.go, fifo.go, settle.go, schema.go and check.go.
type dialect struct {
	database string // where the DSN leads; empty: not known
	patient  bool   // connections are set to end a wait for a lock soon
}

var (
	_ sqlq.Server   = dialect{}
	_ sqlq.Packer   = dialect{}
	_ sqlq.Skipper  = dialect{}
	_ sqlq.Patient  = dialect{}
	_ sqlq.Reopener = dialect{}
	_ sqlq.Indexer  = dialect{}
	_ sqlq.Repeater = dialect{}
	_ sqlq.Folder   = dialect{}
	_ sqlq.Burier   = dialect{}
)

func (dialect) Name() string { return "mysql" }

func (dialect) Quote(name string) string { return quote(name) }

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func (dialect) Literal(text string) string { return literal(text) }

func (dialect) Placeholder(int) string { return "?" }

// OneName fills in the database that a table without a schema is in.
func (d dialect) OneName(schema, table string) (string, string) {
	if schema == "" {
		schema = d.database
	}
	return schema, table
}

// kind is how this package handles values of a type.
type kind uint8

const (
	kindOther kind = iota
	kindInteger
	kindText
	kindBytes
	kindJSON
	kindTime
	kindUUID
)

// onUpdate marks the type of a column that changes by itself.
const onUpdate = " on update"

const unsigned = " unsigned"

func kindOf(c sqlq.Column) kind {
	name, _, _ := strings.Cut(c.Type, " ")
	switch name {
	case "bigint", "int", "mediumint", "smallint", "tinyint":
		return kindInteger
	case "varchar", "char", "text", "tinytext", "mediumtext", "longtext":
		return kindText
	case "varbinary", "binary", "blob", "tinyblob", "mediumblob", "longblob":
		return kindBytes
	case "json":
		return kindJSON
	case "datetime", "timestamp":
		return kindTime
	case "uuid":
		return kindUUID
	}
	return kindOther
}

func isTimestamp(c sqlq.Column) bool { return strings.HasPrefix(c.Type, "timestamp") }

func isUnsigned(c sqlq.Column) bool { return strings.Contains(c.Type, unsigned) }

// now is the database's time when a statement began. A DATETIME holds UTC; a
// TIMESTAMP is a point in time, which a session reads and writes in its time zone.
func now(c sqlq.Column) string {
	if isTimestamp(c) {
		return "NOW(6)"
	}
	return "UTC_TIMESTAMP(6)"
}

func (dialect) Now(c sqlq.Column) string { return now(c) }

// Later rounds up to what the column keeps: MySQL rounds what it is given to the nearest, MariaDB cuts it off.
func (dialect) Later(c sqlq.Column, micros string) string {
	at := fmt.Sprintf("(%s + INTERVAL (%s) MICROSECOND)", now(c), micros)
	if g := grain(c); g > 1 {
		at = fmt.Sprintf("(%s + INTERVAL (%s + %d) MICROSECOND)", now(c), micros, g-1)
		at = fmt.Sprintf("(%s - INTERVAL (MICROSECOND(%s) %% %d) MICROSECOND)", at, at, g)
	}
	if isTimestamp(c) { // which ends there
		at = "LEAST(" + at + ", CAST('2038-01-18 00:00:00' AS DATETIME(6)))"
	}
	return at
}

// grain is how many microseconds lie between two times that a column can hold.
func grain(c sqlq.Column) int64 {
	g := int64(1)
	for d := c.Digits; d < 6; d++ {
		g *= 10
	}
	return g
}

// least is what a NULL in RetryAfter counts as.
const least = "-9223372036854775808"

// epoch is where times are counted from.
const epoch = "'1970-01-01 00:00:00'"

// Out implements sqlq.Dialect.
func (dialect) Out(r sqlq.Role, c sqlq.Column, ref string) string {
	k := kindOf(c)
	switch r {
	case sqlq.RoleAttempt:
		return "CAST(" + counted(ref, sqlq.MostAttempt) + " AS SIGNED)"
	case sqlq.RoleRetryAfter:
		if isTimestamp(c) {
			return fmt.Sprintf("COALESCE(CAST(UNIX_TIMESTAMP(%s) * 1000000 AS SIGNED), %s)", ref, least)
		}
		return fmt.Sprintf("COALESCE(TIMESTAMPDIFF(MICROSECOND, %s, %s), %s)", epoch, ref, least)
	case sqlq.RoleLockedUntil:
		return "CAST(" + ref + " AS CHAR)"
	case sqlq.RolePayload, sqlq.RoleHeaders:
		return ref
	}
	switch {
	case r == sqlq.RoleID && (k == kindBytes || k == kindInteger):
		return ref
	case k == kindInteger && isUnsigned(c):
		return "CAST(" + ref + " AS SIGNED)"
	case k == kindInteger, k == kindText:
		return ref
	}
	return "CAST(" + ref + " AS CHAR)"
}

// In implements sqlq.Dialect. A constant takes on the type of the column beside it; what is known of one
// row of many has one of its own, which must not be the one that decides.
func (dialect) In(r sqlq.Role, c sqlq.Column, param string) string {
	perRow := strings.HasPrefix(param, sqlq.PerRow(""))
	switch k := kindOf(c); {
	case r == sqlq.RoleID && k == kindBytes && perRow:
		return "FROM_BASE64(" + param + ")"
	case r == sqlq.RoleID && k == kindText && perRow && c.Collation != "":
		charset, _, _ := strings.Cut(c.Collation, "_")
		return fmt.Sprintf("CONVERT(%s USING %s) COLLATE %s", param, charset, c.Collation)
	case r == sqlq.RoleID && k == kindUUID && perRow:
		return "CAST(" + param + " AS UUID)"
	case k == kindTime && perRow:
		return "CAST(" + param + " AS DATETIME(6))"
	case r == sqlq.RoleCause && c.Length > 0 && c.Length < mostCause:
		return fmt.Sprintf("LEFT(%s, %d)", param, c.Length)
	}
	return param
}

// mostCause is more than a cause has characters.
const mostCause = 2001

// counted is an attempt as a number from 1 to most.
func counted(ref string, most int) string {
	return fmt.Sprintf("LEAST(GREATEST(COALESCE(%s, 1), 1), %d)", ref, most)
}

func (dialect) NextAttempt(c sqlq.Column, ref string) string {
	most := sqlq.MostAttempt
	name, _, _ := strings.Cut(c.Type, " ")
	if bits, ok := map[string]int{"tinyint": 8, "smallint": 16, "mediumint": 24}[name]; ok {
		if !isUnsigned(c) {
			bits--
		}
		most = 1<<bits - 1
	}
	return counted(ref, most-1) + " + 1"
}

// Join is of bytes: the columns may have character sets and collations that do not go together.
func (dialect) Join(parts []string) string {
	all := make([]string, len(parts))
	for i, p := range parts {
		all[i] = "COALESCE(CAST(" + p + " AS BINARY), '')"
	}
	return "CONCAT(" + strings.Join(all, ", ") + ")"
}

// timeText is how a DATETIME reads.
const timeText = "2006-01-02 15:04:05.999999"

// Advance rounds up to what the column keeps, so that what is written is what is
// compared later, and a lease holds no shorter than it should.
func (dialect) Advance(c sqlq.Column, token any, by time.Duration) any {
	text, _ := token.(string)
	at, err := time.Parse(timeText, text)
	if err != nil {
		return token
	}
	unit := time.Duration(grain(c)) * time.Microsecond
	return at.Add(by + unit - 1).Truncate(unit).Format(timeText)
}

// Body implements sqlq.Dialect.
func (dialect) Body(c sqlq.Column, body []byte) any {
	if kindOf(c) != kindBytes {
		return string(body)
	}
	if body == nil {
		body = []byte{}
	}
	return body
}

func (dialect) TakesID(c sqlq.Column) bool { return kindOf(c) == kindText }

// Unusable implements sqlq.Dialect.
func (dialect) Unusable(r sqlq.Role, c sqlq.Column) (reason, fix string) {
	name, _, _ := strings.Cut(c.Type, " ")
	has := fmt.Sprintf("has the type %s", name)
	k := kindOf(c)
	switch r {
	case sqlq.RoleAttempt, sqlq.RolePriority:
		if k != kindInteger {
			return has + ", and the queue counts in it", "use smallint, int or bigint"
		}
	case sqlq.RoleRetryAfter, sqlq.RoleLockedUntil, sqlq.RoleProcessedAt:
		if k != kindTime {
			return has + ", and holds a time", "use datetime(6)"
		}
		if strings.Contains(c.Type, onUpdate) {
			return "changes by itself with each update of its row", "declare it without ON UPDATE CURRENT_TIMESTAMP"
		}
	case sqlq.RolePayload:
		if k != kindBytes && k != kindText && k != kindJSON {
			return has + ", which is no payload", "use longblob, longtext or json"
		}
	case sqlq.RoleHeaders:
		if k != kindText && k != kindJSON {
			return has + ", and holds a JSON object", "use json or text"
		}
	case sqlq.RoleCause:
		if k != kindText {
			return has + ", and takes text", "use text"
		}
	case sqlq.RoleID:
		if k != kindInteger && k != kindText && k != kindBytes && k != kindUUID {
			return has + ", which does not tell rows apart exactly", "use bigint, binary(16), uuid or varchar"
		}
	}
	return "", ""
}

func (dialect) Refuses(sqlq.Form) (reason, fix string) { return "", "" }

// Prepare implements sqlq.Dialect: the server parses the statement.
func (dialect) Prepare(ctx context.Context, db sqlq.Execer, sql string, _ []any) error {
	p, ok := db.(*pool)
	if !ok {
		return nil
	}
	s, err := p.db.PrepareContext(ctx, sql)
	if err != nil {
		return err
	}
	return s.Close()
}
