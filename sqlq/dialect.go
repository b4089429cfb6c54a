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

	// Now is the time by the database's clock, as the column holds times.
	Now(c Column) string
	// Later is the time that comes so many microseconds after Now, as the column
	// can hold it: never sooner than that.
	Later(c Column, micros string) string
	// Out is what a claim returns of the column c, which ref names, in the role:
	// an ID as int64, text or bytes; RetryAfter as a whole number of microseconds that
	// sorts as claims do, NULL as the least; Payload and Headers as bytes; Key as text.
	Out(r Role, c Column, ref string) string
	// In makes of a parameter what is compared with the column c, or written to it, in the role.
	In(r Role, c Column, param string) string
	// NextAttempt makes of an Attempt column, which ref names, the number that it holds after
	// a claim: one more, at least 2, and never beyond what the column can hold.
	NextAttempt(c Column, ref string) string
	// Join makes text of several expressions side by side; NULL counts as empty.
	Join(parts []string) string
	// Literal makes a text constant.
	Literal(text string) string
	// Advance adds to a time that the database returned of the LockedUntil column c, and
	// rounds up to what the column holds once that is written.
	Advance(c Column, token any, by time.Duration) any

	// Claim is how rows are taken on lease.
	Claim(l *Layout) Claim
	// Due returns two numbers: in how many microseconds the next row can be claimed, as
	// far as its columns tell, zero or less where one can be now; and in how many the next of
	// those that cannot be now. NULL where there is none. It looks at a bounded number of rows.
	Due(l *Layout) string
	// Candidates returns ID and lock name of up to :limit rows that are due, in
	// the order of claims, without those whose lock is in the JSON list :held.
	// lock is the expression of the name over a row called t. It is for locks that the
	// process holds; a database that holds them is a [Server].
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

// Folder is a dialect in which one table has several names.
type Folder interface {
	// OneName returns the one name that all names of a table come to.
	OneName(schema, table string) (string, string)
}

// Lender is a dialect whose transactions are set for claims, and not as a handler expects.
type Lender interface {
	// Lend are the steps that change that, in a transaction that is open.
	Lend() []Step
}

// Skipper is a [Server] that can pass over rows that others have locked.
type Skipper interface {
	// Holding finds out about many rows, known as in Many, and waits for nobody: it returns
	// the number of each that is still its delivery's, and 1 where it has locked it now, as
	// a settlement needs it or as a renewal does, or 0 where somebody else has it locked.
	Holding(l *Layout, renewal bool) string
}

// Patient is a [Skipper] whose connections may end a wait for a lock by themselves, within
// a second or so, so that no statement has to be cut off.
type Patient interface {
	// Patient reports whether they do.
	Patient() bool
	// Waited reports whether err says that of a statement.
	Waited(err error) bool
}

// Watcher is a [Server] that can tell of the advisory locks that others have.
type Watcher interface {
	// Busy returns the locks that anybody has, as Seize returns them.
	Busy() string
}

// Burier is a dialect in which the id of a dead letter may be taken in its dead table.
type Burier interface {
	// DeadID returns what a dead letter gets as its id in the dead table: the
	// expression id of the row t, or another where that is taken there.
	DeadID(c Column, table, id string) string
}

// Indexer is a dialect that has to name the index which its claims walk.
type Indexer interface {
	// Index returns the name of the index that has the rows of l in the order of claims; empty
	// where there is none. It becomes [Layout.Index].
	Index(ctx context.Context, db Execer, l *Layout) (string, error)
}

// Packer is a [Server] whose statements about many rows take all that is known of
// them in one parameter, :rows.
type Packer interface {
	// Pack returns the parameter. What is known of each row comes in this order: id, attempt,
	// token, delay, cause, next_token; nil where it is not known.
	Pack(rows [][]any) any
}

// Repeater is a dialect of a database that may end a transaction by itself, which
// succeeds when it is run again: after a deadlock.
type Repeater interface {
	// Again reports whether err says that of a transaction, which is rolled back.
	Again(err error) bool
}

// Reopener is a dialect that knows when a table is not any more what it was at the start.
type Reopener interface {
	// Stale reports whether err says that something which the statements of a session name is
	// not there: they have to be made anew.
	Stale(err error) bool
}

// MostAttempt is the highest number that an Attempt column gets: attempts beyond
// it are counted no more, and fit an int everywhere.
const MostAttempt = 1<<31 - 1

// Claim is how rows are taken on lease: up to :limit of them, for :lease
// microseconds. Its statements run in one transaction.
type Claim struct {
	// Guard runs first: it keeps other claims away where rows of one line must
	// not be taken at once. Empty: nothing.
	Guard string
	// Take takes rows and returns their [Layout.Fields] as they are then.
	Take string
	// Second is Take once more, for a FIFO table where Take took nothing. Empty:
	// there is no need.
	Second string
	// Mark is for a database that cannot return what it updates: Take then locks rows and
	// returns what they will hold, with the same token for all, and Mark writes that to the rows
	// of the list :ids: :token, and an attempt more. Empty: Take does both.
	Mark string
	// Unguard gives back, after the commit and on the same connection, what Guard took. Guard then
	// returns whether it took it: true or 1. Empty: the commit does that.
	Unguard string
}

// Change is what a settlement, or a renewal, makes of many rows. What is known of
// each row comes in lists side by side; the text that makes the change calls a
// row of them s, with columns named by [PerRow].
type Change struct {
	Set  []string // "column = expression" of the update; none: the row goes
	Dead bool     // the row goes to the dead table
	// Lists are the names of the lists that the change needs beside those of
	// [Layout.Fence]: delay, cause, next_token. The parameter of a list has its name and an s.
	Lists []string
}

// PerRow is how the text of a [Change] names what is known of a row: id,
// attempt, token, delay, cause, next_token.
func PerRow(name string) string { return "s.settle_" + name }

// Server is the dialect of a database with room for several writers, which holds
// row locks and advisory locks itself. What it has to say about an unknown commit, a position in
// the order of claims or many rows at once it may leave empty.
type Server interface {
	Dialect

	// LockRows locks up to limit rows, a parameter or a number, that are due and that nobody has locked, and
	// returns their [Layout.Fields] in the order of claims; and behind those, if there is a Committed,
	// what that needs to know of the transaction, as text. It waits for nobody.
	LockRows(l *Layout, limit string) string
	// Relock locks the row :id again, whose attempt is :attempt, and returns its ID, and behind
	// that the same as LockRows; no row where somebody else has it or had it.
	Relock(l *Layout) string
	// Count adds one to the attempt of the row :id where it is still :attempt and
	// nobody has the row locked.
	Count(l *Layout) string

	// Seize tries up to :scan rows that are due, in the order of claims, for those
	// whose advisory lock is free: it takes up to :limit locks, one of each
	// name, and returns ID and lock of the rows. It leaves out the locks in the list :held.
	// lock is the expression of the name over a row called t.
	Seize(l *Layout, lock string) string
	// TakeAll is Take for all rows in the list :ids.
	TakeAll(l *Layout) string
	// Unlock gives back the advisory lock :lock of this connection and returns
	// whether that held it: true or 1.
	Unlock() string

	// Many makes a change to many rows in one statement, or in several that its Execer takes
	// for one, and returns the numbers, from 0, of those that were still the delivery's.
	// Empty: rows are settled one by one.
	Many(l *Layout, c Change) string
	// List is a list of values of one type, some of them nil, as a parameter takes it.
	List(values []any) any

	// Committed returns what became of the transaction :transaction: 1 where it is committed,
	// 0 where it is not and never will be, 2 where it is over and there is no telling how, NULL where
	// that is not known yet. Empty: there is no telling.
	Committed() string
}
