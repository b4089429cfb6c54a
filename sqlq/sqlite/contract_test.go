package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settletest"
	"github.com/settlemq/settle/sqlq"
)

var quiet = slog.New(slog.DiscardHandler)

// shape is one way to set up a table for the contract.
type shape struct {
	name  string
	table sqlq.Table
	ddl   string // the user's own; empty: CreateTable
	dead  string // Options.DeadLetter
	gaps  map[settletest.Rule]string
}

const (
	noAttempt = "the table has no Attempt column"
	noDelay   = "the table has no RetryAfter column"
	noHeaders = "the table has no Headers column"
	inProcess = "advisory locks live in this process, where nothing can take one away"
	keepsAll  = "any delay can be kept"
	refused   = "a cap without a dead letter is refused, see TestCap"
)

func shapes() []shape {
	lease := sqlq.Lease{For: time.Second}
	full := sqlq.Standard("jobs", "main")
	full.Form, full.Priority, full.ProcessedAt = lease, "priority", "processed_at"

	standard := sqlq.Standard("jobs", "main")
	standard.Form = lease

	own := sqlq.Table{
		Name: `my "jobs"; --`, ID: "uuid", Payload: "Body", Attempt: "try", RetryAfter: "run at", LockedUntil: "lock'd", Headers: "meta", Cause: "why", Form: lease,
	}
	bare := sqlq.Table{Name: "bare", ID: "id", Payload: "payload", LockedUntil: "locked_until", Form: lease}

	fifo := sqlq.Standard("jobs", "main")
	fifo.Form, fifo.FIFO = lease, true

	advisory := sqlq.Standard("jobs", "main")
	advisory.LockedUntil, advisory.Form = "", sqlq.AdvisoryLock{Key: "jobs-{id}"}

	advisoryFull := full
	advisoryFull.LockedUntil, advisoryFull.Form = "", sqlq.AdvisoryLock{Key: "{queue}/{id}"}

	advisoryBare := sqlq.Table{Name: "bare", ID: "id", Payload: "payload", Form: sqlq.AdvisoryLock{Key: "{id}"}}

	severed := map[settletest.Rule]string{
		settletest.RuleSever: inProcess, settletest.RuleSeverContext: inProcess,
		settletest.RuleSeverAttempt: inProcess, settletest.RuleReopen: inProcess,
	}
	bareGaps := map[settletest.Rule]string{
		settletest.RuleAttempt: noAttempt, settletest.RuleFinal: noAttempt, settletest.RuleCap: noAttempt,
		settletest.RuleCapOne: noAttempt, settletest.RulePastCap: noAttempt, settletest.RuleCapNowhere: noAttempt,
		settletest.RuleSeverAttempt: noAttempt, settletest.RuleReleaseFree: noAttempt,
		settletest.RuleDeadLetter: noAttempt, settletest.RuleDeadLetterHeaders: noAttempt,
		settletest.RuleDelay: noDelay, settletest.RuleDelayCap: noDelay, settletest.RuleDrainHolds: noDelay,
		settletest.RuleHeaders: noHeaders, settletest.RuleBodies: noAttempt,
	}
	both := map[settletest.Rule]string{}
	for _, m := range []map[settletest.Rule]string{bareGaps, severed} {
		for r, why := range m {
			both[r] = why
		}
	}
	all := map[settletest.Rule]string{settletest.RuleDelayTooLong: keepsAll}
	with := func(m map[settletest.Rule]string) map[settletest.Rule]string {
		c := map[settletest.Rule]string{settletest.RuleDelayTooLong: keepsAll}
		for r, why := range m {
			c[r] = why
		}
		return c
	}
	return []shape{
		{"lease", standard, "", "main.dead", all},
		{"lease, all columns, dead table", full, "", "table:jobs_dead", all},
		{"lease, own table", own, `CREATE TABLE "my ""jobs""; --" (uuid TEXT PRIMARY KEY, Body, try INT, "run at" BIGINT, "lock'd" INTEGER, meta JSON, why VARCHAR(99), extra DEFAULT 7)`, `dead "jobs"`, all},
		{"lease, bare", bare, "", "", bareGaps},
		{"lease, FIFO", fifo, "", "main.dead", all},
		{"advisory lock", advisory, "", "main.dead", with(severed)},
		{"advisory lock, all columns, dead table", advisoryFull, "", "table:jobs_dead", with(severed)},
		{"advisory lock, bare", advisoryBare, "", "", both},
	}
}

func TestContract(t *testing.T) {
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			if s.name != "lease" && s.name != "advisory lock" {
				long(t, "one set of columns for each form is run every day")
			}
			settletest.Run(t, settletest.Fixture{
				New:     s.queue,
				Refused: refusedCap,
				Gaps:    s.gaps,
				Delay:   100 * time.Millisecond,
			})
		})
	}
}

// refusedCap is a table without an attempt column, which cannot keep a cap.
func refusedCap(t testing.TB) (settle.Source, settle.Options) {
	db := openFile(t, Options{})
	q := newQueue(t, db, sqlq.Table{Name: "bare", ID: "id", Payload: "payload", LockedUntil: "locked_until"})
	return q, settle.Options{MaxAttempts: 3, DeadLetter: "table:bare_dead"}
}

// queue makes a queue of the shape for one case of the contract.
func (s *shape) queue(t testing.TB, spec settletest.Spec) *settletest.Queue {
	path := filepath.Join(t.TempDir(), "q.db")
	db := openPath(t, path, Options{})
	q := db.Queue(s.table)
	create := func(name string) {
		if s.ddl == "" {
			table := s.table
			table.Name = name
			require.NoError(t, db.Queue(table).CreateTable(t.Context()))
			return
		}
		execute(t, db, s.ddl)
	}
	create(s.table.Name)
	made := &settletest.Queue{
		Source:    q,
		Publish:   q.Publish,
		Remaining: q.Len,
		Second:    openPath(t, path, Options{}).Queue(s.table),
	}
	if spec.DeadLetter {
		s.withDead(t, db, made, create)
	}
	if s.table.LockedUntil != "" {
		made.Sever = func(ctx context.Context) error {
			_, err := db.SQL().ExecContext(ctx, fmt.Sprintf("UPDATE %s SET %s = NULL", quote(s.table.Name), quote(s.table.LockedUntil)))
			q.Wake()
			return err
		}
	}
	if s.table.Attempt != "" {
		made.PublishAttempt = func(ctx context.Context, attempt int, m settle.Message) error {
			tx, err := db.SQL().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := q.PublishTx(ctx, tx, m); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET %s = ? WHERE CAST(%s AS BLOB) = ?", quote(s.table.Name), quote(s.table.Attempt), quote(s.table.Payload)), attempt, m.Body); err != nil {
				return err
			}
			defer q.Wake()
			return tx.Commit()
		}
	}
	return made
}

// withDead gives a case its dead letters: a group, or another table.
func (s *shape) withDead(t testing.TB, db *DB, made *settletest.Queue, create func(string)) {
	made.DeadLetter = s.dead
	from, group := s.table.Name, s.dead
	switch {
	case s.table.Group == "":
		from, group = s.dead, ""
		execute(t, db, fmt.Sprintf("CREATE TABLE %s AS SELECT * FROM %s WHERE 0", quote(from), quote(s.table.Name)))
	case s.dead == "table:jobs_dead":
		from, group = "jobs_dead", s.table.GroupValue
		create(from)
	}
	headers, cause := "NULL", "NULL"
	if s.table.Headers != "" {
		headers = quote(s.table.Headers)
	}
	if s.table.Cause != "" {
		cause = quote(s.table.Cause)
	}
	query := fmt.Sprintf("SELECT %s, %s, %s - 1, %s FROM %s", quote(s.table.Payload), headers, quote(s.table.Attempt), cause, quote(from))
	var args []any
	if group != "" {
		query, args = query+" WHERE "+quote(s.table.Group)+" = ?", append(args, group)
	}
	made.DeadLetters = func(ctx context.Context) ([]settletest.DeadLetter, error) {
		rows, err := db.SQL().QueryContext(ctx, query, args...)
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
