// Package pulsartest runs the Pulsar example programs as tests.
package pulsartest

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out := new(output)
	require.NoError(t, example(ctx, broker, out))
	require.NoError(t, broker.Close(ctx))
	return out.text.String()
}

// output takes what several goroutines print.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}
