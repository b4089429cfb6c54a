package rabbit

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// ackWatch counts the basic.ack frames that leave on its connections.
type ackWatch struct {
	mu           sync.Mutex // guards what follows
	acks, groups int
}

// dial is a Config.Dial whose connections are watched.
func (w *ackWatch) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: conn, watch: w}, nil
}

// watchedConn reads along what is written: the protocol's header, then frames.
type watchedConn struct {
	net.Conn
	watch  *ackWatch
	unread []byte
	begun  bool
}

func (c *watchedConn) Write(p []byte) (int, error) {
	c.unread = append(c.unread, p...)
	if !c.begun && len(c.unread) >= 8 {
		c.begun, c.unread = true, c.unread[8:]
	}
	for c.begun && len(c.unread) >= 7 {
		size := int(binary.BigEndian.Uint32(c.unread[3:]))
		if len(c.unread) < 7+size+1 {
			break
		}
		c.watch.frame(c.unread[0], c.unread[7:7+size])
		c.unread = c.unread[7+size+1:]
	}
	return c.Conn.Write(p)
}

// frame counts a method frame of class 60, method 80.
func (w *ackWatch) frame(kind byte, payload []byte) {
	if kind != 1 || !bytes.HasPrefix(payload, []byte{0, 60, 0, 80}) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acks++
	if payload[12]&1 != 0 {
		w.groups++
	}
}

// Deliveries that are ready together share an ack, unless AckEach forbids it.
func TestAckEach(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, quorum := range []bool{false, true} {
			for _, each := range []bool{false, true} {
				t.Run(fmt.Sprintf("quorum=%v/each=%v", quorum, each), func(t *testing.T) {
					const messages = 400
					var watch ackWatch
					broker, _ := testBroker(t, url, func(c *Config) { c.Dial = watch.dial })
					kind := "classic"
					if quorum {
						kind = "quorum"
					}
					queue, ch := rawQueue(t, url, amqp.Table{amqp.QueueTypeArg: kind})
					for i := range messages {
						require.NoError(t, ch.PublishWithContext(within(t), "", queue, false, false, amqp.Publishing{Body: []byte(strconv.Itoa(i))}))
					}
					var source settle.Source = &ClassicQueue{Broker: broker, Queue: queue, AckEach: each}
					if quorum {
						source = &QuorumQueue{Broker: broker, Queue: queue, AckEach: each}
					}
					ctx, stop := context.WithCancel(within(t))
					rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
					left := messages
					rt.HandleBatch(source, func(_ context.Context, batch []*settle.Delivery) []settle.Outcome {
						outcomes := make([]settle.Outcome, len(batch))
						for i := range outcomes {
							outcomes[i] = settle.Ack()
						}
						if left -= len(batch); left == 0 {
							stop()
						}
						return outcomes
					}, settle.Options{BatchSize: 50, Prefetch: 200})
					require.NoError(t, rt.Run(ctx))
					watch.mu.Lock()
					defer watch.mu.Unlock()
					if each {
						assert.Equal(t, messages, watch.acks)
						assert.Zero(t, watch.groups)
					} else {
						assert.Less(t, watch.acks, messages)
						assert.NotZero(t, watch.groups)
					}
				})
			}
		}
	})
}
