package sqlq

import (
	"context"
	"time"
)

// Dialect is the SQL of one database: what its statements look like and what
// it can do. Text that a dialect returns may name parameters as [Statements] do.
type Dialect interface {
	// Name begins errors and source names, such as "sqlite".
	Name() string
	// Quote makes an identifier of any name.
	Quote(name string) string
	// Placeholder is the n-th parameter of a statement, from 1. Where all of them
	// look alike, an argument is passed once for each place that names it.
	Placeholder(n int) string

	// Now is the time by the database's clock, as the table's columns hold times.
	Now() string
	// Later is the time that comes so many microseconds after Now.
	Later(micros string) string
	// Micros makes of a time column a whole number of microseconds that sorts
	// as claims do: NULL as the least.
	Micros(column string) string
	// NextAttempt makes of an Attempt column the number that it holds after a
	// claim: one more, at least 2, and never beyond what the column can hold.
	NextAttempt(column string) string
	// Join makes text of several expressions side by side; NULL counts as empty.
	Join(parts []string) string
	// Literal makes a text constant.
	Literal(text string) string
	// Advance adds to a time as the database returned it.
	Advance(token any, by time.Duration) any

	// Claim takes up to :limit rows for :lease microseconds and returns their
	// [Layout.Fields]. For a FIFO table the second text is tried where the
	// first took nothing; it is empty where there is no need.
	Claim(l *Layout) (first, second string)
	// Due returns one number: in how many microseconds the next row can be claimed,
	// zero or less where one can be now, NULL where there is none. It looks at
	// a bounded number of rows.
	Due(l *Layout) string
	// Candidates returns ID and lock name of up to :limit rows that are due, in
	// the order of claims, without those whose lock is in the JSON list :held.
	// lock is the expression of the name over a row called t.
	Candidates(l *Layout, lock string) string
	// Take counts the attempt of the row :id if it is still due, and returns its
	// [Layout.Fields].
	Take(l *Layout) string
	// Purge deletes up to :limit rows processed more than :before microseconds ago.
	Purge(l *Layout) string

	// Found returns the columns of a table, none where it does not exist.
	Found(ctx context.Context, db Execer, schema, table string) ([]Column, error)
	// Unusable says why a column cannot have the role, and what to do about it;
	// empty where it can.
	Unusable(r Role, c Column) (reason, fix string)
	// Body is a message's body as the Payload column takes it.
	Body(c Column, body []byte) any
	// TakesID reports whether the ID column takes a Message.ID, any text.
	TakesID(c Column) bool
	// Create returns the statements that make the table and its indexes where
	// they are missing.
	Create(t *Table) []string
	// Check looks at what only this database has. It returns a ConfigError for
	// what cannot be kept, and what is merely weaker than it should be, each with its remedy.
	Check(ctx context.Context, db DB, l *Layout, source string) (weak []error, err error)
	// Prepare checks the user's own statement without running it.
	Prepare(ctx context.Context, db Execer, sql string, args []any) error
	// Refuses says why the database cannot hold rows in the form, and what to
	// use instead; empty where it can.
	Refuses(f Form) (reason, fix string)

	// Explain makes of an error of the database, met at the start or in a call, one that
	// names the source and what to do; a ConfigError where no second try can help.
	Explain(source string, err error) error
	// Down reports whether err is about the database, not about one row: every
	// other statement would fail as well.
	Down(err error) bool
}
