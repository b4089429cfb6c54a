package rabbit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/internal/services"
)

// This file leads the tests of this package to the real servers.

// patience is how long a test waits for what has to happen before it fails.
const patience = 20 * time.Second

// eachServer runs a test against every server version that is supported.
func eachServer(t *testing.T, test func(t *testing.T, url string)) {
	for _, s := range []services.Service{services.Rabbit, services.Rabbit310} {
		t.Run(string(s), func(t *testing.T) { test(t, services.URL(t, s)) })
	}
}

// within returns a context that ends with the test's patience.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// testBroker returns a broker that closes with the test, and what it logs.
// change may be nil.
func testBroker(t testing.TB, url string, change func(*Config)) (*Broker, *logged) {
	t.Helper()
	log := new(logged)
	config := Config{URLs: []string{url}, Name: t.Name(), Logger: slog.New(slog.NewTextHandler(log, nil))}
	if change != nil {
		change(&config)
	}
	b, err := New(config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		assert.NoError(t, b.Close(ctx), "the broker leaves nothing behind")
	})
	return b, log
}

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// rawChannel is a channel of the client library with nothing of ours in between.
func rawChannel(t testing.TB, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

// unique is a name that no other test uses; what has it on the server is
// deleted after the test.
func unique(t testing.TB, url, name string) string {
	t.Helper()
	full := fmt.Sprintf("settle-test.%s.%s.%d", strings.ReplaceAll(t.Name(), "/", "."), name, time.Now().UnixNano())
	t.Cleanup(func() {
		conn, err := amqp.Dial(url)
		if err != nil {
			return
		}
		defer conn.Close()
		if ch, err := conn.Channel(); err == nil {
			_, _ = ch.QueueDelete(full, false, false, false)
			_ = ch.ExchangeDelete(full, false, false)
		}
	})
	return full
}

// rawQueue declares a queue of the test's own, a classic one unless args say
// otherwise.
func rawQueue(t testing.TB, url string, args amqp.Table) (string, *amqp.Channel) {
	t.Helper()
	ch := rawChannel(t, url)
	name := unique(t, url, "q")
	_, err := ch.QueueDeclare(name, true, false, false, false, args)
	require.NoError(t, err)
	return name, ch
}

// drain takes the messages that are in a queue, until it has n or the test's
// patience ends.
func drain(t testing.TB, ch *amqp.Channel, queue string, n int) []amqp.Delivery {
	t.Helper()
	var got []amqp.Delivery
	for deadline := time.Now().Add(patience); len(got) < n; {
		d, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		switch {
		case ok:
			got = append(got, d)
		case time.Now().After(deadline):
			require.Failf(t, "messages are missing", "queue %s had %d of %d", queue, len(got), n)
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
	return got
}

// count is how many messages a queue has ready.
func ready(t testing.TB, ch *amqp.Channel, queue string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return q.Messages
}

// eventually waits for a condition.
func eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond, what)
}

// unused is the address of a port that nobody listens on.
func unused(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
