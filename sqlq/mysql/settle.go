package mysql

import (
	"fmt"
	"strings"

	"github.com/settlemq/settle/sqlq"
)

// This file is the SQL that settles rows, and that holds them without a lease.

// perRow are the columns of :rows in the order that sqlq.Packer has.
var perRow = []string{"id", "attempt", "token", "delay", "cause", "next_token"}

// rowsOf reads the parameter :rows as a table s.
func rowsOf(l *sqlq.Layout) string {
	var columns []string
	for i, name := range perRow {
		as := "BIGINT"
		switch {
		case name == "id" && kindOf(l.Column(sqlq.RoleID)) == kindInteger && isUnsigned(l.Column(sqlq.RoleID)):
			as = "BIGINT UNSIGNED"
		case name == "id" && kindOf(l.Column(sqlq.RoleID)) != kindInteger:
			as = "VARCHAR(4096) CHARACTER SET utf8mb4"
		case name == "cause":
			as = "TEXT CHARACTER SET utf8mb4"
		case name == "token", name == "next_token":
			as = "VARCHAR(32)"
		}
		columns = append(columns, fmt.Sprintf("settle_%s %s PATH '$[%d]'", name, as, i))
	}
	return fmt.Sprintf("JSON_TABLE(:rows, '$[*]' COLUMNS (settle_n FOR ORDINALITY, %s)) AS s", strings.Join(columns, ", "))
}

// byID is the table as t, by way of its ids. A server that read all of a small table instead would lock all of it.
func byID(l *sqlq.Layout) string {
	return l.Ref() + " AS t FORCE INDEX FOR JOIN (" + quote(l.Column(sqlq.RoleID).Index) + ")"
}

// fenced joins the rows of :rows with those of the table that are still their delivery's, by the key.
func fenced(l *sqlq.Layout) string {
	var fence []string
	for _, r := range l.Fence() {
		name := map[sqlq.Role]string{sqlq.RoleID: "id", sqlq.RoleAttempt: "attempt", sqlq.RoleLockedUntil: "token"}[r]
		fence = append(fence, "t."+l.Q(r)+" = "+l.In(r, sqlq.PerRow(name)))
	}
	return fmt.Sprintf("%s STRAIGHT_JOIN %s ON %s", rowsOf(l), byID(l), strings.Join(fence, " AND "))
}

// Many implements sqlq.Server. The first statement locks the rows and says which they are;
// nobody changes them before the others do.
func (dialect) Many(l *sqlq.Layout, c sqlq.Change) string {
	all := []string{"SELECT s.settle_n - 1 FROM " + fenced(l) + lockT}
	if c.Dead {
		all = append(all, bury(l))
	}
	if len(c.Set) == 0 {
		all = append(all, "DELETE t FROM "+fenced(l))
	} else {
		all = append(all, fmt.Sprintf("UPDATE %s SET %s", fenced(l), strings.Join(c.Set, ", ")))
	}
	return strings.Join(all, ";\n")
}

// Holding implements sqlq.Skipper.
func (dialect) Holding(l *sqlq.Layout, _ bool) string {
	numbers := func(locking string) string { // LIMIT has the server make a table of it, rather than part of the join
		return fmt.Sprintf("SELECT s.settle_n - 1 AS settle_n FROM %s LIMIT 1000000%s", fenced(l), locking)
	}
	return fmt.Sprintf("SELECT m.settle_n, f.settle_n IS NOT NULL FROM (%s) AS m LEFT JOIN (%s) AS f ON f.settle_n = m.settle_n",
		numbers(""), numbers(lockT+" SKIP LOCKED"))
}

// bury copies rows to the dead table.
func bury(l *sqlq.Layout) string {
	dead, columns := l.Dead()
	var into, values []string
	for _, c := range columns {
		value := "t." + quote(c.Name)
		switch {
		case c.Name == l.ID:
			value = dialect{}.DeadID(c, dead, quote(c.Name))
		case c.Name == l.LockedUntil:
			value = "NULL"
		case c.Name == l.Cause:
			value = l.In(sqlq.RoleCause, sqlq.PerRow("cause"))
		case c.Name == l.Attempt && l.Locked():
			value = dialect{}.NextAttempt(c, value)
		}
		into, values = append(into, quote(c.Name)), append(values, value)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s", dead, strings.Join(into, ", "), strings.Join(values, ", "), fenced(l))
}

// DeadID lets the dead table make a new id where the old one is taken, by a row of another table.
func (dialect) DeadID(c sqlq.Column, table, id string) string {
	if !c.Unique || !c.Default || kindOf(c) != kindInteger {
		return "t." + id
	}
	return fmt.Sprintf("IF((SELECT COUNT(*) FROM %s AS x WHERE x.%s = t.%s) > 0, NULL, t.%s)", table, id, id, id)
}

// same is the condition that a row is as its claim found it, where a claim writes nothing.
func same(l *sqlq.Layout) string {
	all := []string{"t." + l.Q(sqlq.RoleID) + " = " + l.In(sqlq.RoleID, ":id"), l.Mine("t")}
	if l.Has(sqlq.RoleAttempt) {
		all = append(all, counted("t."+l.Q(sqlq.RoleAttempt), sqlq.MostAttempt)+" = :attempt")
	}
	return strings.Join(all, " AND ")
}

// Relock implements sqlq.Server.
func (dialect) Relock(l *sqlq.Layout) string {
	return fmt.Sprintf("SELECT t.%s, %s FROM %s AS t WHERE %s%s", l.Q(sqlq.RoleID), transaction, l.Ref(), same(l), skip)
}

// Count implements sqlq.Server.
func (dialect) Count(l *sqlq.Layout) string {
	if !l.Has(sqlq.RoleAttempt) {
		return ""
	}
	id, attempt := l.Q(sqlq.RoleID), "o."+l.Q(sqlq.RoleAttempt)
	return fmt.Sprintf("UPDATE %s AS o JOIN (SELECT t.%s AS settle_id FROM %s AS t WHERE %s LIMIT 1%s) AS s ON o.%s = s.settle_id SET %s = %s",
		l.Ref(), id, l.Ref(), same(l), skip, id, attempt, dialect{}.NextAttempt(l.Column(sqlq.RoleAttempt), attempt))
}

// Unlock implements sqlq.Server.
func (dialect) Unlock() string { return "SELECT RELEASE_LOCK(:lock)" }

// Committed implements sqlq.Server: a transaction is over when the thread of its connection is gone.
// The list has the threads of the same user for everybody to see.
func (dialect) Committed() string {
	return "SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = :transaction) THEN NULL ELSE 2 END"
}

// transaction is what Committed needs to know.
const transaction = "CAST(CONNECTION_ID() AS CHAR)"

// Purge implements sqlq.Dialect.
func (dialect) Purge(l *sqlq.Layout) string {
	conditions := []string{""}
	if l.Has(sqlq.RoleGroup) {
		conditions[0] = l.Q(sqlq.RoleGroup) + " = :group"
	}
	conditions = append(conditions, fmt.Sprintf("%s < %s - INTERVAL (:before) MICROSECOND", l.Q(sqlq.RoleProcessedAt), now(l.Column(sqlq.RoleProcessedAt))))
	return fmt.Sprintf("DELETE FROM %s WHERE %s LIMIT :limit", l.Ref(), where(conditions...))
}
