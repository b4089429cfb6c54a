package settle_test

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"testing"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settlemem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A runtime keeps nothing of the messages that went through it.
func TestMemoryIsFlat(t *testing.T) {
	total := 100_000
	if os.Getenv("SETTLE_TEST_ALL") != "" {
		total = 1_000_000
	}
	var broker settlemem.Broker
	queue := broker.Queue("queue")
	rt := settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	rt.Handle(queue, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if d.Attempt == 1 && d.Body[0]%8 == 0 {
			return settle.Retry(nil)
		}
		return settle.Ack()
	}, settle.Options{Workers: 8, MaxAttempts: 3, DeadLetter: "dead", Lane: func(d *settle.Delivery) string { return d.Key }})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- rt.Run(ctx) }()

	through := func(n int) {
		for i := range n {
			m := settle.Message{Body: []byte{byte(i)}, Key: string(rune('a' + i%1000))}
			require.NoError(t, queue.Publish(ctx, m))
			if i%1000 == 999 {
				require.NoError(t, queue.WaitEmpty(ctx))
			}
		}
		require.NoError(t, queue.WaitEmpty(ctx))
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	through(10_000)
	before := heap()
	through(total)
	after := heap()
	t.Logf("%d messages: the heap went from %d to %d KB", total, before>>10, after>>10)
	assert.Less(t, after, before+2<<20)
	cancel()
	require.NoError(t, <-result)
}
