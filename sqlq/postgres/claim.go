package postgres

import (
	"fmt"
	"strings"

	"github.com/settlemq/settle/sqlq"
)

// This file is the SQL that finds rows. All of it walks an index in the order of
// claims and ends as soon as it has enough, so that it costs the same however
// many rows wait. Rows are picked in an array, which the server computes once, because a
// join may pick again and take more than it should, or read all of the table.

// Claim implements sqlq.Dialect.
func (dialect) Claim(l *sqlq.Layout) sqlq.Claim {
	switch {
	case !l.FIFO:
		return sqlq.Claim{Take: take(l, picked(l, free(l, "t")))}
	case !l.Has(sqlq.RoleKey):
		return sqlq.Claim{Guard: guard(l), Take: take(l, query{text: pickLine(l)})}
	default:
		return sqlq.Claim{Guard: guard(l), Take: take(l, query{text: pickHeads(l)}), Second: take(l, query{text: pickKeys(l)})}
	}
}

// take is the claim of the rows whose ids a query returns.
func take(l *sqlq.Layout, ids query) string {
	set := fmt.Sprintf("%s = %s", l.Q(sqlq.RoleLockedUntil), later(l, sqlq.RoleLockedUntil, ":lease"))
	if l.Has(sqlq.RoleAttempt) {
		set = fmt.Sprintf("%s = %s, %s", l.Q(sqlq.RoleAttempt), dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), "t."+l.Q(sqlq.RoleAttempt)), set)
	}
	return fmt.Sprintf("%sUPDATE %s AS t SET %s WHERE t.%s = ANY(ARRAY(%s)) RETURNING %s", ids.with, l.Ref(), set, l.Q(sqlq.RoleID), ids.text, l.Fields("t"))
}

func later(l *sqlq.Layout, r sqlq.Role, micros string) string {
	return dialect{}.Later(l.Column(r), micros)
}

// query is a SELECT with what has to stand before the statement it is part of.
type query struct{ with, text string }

func (q query) String() string { return q.with + q.text }

// picked selects the ids of up to :limit rows that are due, in the order of
// claims, and locks the rows.
func picked(l *sqlq.Layout, also string) query {
	return pick(l, ":limit", also, lock, "t."+l.Q(sqlq.RoleID)+" AS settle_a")
}

// pick selects expressions over those rows. What one walk over an index cannot
// bring in the order of claims is asked for in parts, one after the other.
func pick(l *sqlq.Layout, limit, also, locking string, exprs ...string) query {
	limit = cast(limit, "bigint")
	if l.Has(sqlq.RolePriority) {
		return pickLevels(l, limit, also, locking, exprs)
	}
	columns := strings.Join(exprs, ", ")
	part := func(when, limit string) string {
		return fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s ORDER BY %s LIMIT %s%s", columns, l.Ref(),
			where(l.Mine("t"), when, also), order(l, "t"), limit, locking)
	}
	if !l.Has(sqlq.RoleRetryAfter) {
		return query{text: part(above(l, "t"), limit)}
	}
	at := "t." + l.Q(sqlq.RoleRetryAfter)
	due := where(at+" <= "+timeNow(l), above(l, "t"))
	if l.Column(sqlq.RoleRetryAfter).NotNull {
		return query{text: part(due, limit)}
	}
	return parts(part(at+" IS NULL", limit), part(due, rest(limit)))
}

// parts is two picks as one, of which the second takes what the first leaves.
func parts(first, second string) query {
	return query{
		with: fmt.Sprintf("WITH settle_1 AS MATERIALIZED (%s), settle_2 AS MATERIALIZED (%s) ", first, second),
		text: "SELECT * FROM settle_1 UNION ALL SELECT * FROM settle_2",
	}
}

func rest(limit string) string {
	return fmt.Sprintf("greatest(%s - (SELECT count(*) FROM settle_1), 0)", limit)
}

// pickLevels goes through the priorities, the highest first, so that delayed
// rows of a high one need not be walked over. Rows without a priority come last.
func pickLevels(l *sqlq.Layout, limit, also, locking string, exprs []string) query {
	var names []string
	for _, e := range exprs {
		names = append(names, "r."+e[strings.LastIndexByte(e, ' ')+1:]) // each ends with AS and a name
	}
	priority := l.Q(sqlq.RolePriority)
	inLevel := func(level, above, order, limit string) string {
		return fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s ORDER BY %s LIMIT %s%s", strings.Join(exprs, ", "), l.Ref(),
			where(l.Mine("t"), "t."+priority+level, due(l, "t"), above, also), order, limit, locking)
	}
	all := fmt.Sprintf("SELECT %s FROM (%s) AS v CROSS JOIN LATERAL (%s) AS r LIMIT %s", strings.Join(names, ", "),
		levels(l), inLevel(" = v.p", aboveLevel(l), order(l, "t"), limit), limit)
	if l.Column(sqlq.RolePriority).NotNull {
		return query{text: all}
	}
	return parts(all, inLevel(" IS NULL", "", orderLevel(l), rest(limit)))
}

// levels is the list of the priorities p that rows have, the highest first, with where
// to begin in each: that of :floors, and before it one that is higher than those, if there is one; or
// else all of them, found by a search for each.
func levels(l *sqlq.Layout) string {
	p, floors := l.Q(sqlq.RolePriority), cast(cast(":floors", "text"), "jsonb")
	at := func(n int) string {
		return fmt.Sprintf("CAST(e ->> %d AS %s)", n, [...]string{"bigint", "bigint", "text"}[n])
	}
	// The first by the index, and not max: that may be reckoned from all rows.
	highest := func(below string) string {
		return fmt.Sprintf("(SELECT t.%s AS p FROM %s AS t WHERE %s AND t.%s %s ORDER BY t.%s DESC LIMIT 1)", p, l.Ref(), l.Mine("t"), p, below, p)
	}
	return fmt.Sprintf("WITH RECURSIVE settle_levels(p) AS ("+
		"(SELECT CASE WHEN %s IS NULL THEN %s END) "+
		"UNION ALL SELECT %s FROM settle_levels AS o WHERE o.p IS NOT NULL) "+
		"SELECT p, CAST(NULL AS bigint) AS settle_floor, CAST(NULL AS text) AS settle_id FROM settle_levels WHERE p IS NOT NULL "+
		"UNION ALL SELECT n.p, NULL, NULL FROM %s AS n "+
		"UNION ALL SELECT %s, %s, %s FROM jsonb_array_elements(%s) AS e",
		floors, highest("IS NOT NULL"), highest("< o.p"), highest("> CAST("+floors+" -> 0 ->> 0 AS bigint)"), at(0), at(1), at(2), floors)
}

func timeNow(l *sqlq.Layout) string { return nowIn(l.Column(sqlq.RoleRetryAfter)) }

// due is the condition that a row is due.
func due(l *sqlq.Layout, alias string) string {
	if !l.Has(sqlq.RoleRetryAfter) {
		return ""
	}
	c := alias + "." + l.Q(sqlq.RoleRetryAfter)
	if l.Column(sqlq.RoleRetryAfter).NotNull {
		return c + " <= " + timeNow(l)
	}
	return fmt.Sprintf("(%s IS NULL OR %s <= %s)", c, c, timeNow(l))
}

// free is the condition that nobody holds a row.
func free(l *sqlq.Layout, alias string) string {
	if !l.Has(sqlq.RoleLockedUntil) {
		return ""
	}
	c := alias + "." + l.Q(sqlq.RoleLockedUntil)
	return fmt.Sprintf("(%s IS NULL OR %s <= %s)", c, c, nowIn(l.Column(sqlq.RoleLockedUntil)))
}

// order is the order of claims among rows of one priority.
func order(l *sqlq.Layout, alias string) string {
	id := alias + "." + l.Q(sqlq.RoleID)
	if !l.Has(sqlq.RoleRetryAfter) {
		return id
	}
	return alias + "." + l.Q(sqlq.RoleRetryAfter) + nulls(l) + ", " + id
}

// nulls is where claims have a row without a RetryAfter among those of one priority.
func nulls(l *sqlq.Layout) string {
	if l.Has(sqlq.RolePriority) && l.Has(sqlq.RoleRetryAfter) && !l.Column(sqlq.RoleRetryAfter).NotNull {
		return " NULLS FIRST"
	}
	return ""
}

// orderLevel is order among rows that have no priority, written so that the server
// knows an index by priority to be in that order.
func orderLevel(l *sqlq.Layout) string {
	return "t." + l.Q(sqlq.RolePriority) + " DESC, " + order(l, "t")
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

// least is an id that comes before all others of its type; empty where there is
// none, so that claims of such a table do without a floor.
func least(l *sqlq.Layout) string {
	switch kindOf(l.Column(sqlq.RoleID)) {
	case kindInteger:
		return "-9223372036854775808"
	case kindText:
		return "''"
	case kindUUID:
		return "CAST('00000000-0000-0000-0000-000000000000' AS uuid)"
	}
	return ""
}

// above is the condition that a row does not come before :floor and :floor_id,
// where those are given, in the order of claims.
func above(l *sqlq.Layout, alias string) string {
	if least(l) == "" {
		return ""
	}
	id := alias + "." + l.Q(sqlq.RoleID)
	from := fmt.Sprintf("coalesce(%s, %s)", l.In(sqlq.RoleID, ":floor_id"), least(l))
	if !l.Has(sqlq.RoleRetryAfter) {
		return id + " >= " + from
	}
	return fmt.Sprintf("(%s.%s, %s) >= (%s, %s)", alias, l.Q(sqlq.RoleRetryAfter), id, atFloor(l, cast(":floor", "bigint")), from)
}

// atFloor is the time of a floor in microseconds, before all others where there is none. The
// least is one that the server can reckon with.
func atFloor(l *sqlq.Layout, micros string) string {
	t := l.Column(sqlq.RoleRetryAfter).Type
	return fmt.Sprintf("CASE WHEN coalesce(%s, -200000000000000000) <= -200000000000000000 THEN '-infinity' ELSE CAST('epoch' AS %s) + greatest(%s, -200000000000000000) * interval '1 microsecond' END", micros, t, micros)
}

// aboveLevel is above for a priority v of levels.
func aboveLevel(l *sqlq.Layout) string {
	if least(l) == "" || !l.Has(sqlq.RoleRetryAfter) || !l.Column(sqlq.RoleRetryAfter).NotNull {
		return ""
	}
	return fmt.Sprintf("(t.%s, t.%s) >= (%s, coalesce(%s, %s))", l.Q(sqlq.RoleRetryAfter), l.Q(sqlq.RoleID),
		atFloor(l, "v.settle_floor"), l.In(sqlq.RoleID, "v.settle_id"), least(l))
}

// guard lets one claim of a FIFO queue go at a time: two that do not see each
// other's rows could take two of a key.
func guard(l *sqlq.Layout) string {
	name := literal("settle fifo " + l.Ref() + " ")
	if l.Has(sqlq.RoleGroup) {
		name = "concat(" + name + ", " + cast(":group", "text") + ")"
	}
	return "SELECT pg_advisory_xact_lock(hashtextextended(" + name + ", 0))"
}

// held is the condition that a row of the same line is in work.
func held(l *sqlq.Layout, sameLine string) string {
	return fmt.Sprintf("EXISTS (SELECT 1 FROM %s AS o WHERE %s)", l.Ref(),
		where(l.Mine("o"), sameLine, fmt.Sprintf("o.%s > %s", l.Q(sqlq.RoleLockedUntil), nowIn(l.Column(sqlq.RoleLockedUntil)))))
}

// head is the id of the first row of a line.
func head(l *sqlq.Layout, sameLine string) string {
	return fmt.Sprintf("(SELECT o.%s FROM %s AS o WHERE %s ORDER BY %s LIMIT 1)", l.Q(sqlq.RoleID), l.Ref(),
		where(l.Mine("o"), sameLine), order(l, "o"))
}

// pickLine selects the head of a FIFO queue without keys, if none of it is in work.
func pickLine(l *sqlq.Layout) string {
	id := "t." + l.Q(sqlq.RoleID)
	return fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s LIMIT least(%s, 1)%s", id, l.Ref(),
		where(id+" = "+head(l, ""), due(l, "t"), "NOT "+held(l, "")), cast(":limit", "bigint"), lock)
}

// pickHeads looks among the first rows that are due for those that are the first
// of their key, or have none.
func pickHeads(l *sqlq.Layout) string {
	id, key := l.Q(sqlq.RoleID), l.Q(sqlq.RoleKey)
	first := fmt.Sprintf("SELECT t.%s AS id, t.%s AS line FROM %s AS t WHERE %s ORDER BY %s LIMIT %s",
		id, key, l.Ref(), where(l.Mine("t"), due(l, "t"), above(l, "t"), free(l, "t")), order(l, "t"), cast(":scan", "bigint"))
	if l.Runs {
		return locked(l, runs(l, first))
	}
	line := "o." + key + " = c.line"
	heads := fmt.Sprintf("SELECT c.id FROM (%s) AS c WHERE c.line IS NULL OR (c.id = %s AND NOT %s) LIMIT %s",
		first, head(l, line), held(l, line), cast(":limit", "bigint"))
	return locked(l, heads)
}

// runs selects, of the first rows that are due, those of every line whose head is among them and that
// has none in work: they are the beginning of that line.
func runs(l *sqlq.Layout, first string) string {
	line := "o." + l.Q(sqlq.RoleKey) + " = k.line"
	return fmt.Sprintf("WITH settle_first AS MATERIALIZED (SELECT f.id, f.line, row_number() OVER () AS n FROM (%s) AS f) "+
		"SELECT c.id FROM settle_first AS c WHERE c.line IS NULL OR c.line IN (SELECT k.line FROM (SELECT DISTINCT d.line FROM settle_first AS d WHERE d.line IS NOT NULL) AS k "+
		"WHERE NOT %s AND %s IN (SELECT i.id FROM settle_first AS i)) ORDER BY c.n LIMIT %s",
		first, held(l, line), head(l, line), cast(":limit", "bigint"))
}

// locked locks the rows whose ids a query returns, and returns the ids of those
// that nobody else has locked.
func locked(l *sqlq.Layout, ids string) string {
	id := "t." + l.Q(sqlq.RoleID)
	return fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s%s", id, l.Ref(), where(id+" = ANY(ARRAY("+ids+"))", due(l, "t"), free(l, "t")), lock)
}

// pickKeys looks at the first row of every key. It is for when the first rows
// that are due are all of keys that have one in work.
func pickKeys(l *sqlq.Layout) string {
	id, key := l.Q(sqlq.RoleID), l.Q(sqlq.RoleKey)
	next := func(more string) string {
		return fmt.Sprintf("(SELECT t.%s FROM %s AS t WHERE %s ORDER BY t.%s LIMIT 1)", key, l.Ref(), where(l.Mine("t"), more), key)
	}
	line := "o." + key + " = k.line"
	heads := fmt.Sprintf("WITH RECURSIVE settle_lines(line) AS (SELECT %s UNION ALL SELECT %s FROM settle_lines AS k WHERE k.line IS NOT NULL) "+
		"SELECT t.%s FROM settle_lines AS k CROSS JOIN %s AS t WHERE t.%s = %s AND %s ORDER BY %s LIMIT %s",
		next("t."+key+" IS NOT NULL"), next("t."+key+" > k.line"),
		id, l.Ref(), id, head(l, line), where(due(l, "t"), free(l, "t"), "NOT "+held(l, line)), order(l, "t"), cast(":limit", "bigint"))
	return locked(l, heads)
}

// mostLooks is how many rows that are due a look for the next time examines.
const mostLooks = 1000

// Due is the sooner of two times: when the first of the rows that are due is
// free, and when the first of the others is due.
func (dialect) Due(l *sqlq.Layout) string {
	freed := "CAST('-infinity' AS timestamptz)"
	if l.Has(sqlq.RoleLockedUntil) {
		freed = "coalesce(" + instant(l, sqlq.RoleLockedUntil) + ", '-infinity')"
	}
	looks := []string{pick(l, fmt.Sprint(mostLooks), "", "", freed+" AS settle_a").String()}
	if l.Has(sqlq.RoleRetryAfter) {
		at := "t." + l.Q(sqlq.RoleRetryAfter)
		next := func(level, order string) string {
			return fmt.Sprintf("SELECT %s AS settle_a FROM %s AS t WHERE %s ORDER BY %s LIMIT 1", instant(l, sqlq.RoleRetryAfter), l.Ref(),
				where(l.Mine("t"), level, at+" > "+timeNow(l)), order)
		}
		switch priority := "t." + l.Q(sqlq.RolePriority); {
		case !l.Has(sqlq.RolePriority):
			looks = append(looks, next("", order(l, "t")))
		default:
			looks = append(looks, fmt.Sprintf("SELECT r.settle_a FROM (%s) AS v CROSS JOIN LATERAL (%s) AS r", levels(l), next(priority+" = v.p", order(l, "t"))))
			if !l.Column(sqlq.RolePriority).NotNull {
				looks = append(looks, next(priority+" IS NULL", orderLevel(l)))
			}
		}
	}
	for i, look := range looks {
		looks[i] = "SELECT settle_a FROM (" + look + ") AS l" + fmt.Sprint(i)
	}
	soon := fmt.Sprintf("least(settle_a, %s + interval '1 hour')", now)
	in := func(which string) string {
		return fmt.Sprintf("CAST(extract(epoch FROM min(greatest(%s, %s))%s - %s) * 1000000 AS bigint)", soon, now, which, now)
	}
	return fmt.Sprintf("SELECT %s, %s FROM (%s) AS a", in(""), in(" FILTER (WHERE settle_a > "+now+")"), strings.Join(looks, " UNION ALL "))
}

// instant is a time column of a row t as a point in time.
func instant(l *sqlq.Layout, r sqlq.Role) string {
	ref := "t." + l.Q(r)
	if zoned(l.Column(r)) {
		return ref
	}
	return "(" + ref + " AT TIME ZONE 'UTC')"
}

// LockRows implements sqlq.Server.
func (dialect) LockRows(l *sqlq.Layout, limit string) string {
	return pick(l, limit, "", lock, append(named(l), transaction+" AS settle_transaction")...).String()
}

// named are the fields of a claim under names in their order.
func named(l *sqlq.Layout) []string {
	fields := l.FieldList("t")
	for i := range fields {
		fields[i] += " AS settle_" + string(rune('a'+i))
	}
	return fields
}

// Seize implements sqlq.Server: it tries the first row of each name, in order,
// and ends when it has enough locks.
func (dialect) Seize(l *sqlq.Layout, name string) string {
	lockOf := "hashtextextended(" + name + ` COLLATE "C", 0)` // columns may have collations of their own
	candidates := pick(l, ":scan", lockOf+" <> ALL("+cast(":held", "bigint[]")+")", "",
		l.Out(sqlq.RoleID, "t")+" AS settle_a", lockOf+" AS settle_b")
	return fmt.Sprintf("SELECT r.settle_a, r.settle_b FROM ("+
		"SELECT q.settle_a, q.settle_b, q.settle_n FROM ("+
		"SELECT p.*, row_number() OVER (PARTITION BY p.settle_b ORDER BY p.settle_n) AS settle_first FROM ("+
		"SELECT c.*, row_number() OVER () AS settle_n FROM (%s) AS c) AS p) AS q "+
		"WHERE q.settle_first = 1 ORDER BY q.settle_n OFFSET 0) AS r WHERE pg_try_advisory_lock(r.settle_b) LIMIT %s",
		candidates, cast(":limit", "bigint"))
}

// Busy implements sqlq.Watcher. A lock of 64 bits stands in two halves in that view.
func (dialect) Busy() string {
	return "SELECT (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted " +
		"AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
}

// Candidates implements sqlq.Dialect, for locks in the process: there are none here.
func (dialect) Candidates(*sqlq.Layout, string) string { return "" }

// Take implements sqlq.Dialect, see TakeAll.
func (dialect) Take(*sqlq.Layout) string { return "" }

// TakeAll implements sqlq.Server.
func (dialect) TakeAll(l *sqlq.Layout) string {
	id := "t." + l.Q(sqlq.RoleID)
	ids := cast(":ids", listType(l, "id"))
	if t := l.Column(sqlq.RoleID).Type; kindOf(l.Column(sqlq.RoleID)) != kindInteger {
		ids = cast(ids, t+"[]")
	}
	// So that the server looks for the ids by their own index, whatever it believes of the others.
	mine := fmt.Sprintf("%s = ANY(%s) AND (%s) IS TRUE", id, ids, where(l.Mine("t"), due(l, "t")))
	if !l.Has(sqlq.RoleAttempt) {
		return fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s", l.Fields("t"), l.Ref(), mine)
	}
	attempt := l.Q(sqlq.RoleAttempt)
	return fmt.Sprintf("UPDATE %s AS t SET %s = %s WHERE %s = ANY(ARRAY(SELECT %s FROM %s AS t WHERE %s%s)) RETURNING %s",
		l.Ref(), attempt, dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), "t."+attempt), id, id, l.Ref(), mine, lock, l.Fields("t"))
}
