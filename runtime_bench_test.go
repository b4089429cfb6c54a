package settle_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settlemem"
)

// BenchmarkRuntime measures a message from receive to settle on the broker in
// memory, with no Timeout and no observer. BenchmarkChannels is the bare
// pipeline of two channels that it is to be held against.
func BenchmarkRuntime(b *testing.B) {
	for _, workers := range []int{1, 8} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			var broker settlemem.Broker
			queue := broker.Queue("bench")
			message := settle.Message{Body: []byte("x")}
			for range b.N {
				if err := queue.Publish(context.Background(), message); err != nil {
					b.Fatal(err)
				}
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan struct{})
			rt := settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
			rt.Handle(queue, func(context.Context, *settle.Delivery) settle.Outcome {
				if left.Add(-1) == 0 {
					close(done)
				}
				return settle.Ack()
			}, settle.Options{Workers: workers})
			ctx, cancel := context.WithCancel(context.Background())
			stopped := make(chan error, 1)
			b.ReportAllocs()
			b.ResetTimer()
			go func() { stopped <- rt.Run(ctx) }()
			<-done
			if err := queue.WaitEmpty(ctx); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			cancel()
			if err := <-stopped; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkChannels is what any design with a channel before and after the
// workers pays for the channels alone.
func BenchmarkChannels(b *testing.B) {
	for _, workers := range []int{1, 8} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			in, out := make(chan *settle.Delivery, 32), make(chan *settle.Delivery, 256)
			var working sync.WaitGroup
			for range workers {
				working.Go(func() {
					for d := range in {
						out <- d
					}
				})
			}
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				for range b.N {
					in <- &settle.Delivery{}
				}
				close(in)
				working.Wait()
				close(out)
			}()
			for range out {
			}
		})
	}
}
