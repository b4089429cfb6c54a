package exampletest

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/settlemq/settle/examples/internal/sqlserver"
	"github.com/settlemq/settle/internal/services"
)

// Postgres runs an example on the real server and returns what it printed.
func Postgres(t *testing.T, example sqlserver.Example) string {
	t.Helper()
	dsn := services.URL(t, services.Postgres)
	return Run(t, func(ctx context.Context, out io.Writer) error {
		return sqlserver.InSchema(ctx, dsn, fmt.Sprintf("test-%d", os.Getpid()), example, out)
	})
}
