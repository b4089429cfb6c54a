package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

const deadDDL = "(id INTEGER PRIMARY KEY, payload TEXT, attempt INTEGER, locked_until INTEGER, retry_after INTEGER"

func plainTable() sqlq.Table {
	return sqlq.Table{Name: "jobs", ID: "id", Payload: "payload", Attempt: "attempt", LockedUntil: "locked_until", RetryAfter: "retry_after"}
}

// A table without AUTOINCREMENT uses the ids of deleted rows again. Its dead table takes
// each dead letter all the same: one whose id is taken there gets a new one.
func TestADeadTableTakesIDsThatAreUsedAgain(t *testing.T) {
	db := openFile(t, Options{})
	sqltest.Exec(t, &db.db, "CREATE TABLE jobs "+deadDDL+")")
	sqltest.Exec(t, &db.db, "CREATE TABLE dead "+deadDDL+")")
	q := db.Queue(plainTable())
	c := sqltest.Open(t, q, settle.Registration{MaxAttempts: 1, DeadLetter: "dead"})
	for i := range 3 {
		sqltest.Publish(t, q, fmt.Sprint(i))
		d := sqltest.Receive(t, c, 1)[0]
		require.Equal(t, "1", d.ID, "the id is used again")
		require.NoError(t, sqltest.Settle(c, d, bury))
	}
	assert.Equal(t, "1=0,2=1,3=2", sqltest.One[string](t, &db.db, "SELECT group_concat(id || '=' || payload ORDER BY id) FROM dead"))
}

// A dead table that would refuse dead letters, or lose what is in them, is
// refused at the start.
func TestDeadTablesThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, jobs, dead, says string }{
		{"a lock that is NOT NULL", deadDDL + ")", "(id INTEGER PRIMARY KEY, payload TEXT, attempt INTEGER, locked_until INTEGER NOT NULL, retry_after INTEGER)", "NOT NULL"},
		{"a column that nobody fills in", deadDDL + ")", deadDDL + ", why TEXT NOT NULL)", `"why"`},
		{"a column of the user's that is not there", deadDDL + ", amount INTEGER)", deadDDL + ")", `"amount"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, "CREATE TABLE jobs "+c.jobs)
			sqltest.Exec(t, &db.db, "CREATE TABLE dead "+c.dead)
			err := sqltest.Refusal(t, db.Queue(plainTable()), settle.Registration{MaxAttempts: 1, DeadLetter: "dead"})
			assert.Equal(t, "DeadLetter", err.Setting)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// A dead letter keeps what the user's own columns hold.
func TestADeadLetterKeepsTheUsersColumns(t *testing.T) {
	db := openFile(t, Options{})
	for _, name := range []string{"jobs", "dead"} {
		sqltest.Exec(t, &db.db, "CREATE TABLE "+name+" "+deadDDL+", amount INTEGER, twice INTEGER GENERATED ALWAYS AS (amount * 2))")
	}
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (payload, amount) VALUES ('x', 7)")
	c := sqltest.Open(t, db.Queue(plainTable()), settle.Registration{MaxAttempts: 1, DeadLetter: "dead"})
	require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], bury))
	assert.Equal(t, "x 7 14", sqltest.One[string](t, &db.db, "SELECT payload || ' ' || amount || ' ' || twice FROM dead"))
}

// Advisory locks are those of the table, under whatever name it is called.
func TestOneTableUnderSeveralNamesHasOneLock(t *testing.T) {
	for _, other := range []sqlq.Table{{Name: "JOBS"}, {Schema: "main", Name: "jobs"}, {Schema: "MAIN", Name: "Jobs"}} {
		t.Run(other.Schema+"."+other.Name, func(t *testing.T) {
			db := openFile(t, Options{Poll: time.Hour})
			table := advisory("{id}")
			q := newQueue(t, db, table)
			sqltest.Publish(t, q, "x")
			c := sqltest.Open(t, q, settle.Registration{})
			d := sqltest.Receive(t, c, 1)[0]
			table.Schema, table.Name = other.Schema, other.Name
			renamed := sqltest.Open(t, db.Queue(table), settle.Registration{})
			sqltest.Nothing(t, renamed, "the row is in work")
			got := make(chan []*settle.Delivery, 1)
			go func() { got <- sqltest.Receive(t, renamed, 1) }()
			require.NoError(t, sqltest.Settle(c, d, release))
			assert.Equal(t, "x", string((<-got)[0].Body), "and its consumer is woken under every name")
		})
	}
}

// Text is later than any time in SQLite, so a row with text for a time never
// comes. That is told at the start.
func TestTimesThatAreTextAreTold(t *testing.T) {
	for _, priority := range []string{"", "priority"} {
		for _, column := range []string{"retry_after", "locked_until"} {
			t.Run(column+" "+priority, func(t *testing.T) {
				db := openFile(t, Options{})
				table := leased(time.Minute)
				table.Priority = priority
				q := newQueue(t, db, table)
				sqltest.Publish(t, q, "x")
				require.Empty(t, sqltest.Weakened(t, q, settle.Options{}))
				sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, "+column+") VALUES ('main', 'y', datetime('now', '-1 day'))")
				said := sqltest.Weakened(t, q, settle.Options{})
				require.Len(t, said, 1)
				assert.Contains(t, said[0], `"`+column+`" has text`)
				c := sqltest.Open(t, q, settle.Registration{})
				assert.Equal(t, "x", string(sqltest.Receive(t, c, 1)[0].Body), "it keeps no other row from coming")
			})
		}
	}
}
