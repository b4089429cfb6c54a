package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/settlemq/settle/sqlq"
)

// dialect is PostgreSQL's SQL. It implements sqlq.Server together with claim.go,
// settle.go, schema.go and check.go. Every parameter is cast where it stands, so that its type does
// not depend on what the server makes of its surroundings, nor on how the driver sends it.
type dialect struct{}

var _ sqlq.Server = dialect{}

func (dialect) Name() string { return "postgres" }

func (dialect) Quote(name string) string { return quote(name) }

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func (dialect) Literal(text string) string { return literal(text) }

// literal is right whatever standard_conforming_strings says.
func literal(text string) string {
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

func (dialect) Placeholder(n int) string { return "$" + strconv.Itoa(n) }

// now is the database's time when a statement began. It is the same for all of the
// statement, so that an index serves comparisons with it, and it goes on within a transaction.
const now = "statement_timestamp()"

// zoned reports whether a time column has a time zone. One without holds UTC.
func zoned(c sqlq.Column) bool { return c.Type != timestamp }

// The types that this package asks for by name.
const (
	timestamp   = "timestamp without time zone"
	timestamptz = "timestamp with time zone"
)

func (dialect) Now(c sqlq.Column) string { return nowIn(c) }

func nowIn(c sqlq.Column) string {
	if zoned(c) {
		return now
	}
	return "(" + now + " AT TIME ZONE 'UTC')"
}

// Later rounds up to what the column keeps: the server rounds to the nearest.
func (dialect) Later(c sqlq.Column, micros string) string {
	return nowIn(c) + " + (" + cast(micros, "bigint") + " + " + strconv.FormatInt(grain(c)/2, 10) + ") * interval '1 microsecond'"
}

// grain is how many microseconds lie between two times that a column can hold.
func grain(c sqlq.Column) int64 {
	g := int64(1)
	for d := c.Digits; d < 6; d++ {
		g *= 10
	}
	return g
}

func cast(expr, to string) string { return "CAST(" + expr + " AS " + to + ")" }

// kind is how this package handles values of a type.
type kind uint8

const (
	kindOther kind = iota // by its text
	kindInteger
	kindText
	kindBytes
	kindJSON
	kindTime
	kindUUID
)

func kindOf(c sqlq.Column) kind {
	switch c.Type {
	case "bigint", "integer", "smallint":
		return kindInteger
	case "text", "character varying":
		return kindText
	case "bytea":
		return kindBytes
	case "json", "jsonb":
		return kindJSON
	case timestamp, timestamptz:
		return kindTime
	case "uuid":
		return kindUUID
	}
	return kindOther
}

// Out implements sqlq.Dialect.
func (dialect) Out(r sqlq.Role, c sqlq.Column, ref string) string {
	switch r {
	case sqlq.RoleAttempt:
		return cast(counted(ref, sqlq.MostAttempt), "bigint")
	case sqlq.RoleRetryAfter:
		return micros(ref)
	case sqlq.RoleLockedUntil:
		return ref
	case sqlq.RolePayload:
		if kindOf(c) == kindBytes {
			return ref
		}
	case sqlq.RoleID, sqlq.RolePriority:
		if kindOf(c) == kindInteger {
			return cast(ref, "bigint")
		}
	}
	return cast(ref, "text")
}

// micros is a time as whole microseconds since 1970, also where it is infinite or NULL.
func micros(ref string) string {
	return fmt.Sprintf("CASE WHEN isfinite(%s) THEN CAST(extract(epoch FROM %s) * 1000000 AS bigint) WHEN %s = 'infinity' THEN 9223372036854775807 ELSE -9223372036854775808 END", ref, ref, ref)
}

// In implements sqlq.Dialect.
func (dialect) In(r sqlq.Role, c sqlq.Column, param string) string {
	switch kindOf(c) {
	case kindInteger:
		if r == sqlq.RoleID || r == sqlq.RoleAttempt || r == sqlq.RolePriority { // the others come as text
			return cast(param, "bigint")
		}
	case kindText:
		return cast(param, "text")
	case kindBytes:
		if r == sqlq.RolePayload {
			return cast(param, "bytea")
		}
	case kindTime:
		return cast(param, c.Type)
	}
	return cast(cast(param, "text"), c.Type) // by its text
}

// counted is an attempt as a number from 1 to most.
func counted(ref string, most int) string {
	return fmt.Sprintf("least(greatest(coalesce(%s, 1), 1), %d)", ref, most)
}

func (dialect) NextAttempt(c sqlq.Column, ref string) string {
	most := sqlq.MostAttempt
	if c.Type == "smallint" {
		most = 1<<15 - 1
	}
	return counted(ref, most-1) + " + 1"
}

func (dialect) Join(parts []string) string { return "concat(" + strings.Join(parts, ", ") + ")" }

// Advance rounds up to what the column keeps, so that what is written is what is
// compared later, and a lease holds no shorter than it should.
func (dialect) Advance(c sqlq.Column, token any, by time.Duration) any {
	at, ok := token.(time.Time)
	if !ok {
		return token
	}
	unit := time.Duration(grain(c)) * time.Microsecond
	return at.Add(by + unit - 1).Truncate(unit)
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
	has := fmt.Sprintf("has the type %s", c.Type)
	k := kindOf(c)
	switch r {
	case sqlq.RoleAttempt, sqlq.RolePriority:
		if k != kindInteger {
			return has + ", and the queue counts in it", "use smallint, integer or bigint"
		}
	case sqlq.RoleRetryAfter, sqlq.RoleLockedUntil, sqlq.RoleProcessedAt:
		if k != kindTime {
			return has + ", and holds a time", "use timestamptz, or timestamp"
		}
	case sqlq.RolePayload:
		if k != kindBytes && k != kindText && k != kindJSON {
			return has + ", which is no payload", "use bytea, text, json or jsonb"
		}
	case sqlq.RoleHeaders:
		if k != kindText && k != kindJSON {
			return has + ", and holds a JSON object", "use jsonb, json or text"
		}
	case sqlq.RoleCause:
		if k != kindText {
			return has + ", and takes text", "use text"
		}
	case sqlq.RoleID:
		if strings.HasSuffix(c.Type, "[]") {
			return has + ", which cannot be put into a list", "use a type that is no array"
		}
		if k == kindJSON || k == kindTime || c.Type == "real" || c.Type == "double precision" {
			return has + ", which does not tell rows apart exactly", "use bigint, uuid or text"
		}
	}
	return "", ""
}

func (dialect) Refuses(sqlq.Form) (reason, fix string) { return "", "" }

// List implements sqlq.Server.
func (dialect) List(values []any) any {
	var first any
	for _, v := range values {
		if v != nil {
			first = v
			break
		}
	}
	switch first.(type) {
	case int64:
		return list[int64](values)
	case time.Time:
		return list[time.Time](values)
	}
	all := make([]*string, len(values))
	for i, v := range values {
		if s, ok := v.(string); ok {
			all[i] = &s
		}
	}
	return all
}

func list[T any](values []any) []T {
	all := make([]T, len(values))
	for i, v := range values {
		all[i], _ = v.(T)
	}
	return all
}

// Prepare implements sqlq.Dialect: the server parses the statement and finds the
// types of its parameters.
func (dialect) Prepare(ctx context.Context, db sqlq.Execer, sql string, _ []any) error {
	p, ok := db.(*pool)
	if !ok {
		return nil
	}
	c, err := p.p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	_, err = c.Conn().PgConn().Prepare(ctx, "", sql, nil)
	return err
}
