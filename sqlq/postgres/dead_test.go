package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

const deadDDL = "(id %s PRIMARY KEY, payload text, attempt int, locked_until timestamptz, retry_after timestamptz"

func plainTable(f sqlq.Form) sqlq.Table {
	return sqltest.In(sqlq.Table{Name: "jobs", ID: "id", Payload: "payload", Attempt: "attempt", LockedUntil: "locked_until", RetryAfter: "retry_after"}, f)
}

// One dead table takes the dead letters of two, also those that have the same ids, several in
// one settlement: what is taken there gets a new one.
func TestADeadTableOfTwo(t *testing.T) {
	for _, id := range []string{"bigint", "uuid", "text"} {
		for _, f := range forms() {
			t.Run(fmt.Sprintf("%s %T", id, f), func(t *testing.T) {
				beside(t, f)
				db := fresh(t, Options{})
				for _, name := range []string{"jobs", "others", "dead"} {
					sqltest.Exec(t, &db.db, "CREATE TABLE "+name+" "+fmt.Sprintf(deadDDL, id)+")")
				}
				number := func(n int) string {
					if id == "uuid" {
						return fmt.Sprintf("'00000000-0000-0000-0000-%012d'", n)
					}
					return fmt.Sprintf("'%d'", n)
				}
				for _, name := range []string{"jobs", "others"} {
					for _, n := range []int{1, 2, 7} {
						sqltest.Exec(t, &db.db, "INSERT INTO "+name+" (id, payload) VALUES ("+number(n)+", $1)", fmt.Sprint(name, n))
					}
				}
				sqltest.Exec(t, &db.db, "INSERT INTO others (id, payload) VALUES ("+number(8)+", 'others8')") // beside what 1 would get
				for name, n := range map[string]int{"jobs": 3, "others": 4} {
					table := plainTable(f)
					table.Name = name
					c := sqltest.Open(t, db.Queue(table), settle.Registration{Workers: 1, Batch: n, MaxAttempts: 1, DeadLetter: "dead"})
					ds := sqltest.Receive(t, c, n)
					require.Len(t, ds, n)
					for _, err := range sqltest.SettleAll(c, toDead, ds...) {
						require.NoError(t, err)
					}
				}
				assert.Equal(t, "jobs1 jobs2 jobs7 others1 others2 others7 others8", sqltest.One[string](t, &db.db, "SELECT string_agg(payload, ' ' ORDER BY payload) FROM dead"))
				assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM others)"))
			})
		}
	}
}

// A dead letter keeps what the user's own columns hold, and generated ones make theirs anew.
func TestADeadLetterKeepsTheUsersColumns(t *testing.T) {
	for _, f := range forms() {
		db := fresh(t, Options{})
		for _, name := range []string{"jobs", "dead"} {
			sqltest.Exec(t, &db.db, "CREATE TABLE "+name+" "+fmt.Sprintf(deadDDL, "bigint GENERATED ALWAYS AS IDENTITY")+", amount int, twice int GENERATED ALWAYS AS (amount * 2) STORED)")
		}
		sqltest.Exec(t, &db.db, "INSERT INTO jobs (payload, amount) VALUES ('x', 7)")
		c := sqltest.Open(t, db.Queue(plainTable(f)), settle.Registration{MaxAttempts: 1, DeadLetter: "dead"})
		require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], toDead))
		assert.Equal(t, "x 7 14 2", sqltest.One[string](t, &db.db, "SELECT concat_ws(' ', payload, amount, twice, attempt) FROM dead"), "%T", f)
	}
}

// A dead table that would refuse dead letters, or lose what is in them, is refused at the start.
func TestDeadTablesThatAreRefused(t *testing.T) {
	jobs := fmt.Sprintf(deadDDL, "bigint")
	for _, c := range []struct{ name, jobs, dead, says string }{
		{"a lock that is NOT NULL", jobs + ")", strings.Replace(jobs, "locked_until timestamptz", "locked_until timestamptz NOT NULL", 1) + ")", "NOT NULL"},
		{"a column that nobody fills in", jobs + ")", jobs + ", why text NOT NULL)", `"why"`},
		{"a column of the user's that is not there", jobs + ", amount int)", jobs + ")", `"amount"`},
		{"none", jobs + ")", "", "no table"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := fresh(t, Options{})
			sqltest.Exec(t, &db.db, "CREATE TABLE jobs "+c.jobs)
			if c.dead != "" {
				sqltest.Exec(t, &db.db, "CREATE TABLE dead "+c.dead)
			}
			err := sqltest.Refusal(t, db.Queue(plainTable(sqlq.Lease{})), settle.Registration{MaxAttempts: 1, DeadLetter: "dead"})
			assert.Equal(t, "DeadLetter", err.Setting)
			assert.ErrorContains(t, err, c.says)
		})
	}
}
