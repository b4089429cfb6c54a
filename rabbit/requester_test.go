package rabbit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

// answering consumes a new queue and gives each request to answer.
func answering(t testing.TB, server string, answer func(*settle.Delivery, amqp.Delivery)) string {
	t.Helper()
	queue, raw := rawQueue(t, server, nil)
	requests, err := raw.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for d := range requests {
			answer(&settle.Delivery{Body: d.Body, Native: d}, d)
		}
	}()
	t.Cleanup(func() {
		raw.Close()
		<-done
	})
	return queue
}

// Each of many requests at once gets its own reply, and the server keeps nothing.
func TestRequest(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		replier, _ := testBroker(t, server, nil)
		queue := answering(t, server, func(request *settle.Delivery, d amqp.Delivery) {
			assert.EqualValues(t, amqp.Transient, d.DeliveryMode)
			ms, err := strconv.Atoi(d.Expiration)
			assert.NoError(t, err)
			assert.LessOrEqual(t, ms, int(patience.Milliseconds()), "it expires with its caller's patience")
			assert.NoError(t, replier.Reply(context.Background(), request, settle.Message{
				Body: append([]byte("re: "), request.Body...), Headers: settle.Headers{"h": "v"}, To: "ignored",
			}))
		})
		r := &Requester{Broker: b, RoutingKey: queue, ContentType: "text/plain"}
		var asking sync.WaitGroup
		for i := range 8 {
			asking.Go(func() {
				for j := range 50 {
					body := fmt.Sprintf("%d.%d", i, j)
					reply, err := r.Request(within(t), settle.Message{Body: []byte(body)})
					if assert.NoError(t, err) {
						assert.Equal(t, "re: "+body, string(reply.Body))
						assert.Equal(t, "v", reply.Headers.Get("h"))
					}
				}
			})
		}
		asking.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		assert.Empty(t, r.waiting)
	})
}

func TestRequestToNobody(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		r := &Requester{Broker: b}
		_, err := r.Request(within(t), settle.Message{To: "settle-test-nowhere"})
		require.ErrorIs(t, err, settle.ErrUnroutable)
		assert.True(t, settle.IsPermanent(err))
		_, err = r.Request(within(t), settle.Message{})
		require.ErrorContains(t, err, "no To")
		assert.True(t, settle.IsPermanent(err))
		_, err = (&Requester{}).Request(within(t), settle.Message{To: "q"})
		var config *settle.ConfigError
		require.ErrorAs(t, err, &config)
		assert.Empty(t, r.waiting)
	})
}

// A reply that does not come in time is an error; one that comes later goes
// to nobody, and the next request gets its own.
func TestRequestInTime(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		var late []*settle.Delivery
		queue := answering(t, server, func(request *settle.Delivery, _ amqp.Delivery) {
			late = append(late, request)
			if len(late) == 1 {
				return
			}
			for _, r := range late {
				assert.NoError(t, b.Reply(context.Background(), r, settle.Message{Body: r.Body}))
			}
		})
		r := &Requester{Broker: b, RoutingKey: queue}
		_, err := r.Request(for100ms(t), settle.Message{Body: []byte("first")})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Empty(t, r.waiting, "nobody waits any more")
		reply, err := r.Request(within(t), settle.Message{Body: []byte("second")})
		require.NoError(t, err)
		assert.Equal(t, "second", string(reply.Body))
	})
}

// Whoever waits for a reply is answered when the connection goes, and the next
// request goes out on a new one.
func TestRequestWhileTheConnectionGoes(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	line := faults.Proxy(t, server)
	b, _ := testBroker(t, line.URL(), nil)
	replier, _ := testBroker(t, server, nil)
	silent := make(chan struct{}, 1)
	queue := answering(t, server, func(request *settle.Delivery, _ amqp.Delivery) {
		select {
		case silent <- struct{}{}:
		default:
			assert.NoError(t, replier.Reply(context.Background(), request, settle.Message{}))
		}
	})
	r := &Requester{Broker: b, RoutingKey: queue}
	require.NoError(t, r.init())
	var asking sync.WaitGroup
	asking.Go(func() {
		_, err := r.Request(within(t), settle.Message{})
		assert.ErrorContains(t, err, "before the reply, so the request may or may not have been handled")
	})
	eventually(t, func() bool {
		pipe, ok := r.publisher.sender.pipes.current()
		return ok && len(silent) == 1 && len(pipe.window) == 0
	}, "it is asked, and the request is confirmed")
	line.Sever()
	asking.Wait()
	_, err := r.Request(within(t), settle.Message{})
	require.NoError(t, err)
}

func TestReply(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		queue, raw := rawQueue(t, server, nil)

		// To a queue, as other clients ask for.
		request := &settle.Delivery{Native: amqp.Delivery{ReplyTo: queue, CorrelationId: "c-1"}}
		require.NoError(t, b.Reply(within(t), request, settle.Message{Body: []byte("yes")}))
		d := drain(t, raw, queue, 1)[0]
		assert.Equal(t, "c-1", d.CorrelationId)
		assert.Equal(t, "yes", string(d.Body))

		gone := &settle.Delivery{Native: amqp.Delivery{ReplyTo: "settle-test-nowhere"}}
		err := b.Reply(within(t), gone, settle.Message{})
		require.ErrorIs(t, err, settle.ErrUnroutable)
		assert.True(t, settle.IsPermanent(err))

		for _, none := range []*settle.Delivery{{}, {Native: amqp.Delivery{}}} {
			err := b.Reply(within(t), none, settle.Message{})
			require.ErrorContains(t, err, "asks for no reply")
			assert.True(t, settle.IsPermanent(err))
		}
	})
}

// A requester that has gone costs the replier nothing, whatever became of its
// address.
func TestReplyToSomebodyGone(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		requests := make(chan *settle.Delivery, 1)
		queue := answering(t, server, func(request *settle.Delivery, _ amqp.Delivery) { requests <- request })
		requester, _ := testBroker(t, server, nil)
		r := &Requester{Broker: requester, RoutingKey: queue}
		_, err := r.Request(for100ms(t), settle.Message{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, requester.Close(within(t)))
		request := <-requests
		require.NoError(t, b.Reply(within(t), request, settle.Message{}))

		var d amqp.Delivery
		require.True(t, request.As(&d))
		d.ReplyTo = d.ReplyTo[:strings.LastIndex(d.ReplyTo, ".")] + ".made-up"
		_ = b.Reply(within(t), &settle.Delivery{Native: d}, settle.Message{})
		other, raw := rawQueue(t, server, nil)
		require.NoError(t, b.Reply(within(t), &settle.Delivery{Native: amqp.Delivery{ReplyTo: other}}, settle.Message{}))
		drain(t, raw, other, 1)
	})
}

func ExampleRequester() {
	broker, err := New(Config{URLs: []string{"amqp://guest:guest@localhost:5672/"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close(context.Background())

	// The one who answers is a handler on the queue "prices".
	_ = settle.Handler(func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		if err := broker.Reply(ctx, d, settle.Message{Body: []byte("42")}); err != nil {
			return settle.Retry(err)
		}
		return settle.Ack()
	})

	prices := &Requester{Broker: broker, RoutingKey: "prices"}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	reply, err := prices.Request(ctx, settle.Message{Body: []byte("apples")})
	fmt.Println(string(reply.Body), err)
}
