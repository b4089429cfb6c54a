package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/exampletest"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq/postgres"
)

func TestRun(t *testing.T) {
	out := exampletest.Postgres(t, run)
	for _, line := range []string{
		"to ann, attempt 1: ack\n",
		"to busy, attempt 2: ack\n",
		"to late, attempt 1: ack\n",
		"to down, attempt 3: retry_after(200ms): the server is busy\n",
		"ann is sent\n",
		"busy is sent the server is busy\n", // what made the attempt before fail stays
		"late is sent\n",
		"nobody is failed there is no such address\n",
		"down is failed the server is busy\n",
		"the log has 3 lines\n",
	} {
		assert.Contains(t, out, line)
	}
	assert.NotContains(t, out, "attempt 4")
}

// What the library says of the table is all that is to be done to it.
func TestTheAdvice(t *testing.T) {
	exampletest.Postgres(t, func(ctx context.Context, db *postgres.DB, _ io.Writer) error {
		_, err := db.Pool().Exec(ctx, old)
		require.NoError(t, err)
		options := settle.Options{MaxAttempts: attempts, DeadLetter: "failed"}
		says := sqltest.Weakened(t, db.Queue(tasks), options)
		require.Len(t, says, 1)
		_, remedy, found := strings.Cut(says[0], "run: ")
		require.True(t, found, says[0])
		_, err = db.Pool().Exec(ctx, remedy)
		require.NoError(t, err)
		assert.Empty(t, sqltest.Weakened(t, db.Queue(tasks), options), "with the index there is nothing to say")
		return nil
	})
}
