package rabbit

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// With default options a backlog of a million messages makes the process no
// larger than a short one: what it has at once is bounded by the prefetch.
func TestMillionMessagesStayOnTheServer(t *testing.T) {
	services.TestAll(t)
	const total, most = 1_000_000, 64 << 20
	url := services.URL(t, services.Rabbit)
	for _, quorum := range []bool{false, true} {
		b, _ := testBroker(t, url, nil)
		queue := unique(t, url, "q")
		source := profile{quorum: quorum}.source(b, queue)
		// A first session declares the queue.
		s := serve(t, source, settle.Options{}, acks)
		s.opened(1)
		s.stop()
		publisher := &Publisher{Broker: b, RoutingKey: queue}
		msgs := make([]settle.Message, 1000)
		for i := range msgs {
			msgs[i].Body = bytes.Repeat([]byte("x"), 512)
		}
		for range total / len(msgs) {
			require.NoError(t, publisher.Publish(within(t), msgs...))
		}
		runtime.GC()
		var peak uint64
		look := func() {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse+m.StackInuse)
		}
		look()
		before := peak
		var handled atomic.Int64
		rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
		rt.Handle(source, func(context.Context, *settle.Delivery) settle.Outcome {
			handled.Add(1)
			return settle.Ack()
		}, settle.Options{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx) }()
		require.Eventually(t, func() bool {
			look()
			return handled.Load() >= total
		}, 10*time.Minute, 20*time.Millisecond)
		cancel()
		require.NoError(t, <-done)
		t.Logf("quorum %v: peak memory in use %.1f MiB, %.1f MiB before", quorum, float64(peak)/(1<<20), float64(before)/(1<<20))
		assert.Less(t, peak, uint64(most))
		assert.EqualValues(t, total, handled.Load())
	}
}
