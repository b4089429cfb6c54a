package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/settletest"
	"github.com/settlemq/settle/sqlq"
)

// shape is one way to set up a table for the contract.
type shape struct {
	name  string
	table sqlq.Table
	ddl   string // the user's own; empty: CreateTable
	dead  string // Options.DeadLetter
	gaps  map[settletest.Rule]string
	all   bool // runs in make test-all only
}

const (
	noAttempt = "the table has no Attempt column"
	noDelay   = "the table has no RetryAfter column"
	noHeaders = "the table has no Headers column"
	keepsAll  = "any delay can be kept"
	textOnly  = "the payload column takes text alone"
	jsonOnly  = "the payload column takes JSON alone"
)

// gaps joins what several columns' absence leaves out.
func gaps(of ...map[settletest.Rule]string) map[settletest.Rule]string {
	all := map[settletest.Rule]string{settletest.RuleDelayTooLong: keepsAll}
	for _, m := range of {
		for r, why := range m {
			all[r] = why
		}
	}
	return all
}

var bare = map[settletest.Rule]string{
	settletest.RuleAttempt: noAttempt, settletest.RuleFinal: noAttempt, settletest.RuleCap: noAttempt,
	settletest.RuleCapOne: noAttempt, settletest.RulePastCap: noAttempt, settletest.RuleCapNowhere: noAttempt,
	settletest.RuleSeverAttempt: noAttempt, settletest.RuleReleaseFree: noAttempt,
	settletest.RuleDeadLetter: noAttempt, settletest.RuleDeadLetterHeaders: noAttempt,
	settletest.RuleDelay: noDelay, settletest.RuleDelayCap: noDelay, settletest.RuleDrainHolds: noDelay,
	settletest.RuleHeaders: noHeaders, settletest.RuleBodies: noAttempt,
}

// forms are the three, on the table that this package recommends.
func forms() []sqlq.Form {
	return []sqlq.Form{sqlq.Lease{For: time.Second}, sqlq.RowLock{}, sqlq.AdvisoryLock{Key: "jobs-{id}"}}
}

// in returns the table in another form.
func in(t sqlq.Table, f sqlq.Form) sqlq.Table {
	t.Form = f
	if _, lease := f.(sqlq.Lease); !lease {
		t.LockedUntil = ""
	}
	if _, advisory := f.(sqlq.AdvisoryLock); advisory {
		t.Form = sqlq.AdvisoryLock{Key: "jobs-{" + t.ID + "}"}
	}
	return t
}

func shapes() []shape {
	standard := sqlq.Standard("jobs", "main")
	full := standard
	full.Priority, full.ProcessedAt = "priority", "processed_at"
	alone := sqlq.Table{Name: "bare", ID: "id", Payload: "payload", LockedUntil: "locked_until"}
	json := standard
	json.Headers = "" // what JSON cannot keep as it is
	own := sqlq.Table{
		Name: `my "jobs"; --`, ID: "uuid", Payload: "Body", Attempt: "try", RetryAfter: "run at", LockedUntil: "lock'd", Headers: "meta", Cause: "why",
	}
	const ownColumns = `(uuid uuid PRIMARY KEY DEFAULT gen_random_uuid(), "Body" %s NOT NULL, try smallint, "run at" timestamp(3), "lock'd" timestamptz(0), meta json, why varchar(2000), extra int DEFAULT 7)`
	const jsonColumns = `(id text PRIMARY KEY, queue varchar(10) NOT NULL, payload jsonb NOT NULL, attempt bigint, retry_after timestamptz, locked_until timestamp, msg_key int, cause text)`
	text := map[settletest.Rule]string{settletest.RuleBodies: textOnly}
	object := map[settletest.Rule]string{settletest.RuleBodies: jsonOnly, settletest.RuleHeaders: noHeaders, settletest.RuleDeadLetterHeaders: noHeaders}

	var all []shape
	for i, f := range forms() {
		name := []string{"lease", "row lock", "advisory lock"}[i]
		all = append(
			all,
			shape{name, in(standard, f), "", "main.dead", gaps(), false},
			shape{name + ", all columns, dead table", in(full, f), "", "table:jobs_dead", gaps(), true},
			shape{name + ", own table", in(own, f), fmt.Sprintf(ownColumns, "text"), `dead "jobs"`, gaps(text), true},
			shape{name + ", text id and JSON", in(json, f), jsonColumns, "main.dead", gaps(object), true},
			shape{name + ", bare", in(alone, f), "", "", gaps(bare), true},
		)
	}
	fifo := standard
	fifo.Form, fifo.FIFO = sqlq.Lease{For: time.Second}, true
	return append(all, shape{"lease, FIFO", fifo, "", "main.dead", gaps(), true})
}

func TestContract(t *testing.T) {
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			if s.all {
				services.TestAll(t)
			}
			settletest.Run(t, settletest.Fixture{
				New:     func(t testing.TB, spec settletest.Spec) *settletest.Queue { return s.queue(t, services.Postgres, spec) },
				Refused: s.refusedCap,
				Gaps:    s.gaps,
				Delay:   100 * time.Millisecond,
			})
		})
	}
}

// refusedCap is a table without an attempt column, which cannot keep a cap.
func (s *shape) refusedCap(t testing.TB) (settle.Source, settle.Options) {
	table := sqlq.Table{Name: "bare", ID: "id", Payload: "payload", LockedUntil: "locked_until"}
	q := newQueue(t, fresh(t, Options{}), in(table, s.table.Form))
	return q, settle.Options{MaxAttempts: 3, DeadLetter: "table:bare_dead"}
}

// queue makes a queue of the shape for one case of the contract.
func (s *shape) queue(t testing.TB, service services.Service, spec settletest.Spec) *settletest.Queue {
	h := newHome(t, service)
	db := h.open(t, Options{MaxConns: 40})
	q := db.Queue(s.table)
	create := func(name string) {
		table := s.table
		table.Name = name
		if s.ddl == "" {
			require.NoError(t, db.Queue(table).CreateTable(context.Background()))
			return
		}
		exec(t, db, "CREATE TABLE "+quote(name)+" "+s.ddl)
	}
	create(s.table.Name)
	made := &settletest.Queue{
		Source:    q,
		Publish:   q.Publish,
		Remaining: q.Len,
		Second:    h.open(t, Options{MaxConns: 40}).Queue(s.table),
	}
	if spec.DeadLetter {
		s.withDead(t, db, made, create)
	}
	made.Sever = s.sever(db, q)
	if s.table.Attempt != "" {
		made.PublishAttempt = func(ctx context.Context, attempt int, m settle.Message) error {
			tx, err := db.Pool().Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(context.Background())
			if err := q.PublishTx(ctx, tx, m); err != nil {
				return err
			}
			where := fmt.Sprintf("convert_to(CAST(%s AS text), 'UTF8') = $2::bytea", quote(s.table.Payload))
			if s.ddl == "" {
				where = fmt.Sprintf("%s = $2::bytea", quote(s.table.Payload))
			}
			if _, err := tx.Exec(ctx, fmt.Sprintf("UPDATE %s SET %s = $1 WHERE %s", quote(s.table.Name), quote(s.table.Attempt), where), attempt, m.Body); err != nil {
				return err
			}
			defer q.Wake()
			return tx.Commit(ctx)
		}
	}
	return made
}

// sever takes away what is in work: leases by a write, locks with their connections.
func (s *shape) sever(db *DB, q *Queue) func(context.Context) error {
	if s.table.LockedUntil != "" {
		return func(ctx context.Context) error {
			_, err := db.Pool().Exec(ctx, fmt.Sprintf("UPDATE %s SET %s = NULL", quote(s.table.Name), quote(s.table.LockedUntil)))
			q.Wake()
			return err
		}
	}
	return func(ctx context.Context) error {
		// Every backend that holds locks and is this test's, by the tables it has locked or by its database handle.
		_, err := db.Pool().Exec(ctx, `SELECT pg_terminate_backend(l.pid, 5000) FROM (SELECT DISTINCT pid FROM pg_locks
			WHERE pid <> pg_backend_pid() AND (relation = to_regclass($1::text) OR locktype = 'advisory'
				AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = 'settle'))) AS l`, quote(s.table.Name))
		q.Wake()
		return err
	}
}

// withDead gives a case its dead letters: a group, or another table.
func (s *shape) withDead(t testing.TB, db *DB, made *settletest.Queue, create func(string)) {
	made.DeadLetter = s.dead
	from, group := s.table.Name, s.dead
	switch {
	case s.table.Group == "":
		from, group = s.dead, ""
		create(from)
	case s.dead == "table:jobs_dead":
		from, group = "jobs_dead", s.table.GroupValue
		create(from)
	}
	headers, cause := "NULL", "NULL"
	if s.table.Headers != "" {
		headers = quote(s.table.Headers) + "::text"
	}
	if s.table.Cause != "" {
		cause = quote(s.table.Cause)
	}
	query := fmt.Sprintf("SELECT %s, %s, %s - 1, %s FROM %s", quote(s.table.Payload), headers, quote(s.table.Attempt), cause, quote(from))
	var args []any
	if group != "" {
		query, args = query+" WHERE "+quote(s.table.Group)+" = $1", append(args, group)
	}
	made.DeadLetters = func(ctx context.Context) ([]settletest.DeadLetter, error) {
		rows, err := db.Pool().Query(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		var all []settletest.DeadLetter
		for rows.Next() {
			var d settletest.DeadLetter
			var headers, cause *string
			if err := rows.Scan(&d.Body, &headers, &d.Attempt, &cause); err != nil {
				return nil, err
			}
			if headers != nil {
				if err := json.Unmarshal([]byte(*headers), &d.Headers); err != nil {
					return nil, err
				}
			}
			if cause != nil {
				d.Cause = *cause
			}
			all = append(all, d)
		}
		return all, rows.Err()
	}
}
