package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/settlemq/settle/sqlq"
)

// This file finds out by the server's plans whether an index serves what claims look for.

// slow returns the indexes that claims need and the table does not have, by what
// the server plans to do where it would rather use an index than not.
func (d dialect) slow(ctx context.Context, c *pgx.Conn, l *sqlq.Layout) ([]sqlq.Index, error) {
	needed := l.Indexes()
	if len(needed) == 0 || l.Statements.Claim != "" {
		return nil, nil
	}
	heads := *l
	heads.Runs = false // which needs the same indexes, and sorts what it has found
	l = &heads
	for i := range needed {
		if there, err := hasHeld(ctx, c, l, &needed[i]); err != nil {
			return nil, err
		} else if !there {
			return needed, nil
		}
	}
	queries := []string{picked(l, free(l, "t")).String()}
	switch {
	case l.FIFO && l.Has(sqlq.RoleKey):
		queries = []string{pickHeads(l), pickKeys(l)}
	case l.FIFO:
		queries = []string{pickLine(l)}
	}
	for n, q := range queries {
		// A scan that locks keeps what a partial index makes sure of among its conditions.
		text, args, err := sqlq.Compile(d, strings.ReplaceAll(q, lock, ""))
		if err != nil {
			return nil, err
		}
		p, err := explain(ctx, c, text, len(args))
		switch {
		case err != nil:
			return nil, err
		case p.served(l, n > 0): // the second sorts a row of each key
		case l.FIFO:
			return needed, nil
		default:
			return needed[:1], nil
		}
	}
	return nil, nil
}

// hasHeld reports whether the table has the index of rows in work, if that is the one: on a table with
// few of them the server may well do without.
func hasHeld(ctx context.Context, c *pgx.Conn, l *sqlq.Layout, i *sqlq.Index) (there bool, err error) {
	if i.Only == nil || i.Only.Role != sqlq.RoleLockedUntil {
		return true, nil
	}
	columns := make([]string, len(i.Columns))
	for n, r := range i.Columns {
		columns[n] = l.Columns()[r]
	}
	err = c.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = to_regclass($1::text) AND i.indisvalid AND $2::text[] = (
		SELECT (array_agg(a.attname::text ORDER BY k.n))[1:array_length($2::text[], 1)] FROM unnest(i.indkey) WITH ORDINALITY AS k(attnum, n)
		JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum))`, l.Ref(), columns).Scan(&there)
	return there, err
}

// explain plans a statement of so many parameters, whatever they are, with all that does
// without an index made dear. It leaves nothing behind.
func explain(ctx context.Context, c *pgx.Conn, text string, args int) (*plan, error) {
	tx, err := c.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		// A prepared statement outlives the transaction. Where there is none this is an error, of no matter.
		_ = tx.Rollback(context.WithoutCancel(ctx))
		_, _ = c.Exec(context.WithoutCancel(ctx), "DEALLOCATE settle_explain")
	}()
	params := strings.Repeat(", NULL", args)
	for _, s := range []string{
		"SET LOCAL enable_seqscan = off", "SET LOCAL enable_sort = off", "SET LOCAL enable_incremental_sort = off", "SET LOCAL enable_bitmapscan = off",
		"SET LOCAL plan_cache_mode = force_generic_plan", "PREPARE settle_explain AS " + text,
	} {
		if _, err := tx.Exec(ctx, s); err != nil {
			return nil, err
		}
	}
	execute := "EXPLAIN (FORMAT JSON) EXECUTE settle_explain"
	if params != "" {
		execute += "(" + params[2:] + ")"
	}
	var out []byte
	if err := tx.QueryRow(ctx, execute, pgx.QueryExecModeSimpleProtocol).Scan(&out); err != nil {
		return nil, err
	}
	var all []struct{ Plan plan }
	if err := json.Unmarshal(out, &all); err != nil || len(all) != 1 {
		return nil, errors.Join(errors.New("reading a plan"), err)
	}
	return &all[0].Plan, nil
}

// plan is a node of a plan.
type plan struct {
	Type   string `json:"Node Type"`
	Alias  string `json:"Alias"`
	Cond   string `json:"Index Cond"`
	Filter string `json:"Filter"`
	Plans  []plan `json:"Plans"`
}

// served reports whether nothing in the plan reads all of the table, or sorts, or
// walks over rows of other queues or keys, or over processed ones.
func (p *plan) served(l *sqlq.Layout, sorts bool) bool {
	switch p.Type {
	case "Seq Scan", "Bitmap Heap Scan":
		return false
	case "Sort", "Incremental Sort":
		if !sorts {
			return false
		}
	}
	walks := []sqlq.Role{sqlq.RoleGroup, sqlq.RoleProcessedAt}
	if strings.HasPrefix(p.Alias, "o") { // as the other rows of a line are called
		walks = append(walks, sqlq.RoleKey)
	}
	byID := strings.HasPrefix(p.Cond, "("+plain(l.ID)+" = ") // which finds one row
	for _, r := range walks {
		if l.Has(r) && !byID && mentions(p.Filter, l.Columns()[r]) {
			return false
		}
	}
	for i := range p.Plans {
		if !p.Plans[i].served(l, sorts) {
			return false
		}
	}
	return true
}

// mentions reports whether a condition, as the server writes it, is about the column.
func mentions(condition, column string) bool {
	return regexp.MustCompile(`(?:^|[^\w"$])` + regexp.QuoteMeta(plain(column)) + `(?:$|[^\w"$])`).MatchString(condition)
}

var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_$]*$`)

// plain is a name as the server writes it in a plan, but for keywords.
func plain(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return quote(name)
}
