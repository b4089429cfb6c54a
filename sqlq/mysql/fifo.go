package mysql

import (
	"fmt"

	"github.com/settlemq/settle/sqlq"
)

// This file is the claims of FIFO queues. One claim of a queue goes at a time, in
// all processes: two that do not see each other's rows could take two of a key. The guard is an
// advisory lock, which is the connection's and not the transaction's.

// guardSeconds is how long a claim waits for another.
const guardSeconds = 10

func fifo(l *sqlq.Layout, c *sqlq.Claim) {
	group := "''"
	if l.Has(sqlq.RoleGroup) {
		group = ":group"
	}
	name := lockName(l, "fifo", fmt.Sprintf("CAST(%s AS BINARY), '/', CAST(%s AS BINARY)", literal(l.Name), group))
	c.Guard = fmt.Sprintf("SELECT GET_LOCK(%s, %d)", name, guardSeconds)
	c.Unguard = fmt.Sprintf("SELECT RELEASE_LOCK(%s)", name)
	if !l.Has(sqlq.RoleKey) {
		c.Take = locked(l, line(l))
		return
	}
	c.Take, c.Second = locked(l, heads(l)), locked(l, keys(l))
}

// locked locks the rows whose ids a query returns as settle_id, as far as they are still due and free.
func locked(l *sqlq.Layout, ids string) string {
	fields := ""
	for i, f := range marked(l) {
		if i > 0 {
			fields += ", "
		}
		fields += f
	}
	return fmt.Sprintf("SELECT %s FROM (%s) AS s STRAIGHT_JOIN %s ON t.%s = s.settle_id WHERE %s%s",
		fields, ids, byID(l), l.Q(sqlq.RoleID), where(l.Mine("t"), due(l, "t"), free(l, "t")), lockT+" SKIP LOCKED")
}

// lockT locks the rows of t alone. MySQL takes a lock on what is read of JSON or of a derived table
// for an error; MariaDB does not know OF, and passes over the comment.
const lockT = " FOR UPDATE /*!80000 OF t */"

// held is the condition that a row of the same line is in work.
func held(l *sqlq.Layout, sameLine string) string {
	return fmt.Sprintf("EXISTS (SELECT 1 FROM %s AS o WHERE %s)", l.Ref(),
		where(l.Mine("o"), sameLine, fmt.Sprintf("o.%s > %s", l.Q(sqlq.RoleLockedUntil), now(l.Column(sqlq.RoleLockedUntil)))))
}

// head is the id of the first row of a line.
func head(l *sqlq.Layout, sameLine string) string {
	return fmt.Sprintf("(SELECT o.%s FROM %s AS o WHERE %s ORDER BY %s LIMIT 1)", l.Q(sqlq.RoleID), l.Ref(),
		where(l.Mine("o"), sameLine), order(l, "o"))
}

// line is the head of a FIFO queue without keys, if none of it is in work.
func line(l *sqlq.Layout) string {
	return fmt.Sprintf("SELECT t.%s AS settle_id FROM %s WHERE %s ORDER BY %s LIMIT 1", l.Q(sqlq.RoleID), from(l),
		where(l.Mine("t"), due(l, "t"), "NOT "+held(l, "")), order(l, "t"))
}

// heads looks among the first rows that are due for those that are the first
// of their key, or have none.
func heads(l *sqlq.Layout) string {
	id, key := l.Q(sqlq.RoleID), l.Q(sqlq.RoleKey)
	first := fmt.Sprintf("SELECT t.%s AS id, t.%s AS line FROM %s WHERE %s ORDER BY %s LIMIT :scan",
		id, key, from(l), where(l.Mine("t"), due(l, "t"), above(l, "t"), free(l, "t")), order(l, "t"))
	if l.Runs {
		return runs(l)
	}
	same := "o." + key + " = c.line"
	return fmt.Sprintf("SELECT c.id AS settle_id FROM (%s) AS c WHERE c.line IS NULL OR (c.id = %s AND NOT %s) LIMIT :limit",
		first, head(l, same), held(l, same))
}

// runs selects, of the first rows that are due, those of every line whose head is among them and that has
// none in work: they are the beginning of that line.
func runs(l *sqlq.Layout) string {
	id, key, at := l.Q(sqlq.RoleID), l.Q(sqlq.RoleKey), "0"
	if l.Has(sqlq.RoleRetryAfter) {
		at = "t." + l.Q(sqlq.RoleRetryAfter)
	}
	first := fmt.Sprintf("SELECT t.%s AS id, t.%s AS line, %s AS at FROM %s WHERE %s ORDER BY %s LIMIT :scan",
		id, key, at, from(l), where(l.Mine("t"), due(l, "t"), above(l, "t"), free(l, "t")), order(l, "t"))
	same := "o." + key + " = k.line"
	return fmt.Sprintf("WITH settle_first AS (%s) SELECT c.id AS settle_id FROM settle_first AS c WHERE c.line IS NULL OR c.line IN ("+
		"SELECT k.line FROM (SELECT DISTINCT d.line FROM settle_first AS d WHERE d.line IS NOT NULL) AS k WHERE NOT %s AND %s IN (SELECT i.id FROM settle_first AS i)) "+
		"ORDER BY c.at, c.id LIMIT :limit", first, held(l, same), head(l, same))
}

// keys looks at the first row of every key. It is for when the first rows
// that are due are all of keys that have one in work.
func keys(l *sqlq.Layout) string {
	id, key := l.Q(sqlq.RoleID), l.Q(sqlq.RoleKey)
	lines := fmt.Sprintf("SELECT DISTINCT t.%s AS line FROM %s AS t WHERE %s", key, l.Ref(), where(l.Mine("t"), "t."+key+" IS NOT NULL"))
	same := "o." + key + " = k.line"
	return fmt.Sprintf("SELECT t.%s AS settle_id FROM (%s) AS k STRAIGHT_JOIN %s AS t ON t.%s = %s WHERE %s ORDER BY %s LIMIT :limit",
		id, lines, l.Ref(), id, head(l, same), where(due(l, "t"), free(l, "t"), "NOT "+held(l, same)), order(l, "t"))
}
