package rabbit

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// To receive a message costs one allocation beside those of the client library:
// our record of the delivery.
func TestReceiveAllocatesOnce(t *testing.T) {
	const group = 64
	deliveries := make(chan amqp.Delivery, group)
	c := &consumer{deliveries: deliveries, policy: policy{copyMaker: copyMaker{queue: "q", countHeader: CountHeader}, limit: -1}}
	d := amqp.Delivery{Headers: amqp.Table{"h": "v"}, Body: []byte("x"), RoutingKey: "q"}
	buf := make([]*settle.Delivery, group)
	a := testing.AllocsPerRun(100, func() {
		for range group {
			d.DeliveryTag++
			deliveries <- d
		}
		n, err := c.Receive(context.Background(), buf)
		if n != group || err != nil {
			panic(err)
		}
		c.open = openDeliveries{}
	})
	assert.LessOrEqual(t, a, float64(group)+1)
}

// From its queue to its ack a message costs no more allocations than in the
// client's own loop: the acks that are saved by grouping outweigh our own.
func TestNoMoreAllocationsThanTheClient(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	const n = 5000
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			queue, ch := rawQueue(t, url, amqp.Table{"x-queue-type": kind})
			fill := func() {
				msgs := make([]amqp.Publishing, n)
				for i := range msgs {
					msgs[i] = amqp.Publishing{Body: bytes.Repeat([]byte("x"), 512), Headers: amqp.Table{"h": "v"}}
				}
				publishTo(t, ch, queue, msgs...)
			}
			fill()
			before := mallocs()
			rawLoop(t, url, queue, n)
			client := mallocs() - before

			fill()
			b, _ := testBroker(t, url, nil)
			source := settle.Source(&ClassicQueue{Broker: b, Queue: queue})
			if kind == "quorum" {
				source = &QuorumQueue{Broker: b, Queue: queue}
			}
			before = mallocs()
			ourLoop(t, source, n)
			ours := mallocs() - before
			t.Logf("%.2f allocations a message, %.2f of them the client's", float64(ours)/n, float64(client)/n)
			assert.Less(t, float64(ours), float64(client)+1.3*n)
		})
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// rawLoop consumes n messages with the client library alone, an ack for each.
func rawLoop(t testing.TB, url, queue string, n int) {
	ch := rawChannel(t, url)
	require.NoError(t, ch.Qos(64, 0, false))
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	for range n {
		d := <-deliveries
		require.NoError(t, d.Ack(false))
	}
	require.NoError(t, ch.Close())
}

// ourLoop consumes n messages by a runtime.
func ourLoop(t testing.TB, source settle.Source, n int64) {
	var handled atomic.Int64
	rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rt.Handle(source, func(context.Context, *settle.Delivery) settle.Outcome {
		if handled.Add(1) == n {
			cancel()
		}
		return settle.Ack()
	}, settle.Options{Workers: 1, Prefetch: 64})
	require.NoError(t, rt.Run(ctx))
}
