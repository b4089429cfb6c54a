package rabbit

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// What is published is what arrives.
func TestPublish(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		queue, raw := rawQueue(t, server, amqp.Table{"x-max-priority": 5})
		b, _ := testBroker(t, server, nil)
		before := time.Now().Truncate(time.Second)
		p := &Publisher{Broker: b, RoutingKey: queue, ContentType: "text/plain"}
		require.NoError(t, p.Publish(within(t)), "nothing to publish is no error")
		require.NoError(t, p.Publish(within(t), settle.Message{
			ID: "id-1", Key: "customer-7", Body: []byte("hello"), Priority: 3,
			Headers: settle.Headers{"text": "t", "int": math.MaxInt32 + 1, "bytes": []byte{1, 2}, "list": []string{"a", "b"}, "nested": map[string]any{"n": uint(7)}, "nil": nil, "flag": true, "float": 1.5},
		}))
		require.NoError(t, (&Publisher{Broker: b, Transient: true, DropUnroutable: true}).Publish(within(t), settle.Message{To: queue}))

		got := drain(t, raw, queue, 2)
		d := got[0]
		assert.Equal(t, "id-1", d.MessageId)
		assert.Equal(t, []byte("hello"), d.Body)
		assert.Equal(t, "text/plain", d.ContentType)
		assert.EqualValues(t, 3, d.Priority)
		assert.EqualValues(t, amqp.Persistent, d.DeliveryMode, "persistent unless told otherwise")
		assert.False(t, d.Timestamp.Before(before))
		require.Contains(t, d.Headers, returnHeader, "mandatory unless told otherwise")
		delete(d.Headers, returnHeader)
		assert.Equal(t, amqp.Table{
			"text": "t", "int": int64(math.MaxInt32 + 1), "bytes": []byte{1, 2}, "list": []any{"a", "b"}, "nested": amqp.Table{"n": int64(7)}, "nil": nil, "flag": true, "float": 1.5,
			keyHeader: "customer-7",
		}, d.Headers)
		assert.EqualValues(t, amqp.Transient, got[1].DeliveryMode)
		assert.Empty(t, got[1].Headers)
	})
}

// What cannot be sent is refused, for good and by name, and costs the others nothing.
func TestPublishRefuses(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	p := &Publisher{Broker: b}
	good := settle.Message{To: queue, Body: []byte("good")}
	require.NoError(t, p.Publish(within(t), good))
	conn, _ := b.publishing.conns.current()

	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		name string
		bad  settle.Message
		says string
	}{
		{"no destination", settle.Message{}, "no To"},
		{"a delay", settle.Message{To: queue, Delay: time.Second}, "1s"},
		{"negative priority", settle.Message{To: queue, Priority: -1}, "priority -1"},
		{"priority too high", settle.Message{To: queue, Priority: 256}, "priority 256"},
		{"long routing key", settle.Message{To: long}, "routing key has 256 bytes"},
		{"long id", settle.Message{To: queue, ID: long}, "message id has 256 bytes"},
		{"long header name", settle.Message{To: queue, Headers: settle.Headers{long: 1}}, "its name has 256 bytes"},
		{"long nested header name", settle.Message{To: queue, Headers: settle.Headers{"h": map[string]any{long: 1}}}, `header "h"`},
		{"a header of a type that AMQP lacks", settle.Message{To: queue, Headers: settle.Headers{"h": time.Second}}, `header "h": a time.Duration cannot travel`},
		{"a channel in a list", settle.Message{To: queue, Headers: settle.Headers{"h": []any{make(chan int)}}}, `header "h": a chan int`},
		{"an unsigned number too large", settle.Message{To: queue, Headers: settle.Headers{"h": uint64(math.MaxUint64)}}, `header "h": 18446744073709551615`},
		{"CC that is no list", settle.Message{To: queue, Headers: settle.Headers{"CC": "other"}}, `header "CC": the server takes a list`},
		{"BCC of nothing", settle.Message{To: queue, Headers: settle.Headers{"BCC": nil}}, `header "BCC": the server takes a list`},
		{"headers over frame_max", settle.Message{To: queue, Headers: settle.Headers{"small": 1, "huge": strings.Repeat("x", 200_000)}}, `the largest is "huge"`},
		{"a body over the server's limit", settle.Message{To: queue, Body: make([]byte, 20<<20)}, "20971520 bytes and the server takes 16777216"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := p.Publish(within(t), good, c.bad, good)
			var failed *settle.PublishError
			require.ErrorAs(t, err, &failed)
			require.Len(t, failed.Failed, 1, "the others are safe")
			assert.Equal(t, 1, failed.Failed[0].Index)
			assert.Equal(t, 3, failed.Total)
			assert.ErrorContains(t, failed.Failed[0].Err, c.says)
			assert.True(t, settle.IsPermanent(failed.Failed[0].Err))
			drain(t, raw, queue, 2)
		})
	}
	now, _ := b.publishing.conns.current()
	assert.Same(t, conn, now, "the connection lives")
}

// What fits a frame to the byte is sent, and a byte more is not: past 8 bytes
// more, which it forgives, the server ends the connection with everything on it.
func TestHeadersFillTheFrame(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		queue, _ := rawQueue(t, server, nil)
		b, _ := testBroker(t, server, nil)
		p := &Publisher{Broker: b, RoutingKey: queue, DropUnroutable: true}
		require.NoError(t, p.Publish(within(t), settle.Message{}))
		conn, _ := b.publishing.conns.current()

		fits := 0
		for low, high := 1000, conn.frameMax; low <= high; {
			fits = (low + high) / 2
			o, err := p.encode(&settle.Message{Headers: settle.Headers{"h": strings.Repeat("x", fits)}}, time.Now())
			require.NoError(t, err)
			if checkFrames(&o, conn.frameMax) == nil {
				low = fits + 1
			} else {
				high = fits - 1
			}
		}
		for n := fits - 2; n <= fits+2; n++ {
			err := p.Publish(within(t), settle.Message{Headers: settle.Headers{"h": strings.Repeat("x", n)}})
			assert.Equal(t, err != nil, settle.IsPermanent(err), "%d: sent, or refused here, and never by the server: %v", n, err)
		}
		now, _ := b.publishing.conns.current()
		assert.Same(t, conn, now, "the connection lives")
	})
}

// A server with default settings before 4.0 takes 128 MiB.
func TestLargeBody(t *testing.T) {
	server := services.URL(t, services.Rabbit310)
	queue, raw := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	body := make([]byte, 20<<20)
	body[0], body[len(body)-1] = 1, 2
	require.NoError(t, (&Publisher{Broker: b, RoutingKey: queue}).Publish(within(t), settle.Message{Body: body}))
	assert.True(t, string(body) == string(drain(t, raw, queue, 1)[0].Body), "it arrives whole")
}

// Where MaxBody is wrong the server closes the channel: the error has its
// reason, and neither other publishers nor the next message suffer.
func TestBodyTheServerRefuses(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	p := &Publisher{Broker: b, RoutingKey: queue, MaxBody: 100 << 20}
	other := &Publisher{Broker: b, RoutingKey: queue}
	require.NoError(t, other.Publish(within(t), settle.Message{}))

	err := p.Publish(within(t), settle.Message{Body: make([]byte, 17<<20)})
	require.ErrorContains(t, err, "larger than configured max size 16777216")
	require.NoError(t, other.Publish(within(t), settle.Message{}))
	require.NoError(t, p.Publish(within(t), settle.Message{}))
	drain(t, raw, queue, 3)
}

// Exactly the messages that reach no queue come back, whatever is published beside them.
func TestUnroutable(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		queue, raw := rawQueue(t, server, nil)
		b, _ := testBroker(t, server, nil)
		p := &Publisher{Broker: b}
		const callers, calls, each = 8, 10, 20
		var publishing sync.WaitGroup
		for c := range callers {
			publishing.Go(func() {
				for range calls {
					msgs := make([]settle.Message, each)
					for i := range msgs {
						// The same ID on all: it is the user's and tells nothing apart.
						msgs[i] = settle.Message{ID: "same", To: queue}
						if (i+c)%3 == 0 {
							msgs[i].To = "settle-test-nowhere"
						}
					}
					errs := settle.PublishErrors(p.Publish(within(t), msgs...), each)
					for i, err := range errs {
						if (i+c)%3 == 0 {
							assert.ErrorIs(t, err, settle.ErrUnroutable)
							assert.True(t, settle.IsPermanent(err))
						} else {
							assert.NoError(t, err)
						}
					}
				}
			})
		}
		publishing.Wait()
		routed := 0
		for c := range callers {
			for i := range each {
				if (i+c)%3 != 0 {
					routed += calls
				}
			}
		}
		assert.Equal(t, routed, ready(t, raw, queue))
		pipe, _ := p.sender.pipes.current()
		assert.Empty(t, pipe.returned, "each return was for somebody")
		require.NoError(t, (&Publisher{Broker: b, RoutingKey: "settle-test-nowhere", DropUnroutable: true}).Publish(within(t), settle.Message{}))

		// More returns than there is room for at once.
		narrow := &Publisher{Broker: b, RoutingKey: "settle-test-nowhere", Window: 2}
		for _, err := range settle.PublishErrors(narrow.Publish(within(t), make([]settle.Message, 1000)...), 1000) {
			require.ErrorIs(t, err, settle.ErrUnroutable)
		}
	})
}

// For a source's copy an unroutable message is not for good: the queue may
// come back.
func TestUnroutableCopy(t *testing.T) {
	b, _ := testBroker(t, services.URL(t, services.Rabbit), nil)
	for name, publish := range map[string]func(context.Context, []outgoing) []error{"broker": b.publish, "publisher": (&Publisher{Broker: b}).publish} {
		errs := publish(within(t), []outgoing{{key: "settle-test-nowhere", mandatory: true}, {key: "settle-test-nowhere"}})
		require.Len(t, errs, 2, name)
		require.ErrorIs(t, errs[0], settle.ErrUnroutable, name)
		assert.False(t, settle.IsPermanent(errs[0]), name)
		assert.NoError(t, errs[1], name)
	}
}

// A source tries again by itself: its copies do not wait for a server that is down.
func TestCopiesDoNotWait(t *testing.T) {
	b, _ := testBroker(t, "amqp://"+unused(t), nil)
	ctx := within(t)
	errs := b.publish(ctx, make([]outgoing, 3))
	require.Len(t, errs, 3)
	for _, err := range errs {
		require.ErrorContains(t, err, "cannot connect")
	}
	require.NoError(t, ctx.Err())
}

// The server refuses what a full queue rejects with a nack, which is not a return.
func TestNack(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		queue, raw := rawQueue(t, server, amqp.Table{"x-max-length": 3, "x-overflow": "reject-publish"})
		b, _ := testBroker(t, server, nil)
		p := &Publisher{Broker: b, RoutingKey: queue}
		const total = 50
		errs := settle.PublishErrors(p.Publish(within(t), make([]settle.Message, total)...), total)
		safe := 0
		for _, err := range errs {
			if err == nil {
				safe++
				continue
			}
			assert.ErrorContains(t, err, "nack")
			assert.NotErrorIs(t, err, settle.ErrUnroutable)
			assert.False(t, settle.IsPermanent(err), "there may be room later")
		}
		assert.Equal(t, safe, ready(t, raw, queue), "what is safe is there, and nothing else")
		assert.Less(t, safe, total)
	})
}

// An exchange that does not exist ends the channel: every message on it is
// answered, with the reason, and other publishers go on.
func TestMissingExchange(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		queue, _ := rawQueue(t, server, nil)
		b, _ := testBroker(t, server, nil)
		p := &Publisher{Broker: b, Exchange: "settle-test-no-exchange"}
		other := &Publisher{Broker: b, RoutingKey: queue}
		require.NoError(t, other.Publish(within(t), settle.Message{}))
		for range 3 {
			errs := settle.PublishErrors(p.Publish(within(t), make([]settle.Message, 20)...), 20)
			for _, err := range errs {
				require.ErrorContains(t, err, "no exchange 'settle-test-no-exchange'")
				var config *settle.ConfigError
				require.ErrorAs(t, err, &config)
				require.Equal(t, "Exchange", config.Setting)
			}
			require.NoError(t, other.Publish(within(t), settle.Message{}))
		}
	})
}

// A message goes to the keys in CC as well.
func TestCC(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	queue, raw := rawQueue(t, server, nil)
	b, _ := testBroker(t, server, nil)
	require.NoError(t, (&Publisher{Broker: b}).Publish(within(t), settle.Message{To: "settle-test-nowhere", Headers: settle.Headers{"CC": []string{queue}}}))
	drain(t, raw, queue, 1)
}

func TestPublisherSettings(t *testing.T) {
	b, _ := testBroker(t, "amqp://"+unused(t), nil)
	for setting, p := range map[string]*Publisher{
		"Broker":  {},
		"Window":  {Broker: b, Window: -1},
		"MaxBody": {Broker: b, MaxBody: -1},
	} {
		for range 2 {
			var config *settle.ConfigError
			require.ErrorAs(t, p.Publish(within(t), settle.Message{To: "q"}), &config)
			assert.Equal(t, setting, config.Setting)
			require.ErrorAs(t, p.publish(within(t), []outgoing{{}})[0], &config)
		}
	}
}

// Behind an alternate exchange nothing is unroutable: whoever counts on it is told.
func TestMandatoryBesideAlternate(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	b, log := testBroker(t, server, nil)
	exchange, alternate, queue := unique(t, server, "x"), unique(t, server, "alternate"), unique(t, server, "q")
	require.NoError(t, b.Declare(within(t), Topology{
		Exchanges: []Exchange{{Name: exchange, Kind: Direct, Alternate: alternate}, {Name: alternate, Kind: Fanout}},
		Queues:    []Queue{{Name: queue}},
		Bindings:  []Binding{{Exchange: alternate, Queue: queue}},
	}))
	require.NoError(t, (&Publisher{Broker: b, Exchange: exchange, DropUnroutable: true}).Publish(within(t), settle.Message{To: "k"}))
	assert.NotContains(t, log.String(), "alternate")
	p := &Publisher{Broker: b, Exchange: exchange}
	require.NoError(t, p.Publish(within(t), settle.Message{To: "k"}))
	require.NoError(t, p.Publish(within(t), settle.Message{To: "k"}))
	assert.Equal(t, 1, strings.Count(log.String(), "alternate exchange"), "once")
	drain(t, rawChannel(t, server), queue, 3)
}

func ExamplePublisher() {
	broker, err := New(Config{URLs: []string{"amqp://guest:guest@localhost:5672/"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close(context.Background())
	orders := &Publisher{Broker: broker, Exchange: "orders", ContentType: "application/json"}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = orders.Publish(ctx,
		settle.Message{To: "order.placed", Body: []byte(`{"id": 1}`)},
		settle.Message{To: "order.placed", Body: []byte(`{"id": 2}`)},
	)
	fmt.Println(err)
}
