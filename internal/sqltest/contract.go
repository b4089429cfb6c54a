package sqltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/settletest"
	"github.com/settlemq/settle/sqlq"
)

// Broker is a database as the suite of the contract needs it.
type Broker struct {
	// Home makes an empty place, which goes with the test, and returns what opens
	// it: each call as another process would.
	Home func(t testing.TB) (open func() *sqlq.Database)
	// Text makes text of the expression of a JSON column. Nil: it is text.
	Text func(column string) string
	// Sever ends what holds rows of the table where that is no lease. Nil: nothing can.
	Sever func(ctx context.Context, db *sqlq.Database, table string) error
}

// Shape is one way to set up a table for the contract.
type Shape struct {
	Name  string
	Table sqlq.Table
	DDL   string // the columns of a table of the user's own, in parentheses; empty: CreateTable
	Dead  string // Options.DeadLetter
	Gaps  map[settletest.Rule]string
	Rare  bool // runs in make test-all only
}

const (
	noAttempt = "the table has no Attempt column"
	noDelay   = "the table has no RetryAfter column"
	noHeaders = "the table has no Headers column"
	keepsAll  = "any delay can be kept"
	inProcess = "the locks live in this process, where nothing can take one away"
)

// What a payload column leaves out, for Gaps.
var (
	// TextOnly is a payload column that takes text alone.
	TextOnly = map[settletest.Rule]string{settletest.RuleBodies: "the payload column takes text alone"}
	// JSONOnly is a payload column that takes JSON alone, in a table without headers.
	JSONOnly = map[settletest.Rule]string{
		settletest.RuleBodies: "the payload column takes JSON alone", settletest.RuleHeaders: noHeaders, settletest.RuleDeadLetterHeaders: noHeaders,
	}
	// severed are the rules of what nothing can take away.
	severed = map[settletest.Rule]string{
		settletest.RuleSever: inProcess, settletest.RuleSeverContext: inProcess, settletest.RuleSeverAttempt: inProcess, settletest.RuleReopen: inProcess,
	}
)

// gaps are what the shape cannot do, for want of columns or as it says.
func (s *Shape) gaps() map[settletest.Rule]string {
	all := map[settletest.Rule]string{settletest.RuleDelayTooLong: keepsAll}
	leave := func(why string, rules ...settletest.Rule) {
		for _, r := range rules {
			all[r] = why
		}
	}
	if s.Table.Attempt == "" { // and so no cap, and no dead letter
		leave(noAttempt, settletest.RuleAttempt, settletest.RuleFinal, settletest.RuleCap, settletest.RuleCapOne, settletest.RulePastCap, settletest.RuleCapNowhere,
			settletest.RuleSeverAttempt, settletest.RuleReleaseFree, settletest.RuleDeadLetter, settletest.RuleDeadLetterHeaders, settletest.RuleBodies, settletest.RuleDelayCap)
	}
	if s.Table.RetryAfter == "" {
		leave(noDelay, settletest.RuleDelay, settletest.RuleDelayCap, settletest.RuleDrainHolds)
		delete(all, settletest.RuleDelayTooLong)
	}
	if s.Table.Headers == "" {
		leave(noHeaders, settletest.RuleHeaders, settletest.RuleDeadLetterHeaders)
	}
	maps.Copy(all, s.Gaps)
	return all
}

// Shapes are those of the recommended table in a form: as it is, and, in make
// test-all, with all columns and a dead table, and with no optional column at all.
func Shapes(name string, f sqlq.Form) []Shape {
	standard := sqlq.Standard("jobs", "main")
	full := standard
	full.Priority, full.ProcessedAt = "priority", "processed_at"
	alone := sqlq.Table{Name: "bare", ID: "id", Payload: "payload", LockedUntil: "locked_until"}
	return []Shape{
		{Name: name, Table: In(standard, f), Dead: "main.dead"},
		{Name: name + ", all columns, dead table", Table: In(full, f), Dead: "table:jobs_dead", Rare: true},
		{Name: name + ", bare", Table: In(alone, f), Rare: true},
	}
}

// Pairs are tables in a form with some of the optional columns, so that every two of them are once
// there both, once neither, and once each without the other. All of them are rare.
func Pairs(name string, f sqlq.Form) []Shape {
	// Each column is there in another three of the last five rows, of which there are ten; no two of those are apart.
	rows := []string{"        ", "xxxxxx  ", "xxx   xx", "x  xx xx", " x x xx ", "  x xx x"}
	var shapes []Shape
	for i, row := range rows {
		table := sqlq.Standard("jobs", "")
		dead := "table:jobs_dead"
		for n, column := range []*string{&table.Attempt, &table.RetryAfter, &table.Headers, &table.Key, &table.Cause, &table.Priority, &table.ProcessedAt, &table.Group} {
			there := row[n] == 'x'
			switch {
			case !there:
				*column = ""
			case column == &table.Priority:
				*column = "priority"
			case column == &table.ProcessedAt:
				*column = "processed_at"
			case column == &table.Group:
				*column, table.GroupValue, dead = "queue", "main", "main.dead"
			}
		}
		shapes = append(shapes, Shape{Name: fmt.Sprintf("%s, columns %d", name, i+1), Table: In(table, f), Dead: dead, Rare: true})
	}
	return shapes
}

// FIFO is the shape of a FIFO queue.
func FIFO() Shape {
	table := In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: time.Second})
	table.FIFO = true
	return Shape{Name: "lease, FIFO", Table: table, Dead: "main.dead", Rare: true}
}

// Contract runs the suite on each shape.
func (b *Broker) Contract(t *testing.T, shapes []Shape) {
	for _, s := range shapes {
		t.Run(s.Name, func(t *testing.T) {
			if s.Rare {
				services.TestAll(t)
			}
			gaps := s.gaps()
			if b.Sever == nil && s.Table.LockedUntil == "" {
				maps.Copy(gaps, severed)
			}
			settletest.Run(t, settletest.Fixture{
				New:     func(t testing.TB, spec settletest.Spec) *settletest.Queue { return b.queue(t, &s, spec) },
				Refused: func(t testing.TB) (settle.Source, settle.Options) { return b.refusedCap(t, &s) },
				Gaps:    gaps,
				Delay:   200 * time.Millisecond,
			})
		})
	}
}

// refusedCap is a table without an attempt column, which cannot keep a cap.
func (b *Broker) refusedCap(t testing.TB, s *Shape) (settle.Source, settle.Options) {
	table := sqlq.Table{Name: "bare", ID: "id", Payload: "payload", LockedUntil: "locked_until"}
	return Create(t, b.Home(t)(), In(table, s.Table.Form)), settle.Options{MaxAttempts: 3, DeadLetter: "table:bare_dead"}
}

// queue makes a queue of the shape for one case.
func (b *Broker) queue(t testing.TB, s *Shape, spec settletest.Spec) *settletest.Queue {
	open := b.Home(t)
	db := open()
	q := sqlq.NewQueue(db, s.Table)
	s.create(t, db, s.Table.Name)
	made := &settletest.Queue{
		Source: q, Publish: q.Publish, Remaining: q.Len,
		Second: sqlq.NewQueue(open(), s.Table),
	}
	if spec.DeadLetter {
		made.DeadLetter, made.DeadLetters = s.Dead, b.deadLetters(t, s, db)
	}
	quote := db.Dialect.Quote
	switch {
	case s.Table.LockedUntil != "":
		made.Sever = func(ctx context.Context) error {
			defer q.Wake()
			text := fmt.Sprintf("UPDATE %s SET %s = NULL", quote(s.Table.Name), quote(s.Table.LockedUntil))
			_, err := db.DB.Exec(ctx, text)
			for r, ok := db.Dialect.(sqlq.Repeater); ok && err != nil && r.Again(err); { // it is at odds with consumers that go on
				_, err = db.DB.Exec(ctx, text)
			}
			return err
		}
	case b.Sever != nil:
		made.Sever = func(ctx context.Context) error {
			defer q.Wake()
			return b.Sever(ctx, db, s.Table.Name)
		}
	}
	if s.Table.Attempt != "" {
		made.PublishAttempt = func(ctx context.Context, attempt int, m settle.Message) error {
			defer q.Wake()
			return publishAttempt(ctx, db, q, attempt, m)
		}
	}
	return made
}

func (s *Shape) create(t testing.TB, db *sqlq.Database, name string) {
	if s.DDL != "" {
		Exec(t, db, "CREATE TABLE "+db.Dialect.Quote(name)+" "+s.DDL)
		return
	}
	table := s.Table
	table.Name = name
	Create(t, db, table)
}

// publishAttempt publishes in a transaction in which the new row, which is the one that was not
// there before, gets its attempt.
func publishAttempt(ctx context.Context, db *sqlq.Database, q *sqlq.Queue, attempt int, m settle.Message) error {
	conn, err := db.DB.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	table, quote := q.Table(), db.Dialect.Quote
	ids := func() (map[string]any, error) {
		rows, err := tx.Query(ctx, fmt.Sprintf("SELECT %s FROM %s", quote(table.ID), quote(table.Name)))
		if err != nil {
			return nil, err
		}
		all := make(map[string]any)
		for rows.Next() {
			var id any
			err = errors.Join(err, rows.Scan(&id))
			all[fmt.Sprint(id)] = id
		}
		return all, errors.Join(err, rows.Err(), rows.Close())
	}
	before, err := ids()
	if err == nil {
		err = q.PublishIn(ctx, tx, m)
	}
	after, read := ids()
	err = errors.Join(err, read)
	update := fmt.Sprintf("UPDATE %s SET %s = %d WHERE %s = %s", quote(table.Name), quote(table.Attempt), attempt, quote(table.ID), db.Dialect.Placeholder(1))
	for text, id := range after {
		if _, old := before[text]; !old && err == nil {
			_, err = tx.Exec(ctx, update, id)
		}
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx, nil, nil)
}

// deadLetters gives a case its dead letters: a group, or another table, which it makes.
func (b *Broker) deadLetters(t testing.TB, s *Shape, db *sqlq.Database) func(context.Context) ([]settletest.DeadLetter, error) {
	table, quote := s.Table, db.Dialect.Quote
	name, other := strings.CutPrefix(s.Dead, "table:")
	from, group := table.Name, s.Dead
	if other || table.Group == "" {
		from, group = name, table.GroupValue
		s.create(t, db, from)
	}
	headers, cause := "NULL", "NULL"
	if table.Headers != "" {
		headers = quote(table.Headers)
		if b.Text != nil {
			headers = b.Text(headers)
		}
	}
	if table.Cause != "" {
		cause = quote(table.Cause)
	}
	query := fmt.Sprintf("SELECT %s, %s, %s - 1, %s FROM %s", quote(table.Payload), headers, quote(table.Attempt), cause, quote(from))
	var args []any
	if table.Group != "" {
		query, args = query+" WHERE "+quote(table.Group)+" = "+db.Dialect.Placeholder(1), append(args, group)
	}
	return func(ctx context.Context) ([]settletest.DeadLetter, error) {
		rows, err := db.DB.Query(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		var all []settletest.DeadLetter
		for rows.Next() {
			d, bad := deadLetter(rows)
			all, err = append(all, d), errors.Join(err, bad)
		}
		return all, errors.Join(err, rows.Err(), rows.Close())
	}
}

func deadLetter(rows sqlq.Rows) (d settletest.DeadLetter, err error) {
	var headers, cause *string
	if err := rows.Scan(&d.Body, &headers, &d.Attempt, &cause); err != nil {
		return d, err
	}
	if cause != nil {
		d.Cause = *cause
	}
	if headers != nil {
		err = json.Unmarshal([]byte(*headers), &d.Headers)
	}
	return d, err
}
