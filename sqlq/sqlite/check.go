package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// SQLite's result codes, see https://www.sqlite.org/rescode.html.
const (
	codeBusy      = 5
	codeLocked    = 6
	codeNoMem     = 7
	codeReadOnly  = 8
	codeInterrupt = 9
	codeIOErr     = 10
	codeCorrupt   = 11
	codeFull      = 13
	codeCantOpen  = 14
	codeProtocol  = 15
	codeNotADB    = 26
)

// code returns the primary result code of an error, 0 where it has none. The
// driver is asked by what it can do, so that Wrap works with others that can.
func code(err error) int {
	var coded interface{ Code() int }
	if errors.As(err, &coded) {
		return coded.Code() & 0xff
	}
	return 0
}

func busy(err error) bool {
	c := code(err)
	return c == codeBusy || c == codeLocked
}

// Down implements sqlq.Dialect.
func (dialect) Down(err error) bool {
	switch code(err) {
	case codeBusy, codeLocked, codeNoMem, codeReadOnly, codeInterrupt, codeIOErr, codeCorrupt, codeFull, codeCantOpen, codeProtocol, codeNotADB:
		return true
	}
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Explain returns what is wrong with a database that answers with err, as a
// ConfigError where no second try can help.
func (d dialect) Explain(source string, err error) error {
	if d.path != "" && code(err) != 0 {
		err = fmt.Errorf("file %q: %w", d.path, err)
	}
	refusal := func(reason, fix string) error {
		return &settle.ConfigError{Source: source, Setting: "database", Reason: reason, Fix: fix, Err: err}
	}
	switch code(err) {
	case codeReadOnly:
		return refusal("it cannot be written to", "let the process write to the file and to its directory, and mount it writable")
	case codeCantOpen:
		return refusal("the file cannot be opened", "see that its directory is there, that it is no directory itself, and that the process may write to both")
	case codeNotADB:
		return refusal("the file is no SQLite database", "correct the path")
	case codeCorrupt:
		return refusal("the file is damaged", "restore it from a backup, or recover it with the sqlite3 shell")
	case codeFull:
		return fmt.Errorf("%s: the disk is full, or the database may not grow; make room: %w", source, err)
	case codeBusy, codeLocked:
		return fmt.Errorf("%s: another connection keeps the database locked; end its transaction, or raise BusyTimeout: %w", source, err)
	default:
		return fmt.Errorf("%s: %w", source, err)
	}
}

// Check sees that the database can be written to, how it keeps what is
// committed, and that an index serves the claims.
func (d dialect) Check(ctx context.Context, db sqlq.DB, l *sqlq.Layout, source string) ([]error, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	weak, err := d.check(ctx, conn, l, source)
	if err := errors.Join(err, conn.Close()); err != nil {
		return nil, err
	}
	return weak, nil
}

func (d dialect) check(ctx context.Context, conn sqlq.Conn, l *sqlq.Layout, source string) ([]error, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	// Not even a transaction that writes nothing finds a read-only file.
	_, err = tx.Exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE 0", l.Ref()))
	if err := errors.Join(err, tx.Rollback(ctx)); err != nil {
		return nil, d.Explain(source, err)
	}
	var weak []error
	mode, err := text(ctx, conn, "PRAGMA journal_mode")
	if err != nil {
		return nil, d.Explain(source, err)
	}
	if !strings.EqualFold(mode, "wal") {
		weak = append(weak, fmt.Errorf("%s: the journal mode is %q, where readers and the writer keep each other waiting; set PRAGMA journal_mode = WAL", source, mode))
	}
	sync, err := text(ctx, conn, "PRAGMA synchronous")
	if err != nil {
		return nil, d.Explain(source, err)
	}
	if sync == "0" {
		weak = append(weak, fmt.Errorf("%s: synchronous is OFF, so a power failure can damage the database; set PRAGMA synchronous = NORMAL", source))
	}
	texts, err := d.textTimes(ctx, conn, l)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	for _, column := range texts {
		weak = append(weak, fmt.Errorf("%s: column %q has text in rows that wait, which is later than any time, so that they never come; write microseconds since 1970 there", source, column))
	}
	slow, err := d.slow(ctx, conn, l)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	for _, i := range slow {
		weak = append(weak, i.Missing(source, createIndex(&l.Table, &i)))
	}
	return weak, nil
}

func text(ctx context.Context, db sqlq.Execer, query string) (string, error) {
	rows, err := db.Query(ctx, query)
	if err != nil {
		return "", err
	}
	var s string
	if rows.Next() {
		err = rows.Scan(&s)
	}
	return s, errors.Join(err, rows.Err(), rows.Close())
}

// textTimes returns the time columns in which it finds text: RetryAfter at the end of
// the index, LockedUntil among the first rows that are due.
func (d dialect) textTimes(ctx context.Context, db sqlq.Execer, l *sqlq.Layout) ([]string, error) {
	const latest = "9223372036854775807" // no number; text comes after it
	var found []string
	look := func(r sqlq.Role, query string) error {
		s, args, err := sqlq.CompileFor(d, l, query)
		if err != nil {
			return err
		}
		rows, err := db.Query(ctx, s, args...)
		if err != nil {
			return err
		}
		if rows.Next() {
			found = append(found, l.Column(r).Name)
		}
		return errors.Join(rows.Err(), rows.Close())
	}
	if l.Has(sqlq.RoleRetryAfter) {
		c := "t." + l.Q(sqlq.RoleRetryAfter)
		query := fmt.Sprintf("SELECT 1 FROM %s AS t WHERE %s AND %s > %s LIMIT 1", l.Ref(), l.Mine("t"), c, latest)
		if l.Has(sqlq.RolePriority) {
			query = levels(l) + fmt.Sprintf("SELECT 1 FROM settle_levels AS v WHERE EXISTS (SELECT 1 FROM %s AS t WHERE %s AND t.%s IS v.p AND %s > %s) LIMIT 1",
				l.Ref(), l.Mine("t"), l.Q(sqlq.RolePriority), c, latest)
		}
		if err := look(sqlq.RoleRetryAfter, query); err != nil {
			return nil, err
		}
	}
	if l.Has(sqlq.RoleLockedUntil) {
		first := strings.ReplaceAll(pickColumns(l, "", "t."+l.Q(sqlq.RoleLockedUntil)), ":limit", fmt.Sprint(mostLooks))
		if err := look(sqlq.RoleLockedUntil, fmt.Sprintf("SELECT 1 FROM (%s) WHERE a > %s LIMIT 1", first, latest)); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// slow returns the indexes that the table needs and does not have, by what SQLite
// plans to do.
func (d dialect) slow(ctx context.Context, db sqlq.Execer, l *sqlq.Layout) ([]sqlq.Index, error) {
	heads := *l
	heads.Runs = false // which needs the same indexes, and sorts what it has found
	l = &heads
	var queries []string
	if _, ok := l.Form.(sqlq.AdvisoryLock); ok {
		queries = []string{pick(l, "")}
	} else if c := d.Claim(l); c.Second == "" {
		queries = []string{c.Take}
	} else {
		queries = []string{c.Take, c.Second}
	}
	needed := l.Indexes()
	if len(needed) == 0 {
		return nil, nil
	}
	var missing []sqlq.Index
	for i, q := range queries {
		served, err := d.served(ctx, db, l, q)
		if err != nil {
			return nil, err
		}
		if served {
			continue
		}
		if i == 0 && !l.FIFO {
			return needed[:1], nil
		}
		missing = needed
	}
	return missing, nil
}

var (
	sorts     = regexp.MustCompile(`USE TEMP B-TREE FOR ORDER BY`)
	scans     = regexp.MustCompile(`^SCAN (t|o)($| )`)
	usedIndex = regexp.MustCompile(`^(?:SEARCH|SCAN) (?:t|o) USING (?:COVERING )?INDEX (.*?)(?: \(.*\))?$`)
)

// served reports whether an index serves a query: whether SQLite neither sorts
// for it nor reads all of the table, nor all the rows that are processed, and looks for rows
// of one priority at a time.
func (d dialect) served(ctx context.Context, db sqlq.Execer, l *sqlq.Layout, query string) (bool, error) {
	plan, err := d.plan(ctx, db, query)
	if err != nil {
		return false, err
	}
	levels := false
	sorted := strings.Contains(query, "settle_lines") || strings.Contains(query, "settle_due") // a few rows, at the end
	for _, step := range plan {
		used := usedIndex.FindStringSubmatch(step)
		switch {
		case sorts.MatchString(step) && !sorted:
			return false, nil
		case used == nil && scans.MatchString(step):
			return false, nil
		case used != nil && l.Has(sqlq.RoleProcessedAt):
			ok, err := leavesOutProcessed(ctx, db, l, used[1])
			if !ok || err != nil {
				return false, err
			}
		}
		levels = levels || strings.Contains(step, l.Priority+"=?") && (!l.Has(sqlq.RoleRetryAfter) || strings.Contains(step, l.RetryAfter+"<?"))
	}
	return levels || !l.Has(sqlq.RolePriority), nil
}

// plan returns the steps of a query's plan.
func (d dialect) plan(ctx context.Context, db sqlq.Execer, query string) ([]string, error) {
	s, args, err := sqlq.Compile(d, query)
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, "EXPLAIN QUERY PLAN "+s, args...)
	if err != nil {
		return nil, err
	}
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			_ = rows.Close()
			return nil, err
		}
		steps = append(steps, step)
	}
	err = rows.Err()
	return steps, errors.Join(err, rows.Close())
}

// leavesOutProcessed reports whether an index is partial or has the ProcessedAt column, so
// that rows which are processed do not stand before those that wait.
func leavesOutProcessed(ctx context.Context, db sqlq.Execer, l *sqlq.Layout, name string) (bool, error) {
	var schema any
	if l.Schema != "" {
		schema = l.Schema
	}
	rows, err := db.Query(ctx, `SELECT 1 FROM pragma_index_list(?1, ?3) WHERE name = ?2 AND partial
		UNION ALL SELECT 1 FROM pragma_index_info(?2, ?3) WHERE name = ?4`, l.Name, name, schema, l.ProcessedAt)
	if err != nil {
		return false, err
	}
	ok := rows.Next()
	return ok, errors.Join(rows.Err(), rows.Close())
}
