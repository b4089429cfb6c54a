package exampletest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/rabbit"
)

// Rabbit runs an example on the real server and returns what it printed.
func Rabbit(t *testing.T, run func(context.Context, *rabbit.Broker, io.Writer) error) string {
	t.Helper()
	broker, err := rabbit.New(rabbit.Config{
		URLs: []string{services.URL(t, services.Rabbit)}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	require.NoError(t, err)
	return Run(t, func(ctx context.Context, out io.Writer) error {
		return errors.Join(run(ctx, broker, out), broker.Close(ctx))
	})
}
