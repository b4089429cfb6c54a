package sqlite

import (
	"fmt"
	"strings"

	"github.com/settlemq/settle/sqlq"
)

// This file is the SQL that finds rows. All of it walks the index of schema.go in the order
// of claims and ends as soon as it has enough, so that it costs the same however
// many rows wait. SQLite walks an index only if the query has nothing in its way; that is why
// NULLs and priorities get queries of their own instead of an OR or a sort.

// Claim takes rows in one statement. Its RETURNING keeps no order.
func (dialect) Claim(l *sqlq.Layout) sqlq.Claim {
	switch {
	case !l.FIFO:
		return sqlq.Claim{Take: claim(l, pick(l, free(l, "t")))}
	case !l.Has(sqlq.RoleKey):
		return sqlq.Claim{Take: claim(l, pickLine(l))}
	default:
		return sqlq.Claim{Take: claim(l, pickHeads(l)), Second: claim(l, pickKeys(l))}
	}
}

func claim(l *sqlq.Layout, ids string) string {
	set := fmt.Sprintf("%s = :now + :lease", l.Q(sqlq.RoleLockedUntil))
	if l.Has(sqlq.RoleAttempt) {
		set = fmt.Sprintf("%s = %s, %s", l.Q(sqlq.RoleAttempt), dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), l.Q(sqlq.RoleAttempt)), set)
	}
	return fmt.Sprintf("UPDATE %s SET %s WHERE %s IN (%s) RETURNING %s", l.Ref(), set, l.Q(sqlq.RoleID), ids, l.Fields(""))
}

// free is the condition that nobody holds a row.
func free(l *sqlq.Layout, alias string) string {
	if !l.Has(sqlq.RoleLockedUntil) {
		return ""
	}
	c := alias + "." + l.Q(sqlq.RoleLockedUntil)
	return fmt.Sprintf("(%s IS NULL OR %s <= :now)", c, c)
}

// order is the order of claims among rows of one priority.
func order(l *sqlq.Layout, alias string) string {
	id := alias + "." + l.Q(sqlq.RoleID)
	if l.Has(sqlq.RoleRetryAfter) {
		return alias + "." + l.Q(sqlq.RoleRetryAfter) + ", " + id
	}
	return id
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

// pick selects the ids of up to :limit rows that are due, in the order of
// claims, under one more condition.
func pick(l *sqlq.Layout, also string) string {
	return pickColumns(l, also, "t."+l.Q(sqlq.RoleID))
}

// pickColumns selects expressions over those rows, under the names a, b, ...
//
// Where RetryAfter may be NULL, an index serves the NULLs or the others but not
// both at once, so there is a query for each. With priorities the rows are
// looked for level by level, so that delayed ones of a high priority need not be walked over.
func pickColumns(l *sqlq.Layout, also string, exprs ...string) string {
	var columns, names []string
	for i, e := range exprs {
		name := string(rune('a' + i))
		columns, names = append(columns, e+" AS "+name), append(names, name)
	}
	from, end := l.Ref()+" AS t", " ORDER BY "+order(l, "t")+" LIMIT :limit"
	level, with := "", ""
	if l.Has(sqlq.RolePriority) {
		with, from = levels(l), "settle_levels AS v CROSS JOIN "+from
		level, end = "t."+l.Q(sqlq.RolePriority)+" IS v.p", " LIMIT :limit"
	}
	query := func(when string, more ...string) string {
		return fmt.Sprintf("%sSELECT %s FROM %s WHERE %s%s", with, strings.Join(append(columns, more...), ", "), from,
			where(l.Mine("t"), level, when, also), end)
	}
	if !l.Has(sqlq.RoleRetryAfter) || l.Column(sqlq.RoleRetryAfter).NotNull {
		return query(due(l, "t"))
	}
	c := "t." + l.Q(sqlq.RoleRetryAfter)
	both, last := "SELECT %s FROM (SELECT * FROM (%s) UNION ALL SELECT * FROM (%s)%s LIMIT :limit)", ""
	var more []string
	if level != "" { // each query has its rows in order; together they have to be sorted
		more = []string{"v.p AS settle_level", c + " AS settle_due", "t." + l.Q(sqlq.RoleID) + " AS settle_id"}
		last = " ORDER BY settle_level DESC, settle_due, settle_id"
	}
	return fmt.Sprintf(both, strings.Join(names, ", "), query(c+" IS NULL", more...), query(c+" <= :now", more...), last)
}

// due is the condition that a row is due. Where NULLs are among them, an index
// serves no more than the order: the plus signs keep it to that.
func due(l *sqlq.Layout, alias string) string {
	if !l.Has(sqlq.RoleRetryAfter) {
		return ""
	}
	if alias != "" {
		alias += "."
	}
	c := alias + l.Q(sqlq.RoleRetryAfter)
	if l.Column(sqlq.RoleRetryAfter).NotNull {
		return c + " <= :now"
	}
	return fmt.Sprintf("(+%s IS NULL OR +%s <= :now)", c, c)
}

// levels is the list of the priorities that rows have, the highest first, found by a
// search for each.
func levels(l *sqlq.Layout) string {
	p := l.Q(sqlq.RolePriority)
	return fmt.Sprintf("WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED ("+
		"SELECT (SELECT t.%s FROM %s AS t WHERE %s ORDER BY t.%s DESC LIMIT 1) "+
		"UNION ALL SELECT (SELECT t.%s FROM %s AS t WHERE %s AND t.%s < w.p ORDER BY t.%s DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) ",
		p, l.Ref(), l.Mine("t"), p,
		p, l.Ref(), l.Mine("t"), p, p)
}

// held is the condition that a row of the same line is in work.
func held(l *sqlq.Layout, sameLine string) string {
	return fmt.Sprintf("EXISTS (SELECT 1 FROM %s AS o WHERE %s)", l.Ref(),
		where(l.Mine("o"), sameLine, "o."+l.Q(sqlq.RoleLockedUntil)+" > :now"))
}

// pickLine selects the head of a FIFO queue without keys, if none of it is in work.
func pickLine(l *sqlq.Layout) string {
	return fmt.Sprintf("SELECT t.%s FROM %s AS t WHERE %s ORDER BY %s LIMIT min(:limit, 1)", l.Q(sqlq.RoleID), l.Ref(),
		where(l.Mine("t"), due(l, "t"), "NOT "+held(l, "")), order(l, "t"))
}

// head is the id of the first row of a key.
func head(l *sqlq.Layout, key string) string {
	return fmt.Sprintf("(SELECT o.%s FROM %s AS o WHERE %s AND o.%s = %s ORDER BY %s LIMIT 1)",
		l.Q(sqlq.RoleID), l.Ref(), l.Mine("o"), l.Q(sqlq.RoleKey), key, order(l, "o"))
}

// pickHeads looks among the first rows that are due for those that are the first
// of their key, or have none.
func pickHeads(l *sqlq.Layout) string {
	id, key := l.Q(sqlq.RoleID), l.Q(sqlq.RoleKey)
	first := fmt.Sprintf("SELECT t.%s AS id, t.%s AS line FROM %s AS t WHERE %s ORDER BY %s LIMIT :scan",
		id, key, l.Ref(), where(l.Mine("t"), due(l, "t"), free(l, "t")), order(l, "t"))
	if l.Runs {
		return runs(l, first)
	}
	return fmt.Sprintf("SELECT c.id FROM (%s) AS c WHERE c.line IS NULL OR (c.id = %s AND NOT %s) LIMIT :limit",
		first, head(l, "c.line"), held(l, "o."+key+" = c.line"))
}

// runs selects, of the first rows that are due, those of every line whose head is among them and that
// has none in work: they are the beginning of that line.
func runs(l *sqlq.Layout, first string) string {
	return fmt.Sprintf("WITH settle_first AS MATERIALIZED (SELECT f.id, f.line, row_number() OVER () AS n FROM (%s) AS f) "+
		"SELECT c.id FROM settle_first AS c WHERE c.line IS NULL OR c.line IN (SELECT k.line FROM (SELECT DISTINCT d.line FROM settle_first AS d WHERE d.line IS NOT NULL) AS k "+
		"WHERE NOT %s AND %s IN (SELECT i.id FROM settle_first AS i)) ORDER BY c.n LIMIT :limit",
		first, held(l, "o."+l.Q(sqlq.RoleKey)+" = k.line"), head(l, "k.line"))
}

// pickKeys looks at the first row of every key. It is for when the first rows
// that are due are all of keys that have one in work.
func pickKeys(l *sqlq.Layout) string {
	id, key := l.Q(sqlq.RoleID), l.Q(sqlq.RoleKey)
	next := func(more string) string {
		return fmt.Sprintf("(SELECT t.%s FROM %s AS t WHERE %s ORDER BY t.%s LIMIT 1)", key, l.Ref(), where(l.Mine("t"), more), key)
	}
	return fmt.Sprintf("WITH RECURSIVE settle_lines(line) AS NOT MATERIALIZED (SELECT %s UNION ALL SELECT %s FROM settle_lines AS k WHERE k.line IS NOT NULL) "+
		"SELECT t.%s FROM settle_lines AS k CROSS JOIN %s AS t WHERE t.%s = %s AND %s ORDER BY %s LIMIT :limit",
		next("t."+key+" IS NOT NULL"), next("t."+key+" > k.line"),
		id, l.Ref(), id, head(l, "k.line"), where(due(l, "t"), free(l, "t"), "NOT "+held(l, "o."+key+" = k.line")), order(l, "t"))
}

// mostLooks is how many rows that are due a look for the next time examines.
const mostLooks = 1000

// Due is the smaller of two times: when the first of the rows that are due is
// free, and when the first of the others is due.
func (dialect) Due(l *sqlq.Layout) string {
	freed := "0"
	if l.Has(sqlq.RoleLockedUntil) {
		freed = "coalesce(t." + l.Q(sqlq.RoleLockedUntil) + ", 0)"
	}
	parts := []string{strings.ReplaceAll(pickColumns(l, "", freed), ":limit", fmt.Sprint(mostLooks))}
	if l.Has(sqlq.RoleRetryAfter) {
		c := "t." + l.Q(sqlq.RoleRetryAfter)
		later := fmt.Sprintf("SELECT %s AS a FROM %s AS t WHERE %s AND %s > :now ORDER BY %s LIMIT 1", c, l.Ref(), l.Mine("t"), c, order(l, "t"))
		if l.Has(sqlq.RolePriority) {
			level := fmt.Sprintf("(SELECT %s FROM %s AS t WHERE %s AND t.%s IS v.p AND %s > :now ORDER BY %s LIMIT 1)",
				c, l.Ref(), l.Mine("t"), l.Q(sqlq.RolePriority), c, order(l, "t"))
			later = levels(l) + fmt.Sprintf("SELECT %s AS a FROM settle_levels AS v LIMIT %d", level, mostLooks)
		}
		parts = append(parts, later)
	}
	for i, p := range parts {
		parts[i] = "SELECT a FROM (" + p + ")"
	}
	return fmt.Sprintf("SELECT min(a) - :now, min(a) FILTER (WHERE a > :now) - :now FROM (%s)", strings.Join(parts, " UNION ALL "))
}

// Candidates implements sqlq.Dialect.
func (dialect) Candidates(l *sqlq.Layout, lock string) string {
	return pickColumns(l, lock+" NOT IN (SELECT value FROM json_each(:held))", "t."+l.Q(sqlq.RoleID), lock)
}

// Take implements sqlq.Dialect.
func (dialect) Take(l *sqlq.Layout) string {
	conditions := where(l.Q(sqlq.RoleID)+" = :id", l.Mine(""), due(l, ""))
	if !l.Has(sqlq.RoleAttempt) {
		return fmt.Sprintf("SELECT %s FROM %s WHERE %s", l.Fields(""), l.Ref(), conditions)
	}
	c := l.Q(sqlq.RoleAttempt)
	return fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s RETURNING %s", l.Ref(), c, dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), c), conditions, l.Fields(""))
}
