// Package exampletest runs the example programs as tests.
package exampletest

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Run runs an example and returns what it printed. Nothing of it goes on afterwards.
func Run(t *testing.T, run func(ctx context.Context, out io.Writer) error) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out := new(output)
	err := run(ctx, out)
	require.NoError(t, err, out.String())
	goleak.VerifyNone(t)
	return out.String()
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

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
