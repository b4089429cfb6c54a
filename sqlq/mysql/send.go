package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"strings"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/settlemq/settle/sqlq"
)

// This file sends statements and reads what comes back.

// mostText is how much text goes to the server at once, unless one statement
// has more: a server takes 16 MB or 64 MB where it is not told otherwise.
const mostText = 1 << 20

// errNotSent marks an error of a text that could not be written.
var errNotSent = errors.New("the statement was not sent")

func exec(ctx context.Context, q querier, multi bool, text string, args []any) (int64, error) {
	all, err := inline(text, args)
	if err != nil {
		return 0, errors.Join(errNotSent, err)
	}
	if multi {
		all = []string{strings.Join(all, ";\n")}
	}
	var n int64
	for _, one := range all {
		result, err := q.ExecContext(ctx, one)
		if err != nil {
			return 0, err
		}
		if n, err = result.RowsAffected(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// query returns the rows of the first of a text's statements that has any. Those behind it
// run by the time that the rows are closed.
func query(ctx context.Context, q querier, multi bool, text string, args []any) (sqlq.Rows, error) {
	all, err := inline(text, args)
	if err != nil {
		return nil, errors.Join(errNotSent, err)
	}
	if multi {
		all = []string{strings.Join(all, ";\n")}
	}
	for i, one := range all {
		found, err := q.QueryContext(ctx, one)
		if err != nil {
			return nil, err
		}
		columns, err := found.Columns()
		if err != nil || len(columns) == 0 && i < len(all)-1 {
			if err := errors.Join(err, found.Err(), found.Close()); err != nil {
				return nil, err
			}
			continue
		}
		return &rows{Rows: found, rest: func() error {
			for _, text := range all[i+1:] {
				if _, err := q.ExecContext(ctx, text); err != nil {
					return err
				}
			}
			return nil
		}}, nil
	}
	return nil, errors.Join(errNotSent, errors.New("mysql: the statement is empty"))
}

// rows are those of a query as sqlq reads them: text is a string, and a whole number an int64 unless it
// is greater than that.
type rows struct {
	*sql.Rows
	rest   func() error // what is to run behind it; nil: nothing
	binary []bool       // which columns are bytes; nil: not asked for
}

func (r *rows) Scan(dest ...any) error {
	if err := r.Rows.Scan(dest...); err != nil {
		return err
	}
	for i, d := range dest {
		if v, ok := d.(*any); ok {
			switch n := (*v).(type) {
			case []byte:
				if !r.isBinary(i) {
					*v = string(n)
				}
			case uint64:
				if n <= math.MaxInt64 {
					*v = int64(n)
				}
			}
		}
	}
	return nil
}

func (r *rows) isBinary(i int) bool {
	if r.binary == nil {
		types, _ := r.ColumnTypes() // it fails on rows that are closed alone
		r.binary = make([]bool, max(len(types), i+1))
		for n, t := range types {
			name := t.DatabaseTypeName()
			r.binary[n] = strings.HasSuffix(name, "BINARY") || strings.HasSuffix(name, "BLOB")
		}
	}
	return r.binary[i]
}

// Close reads what is left, so that an error of a statement behind the rows is found.
func (r *rows) Close() error {
	err := r.Rows.Err()
	for err == nil && r.Rows.NextResultSet() {
	}
	err = errors.Join(err, r.Rows.Err(), r.Rows.Close())
	if err == nil && r.rest != nil {
		rest := r.rest
		r.rest = nil
		err = rest()
	}
	return err
}

// sequence runs the statements of head and then steps, one by one.
func sequence(ctx context.Context, q querier, head []string, steps []sqlq.Step) error {
	for _, text := range head {
		if _, err := q.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	for i := range steps {
		if err := one(ctx, q, &steps[i]); err != nil {
			return &sqlq.StepError{Index: i, Err: err}
		}
	}
	return nil
}

func one(ctx context.Context, q querier, s *sqlq.Step) error {
	if s.Rows == nil {
		n, err := exec(ctx, q, false, s.SQL, s.Args)
		if err == nil && s.Touched != nil {
			s.Touched(n)
		}
		return err
	}
	found, err := query(ctx, q, false, s.SQL, s.Args)
	if err != nil {
		return err
	}
	err = s.Rows(found)
	return errors.Join(err, found.Close())
}

// chunk is what goes to the server as one text.
type chunk struct {
	texts []string
	size  int
	steps []*sqlq.Step // those that want to know something
	at    []int        // and where their statements begin in texts
	reads bool         // they read rows; else they count
	first int          // the index of the first step
}

// together runs the statements of head and then steps in as few texts as it can: one that
// reads rows cannot count those that others touch.
func (c *conn) together(ctx context.Context, head []string, steps []sqlq.Step) error {
	now := chunk{texts: head}
	for i := range steps {
		s := &steps[i]
		texts, err := inline(s.SQL, s.Args)
		if err != nil {
			return &sqlq.StepError{Index: i, Err: errors.Join(errNotSent, err)}
		}
		size := 0
		for _, text := range texts {
			size += len(text)
		}
		wants := s.Rows != nil || s.Touched != nil
		if len(now.texts) > 0 && now.size+size > mostText || wants && len(now.steps) > 0 && now.reads != (s.Rows != nil) {
			if err := c.sendChunk(ctx, &now); err != nil {
				return err
			}
			now = chunk{first: i}
		}
		if wants {
			now.reads = s.Rows != nil
			now.steps, now.at = append(now.steps, s), append(now.at, len(now.texts))
		}
		now.texts, now.size = append(now.texts, texts...), now.size+size
	}
	return c.sendChunk(ctx, &now)
}

func (c *conn) sendChunk(ctx context.Context, of *chunk) (err error) {
	if len(of.texts) == 0 {
		return nil
	}
	text := strings.Join(of.texts, ";\n")
	if of.reads {
		err = c.readChunk(ctx, text, of.steps)
	} else {
		err = c.countChunk(ctx, text, of)
	}
	if err != nil {
		return &sqlq.StepError{Index: of.first, Err: err}
	}
	return nil
}

// readChunk sends statements of which some have rows, and has those read.
func (c *conn) readChunk(ctx context.Context, text string, steps []*sqlq.Step) error {
	found, err := c.c.QueryContext(ctx, text)
	if err != nil {
		return err
	}
	for i, s := range steps {
		if i > 0 && !found.NextResultSet() {
			return errors.Join(found.Err(), errNoRows, found.Close())
		}
		if err := s.Rows(part{&rows{Rows: found}}); err != nil {
			return errors.Join(err, found.Close())
		}
	}
	return (&rows{Rows: found}).Close()
}

var errNoRows = errors.New("mysql: a statement that has to return rows returned none")

// part is one result of several: who has read it does not close the others.
type part struct{ *rows }

func (part) Close() error { return nil }

// countChunk sends statements and tells how many rows they touched.
func (c *conn) countChunk(ctx context.Context, text string, of *chunk) error {
	return c.c.Raw(func(dc any) error {
		result, err := dc.(driver.ExecerContext).ExecContext(ctx, text, nil)
		if err != nil || len(of.steps) == 0 {
			return err
		}
		all, ok := result.(mysqldriver.Result)
		if !ok {
			return errNoCounts
		}
		counts := all.AllRowsAffected()
		for i, s := range of.steps {
			if of.at[i] >= len(counts) {
				return errNoCounts
			}
			s.Touched(counts[of.at[i]])
		}
		return nil
	})
}

var errNoCounts = errors.New("mysql: the driver does not tell how many rows each statement touched")
