package sqlq

import (
	"context"
	"fmt"
	"strings"

	"github.com/settlemq/settle"
)

// This file is for packages that keep tables of their own beside a queue's, such
// as outbox: their columns by roles, their statements by named parameters, their transactions.

// Layout reads the columns of a table, on ex, and checks that they can have their roles. The
// table's Form and what belongs to the claims of a queue may be empty. source is for errors.
func (db *Database) Layout(ctx context.Context, ex Execer, t Table, source string) (*Layout, error) {
	return load(ctx, ex, db.Dialect, t, source)
}

// Transact runs work in a transaction of its own on one of the database's pools,
// DB or Durable, and commits it. work keeps nothing of the transaction.
func (db *Database) Transact(ctx context.Context, on DB, work func(Execer) error) error {
	shared, err := db.Shared(ctx)
	if err != nil {
		return err
	}
	return inTx(ctx, on, shared.Gate, work)
}

// Batch runs steps in a transaction of their own, in as few round trips as there can be. They
// are made when it runs.
func (db *Database) Batch(ctx context.Context, on DB, steps func() []Step) error {
	if db.OneWriter {
		return db.Transact(ctx, on, func(ex Execer) error { return ex.Batch(db.bound(ctx), steps()) })
	}
	return db.repeat(ctx, func() error { return on.Batch(ctx, steps()) })
}

// Args are the values of the parameters that a text names.
type Args map[string]any

// Bind turns the names in text, such as :id, into the dialect's placeholders, and
// returns their values as the driver takes them. Names in quotes, in comments and after another colon are left alone.
func Bind(d Dialect, text string, args Args) (string, []any, error) {
	var values []any
	at := make(map[string]int, len(args))
	numbered := d.Placeholder(1) != d.Placeholder(2)
	sql, err := replaceNames(text, func(name string) (string, error) {
		n, seen := at[name]
		if !seen || !numbered {
			value, ok := args[name]
			if !ok {
				return "", fmt.Errorf("sqlq: the statement names :%s, which has no value", name)
			}
			values = append(values, value)
			n = len(values)
			at[name] = n
		}
		return d.Placeholder(n), nil
	})
	return sql, values, err
}

// Follower is a dialect in which a row can be inserted under the id that the
// database has just made for another.
type Follower interface {
	// Follow returns the statements that run first, an INSERT of one row, and then second, an
	// INSERT .. SELECT of one row without a FROM in which [NewRowID] stands for the value that the
	// column id of the first row got. They run on one connection.
	Follow(first, id, second string) []string
}

// NewRowID is what stands for a new row's id in the text of a [Follower].
const NewRowID = "settle_new_id"

// EncodeHeaders makes the JSON object that a Headers column takes, with the message's id under
// [MessageIDHeader] if there is one; nil where there is nothing to keep. It
// refuses what JSON cannot carry.
func EncodeHeaders(h settle.Headers, id string) (any, error) { return encodeHeaders(h, id) }

// DecodeHeaders reads such an object: whole numbers become int64, others float64.
func DecodeHeaders(text []byte) (settle.Headers, error) { return decodeHeaders(text) }

// NewID makes an id for a table whose ids are text: 32 hexadecimal digits. Those of one
// process sort in the order they were made, those of several by the clock.
func NewID() string { return newID() }

// IDText is a row's id, as the driver returned it, as text: bytes in hexadecimal.
func IDText(id any) string { return idText(id) }

// CauseText is the text of an error as a Cause column takes it; nil for none.
func CauseText(err error) any { return causeText(err) }

// replaceNames replaces the parameters that text names by what the given function makes of each.
func replaceNames(text string, by func(name string) (string, error)) (string, error) {
	var out strings.Builder
	for rest := text; rest != ""; {
		n := literal(rest)
		out.WriteString(rest[:n])
		rest = rest[n:]
		if rest == "" {
			break
		}
		name := word(rest[1:])
		placeholder, err := by(name)
		if err != nil {
			return "", err
		}
		out.WriteString(placeholder)
		rest = rest[1+len(name):]
	}
	return out.String(), nil
}
