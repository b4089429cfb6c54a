package rabbit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// declared is a queue of the test's own, made by Declare with all that it needs.
func declared(t testing.TB, b *Broker, url string, q Queue, more ...Queue) string {
	t.Helper()
	q.Name = unique(t, url, "q")
	require.NoError(t, b.Declare(within(t), Topology{Queues: append([]Queue{q}, more...)}))
	return q.Name
}

// A second Declare of the same is no error, and nothing goes wrong on the way.
func TestDeclare(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, log := testBroker(t, server, nil)
		x, alternate, internal := unique(t, server, "x"), unique(t, server, "alternate"), unique(t, server, "internal")
		queue, dead, rest := unique(t, server, "q"), unique(t, server, "dead"), unique(t, server, "rest")
		topology := Topology{
			Exchanges: []Exchange{{Name: x, Kind: Topic, Alternate: alternate}, {Name: alternate, Kind: Fanout}, {Name: internal, Kind: Headers, Internal: true}},
			Queues: []Queue{
				{Name: queue, MaxDeliveries: 3, Overflow: RejectPublish, DeadLetter: &DeadLetterRoute{Key: dead, AtLeastOnce: true}},
				{Name: dead},
				{Name: rest, Kind: Classic, MaxPriority: 4},
			},
			Bindings: []Binding{
				{Exchange: x, Queue: queue, Key: "a.#"},
				{Exchange: alternate, Queue: rest},
				{Exchange: x, ToExchange: internal, Key: "b"},
				{Exchange: internal, Queue: rest, Arguments: map[string]any{"x-match": "all", "color": "red"}},
			},
		}
		require.NoError(t, b.Declare(within(t), topology))
		require.NoError(t, b.Declare(within(t), topology))
		assert.Empty(t, log.String())

		p := &Publisher{Broker: b, Exchange: x, DropUnroutable: true}
		require.NoError(t, p.Publish(within(t),
			settle.Message{ID: "topic", To: "a.b"}, settle.Message{ID: "alternate", To: "c"},
			settle.Message{ID: "headers", To: "b", Headers: settle.Headers{"color": "red"}},
		))
		raw := rawChannel(t, server)
		assert.Equal(t, "topic", drain(t, raw, queue, 1)[0].MessageId)
		ids := []string{}
		for _, d := range drain(t, raw, rest, 2) {
			ids = append(ids, d.MessageId)
		}
		assert.ElementsMatch(t, []string{"alternate", "headers"}, ids)
	})
}

// A queue that is there with another argument is refused, and the error names
// the argument: whichever it is.
func TestDeclareDiffers(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		for arg, change := range map[string]func(*Queue){
			"x-queue-type":             func(q *Queue) { q.Kind, q.MaxDeliveries = Classic, 0 },
			"x-message-ttl":            func(q *Queue) { q.TTL = 2 * time.Minute },
			"x-expires":                func(q *Queue) { q.Expires = 2 * time.Hour },
			"x-max-length":             func(q *Queue) { q.MaxLength = 0 },
			"x-max-length-bytes":       func(q *Queue) { q.MaxBytes = 1 },
			"x-overflow":               func(q *Queue) { q.Overflow = RejectPublish },
			"x-dead-letter-exchange":   func(q *Queue) { q.DeadLetter = &DeadLetterRoute{Exchange: "amq.fanout"} },
			"x-single-active-consumer": func(q *Queue) { q.SingleActiveConsumer = true },
			"x-delivery-limit":         func(q *Queue) { q.MaxDeliveries = 3 },
		} {
			q := Queue{TTL: time.Minute, Expires: time.Hour, MaxLength: 10, MaxDeliveries: 2}
			q.Name = declared(t, b, server, q)
			change(&q)
			err := b.Declare(within(t), Topology{Queues: []Queue{q}})
			var config *settle.ConfigError
			require.ErrorAs(t, err, &config, arg)
			assert.Equal(t, arg, config.Setting)
			assert.Equal(t, fmt.Sprintf("rabbit: queue %q", q.Name), config.Source)
			assert.Contains(t, config.Reason, "current is")
		}

		name := unique(t, server, "x")
		require.NoError(t, b.Declare(within(t), Topology{Exchanges: []Exchange{{Name: name, Kind: Direct}}}))
		for arg, e := range map[string]Exchange{
			"type":               {Name: name, Kind: Fanout},
			"internal":           {Name: name, Kind: Direct, Internal: true},
			"alternate-exchange": {Name: name, Kind: Direct, Alternate: "amq.fanout"},
		} {
			err := b.Declare(within(t), Topology{Exchanges: []Exchange{e}})
			var config *settle.ConfigError
			require.ErrorAs(t, err, &config, arg)
			assert.Equal(t, arg, config.Setting)
			assert.Equal(t, fmt.Sprintf("rabbit: exchange %q", name), config.Source)
		}
	})
}

// What a route needs and neither the topology nor the server has is refused,
// and nothing is declared: the server would take it and lose messages.
func TestDeclareMissingRoute(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, log := testBroker(t, server, nil)
		name := unique(t, server, "q")
		for setting, topology := range map[string]Topology{
			"DeadLetter": {Queues: []Queue{{Name: name, DeadLetter: &DeadLetterRoute{Exchange: "settle-test-no-exchange"}}}},
			"Alternate":  {Queues: []Queue{{Name: name}}, Exchanges: []Exchange{{Name: unique(t, server, "x"), Kind: Direct, Alternate: "settle-test-no-exchange"}}},
		} {
			err := b.Declare(within(t), topology)
			var config *settle.ConfigError
			require.ErrorAs(t, err, &config)
			assert.Equal(t, setting, config.Setting)
			assert.Contains(t, config.Reason, `no exchange "settle-test-no-exchange"`)
		}
		err := b.Declare(within(t), Topology{Queues: []Queue{{Name: name, DeadLetter: &DeadLetterRoute{Key: "settle-test-no-queue"}}}})
		var config *settle.ConfigError
		require.ErrorAs(t, err, &config)
		assert.Equal(t, "DeadLetter", config.Setting)
		assert.Contains(t, config.Reason, `no queue "settle-test-no-queue"`)

		_, err = rawChannel(t, server).QueueDeclarePassive(name, true, false, false, false, nil)
		assert.True(t, isCode(err, amqp.NotFound), "nothing was declared")

		// What is on the server already will do, though its bindings cannot be seen.
		dead := declared(t, b, server, Queue{})
		require.NoError(t, b.Declare(within(t), Topology{Queues: []Queue{{Name: name, DeadLetter: &DeadLetterRoute{Key: dead}}}}))
		require.NoError(t, b.Declare(within(t), Topology{Queues: []Queue{{Name: unique(t, server, "q2"), DeadLetter: &DeadLetterRoute{Exchange: "amq.direct"}}}}))
		assert.Contains(t, log.String(), "bindings are unchecked")
	})
}

func TestDeclareMissingEnds(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		for says, binding := range map[string]Binding{
			`no queue "settle-test-no-queue"`:       {Exchange: "amq.direct", Queue: "settle-test-no-queue"},
			`no exchange "settle-test-no-exchange"`: {Exchange: "amq.direct", ToExchange: "settle-test-no-exchange"},
		} {
			err := b.Declare(within(t), Topology{Bindings: []Binding{binding}})
			var config *settle.ConfigError
			require.ErrorAs(t, err, &config)
			assert.Contains(t, config.Reason, says)
		}
		var config *settle.ConfigError
		require.ErrorAs(t, b.Declare(within(t), Topology{Queues: []Queue{{Name: "amq.reserved"}}}), &config)
		assert.Contains(t, config.Reason, "does not allow")
	})
}

// A kind of exchange that needs a plugin which is not there: servers before
// 4.0 end the connection on it, so nobody else may be on that one.
func TestDeclarePluginExchange(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		queue, _ := rawQueue(t, server, nil)
		p := &Publisher{Broker: b, RoutingKey: queue}
		require.NoError(t, p.Publish(within(t), settle.Message{}))
		conn, _ := b.publishing.conns.current()

		name := unique(t, server, "x")
		err := b.Declare(within(t), Topology{Exchanges: []Exchange{{Name: name, Kind: "x-settle-unknown"}}})
		var config *settle.ConfigError
		require.ErrorAs(t, err, &config)
		assert.Equal(t, "Kind", config.Setting)
		assert.Contains(t, config.Fix, "plugin")

		require.NoError(t, p.Publish(within(t), settle.Message{}))
		now, _ := b.publishing.conns.current()
		assert.Same(t, conn, now, "the connection of the others lives")
	})
}

// A queue without a limit has none on either version, though 4.0 and later
// have a default of 20; one that was declared by an older server keeps it, with a warning.
func TestDeclareNoDeliveryLimit(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, log := testBroker(t, server, nil)
		raw := rawChannel(t, server)
		fails := func(queue string, times int) {
			require.NoError(t, (&Publisher{Broker: b, RoutingKey: queue}).Publish(within(t), settle.Message{}))
			for range times {
				var d amqp.Delivery
				eventually(t, func() (ok bool) {
					var err error
					d, ok, err = raw.Get(queue, false)
					require.NoError(t, err)
					return ok
				}, "it comes back")
				require.NoError(t, d.Reject(true))
			}
		}
		fails(declared(t, b, server, Queue{}), 30)
		assert.Empty(t, log.String())

		older, _ := rawQueue(t, server, amqp.Table{"x-queue-type": "quorum"})
		require.NoError(t, b.Declare(within(t), Topology{Queues: []Queue{{Name: older}, {Name: unique(t, server, "next")}}}))
		if probe, err := b.consumeChannel(within(t)); assert.NoError(t, err) && probe.server.atLeast(4, 0) {
			assert.Contains(t, log.String(), "declared without a delivery limit")
		} else {
			assert.Empty(t, log.String(), "3.10 has no limit of its own")
		}
	})
}

// The limit of deliveries is what it says, and at-least-once dead letters arrive.
func TestMaxDeliveries(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		dead := declared(t, b, server, Queue{})
		for _, most := range []int{1, 3} {
			queue := declared(t, b, server, Queue{MaxDeliveries: most, Overflow: RejectPublish, DeadLetter: &DeadLetterRoute{Key: dead, AtLeastOnce: true}})
			require.NoError(t, (&Publisher{Broker: b, RoutingKey: queue}).Publish(within(t), settle.Message{}))
			raw := rawChannel(t, server)
			deliveries, err := raw.Consume(queue, "", false, false, false, false, nil)
			require.NoError(t, err)
			n := 0
			eventually(t, func() bool {
				select {
				case d := <-deliveries:
					n++
					require.NoError(t, d.Reject(true))
				default:
				}
				return ready(t, raw, dead) == 1
			}, "dead-lettered")
			assert.Equal(t, most, n)
			d := drain(t, raw, dead, 1)[0]
			deaths := Deaths(&settle.Delivery{Headers: settle.Headers(d.Headers)})
			require.Len(t, deaths, 1)
			assert.Equal(t, "delivery_limit", deaths[0].Reason)
		}
	})
}

// What the fields say is what the server does.
func TestQueueSettings(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		for _, kind := range []QueueKind{Quorum, Classic} {
			t.Run(kind.String(), func(t *testing.T) {
				b, _ := testBroker(t, server, nil)
				raw := rawChannel(t, server)
				publish := func(queue string, ids ...string) []error {
					msgs := make([]settle.Message, len(ids))
					for i, id := range ids {
						msgs[i].ID, msgs[i].Body = id, []byte("body")
					}
					return settle.PublishErrors((&Publisher{Broker: b, RoutingKey: queue}).Publish(within(t), msgs...), len(ids))
				}
				// One after the other, as a bound is looked at between messages.
				publishEach := func(queue string, ids ...string) (errs []error) {
					for _, id := range ids {
						errs = append(errs, publish(queue, id)...)
					}
					return errs
				}

				dead := declared(t, b, server, Queue{Kind: kind})
				ttl := declared(t, b, server, Queue{Kind: kind, TTL: 50 * time.Millisecond, DeadLetter: &DeadLetterRoute{Key: dead}})
				publish(ttl, "expired")
				d := drain(t, raw, dead, 1)[0]
				assert.Equal(t, "expired", d.MessageId)
				assert.Equal(t, dead, d.RoutingKey)

				head := declared(t, b, server, Queue{Kind: kind, MaxLength: 1, DeadLetter: &DeadLetterRoute{Key: dead}})
				publishEach(head, "old", "new")
				assert.Equal(t, "old", drain(t, raw, dead, 1)[0].MessageId)

				full := declared(t, b, server, Queue{Kind: kind, MaxBytes: 5, Overflow: RejectPublish})
				errs := publishEach(full, "1", "2", "3", "4", "5")
				assert.NoError(t, errs[0])
				assert.ErrorContains(t, errs[4], "nack")

				gone := declared(t, b, server, Queue{Kind: kind, Expires: 100 * time.Millisecond})
				// Each look at a queue puts its end off, so they are further apart than that.
				require.Eventually(t, func() bool {
					_, err := rawChannel(t, server).QueueDeclarePassive(gone, true, false, false, false, nil)
					return isCode(err, amqp.NotFound)
				}, patience, 500*time.Millisecond, "the queue expires")

				single := declared(t, b, server, Queue{Kind: kind, SingleActiveConsumer: true})
				one, err := rawChannel(t, server).Consume(single, "", true, false, false, false, nil)
				require.NoError(t, err)
				two, err := rawChannel(t, server).Consume(single, "", true, false, false, false, nil)
				require.NoError(t, err)
				publish(single, "1", "2", "3", "4")
				for range 4 {
					select {
					case <-one:
					case <-two:
						require.Fail(t, "the second consumer waits")
					}
				}
			})
		}
	})
}

func TestPriorities(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		b, _ := testBroker(t, server, nil)
		queue := declared(t, b, server, Queue{Kind: Classic, MaxPriority: 5})
		p := &Publisher{Broker: b, RoutingKey: queue}
		require.NoError(t, p.Publish(within(t), settle.Message{ID: "none"}, settle.Message{ID: "low", Priority: 1}, settle.Message{ID: "high", Priority: 5}))
		var order []string
		for _, d := range drain(t, rawChannel(t, server), queue, 3) {
			order = append(order, d.MessageId)
		}
		assert.Equal(t, []string{"high", "low", "none"}, order)
	})
}

// The facts on which refusals rest, on the server itself.
func TestServerFacts(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		for _, args := range []amqp.Table{
			{"x-queue-type": "quorum", "x-max-priority": 5},
			{"x-queue-type": "quorum", "x-queue-mode": "lazy"},
			{"x-queue-type": "quorum", "x-queue-version": 2},
			{"x-queue-type": "classic", "x-delivery-limit": 5},
			{"x-queue-type": "classic", "x-dead-letter-strategy": "at-least-once"},
			{"x-expires": 0},
			{"x-max-priority": 256},
			{"x-message-ttl": int64(mostMillis + 1)},
			{"x-expires": int64(mostMillis + 1)},
			{"x-dead-letter-routing-key": "k"},
		} {
			_, err := rawChannel(t, server).QueueDeclare(unique(t, server, "q"), true, false, false, false, args)
			assert.True(t, isCode(err, amqp.PreconditionFailed), "%v: %v", args, err)
		}

		_, err := rawChannel(t, server).QueueDeclare(unique(t, server, "q"), true, false, false, false, amqp.Table{"x-message-ttl": int64(mostMillis), "x-expires": int64(mostMillis)})
		require.NoError(t, err)

		// A dead-letter exchange that is not there is taken, and the message is lost.
		queue, raw := rawQueue(t, server, amqp.Table{"x-dead-letter-exchange": "settle-test-no-exchange"})
		b, _ := testBroker(t, server, nil)
		require.NoError(t, (&Publisher{Broker: b, RoutingKey: queue}).Publish(within(t), settle.Message{}))
		d, ok, err := raw.Get(queue, false)
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, d.Reject(false))
		eventually(t, func() bool { return ready(t, raw, queue) == 0 }, "gone")

		// A quorum queue takes reject-publish-dlx for drop-head.
		queue, raw = rawQueue(t, server, amqp.Table{"x-queue-type": "quorum", "x-max-length": 2, "x-overflow": "reject-publish-dlx"})
		p := &Publisher{Broker: b, RoutingKey: queue}
		for i := range 10 {
			require.NoError(t, p.Publish(within(t), settle.Message{ID: fmt.Sprint(i)}))
		}
		assert.NotEqual(t, "0", drain(t, raw, queue, 1)[0].MessageId)
	})
}

// The server's words are the key to what is final; texts of both versions.
func TestDeclareError(t *testing.T) {
	reply := func(code int, reason string) error { return &amqp.Error{Code: code, Reason: reason, Server: true} }
	for _, c := range []struct {
		err     error
		final   bool
		setting string
		says    string
	}{
		{reply(406, "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'a 'quoted' name' in vhost '/': received '5' but current is '1000'"), true, "x-message-ttl", "received '5' but current is '1000'"},
		{reply(406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"), true, "durable", "current is 'false'"},
		{reply(406, "PRECONDITION_FAILED - invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}"), true, "x-expires", "value_zero"},
		{reply(406, "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"), true, "x-max-priority", "rabbit_quorum_queue"},
		{reply(406, "PRECONDITION_FAILED - invalid property 'auto-delete' for queue 'q' in vhost '/'"), true, "auto-delete", "auto-delete"},
		{reply(406, "PRECONDITION_FAILED - unknown exchange type 'x-delayed-message'"), true, "Kind", "kind"},
		{reply(503, "COMMAND_INVALID - unknown exchange type 'x-delayed-message'"), true, "Kind", "kind"},
		{reply(406, "PRECONDITION_FAILED - something new"), true, "", "refuses"},
		{reply(404, "NOT_FOUND - no queue 'q' in vhost '/'"), true, "", `no queue "q" in vhost "/"`},
		{reply(404, "NOT_FOUND - home node 'rabbit@x' of durable queue 'q' in vhost '/' is down or inaccessible"), false, "", "down"},
		{reply(403, "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'u'"), true, "", "does not allow"},
		{reply(403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"), false, "", "exclusive"},
		{reply(405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'"), false, "", "locked"},
		{reply(541, "INTERNAL_ERROR"), false, "", "INTERNAL"},
		{amqp.ErrClosed, false, "", "not open"},
	} {
		err := declareError("rabbit: queue \"q\"", "queue \"q\"", c.err)
		var config *settle.ConfigError
		if c.final {
			if assert.ErrorAs(t, err, &config, "%v", c.err) {
				assert.Equal(t, c.setting, config.Setting, "%v", c.err)
				assert.NotEmpty(t, config.Fix)
			}
		} else {
			assert.NotErrorAs(t, err, &config)
		}
		assert.ErrorIs(t, err, c.err)
		assert.ErrorContains(t, err, c.says)
		assert.True(t, strings.HasPrefix(err.Error(), `rabbit: queue "q"`))
	}
	assert.NoError(t, declareError("s", "t", nil))
}

func TestDeclareHonoursContext(t *testing.T) {
	b, _ := testBroker(t, services.URL(t, services.Rabbit), nil)
	ctx := for100ms(t)
	<-ctx.Done()
	require.ErrorIs(t, b.Declare(ctx, Topology{Queues: []Queue{{Name: "q"}}}), ctx.Err())
}
