// Package pulsartest runs the Pulsar example programs as tests.
package pulsartest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/examples/internal/exampletest"
	"github.com/settlemq/settle/examples/internal/pulsarserver"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/pulsar"
)

// Run runs an example on the real server and returns what it printed.
func Run(t *testing.T, example pulsarserver.Example) string {
	t.Helper()
	broker, err := pulsar.New(pulsar.Config{
		URL: services.URL(t, services.Pulsar), Token: services.PulsarToken(t), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	require.NoError(t, err)
	return exampletest.Run(t, func(ctx context.Context, out io.Writer) error {
		return errors.Join(example(ctx, broker, out), broker.Close(ctx))
	})
}
