// Package sqlserver finds the database server that an example program runs on, and gives it room there.
package sqlserver

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/settlemq/settle/examples/internal/program"
	"github.com/settlemq/settle/sqlq/postgres"
)

// Example is the body of an example on PostgreSQL: it makes its tables in db, and prints what happened.
type Example func(ctx context.Context, db *postgres.DB, out io.Writer) error

// Absent is what to say where no server answers.
const Absent = "no database answers at %v: start one with `docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=postgres postgres:18`, or name one with -dsn"

// Local is a server that was started so.
const Local = "postgres://postgres:postgres@localhost:5432/postgres"

// Postgres is the main function of an example on PostgreSQL: it reads -dsn, runs
// the example in a schema of its own, and ends the process.
func Postgres(name string, example Example) {
	dsn := flag.String("dsn", "", "the database: postgres://user:password@host/database (default SETTLE_POSTGRES_DSN, else a server on this machine)")
	program.Main(name, Absent, func(ctx context.Context, out io.Writer) error {
		return InSchema(ctx, cmp.Or(*dsn, os.Getenv("SETTLE_POSTGRES_DSN"), Local), name, example, out)
	})
}

// InSchema runs an example in a schema that it has to itself: one that an example
// of the same name has left behind goes first, and this goes at the end.
func InSchema(ctx context.Context, dsn, name string, example Example, out io.Writer) (err error) {
	schema := "settle_example_" + strings.ReplaceAll(name, "-", "_")
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.Close(context.WithoutCancel(ctx))) }()
	drop := fmt.Sprintf("SET client_min_messages = error; DROP SCHEMA IF EXISTS %s CASCADE", schema)
	if _, err := admin.Exec(ctx, drop+"; CREATE SCHEMA "+schema); err != nil {
		return err
	}
	defer func() {
		_, dropped := admin.Exec(context.WithoutCancel(ctx), drop)
		err = errors.Join(err, dropped)
	}()
	db, err := postgres.Open(with(dsn, "search_path", schema), postgres.Options{})
	if err != nil {
		return err
	}
	return errors.Join(example(ctx, db, out), db.Close())
}

// with adds a setting to a DSN, which is a URL or names and values.
func with(dsn, name, value string) string {
	switch {
	case !strings.Contains(dsn, "://"):
		return dsn + " " + name + "=" + value
	case strings.Contains(dsn, "?"):
		return dsn + "&" + name + "=" + value
	default:
		return dsn + "?" + name + "=" + value
	}
}

// Empty waits until a queue has no row left, or until ctx ends.
func Empty(ctx context.Context, queue interface {
	Len(context.Context) (int, error)
},
) error {
	for {
		if n, err := queue.Len(context.WithoutCancel(ctx)); n == 0 || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
