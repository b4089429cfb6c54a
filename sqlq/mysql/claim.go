package mysql

import (
	"fmt"
	"strings"

	"github.com/settlemq/settle/sqlq"
)

// This file is the SQL that finds rows. All of it walks the index of claims in its
// order and ends as soon as it has enough, so that it costs the same however many rows
// wait. The index is named: a server that sorted the rows instead would lock all of
// those that wait, and leave none to others.

// skip has a claim lock rows without waiting for anybody.
const skip = " FOR UPDATE SKIP LOCKED"

// from is the table as t, by way of the index of claims. FOR JOIN has the server look for where to begin in
// it; without that MySQL may walk all of the index because it has the right order.
func from(l *sqlq.Layout) string {
	if l.Index == "" {
		return l.Ref() + " AS t"
	}
	return l.Ref() + " AS t FORCE INDEX FOR JOIN (" + quote(l.Index) + ")"
}

// beside is something of t that the index of claims does not have. A query with a LIMIT inside of another that the
// index alone could answer walks all of it on MySQL (9.7), as it is in the right order, and not from where the condition begins.
func beside(l *sqlq.Layout) string {
	for _, r := range []sqlq.Role{sqlq.RoleAttempt, sqlq.RoleLockedUntil, sqlq.RoleCause} {
		if l.Has(r) {
			return "t." + l.Q(r) + " IS NULL AS settle_row"
		}
	}
	return "t." + l.Q(sqlq.RolePayload) + " IS NULL AS settle_row"
}

// Claim implements sqlq.Dialect.
func (dialect) Claim(l *sqlq.Layout) sqlq.Claim {
	mark := fmt.Sprintf("%s = :token", l.Q(sqlq.RoleLockedUntil))
	if l.Has(sqlq.RoleAttempt) {
		mark = fmt.Sprintf("%s = %s, %s", l.Q(sqlq.RoleAttempt), dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), l.Q(sqlq.RoleAttempt)), mark)
	}
	c := sqlq.Claim{
		Take: pick(l, ":limit", free(l, "t"), skip, marked(l)...),
		Mark: fmt.Sprintf("UPDATE %s SET %s WHERE %s IN :ids", l.Ref(), mark, l.Q(sqlq.RoleID)),
	}
	if l.FIFO {
		fifo(l, &c)
	}
	return c
}

// marked are the fields of a claim as they will be once the rows are marked.
func marked(l *sqlq.Layout) []string {
	fields := l.FieldList("t")
	at := 0
	for _, r := range []sqlq.Role{sqlq.RoleID, sqlq.RolePayload, sqlq.RoleAttempt, sqlq.RoleLockedUntil} {
		if !l.Has(r) {
			continue
		}
		switch c := l.Column(r); r {
		case sqlq.RoleAttempt:
			fields[at] = "CAST(" + dialect{}.NextAttempt(c, "t."+l.Q(r)) + " AS SIGNED)"
		case sqlq.RoleLockedUntil:
			fields[at] = "CAST(" + dialect{}.Later(c, ":lease") + " AS CHAR)"
		}
		at++
	}
	return fields
}

// pick selects expressions over up to limit rows that are due, in the order of
// claims, under one more condition.
func pick(l *sqlq.Layout, limit, also, locking string, exprs ...string) string {
	return fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT %s%s", strings.Join(exprs, ", "), from(l),
		where(l.Mine("t"), due(l, "t"), above(l, "t"), also), order(l, "t"), limit, locking)
}

// due is the condition that a row is due. NULLs come first in an index.
func due(l *sqlq.Layout, alias string) string {
	if !l.Has(sqlq.RoleRetryAfter) {
		return ""
	}
	c := alias + "." + l.Q(sqlq.RoleRetryAfter)
	if l.Column(sqlq.RoleRetryAfter).NotNull {
		return c + " <= " + now(l.Column(sqlq.RoleRetryAfter))
	}
	return fmt.Sprintf("(%s IS NULL OR %s <= %s)", c, c, now(l.Column(sqlq.RoleRetryAfter)))
}

// free is the condition that nobody holds a row.
func free(l *sqlq.Layout, alias string) string {
	if !l.Has(sqlq.RoleLockedUntil) {
		return ""
	}
	c := alias + "." + l.Q(sqlq.RoleLockedUntil)
	return fmt.Sprintf("(%s IS NULL OR %s <= %s)", c, c, now(l.Column(sqlq.RoleLockedUntil)))
}

// order is the order of claims.
func order(l *sqlq.Layout, alias string) string {
	var all []string
	if l.Has(sqlq.RolePriority) {
		all = append(all, alias+"."+l.Q(sqlq.RolePriority)+" DESC")
	}
	if l.Has(sqlq.RoleRetryAfter) {
		all = append(all, alias+"."+l.Q(sqlq.RoleRetryAfter))
	}
	return strings.Join(append(all, alias+"."+l.Q(sqlq.RoleID)), ", ")
}

func where(conditions ...string) string {
	var all []string
	for _, c := range conditions {
		if c != "" {
			all = append(all, c)
		}
	}
	return strings.Join(all, " AND ")
}

// floored reports whether claims can begin above a floor. They cannot where the
// order of ids in Go is another than that of the server, nor across priorities.
func floored(l *sqlq.Layout) bool {
	if l.Has(sqlq.RolePriority) || l.Index == "" {
		return false
	}
	c := l.Column(sqlq.RoleID)
	switch kindOf(c) {
	case kindInteger, kindBytes:
		return true
	case kindText:
		return strings.HasSuffix(c.Collation, "_bin")
	}
	return false
}

// above is the condition that a row does not come before :floor and :floor_id,
// where those are given, in the order of claims. It is written so that it comes to two ranges of
// the index: the server walks neither what is before them, nor all of what was inserted at once.
func above(l *sqlq.Layout, alias string) string {
	if !floored(l) {
		return ""
	}
	id := fmt.Sprintf("%s.%s >= %s", alias, l.Q(sqlq.RoleID), l.In(sqlq.RoleID, ":floor_id"))
	if !l.Has(sqlq.RoleRetryAfter) {
		return "(:floor_id IS NULL OR " + id + ")"
	}
	c := l.Column(sqlq.RoleRetryAfter)
	at, floor := alias+"."+l.Q(sqlq.RoleRetryAfter), fmt.Sprintf("TIMESTAMPADD(MICROSECOND, :floor, %s)", epoch)
	if isTimestamp(c) {
		floor = "FROM_UNIXTIME(:floor * 0.000001)"
	}
	beyond := fmt.Sprintf("%s > %s OR %s = %s AND %s", at, floor, at, floor, id)
	if c.NotNull {
		return fmt.Sprintf("(:floor IS NULL OR :floor = %s OR %s)", least, beyond) // the least is a time that is none: 0000-00-00
	}
	return fmt.Sprintf("(:floor IS NULL OR :floor = %s AND (%s IS NOT NULL OR %s IS NULL AND %s) OR :floor > %s AND (%s))", least, at, at, id, least, beyond)
}

// mostLooks is how many rows that are due a look for the next time examines.
const mostLooks = 1000

// Due is the sooner of two times: when the first of the rows that are due is
// free, and when the first of the others is due.
func (dialect) Due(l *sqlq.Layout) string {
	freed := "0"
	if l.Has(sqlq.RoleLockedUntil) {
		freed = "COALESCE(" + away(l, sqlq.RoleLockedUntil) + ", 0)"
	}
	looks := []string{pick(l, fmt.Sprint(mostLooks), "", "", freed+" AS settle_a", beside(l))}
	if l.Has(sqlq.RoleRetryAfter) {
		later := "t." + l.Q(sqlq.RoleRetryAfter) + " > " + now(l.Column(sqlq.RoleRetryAfter))
		if l.Has(sqlq.RolePriority) {
			looks = append(looks, laterByLevel(l, later))
		} else {
			looks = append(looks, fmt.Sprintf("SELECT %s AS settle_a, %s FROM %s WHERE %s ORDER BY %s LIMIT 1",
				away(l, sqlq.RoleRetryAfter), beside(l), from(l), where(l.Mine("t"), later), order(l, "t")))
		}
	}
	for i, look := range looks {
		looks[i] = fmt.Sprintf("SELECT settle_a FROM (%s) AS l%d", look, i)
	}
	return fmt.Sprintf("SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (%s) AS a", strings.Join(looks, " UNION ALL "))
}

// away is in how many microseconds the time in a column of t comes.
func away(l *sqlq.Layout, r sqlq.Role) string {
	return fmt.Sprintf("TIMESTAMPDIFF(MICROSECOND, %s, t.%s)", now(l.Column(r)), l.Q(r))
}

// laterByLevel finds the next time of each priority by itself: no index has them all in one order.
func laterByLevel(l *sqlq.Layout, later string) string {
	p := l.Q(sqlq.RolePriority)
	return fmt.Sprintf("WITH RECURSIVE settle_levels (p) AS ("+
		"SELECT (SELECT MAX(t.%s) FROM %s WHERE %s) "+
		"UNION ALL SELECT (SELECT MAX(t.%s) FROM %s WHERE %s AND t.%s < o.p) FROM settle_levels AS o WHERE o.p IS NOT NULL) "+
		"SELECT (SELECT %s FROM %s WHERE %s AND t.%s = v.p AND %s ORDER BY t.%s LIMIT 1) AS settle_a FROM settle_levels AS v WHERE v.p IS NOT NULL",
		p, from(l), l.Mine("t"), p, from(l), l.Mine("t"), p,
		away(l, sqlq.RoleRetryAfter), from(l), l.Mine("t"), p, later, l.Q(sqlq.RoleRetryAfter))
}

// LockRows implements sqlq.Server.
func (dialect) LockRows(l *sqlq.Layout, limit string) string {
	return pick(l, limit, "", skip, append(l.FieldList("t"), transaction)...)
}

// lockOf is the name of a row's advisory lock on the server, which has one space of
// names for all its databases, and takes 64 characters.
func lockOf(l *sqlq.Layout, name string) string { return lockName(l, "key", name) }

func lockName(l *sqlq.Layout, what, name string) string {
	database := "DATABASE()"
	if l.Schema != "" {
		database = literal(l.Schema)
	}
	return fmt.Sprintf("CONCAT('settle:', SHA2(CONCAT(CAST(%s AS BINARY), '/%s/', %s), 224))", database, what, name)
}

// Seize implements sqlq.Server: it tries the first row of each name, in order,
// and ends when it has enough locks.
func (dialect) Seize(l *sqlq.Layout, name string) string {
	candidates := pick(l, ":scan", "("+lockOf(l, name)+" IN :held) IS NOT TRUE", "", l.Out(sqlq.RoleID, "t")+" AS settle_a", lockOf(l, name)+" AS settle_b", beside(l))
	return fmt.Sprintf("SELECT r.settle_a, r.settle_b FROM ("+
		"SELECT q.settle_a, q.settle_b, q.settle_n FROM ("+
		"SELECT p.*, ROW_NUMBER() OVER (PARTITION BY p.settle_b ORDER BY p.settle_n) AS settle_first FROM ("+
		"SELECT c.*, ROW_NUMBER() OVER () AS settle_n FROM (%s) AS c) AS p) AS q "+
		"WHERE q.settle_first = 1 ORDER BY q.settle_n LIMIT :scan) AS r WHERE GET_LOCK(r.settle_b, 0) = 1 LIMIT :limit", candidates)
}

// Candidates implements sqlq.Dialect, for locks in the process: there are none here.
func (dialect) Candidates(*sqlq.Layout, string) string { return "" }

// Take implements sqlq.Dialect, see TakeAll.
func (dialect) Take(*sqlq.Layout) string { return "" }

// TakeAll implements sqlq.Server. Nobody else can take the rows meanwhile: it has their locks.
func (dialect) TakeAll(l *sqlq.Layout) string {
	mine := where("t."+l.Q(sqlq.RoleID)+" IN :ids", l.Mine("t"), due(l, "t"))
	take := fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s", l.Fields("t"), l.Ref(), mine)
	if !l.Has(sqlq.RoleAttempt) {
		return take
	}
	attempt := "t." + l.Q(sqlq.RoleAttempt)
	return fmt.Sprintf("UPDATE %s AS t SET %s = %s WHERE %s;\n%s", l.Ref(), attempt, dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), attempt), mine, take)
}
