package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/settlemq/settle/sqlq"
)

// This file keeps the server to the index that claims need. It plans a prepared
// statement once, and by what it believes of the table then: while that is small, or was when it last
// looked, it reads and sorts all of it, and goes on so when a million rows have come. So
// connections of our own have the ways off that do without an index; on others each claim says so. A handler's
// transaction is set as usual.
//
// What is off and cannot be done without, such as the sort of a few candidates, costs more than anything in the books of a
// server before 18, which would compile such a statement each time it runs it: so jit is off as well.

const (
	unsteady = "SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true), set_config('enable_sort', 'on', true)"
	steady   = "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true)"
	// steadyKey is where a connection has that it is one of ours.
	steadyKey = "settle.steady"
)

// setSteady sets up a connection of our own. One that something between us and the server
// hands to others as well it leaves alone.
func setSteady(ctx context.Context, c *pgx.Conn) error {
	own, err := direct(ctx, c)
	if err != nil || !own {
		return err
	}
	_, err = c.Exec(ctx, "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET jit = off")
	c.PgConn().CustomData()[steadyKey] = true
	return err
}

// direct reports whether the server itself is at the other end of a connection.
func direct(ctx context.Context, c *pgx.Conn) (bool, error) {
	var backend uint32
	err := c.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&backend)
	return backend == c.PgConn().PID(), err
}

// steadied are the steps that go before others in their transaction on a connection.
func steadied(c *pgx.Conn, steps []sqlq.Step) []sqlq.Step {
	for i := range steps {
		if steps[i].Walk && c.PgConn().CustomData()[steadyKey] == nil {
			return []sqlq.Step{{SQL: steady}}
		}
	}
	return nil
}

// Lend implements sqlq.Lender.
func (dialect) Lend() []sqlq.Step { return []sqlq.Step{{SQL: unsteady}} }
