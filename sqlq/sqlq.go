// Package sqlq makes a queue of a table in a SQL database: the user's own
// table, whose columns are told their roles, or the one that CreateTable makes.
//
// It imports no driver. The packages below it open a database and bring its SQL:
// package sqlite is one. A program reads like this:
//
//	db, err := sqlite.Open("app.db", sqlite.Options{})
//	emails := db.Queue(sqlq.Standard("jobs", "emails"))
//	err = emails.CreateTable(ctx)
//	err = emails.Publish(ctx, settle.Message{Body: body})
//	rt.Handle(emails, handler, settle.Options{MaxAttempts: 5, DeadLetter: "emails.dead"})
//
// Which type does what:
//
//   - [Table] names the table, what each column is for, and how a row is held
//     while it is in work: [Lease], [AdvisoryLock] or [RowLock].
//   - [Queue] is one queue in a table: a [settle.Source] and a
//     [settle.Publisher].
//   - [Statements] puts SQL of your own in the place of what a queue runs.
//   - [Row] is what [settle.Delivery.As] finds.
//   - [Execer], [DB], [Dialect] and [Database] are for packages that bring a database.
//
// # What a row's columns mean
//
// Attempt holds the number of the row's next delivery: 1 when it is inserted. A
// claim adds one, so a crash spends an attempt of each row that was claimed.
// RetryAfter is when the row is due. LockedUntil is until when a claim holds.
// ProcessedAt, where there is one, keeps a row that was acknowledged or dropped;
// without one the row is deleted.
//
// # Dead letters
//
// Options.DeadLetter is a value for the Group column where the table has one: the row
// stays in its table and changes its group. Where the table has none, and always
// with the prefix "table:", it is the name of another table with the same columns: the row
// moves there in one transaction. A dead row keeps its id and its attempt.
package sqlq

import (
	"fmt"

	"github.com/settlemq/settle"
)

// tablePrefix marks a dead letter that is a table whatever the queue has.
const tablePrefix = "table:"

// refuse makes the ConfigError of the thing with the given name.
func refuse(source, setting, reason, fix string) *settle.ConfigError {
	return &settle.ConfigError{Source: source, Setting: setting, Reason: reason, Fix: fix}
}

// lostRow is the error of a delivery whose row is another's by now.
func lostRow(source string, id any) error {
	return fmt.Errorf("%s: row %v: %w", source, idText(id), settle.ErrLeaseLost)
}
