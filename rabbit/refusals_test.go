package rabbit

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// What cannot be kept is refused before anything is sent to a server, by an
// error that names the setting.
func TestRefusedBeforeTheServer(t *testing.T) {
	b, _ := testBroker(t, "amqp://guest:guest@"+unused(t)+"/", nil)
	capped := settle.Options{MaxAttempts: 3, DeadLetter: "dead"}
	for name, c := range map[string]struct {
		source  settle.Source
		options settle.Options
		setting string
	}{
		"no broker":                    {&ClassicQueue{Queue: "q"}, settle.Options{}, "Broker"},
		"no queue":                     {&QuorumQueue{Broker: b}, settle.Options{}, "Queue"},
		"a long name":                  {&QuorumQueue{Broker: b, Queue: strings.Repeat("q", 250)}, settle.Options{}, "Queue"},
		"cap, not declared":            {&QuorumQueue{Broker: b, Queue: "q"}, capped, "MaxAttempts"},
		"dead letters to self":         {&ClassicQueue{Broker: b, Queue: "dead"}, capped, "DeadLetter"},
		"dead letters that turn":       {&ClassicQueue{Broker: b, Queue: "q", Delay: WaitQueue{}}, settle.Options{DeadLetter: "q.retry"}, "DeadLetter"},
		"dead letters that turn later": {&ClassicQueue{Broker: b, Queue: "q", DeclareTopology: true, Delay: WaitQueue{PerDelay: true}}, settle.Options{DeadLetter: "q.retry.5000"}, "DeadLetter"},
		"MaxHeld under zero":           {&ClassicQueue{Broker: b, Queue: "q", MaxHeld: -1}, settle.Options{}, "MaxHeld"},
		"MaxHeld with a delay":         {&ClassicQueue{Broker: b, Queue: "q", MaxHeld: 1, Delay: WaitQueue{}}, settle.Options{}, "MaxHeld"},
		"timeout under zero":           {&ClassicQueue{Broker: b, Queue: "q", ConsumerTimeout: -1}, settle.Options{}, "ConsumerTimeout"},
		"too much prefetch":            {&ClassicQueue{Broker: b, Queue: "q"}, settle.Options{Prefetch: math.MaxUint16/2 + 1}, "Prefetch"},
		"the server's header":          {&ClassicQueue{Broker: b, Queue: "q", CountHeader: "x-delivery-count"}, settle.Options{}, "CountHeader"},
		"PerDelay, undeclared":         {&ClassicQueue{Broker: b, Queue: "q", Delay: WaitQueue{PerDelay: true}}, settle.Options{}, "Delay"},
		"settings, undeclared":         {&ClassicQueue{Broker: b, Queue: "q", Settings: Queue{MaxLength: 1}}, settle.Options{}, "Settings"},
		"bindings, undeclared":         {&ClassicQueue{Broker: b, Queue: "q", Bindings: []Binding{{Exchange: "e"}}}, settle.Options{}, "Bindings"},
		"a binding elsewhere":          {&ClassicQueue{Broker: b, Queue: "q", DeclareTopology: true, Bindings: []Binding{{Exchange: "e", Queue: "other"}}}, settle.Options{}, "Bindings"},
		"a binding to nothing":         {&ClassicQueue{Broker: b, Queue: "q", DeclareTopology: true, Bindings: []Binding{{}}}, settle.Options{}, "Exchange"},
		"another name":                 {&ClassicQueue{Broker: b, Queue: "q", DeclareTopology: true, Settings: Queue{Name: "other"}}, settle.Options{}, "Settings.Name"},
		"another kind":                 {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, Settings: Queue{Kind: Classic}}, settle.Options{}, "Settings.Kind"},
		"a limit and a cap":            {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, Settings: Queue{MaxDeliveries: 3}}, capped, "Settings.MaxDeliveries"},
		"two dead letters":             {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, Settings: Queue{DeadLetter: &DeadLetterRoute{Key: "d"}}}, capped, "Settings.DeadLetter"},
		"priority on quorum":           {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, Settings: Queue{MaxPriority: 3}}, settle.Options{}, "MaxPriority"},
		"queue mode on quorum":         {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, Settings: Queue{Arguments: map[string]any{"x-queue-mode": "lazy"}}}, settle.Options{}, "x-queue-mode"},
		"a limit by arguments":         {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, Settings: Queue{Arguments: map[string]any{"x-delivery-limit": 3}}}, capped, "x-delivery-limit"},
		"pace, undeclared":             {&QuorumQueue{Broker: b, Queue: "q", DelayedRetry: DelayedRetry{Min: time.Second}}, settle.Options{}, "DelayedRetry"},
		"pace backwards":               {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, DelayedRetry: DelayedRetry{Min: time.Second, Max: 1}}, settle.Options{}, "DelayedRetry"},
		"pace without Min":             {&QuorumQueue{Broker: b, Queue: "q", DeclareTopology: true, DelayedRetry: DelayedRetry{Max: time.Second}}, settle.Options{}, "DelayedRetry"},
		"a bad publisher":              {&ClassicQueue{Broker: b, Queue: "q", RetryPublisher: &Publisher{}}, settle.Options{}, "Broker"},
	} {
		t.Run(name, func(t *testing.T) {
			config := refused(t, c.source, c.options)
			assert.Equal(t, c.setting, config.Setting, config)
		})
	}
}

// A queue that is missing stops the start; so does one that copies would need.
func TestMissingQueues(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		there, _ := rawQueue(t, url, nil)
		absent := there + ".absent"
		for name, c := range map[string]struct {
			source  settle.Source
			options settle.Options
			setting string
			thing   string
		}{
			"classic":          {&ClassicQueue{Broker: b, Queue: absent}, settle.Options{}, "Queue", absent},
			"quorum":           {&QuorumQueue{Broker: b, Queue: absent}, settle.Options{}, "Queue", absent},
			"dead letter":      {&ClassicQueue{Broker: b, Queue: there}, settle.Options{DeadLetter: absent}, "DeadLetter", absent},
			"wait queue":       {&ClassicQueue{Broker: b, Queue: there, Delay: WaitQueue{}}, settle.Options{}, "Delay", there + ".retry"},
			"delay exchange":   {&ClassicQueue{Broker: b, Queue: there, Delay: DelayedExchange{}}, settle.Options{}, "Delay", there + ".delay"},
			"binding's source": {&ClassicQueue{Broker: b, Queue: there, DeclareTopology: true, Bindings: []Binding{{Exchange: absent}}}, settle.Options{}, "Bindings", absent},
		} {
			t.Run(name, func(t *testing.T) {
				config := refused(t, c.source, c.options)
				assert.Equal(t, c.setting, config.Setting, config)
				assert.Contains(t, config.Error(), c.thing)
			})
		}
	})
}

// A queue with other arguments is refused by an error that names the argument.
func TestOtherArguments(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		version := dialServer(t, url).version
		dead, _ := rawQueue(t, url, nil)
		capped := settle.Options{MaxAttempts: 3, DeadLetter: dead}
		for name, c := range map[string]struct {
			args     amqp.Table
			source   func(queue string) settle.Source
			options  settle.Options
			argument string
			words    string
		}{
			"a classic queue given as quorum": {
				amqp.Table{"x-queue-type": "classic"},
				func(q string) settle.Source { return &QuorumQueue{Broker: b, Queue: q, DeclareTopology: true} },
				settle.Options{},
				"x-queue-type", "current is 'classic'",
			},
			"a quorum queue given as classic": {
				amqp.Table{"x-queue-type": "quorum"},
				func(q string) settle.Source { return &ClassicQueue{Broker: b, Queue: q, DeclareTopology: true} },
				settle.Options{},
				"x-queue-type", "current is 'quorum'",
			},
			"another cap": {
				amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(7), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"},
				func(q string) settle.Source { return &QuorumQueue{Broker: b, Queue: q, DeclareTopology: true} },
				capped, "MaxAttempts", "received '2' but current is '7'",
			},
			"no cap": {
				amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"},
				func(q string) settle.Source { return &QuorumQueue{Broker: b, Queue: q, DeclareTopology: true} },
				capped, "MaxAttempts", "current is none",
			},
			"another bound": {
				amqp.Table{"x-queue-type": "classic", "x-max-length": int64(5)},
				func(q string) settle.Source {
					return &ClassicQueue{Broker: b, Queue: q, DeclareTopology: true, Settings: Queue{MaxLength: 6}}
				},
				settle.Options{},
				"x-max-length", "'5'",
			},
		} {
			t.Run(name, func(t *testing.T) {
				queue, _ := rawQueue(t, url, c.args)
				config := refused(t, c.source(queue), c.options)
				assert.Equal(t, c.argument, config.Setting, config)
				assert.Contains(t, config.Error(), queue)
				if version.atLeast(4, 0) {
					assert.Contains(t, config.Error(), c.words)
				}
			})
		}
	})
}

// A server without the delayed-message plugin refuses at the start, and that
// does not end the other sessions of the broker: before 4.0 its answer closes
// the connection. The plugin is not to be had here: what it does with a
// delayed message is tested against a fake exchange in TestDelayedExchange.
func TestNoDelayPlugin(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		other, _ := rawQueue(t, url, nil)
		s := serve(t, &ClassicQueue{Broker: b, Queue: other}, settle.Options{}, acks)
		s.opened(1)
		queue, _ := rawQueue(t, url, amqp.Table{"x-queue-type": "classic"})
		config := refused(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, Delay: DelayedExchange{}}, settle.Options{})
		assert.Equal(t, "Delay", config.Setting)
		assert.Contains(t, config.Reason, "plugin")
		assert.Contains(t, config.Error(), "x-delayed-message")
		assert.Zero(t, s.noticed(settle.NoticeLost))
		s.stop()
	})
}

// DelayedRetry needs a server that has it; an older one would take its
// arguments and ignore them.
func TestDelayedRetryNeedsTheServer(t *testing.T) {
	url := services.URL(t, services.Rabbit310)
	b, _ := testBroker(t, url, nil)
	config := refused(t, &QuorumQueue{Broker: b, Queue: unique(t, url, "q"), DeclareTopology: true, DelayedRetry: DelayedRetry{Min: time.Second}}, settle.Options{})
	assert.Equal(t, "DelayedRetry", config.Setting)
	assert.Contains(t, config.Reason, "3.10")
}

// Open leaves nothing behind when its context ends, and says so promptly.
func TestOpenEndsWithItsContext(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	b, _ := testBroker(t, url, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := (&ClassicQueue{Broker: b, Queue: "q"}).Open(ctx, settle.Registration{Prefetch: 1})
	require.Error(t, err)
	assert.True(t, errors.Is(err, context.Canceled), err)
}
