package rabbit

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

// for100ms is a caller who does not wait long.
func for100ms(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// No more than the window is written before something is confirmed.
func TestWindow(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	line := faults.Proxy(t, server)
	b, _ := testBroker(t, line.URL(), nil)
	p := &Publisher{Broker: b, RoutingKey: queue, Window: 8}
	require.NoError(t, p.Publish(within(t), make([]settle.Message, 100)...), "a call may be larger than the window")
	drain(t, raw, queue, 100)

	line.Blackhole()
	err := p.Publish(for100ms(t), make([]settle.Message, 100)...)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Len(t, settle.PublishErrors(err, 100), 100)
	line.Restore()
	require.NoError(t, p.Publish(within(t), settle.Message{ID: "after"}))
	var last amqp.Delivery
	n := 0
	for ; last.MessageId != "after"; n++ {
		last = drain(t, raw, queue, 1)[0]
	}
	assert.Equal(t, 8+1, n, "the window was written, and then what came after")
}

// Callers who go before their answers leave a window that is half gone: the
// pipe retires, and the next message goes out on another.
func TestPipeRetires(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	line := faults.Proxy(t, server)
	b, _ := testBroker(t, line.URL(), nil)
	p := &Publisher{Broker: b, RoutingKey: queue, Window: 4}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	first, _ := p.sender.pipes.current()

	line.Blackhole()
	require.ErrorIs(t, p.Publish(for100ms(t), settle.Message{}), context.DeadlineExceeded)
	now, ok := p.sender.pipes.current()
	require.True(t, ok)
	require.Same(t, first, now, "one of four is gone")
	require.ErrorIs(t, p.Publish(for100ms(t), settle.Message{}), context.DeadlineExceeded)
	_, ok = p.sender.pipes.current()
	require.False(t, ok, "two of four are gone")

	line.Restore()
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	second, _ := p.sender.pipes.current()
	assert.NotSame(t, first, second)
	assert.Same(t, first.conn, second.conn)
	select {
	case <-first.done:
	case <-within(t).Done():
		require.Fail(t, "the first closes")
	}
	drain(t, raw, queue, 4)
}

// A call that is still waiting keeps its retired pipe open.
func TestRetiredPipeWaitsForItsLast(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	line := faults.Proxy(t, server)
	b, _ := testBroker(t, line.URL(), nil)
	p := &Publisher{Broker: b, RoutingKey: queue, Window: 4}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	first, _ := p.sender.pipes.current()
	line.Blackhole()
	var patient sync.WaitGroup
	patient.Go(func() { assert.NoError(t, p.Publish(within(t), settle.Message{ID: "patient"})) })
	eventually(t, func() bool { return len(first.window) == 1 }, "it is written")
	require.Error(t, p.Publish(for100ms(t), make([]settle.Message, 2)...))
	_, ok := p.sender.pipes.current()
	require.False(t, ok, "retired")
	line.Restore()
	patient.Wait()
	drain(t, raw, queue, 4)
}

// Every message that waits for its confirm is answered when the connection
// goes, without a deadline.
func TestOutstandingIsAnswered(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, _ := rawQueue(t, server, nil)
	line := faults.Proxy(t, server)
	b, _ := testBroker(t, line.URL(), nil)
	p := &Publisher{Broker: b, RoutingKey: queue}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	now, _ := p.sender.pipes.current()
	line.Blackhole()
	var answers sync.WaitGroup
	const callers, each = 10, 20
	for range callers {
		answers.Go(func() {
			// within is the test's patience, not the answer.
			errs := settle.PublishErrors(p.Publish(within(t), make([]settle.Message, each)...), each)
			for _, err := range errs {
				assert.ErrorContains(t, err, "before the confirm, so the message may or may not have arrived")
				assert.False(t, settle.IsPermanent(err))
				assert.ErrorIs(t, err, settle.ErrSessionLost, "it says that the broker is away, not that it refuses the message")
			}
		})
	}
	eventually(t, func() bool { return len(now.window) == callers*each }, "all are written")
	line.Sever()
	line.Restore()
	answers.Wait()
	require.NoError(t, p.Publish(within(t), settle.Message{}), "the next goes out on a new connection")
}

// A body that the caller changes once Publish has returned is sent as it was,
// even where the write goes on.
func TestCallerKeepsTheBody(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	line := faults.Proxy(t, server)
	b, _ := testBroker(t, line.URL(), nil)
	p := &Publisher{Broker: b, RoutingKey: queue}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	drain(t, raw, queue, 1)

	line.Blackhole()
	pipe := stuck(t, p)
	line.Restore()
	for range len(pipe.window) {
		got := drain(t, raw, queue, 1)[0].Body
		assert.Len(t, got, 12<<20)
		assert.Zero(t, bytes.Count(got, []byte("b")))
	}
}

// stuck publishes more than the sockets hold, gives up, and changes the bodies.
func stuck(t testing.TB, p *Publisher) *pipe {
	t.Helper()
	pipe, ok := p.sender.pipes.current()
	require.True(t, ok)
	const large = 12 << 20
	msgs := make([]settle.Message, 8)
	for i := range msgs {
		msgs[i].Body = bytes.Repeat([]byte("a"), large)
	}
	require.ErrorIs(t, p.Publish(for100ms(t), msgs...), context.DeadlineExceeded)
	require.Less(t, len(pipe.window), len(msgs), "a write is stuck")
	for i := range msgs {
		for j := range msgs[i].Body {
			msgs[i].Body[j] = 'b'
		}
	}
	return pipe
}

// A write that is stuck in the socket holds no caller past its deadline, and
// not the broker's Close; the heartbeat ends the connection.
func TestStuckWrite(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, _ := rawQueue(t, server, nil)
	line := faults.Proxy(t, server)
	b, _ := testBroker(t, line.URL(), func(c *Config) { c.Heartbeat = time.Second })
	p := &Publisher{Broker: b, RoutingKey: queue}
	other := &Publisher{Broker: b, RoutingKey: queue}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	require.NoError(t, other.Publish(within(t), settle.Message{}))
	conn, _ := b.publishing.conns.current()

	line.Blackhole()
	pipe := stuck(t, p)
	require.ErrorIs(t, p.Publish(for100ms(t), settle.Message{}), context.DeadlineExceeded)
	require.ErrorIs(t, other.Publish(for100ms(t), settle.Message{}), context.DeadlineExceeded)
	for what, done := range map[string]chan struct{}{"connection": conn.done, "channel": pipe.done} {
		select {
		case <-done:
		case <-within(t).Done():
			require.Fail(t, "the "+what+" is taken for dead, though a write is stuck in it")
		}
	}
	line.Sever()
	line.Restore()
	require.NoError(t, p.Publish(within(t), settle.Message{}))

	line.Blackhole()
	stuck(t, p)
	// The broker's Close at the end of the test has a stuck write to end.
}

// An alarm: callers get ErrBlocked at their deadline, one who waits gets his
// confirm once it is over, and consuming goes on meanwhile.
func TestBlocked(t *testing.T) {
	server := services.URL(t, services.RabbitFault)
	queue, _ := rawQueue(t, server, nil)
	b, log := testBroker(t, server, nil)
	p := &Publisher{Broker: b, RoutingKey: queue}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	consuming, err := b.consumeChannel(within(t))
	require.NoError(t, err)
	eventually(t, func() bool { return !b.blocked() }, "no alarm is left over")

	alarm(t, true)
	t.Cleanup(func() { alarm(t, false) })
	// The server tells a connection that it is blocked when it publishes.
	eventually(t, func() bool {
		err := p.Publish(for100ms(t), settle.Message{})
		return err != nil && assert.ErrorIs(t, err, settle.ErrBlocked) && assert.ErrorIs(t, err, context.DeadlineExceeded)
	}, "the publisher is told")
	require.True(t, b.blocked())
	goroutines := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		require.ErrorIs(t, (&Publisher{Broker: b}).Publish(ctx, settle.Message{To: queue}), settle.ErrBlocked, "one that has no channel yet")
		cancel()
	}
	assert.Less(t, runtime.NumGoroutine(), goroutines+10, "they do not pile up")
	require.ErrorIs(t, b.publish(for100ms(t), []outgoing{{key: queue}})[0], settle.ErrBlocked)
	require.NoError(t, consuming.do(within(t), func(ch *amqp.Channel) error {
		_, _, err := ch.Get(queue, true)
		return err
	}), "the consuming connection is not blocked")

	var patient sync.WaitGroup
	patient.Go(func() { assert.NoError(t, p.Publish(within(t), settle.Message{})) })
	alarm(t, false)
	patient.Wait()
	require.False(t, b.blocked())
	assert.Contains(t, log.String(), "takes no messages for now")
	assert.Contains(t, log.String(), "takes messages again")
}

// The broker closes while it is blocked, though the server would not answer.
func TestCloseWhileBlocked(t *testing.T) {
	server := services.URL(t, services.RabbitFault)
	queue, _ := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	p := &Publisher{Broker: b, RoutingKey: queue}
	alarm(t, true)
	t.Cleanup(func() { alarm(t, false) })
	eventually(t, func() bool { return p.Publish(for100ms(t), settle.Message{}) != nil && b.blocked() }, "blocked")
	var waiting sync.WaitGroup
	waiting.Go(func() { assert.Error(t, p.Publish(within(t), settle.Message{}), "answered by the end") })
	require.NoError(t, b.Close(within(t)))
	waiting.Wait()
}

func alarm(t testing.TB, on bool) {
	t.Helper()
	limit := "0.6"
	if on {
		limit = "0.00001"
	}
	services.Ctl(t, services.RabbitFault, "set_vm_memory_high_watermark", limit)
}

// Whatever happens to the network, what Publish reported as safe is there.
func TestNothingReportedSafeIsLost(t *testing.T) {
	total := int64(4_000)
	if os.Getenv("SETTLE_TEST_ALL") == "1" {
		total = 20_000
	}
	eachServer(t, func(t *testing.T, server string) {
		queue, raw := rawQueue(t, server, nil)
		line := faults.Proxy(t, server)
		b, _ := testBroker(t, line.URL(), nil)
		p := &Publisher{Broker: b, RoutingKey: queue, Window: 64}
		const callers, each = 8, 25
		var next atomic.Int64
		var mu sync.Mutex // guards safe
		safe := make(map[string]bool)
		var publishing, severing sync.WaitGroup
		stop := make(chan struct{})
		cuts := 0
		severing.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(20+rand.IntN(60)) * time.Millisecond):
					cuts += line.Sever()
				}
			}
		})
		for range callers {
			publishing.Go(func() {
				for {
					first := next.Add(each) - each
					if first >= total {
						return
					}
					msgs := make([]settle.Message, each)
					for i := range msgs {
						msgs[i] = settle.Message{ID: strconv.FormatInt(first+int64(i), 10), Body: []byte("x")}
					}
					for len(msgs) > 0 {
						errs := settle.PublishErrors(p.Publish(within(t), msgs...), len(msgs))
						again := msgs[:0]
						mu.Lock()
						for i, err := range errs {
							if err != nil {
								again = append(again, msgs[i])
							} else {
								safe[msgs[i].ID] = true
							}
						}
						mu.Unlock()
						msgs = again
					}
				}
			})
		}
		publishing.Wait()
		close(stop)
		severing.Wait()
		require.Len(t, safe, int(total))

		n := ready(t, raw, queue)
		for _, d := range drain(t, raw, queue, n) {
			delete(safe, d.MessageId)
		}
		assert.Empty(t, safe, "reported as safe and not there")
		t.Logf("%d cuts, %d messages, %d duplicates", cuts, total, int64(n)-total)
	})
}

// Messages of one call keep their order.
func TestOrder(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	p := &Publisher{Broker: b, RoutingKey: queue}
	msgs := make([]settle.Message, 3000)
	for i := range msgs {
		msgs[i].ID = fmt.Sprint(i)
	}
	require.NoError(t, p.Publish(within(t), msgs...))
	for i, d := range drain(t, raw, queue, len(msgs)) {
		require.Equal(t, fmt.Sprint(i), d.MessageId)
	}
}

func TestCallerThatHasGoneSendsNothing(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	p := &Publisher{Broker: b, RoutingKey: queue}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		require.ErrorIs(t, p.Publish(ctx, settle.Message{}), context.Canceled)
	}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	assert.Equal(t, 2, ready(t, raw, queue))
}

// What a pipe could not write any more has no answer: it goes out on the next.
func TestDeadPipeWritesNothing(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, _ := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	p := &Publisher{Broker: b, RoutingKey: queue}
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	pipe, _ := p.sender.pipes.current()
	require.NoError(t, pipe.close(within(t)))
	out := []outgoing{{key: queue}}
	c := newCall(within(t), out, users)
	assert.False(t, pipe.writeNext(c, 0))
	written, _ := c.progress()
	assert.Zero(t, written)
	assert.Empty(t, pipe.window)
	assert.Zero(t, pipe.send(within(t), out, users))
	require.NoError(t, p.Publish(within(t), settle.Message{}))
}
