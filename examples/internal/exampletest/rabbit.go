// Package exampletest runs the example programs as tests.
package exampletest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out := new(output)
	require.NoError(t, run(ctx, broker, out))
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
