package postgres

import (
	"fmt"
	"strings"

	"github.com/settlemq/settle/sqlq"
)

// This file is the SQL that settles rows, and that holds them without a lease.

// listTypes are the types of the lists that statements about many rows take.
func listType(l *sqlq.Layout, name string) string {
	switch name {
	case "id":
		if kindOf(l.Column(sqlq.RoleID)) == kindInteger {
			return "bigint[]"
		}
		return "text[]"
	case "token", "next_token":
		return l.Column(sqlq.RoleLockedUntil).Type + "[]"
	case "cause":
		return "text[]"
	default: // attempt, delay
		return "bigint[]"
	}
}

// perRow names what the columns of a fence are compared with.
var perRow = map[sqlq.Role]string{sqlq.RoleID: "id", sqlq.RoleAttempt: "attempt", sqlq.RoleLockedUntil: "token"}

// Many implements sqlq.Server: lists side by side, joined to the rows by the fence.
func (dialect) Many(l *sqlq.Layout, c sqlq.Change) string {
	from, where := entriesOf(l, c.Lists)
	const number = "s.settle_n - 1"
	switch {
	case c.Dead:
		return bury(l, from, where)
	case len(c.Set) == 0:
		return fmt.Sprintf("DELETE FROM %s AS t USING %s WHERE %s RETURNING %s", l.Ref(), from, where, number)
	default:
		return fmt.Sprintf("UPDATE %s AS t SET %s FROM %s WHERE %s RETURNING %s", l.Ref(), strings.Join(c.Set, ", "), from, where, number)
	}
}

// entriesOf are lists side by side, as rows s, and the condition that a row t is one of them.
func entriesOf(l *sqlq.Layout, lists []string) (from, fence string) {
	var params, names, all []string
	add := func(list string) {
		params = append(params, cast(":"+list+"s", listType(l, list)))
		names = append(names, "settle_"+list)
	}
	for _, r := range l.Fence() {
		add(perRow[r])
		all = append(all, "t."+l.Q(r)+" = "+matched(l, r))
	}
	for _, list := range lists {
		add(list)
	}
	from = fmt.Sprintf("unnest(%s) WITH ORDINALITY AS s(%s, settle_n)", strings.Join(params, ", "), strings.Join(names, ", "))
	return from, strings.Join(all, " AND ")
}

// Holding implements sqlq.Skipper. A row that is to go needs a stronger lock than one that is renewed.
func (dialect) Holding(l *sqlq.Layout, renewal bool) string {
	from, fence := entriesOf(l, nil)
	locking := " FOR UPDATE SKIP LOCKED"
	if renewal {
		locking = " FOR NO KEY UPDATE SKIP LOCKED"
	}
	id := l.Q(sqlq.RoleID)
	return fmt.Sprintf("WITH settle_mine AS MATERIALIZED (SELECT s.settle_n - 1 AS settle_n, t.%s AS settle_id FROM %s AS t JOIN %s ON %s), "+
		"settle_free AS MATERIALIZED (SELECT x.%s AS settle_id FROM %s AS x WHERE x.%s = ANY(ARRAY(SELECT settle_id FROM settle_mine))%s) "+
		"SELECT m.settle_n, CASE WHEN EXISTS (SELECT 1 FROM settle_free AS f WHERE f.settle_id = m.settle_id) THEN 1 ELSE 0 END FROM settle_mine AS m",
		id, l.Ref(), from, fence, id, l.Ref(), id, locking)
}

// matched is what a column of the fence is compared with.
func matched(l *sqlq.Layout, r sqlq.Role) string {
	name := sqlq.PerRow(perRow[r])
	if r == sqlq.RoleID {
		return l.In(r, name)
	}
	return name // as its list has the type already
}

// bury moves rows to the dead table in one statement.
func bury(l *sqlq.Layout, from, where string) string {
	dead, columns := l.Dead()
	var into, kept, moved []string
	for _, c := range columns {
		name := quote(c.Name)
		into, kept = append(into, name), append(kept, name)
		switch {
		case c.Name == l.ID:
			moved = append(moved, "t."+name)
			kept[len(kept)-1] = deadID(c, dead, "m."+name, "greatest("+highest(name, dead)+", "+highest(name, "settle_moved")+") + m.settle_n")
		case c.Name == l.LockedUntil:
			moved = append(moved, "NULL AS "+name)
			kept[len(kept)-1] = "CAST(" + name + " AS " + c.Type + ")"
		case c.Name == l.Cause:
			moved = append(moved, sqlq.PerRow("cause")+" AS "+name)
		case c.Name == l.Attempt && l.Locked():
			moved = append(moved, dialect{}.NextAttempt(c, "t."+name)+" AS "+name)
		default:
			moved = append(moved, "t."+name)
		}
	}
	return fmt.Sprintf("WITH settle_moved AS (DELETE FROM %s AS t USING %s WHERE %s RETURNING %s, s.settle_n), "+
		"settle_kept AS (INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM settle_moved AS m) SELECT settle_n - 1 FROM settle_moved",
		l.Ref(), from, where, strings.Join(moved, ", "), dead, strings.Join(into, ", "), strings.Join(kept, ", "))
}

// DeadID implements sqlq.Burier.
func (dialect) DeadID(c sqlq.Column, table, id string) string {
	return deadID(c, table, "t."+id, highest(id, table)+" + 1")
}

// deadID is the id of a row in its dead table: a new one where the old is taken there,
// by a row of another table. What a column of the user's own kind would take nobody knows.
func deadID(c sqlq.Column, dead, id, number string) string {
	made := ""
	switch kindOf(c) {
	case kindInteger:
		made = number
	case kindUUID:
		made = "gen_random_uuid()"
	case kindText:
		made = "CAST(gen_random_uuid() AS text)"
	}
	if !c.Unique || made == "" {
		return id
	}
	return fmt.Sprintf("CASE WHEN EXISTS (SELECT 1 FROM %s AS x WHERE x.%s = %s) THEN %s ELSE %s END", dead, quote(c.Name), id, made, id)
}

func highest(id, table string) string {
	return fmt.Sprintf("(SELECT max(x.%s) FROM %s AS x)", id, table)
}

// same is the condition that a row is as its claim found it, where a claim writes nothing.
func same(l *sqlq.Layout) string {
	all := []string{"t." + l.Q(sqlq.RoleID) + " = " + l.In(sqlq.RoleID, ":id"), l.Mine("t")}
	if l.Has(sqlq.RoleAttempt) {
		all = append(all, counted("t."+l.Q(sqlq.RoleAttempt), sqlq.MostAttempt)+" = "+cast(":attempt", "bigint"))
	}
	return strings.Join(all, " AND ")
}

// lock is the lock that claims take on rows, without waiting. It lets others
// insert rows that refer to these.
const lock = " FOR NO KEY UPDATE OF t SKIP LOCKED"

// Relock implements sqlq.Server.
func (dialect) Relock(l *sqlq.Layout) string {
	return fmt.Sprintf("SELECT t.%s, %s FROM %s AS t WHERE %s%s", l.Q(sqlq.RoleID), transaction, l.Ref(), same(l), lock)
}

// transaction is the number of the transaction it stands in.
const transaction = "CAST(pg_current_xact_id() AS text)"

// Count implements sqlq.Server.
func (dialect) Count(l *sqlq.Layout) string {
	if !l.Has(sqlq.RoleAttempt) {
		return ""
	}
	attempt := l.Q(sqlq.RoleAttempt)
	return fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s = ANY(ARRAY(SELECT t.%s FROM %s AS t WHERE %s%s))", l.Ref(), attempt,
		dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), attempt), l.Q(sqlq.RoleID), l.Q(sqlq.RoleID), l.Ref(), same(l), lock)
}

// Unlock implements sqlq.Server.
func (dialect) Unlock() string { return "SELECT pg_advisory_unlock(" + cast(":lock", "bigint") + ")" }

// Committed implements sqlq.Server.
func (dialect) Committed() string {
	return "SELECT CASE pg_xact_status(" + cast(cast(":transaction", "text"), "xid8") + ") WHEN 'committed' THEN 1 WHEN 'aborted' THEN 0 END"
}

// Purge implements sqlq.Dialect.
func (dialect) Purge(l *sqlq.Layout) string {
	at := l.Column(sqlq.RoleProcessedAt)
	mine := ""
	if l.Has(sqlq.RoleGroup) {
		mine = " AND t." + l.Q(sqlq.RoleGroup) + " = " + l.In(sqlq.RoleGroup, ":group")
	}
	return fmt.Sprintf("DELETE FROM %s WHERE %s = ANY(ARRAY(SELECT t.%s FROM %s AS t WHERE t.%s < %s - %s * interval '1 microsecond'%s LIMIT %s%s))",
		l.Ref(), l.Q(sqlq.RoleID), l.Q(sqlq.RoleID), l.Ref(), l.Q(sqlq.RoleProcessedAt), nowIn(at), cast(":before", "bigint"), mine, cast(":limit", "bigint"), lock)
}
