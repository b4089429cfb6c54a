package sqlq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// Queue is one queue in a table. It is a [settle.Source] and a
// [settle.Publisher], and may be used by several goroutines at once.
type Queue struct {
	db      *Database
	table   Table
	name    string
	line    line  // what wake-ups and locks know it by
	invalid error // what is wrong with the table, told by whatever is called first

	mu      sync.Mutex // guards what follows
	inserts *inserts   // nil: not made yet
}

var (
	_ settle.Source    = (*Queue)(nil)
	_ settle.Publisher = (*Queue)(nil)
)

// NewQueue returns the queue of a table. It does no I/O: what is wrong with the
// table is the error of the first call that needs it.
func NewQueue(db *Database, t Table) *Queue {
	if t.Form == nil {
		t.Form = Lease{}
	}
	name := fmt.Sprintf("%s: table %q", db.Dialect.Name(), t.Name)
	if t.GroupValue != "" {
		name += fmt.Sprintf(", group %q", t.GroupValue)
	}
	return &Queue{db: db, table: t, name: name, line: t.line(db.Dialect), invalid: t.check(name)}
}

// Name implements [settle.Source].
func (q *Queue) Name() string { return q.name }

// Table returns the table the queue was made with.
func (q *Queue) Table() Table { return q.table }

// Open implements [settle.Source]. It checks the table and what the
// registration asks for before it claims anything.
func (q *Queue) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	return q.open(ctx, r, false, nil)
}

// open is Open; transactional for a handler with a transaction, which begin opens where
// there is one writer.
func (q *Queue) open(ctx context.Context, r settle.Registration, transactional bool, begin beginner) (_ settle.Consumer, err error) {
	if q.invalid != nil {
		return nil, q.invalid
	}
	if err := q.checkCap(r); err != nil {
		return nil, err
	}
	release := func() error { return nil }
	if q.db.OneWriter { // before the first query, which a pool that is used up would keep waiting
		if release, err = q.db.reserve(q.name, "SetMaxOpenConns", "a consumer keeps a connection", "", 1); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				_ = release()
			}
		}()
	}
	shared, err := q.db.Shared(ctx)
	if err != nil {
		return nil, q.db.Dialect.Explain(q.name, err)
	}
	l, err := q.layout(ctx, r)
	if err != nil {
		return nil, err
	}
	texts, err := build(l, r.Batch, q.name)
	if err != nil {
		return nil, err
	}
	if err := texts.checkOwn(ctx, q.db.DB, l, q.name); err != nil {
		return nil, err
	}
	weak, err := q.db.Dialect.Check(ctx, q.db.DB, l, q.name)
	if err != nil {
		return nil, err
	}
	s := &session{
		queue: q, source: q.name, reg: r, layout: l, texts: texts, shared: shared, transactional: transactional, begin: begin, release: release,
		epoch: time.Now(), sleeper: newSleeper(), stopped: make(chan struct{}),
	}
	s.base = values{group: q.table.GroupValue, lease: micros(l.lease()), dead: deadName(r.DeadLetter)}
	s.traits = q.traits(r, transactional)
	if q.db.OneWriter {
		s.run = &writer{db: q.db.DB, gate: shared.Gate}
	} else {
		s.run = pooled{q.db}
	}
	if err := s.hold(ctx); err != nil {
		return nil, err
	}
	if _, lease := l.Form.(Lease); lease && !transactional {
		if err := q.db.starved(q.name, r); err != nil {
			weak = append(weak, err)
		}
	}
	if name := l.nameless(); name != "" && !l.Has(RoleGroup) {
		weak = append(weak, fmt.Errorf("%s: column %q must have a value and no role names it: if it tells queues apart, this consumer takes the rows of all of them; set Group and GroupValue then", q.name, name))
	}
	for _, w := range weak {
		r.Notify(settle.Notice{Kind: settle.NoticeWeakened, Err: w})
	}
	s.leave = shared.join(q.line, s.sleeper)
	return s, nil
}

// hold sets up the session's form, and what it needs of the database for itself.
func (s *session) hold(ctx context.Context) (err error) {
	q := s.queue
	server, _ := q.db.Dialect.(Server)
	f, lease := s.layout.Form.(Lease)
	_, advisory := s.layout.Form.(AdvisoryLock)
	switch {
	case lease && server != nil && s.transactional:
	case lease:
		s.unblocks = s.layout.FIFO
		s.form = openLease(s)
		return nil
	case server == nil && advisory:
		s.unblocks = true
		keep := s.release
		alone, err := s.shared.Exclude(ctx, q.db.DB, q.line.schema, q.line.table)
		if err != nil {
			return refuseBecause(q.name, "AdvisoryLock", "the locks are kept in this process, and the table cannot be kept from others", "stop the other process, or use Lease, which several processes share", err)
		}
		s.release = func() error { return errors.Join(alone(), keep()) }
		s.form = &advisoryLock{s: s}
		return nil
	case server == nil:
		return refuse(q.name, "Form", fmt.Sprintf("%s is not made for this database", f.form()), "use Lease")
	}
	// Each of these has a connection for a delivery.
	n := s.reg.Workers
	if s.release, err = q.db.reserve(q.name, "Workers", fmt.Sprintf("each of %d deliveries in work keeps a connection", n), ", lower Workers, or use Lease without a transaction", n); err != nil {
		return err
	}
	switch {
	case lease:
		s.unblocks = s.layout.FIFO
		s.form = openLeaseTx(s)
	case advisory:
		s.unblocks = true
		s.form = openKeyed(s)
	default:
		s.form = openRowLock(s)
	}
	return nil
}

func refuseBecause(source, setting, reason, fix string, err error) error {
	var config *settle.ConfigError
	if errors.As(err, &config) {
		return err
	}
	c := refuse(source, setting, reason, fix)
	c.Err = err
	return c
}

// checkCap refuses a cap or a dead letter that cannot be kept.
func (q *Queue) checkCap(r settle.Registration) error {
	t := &q.table
	switch {
	case r.MaxAttempts > 0 && t.Attempt == "":
		return refuse(q.name, "MaxAttempts", "the table has no Attempt column to count in", "name the column, or leave out MaxAttempts and DeadLetter")
	case r.MaxAttempts > 0 && r.DeadLetter == "":
		return refuse(q.name, "DeadLetter", "MaxAttempts is set and there is nowhere for a message to go that reaches it", "set both MaxAttempts and DeadLetter, or neither")
	case r.MaxAttempts == 0 && r.DeadLetter != "":
		return refuse(q.name, "MaxAttempts", "DeadLetter is set, and without a cap a message that fails never gets there", "set both MaxAttempts and DeadLetter, or neither")
	case r.DeadLetter == "":
		return nil
	}
	name, isTable := q.dead(r.DeadLetter)
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return refuse(q.name, "DeadLetter", fmt.Sprintf("%q names nothing", r.DeadLetter), "name a group, or a table as table:NAME")
	case isTable && strings.EqualFold(name, t.Name), !isTable && name == t.GroupValue:
		return refuse(q.name, "DeadLetter", "it is the queue itself, so that a dead letter would come again", "name another group or table")
	}
	return nil
}

// dead returns the group or the table that a DeadLetter names.
func (q *Queue) dead(letter string) (name string, isTable bool) {
	return deadName(letter), q.table.Group == "" || strings.HasPrefix(letter, tablePrefix)
}

func deadName(letter string) string { return strings.TrimPrefix(letter, tablePrefix) }

// layout reads the table, and the dead table if the registration names one.
func (q *Queue) layout(ctx context.Context, r settle.Registration) (*Layout, error) {
	l, err := load(ctx, q.db.DB, q.db.Dialect, q.table, q.name)
	if err != nil {
		return nil, err
	}
	if d, ok := q.db.Dialect.(Indexer); ok {
		if l.Index, err = d.Index(ctx, q.db.DB, l); err != nil {
			return nil, q.db.Dialect.Explain(q.name, err)
		}
	}
	name, isTable := q.dead(r.DeadLetter)
	if name == "" || !isTable || len(q.table.Statements.DeadLetter) > 0 {
		return l, nil
	}
	return l.withDead(ctx, q.db.DB, name, q.name)
}

func (q *Queue) traits(r settle.Registration, transactional bool) settle.Traits {
	t := settle.Traits{
		Prefetch:       r.Workers * r.Batch,
		Delay:          settle.DelayBySource,
		AttemptUnknown: q.table.Attempt == "",
	}
	if q.table.RetryAfter == "" && len(q.table.Statements.RetryAfter) == 0 {
		t.Delay = settle.NoDelay
	}
	if q.db.OneWriter {
		return t
	}
	_, rows := q.table.Form.(RowLock)
	_, lease := q.table.Form.(Lease)
	t.Receivers, t.Settlers = min(r.Workers, sideBySide), min(r.Workers, sideBySide)
	switch {
	case transactional: // one delivery a connection
		t.Receivers, t.Settlers, t.MaxReceive = r.Workers, r.Workers, 1
		t.Whole = rows
	case rows: // one transaction a claim
		t.Receivers, t.Settlers, t.MaxReceive, t.Whole = r.Workers, r.Workers, r.Batch, true
	case !lease: // one connection a claim
		t.Settlers = r.Workers
	}
	return t
}

// sideBySide is how many claims, and how many settlements, a session has under
// way at once where each is of many rows: one at the database while the other
// is on its way.
const sideBySide = 2

// Schema returns the SQL that makes the table and its indexes where they are
// missing, for those who migrate by other means.
func (q *Queue) Schema() string {
	if q.invalid != nil {
		return ""
	}
	return strings.Join(q.db.Dialect.Create(&q.table), ";\n\n") + ";\n"
}

// CreateTable makes the table and its indexes where they are missing. It does
// not change a table that exists: one without a column that a role names, or of
// a type that cannot have the role, is refused before anything is made.
func (q *Queue) CreateTable(ctx context.Context) error {
	return q.inTx(ctx, q.db.Durable, "creating the table", func(ex Execer) error {
		there, err := q.db.Dialect.Found(ctx, ex, q.table.Schema, q.table.Name)
		if err != nil {
			return err
		}
		if len(there) > 0 {
			l, err := load(ctx, ex, q.db.Dialect, q.table, q.name)
			if err != nil {
				return err
			}
			if name := l.nameless(); name != "" {
				return refuse(q.name, "Group", fmt.Sprintf("the table is there already, and this queue could put no row into it: column %q must have a value and no role names it", name),
					"set Group and GroupValue if it tells queues apart; else give it a default")
			}
		}
		for _, text := range q.db.Dialect.Create(&q.table) {
			if _, err := ex.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
}

// inTx runs work in a transaction of its own.
func (q *Queue) inTx(ctx context.Context, db DB, doing string, work func(Execer) error) error {
	return q.call(ctx, doing, func() error { return q.db.Transact(ctx, db, work) })
}

// batch runs steps in a transaction of their own. They are made when it runs.
func (q *Queue) batch(ctx context.Context, db DB, doing string, steps func() []Step) error {
	return q.call(ctx, doing, func() error { return q.db.Batch(ctx, db, steps) })
}

// call does something with the database, and names the queue in what goes wrong.
func (q *Queue) call(ctx context.Context, doing string, do func() error) error {
	if q.invalid != nil {
		return q.invalid
	}
	if err := do(); err != nil {
		return q.db.Dialect.Explain(q.name, fmt.Errorf("%s: %w", doing, err))
	}
	return nil
}

// Wake has the consumers of this queue in this process look for rows now. Call
// it after the commit of a transaction that messages were published in; without it they look within
// half a second.
func (q *Queue) Wake() {
	shared, err := q.db.Shared(context.Background())
	if err == nil {
		shared.wake(q.line, 0)
	}
}

// Len returns how many rows the queue has: due, delayed and in work; not those
// that are processed. It counts them, which takes a while where there are many.
func (q *Queue) Len(ctx context.Context) (int, error) {
	if q.invalid != nil {
		return 0, q.invalid
	}
	l, err := load(ctx, q.db.DB, q.db.Dialect, q.table, q.name)
	if err != nil {
		return 0, err
	}
	st, err := compile(q.db.Dialect, fmt.Sprintf("SELECT count(*) FROM %s WHERE %s", l.Ref(), l.Mine("")))
	if err != nil {
		return 0, err
	}
	var n int
	if _, err := queryOne(ctx, q.db.DB, st.sql, st.args(&values{group: q.table.GroupValue}), &n); err != nil {
		return 0, q.db.Dialect.Explain(q.name, fmt.Errorf("counting rows: %w", err))
	}
	return n, nil
}

// purgeRows is how many rows one transaction of Purge deletes.
const purgeRows = 500

// Purge deletes the rows of this queue that were processed longer ago than the
// given time, a few hundred in a transaction, and returns how many that were. It
// needs a ProcessedAt column.
func (q *Queue) Purge(ctx context.Context, olderThan time.Duration) (int64, error) {
	switch {
	case q.invalid != nil:
		return 0, q.invalid
	case q.table.ProcessedAt == "":
		return 0, refuse(q.name, "ProcessedAt", "the table has no such column, so that processed rows are deleted at once", "do not call Purge")
	case olderThan < 0:
		return 0, refuse(q.name, "Purge", fmt.Sprintf("%v is negative", olderThan), "say how old the rows must be")
	}
	l, err := load(ctx, q.db.DB, q.db.Dialect, q.table, q.name)
	if err != nil {
		return 0, err
	}
	st, err := compile(q.db.Dialect, q.db.Dialect.Purge(l))
	if err != nil {
		return 0, err
	}
	var all int64
	for {
		var n int64
		err := q.inTx(ctx, q.db.DB, "purging processed rows", func(ex Execer) (err error) {
			vs := values{group: q.table.GroupValue, limit: purgeRows, before: micros(olderThan), now: time.Now().UnixMicro()}
			n, err = st.exec(q.db.bound(ctx), ex, &vs)
			return err
		})
		all += n
		if err != nil || n < purgeRows {
			return all, err
		}
	}
}
