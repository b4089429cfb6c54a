package rabbit

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/settlemq/settle"
)

// Each row is one mistake and the setting that the refusal names.
func TestTopologyRefuses(t *testing.T) {
	long := strings.Repeat("x", 256)
	queue := func(q Queue) Topology {
		if q.Name == "" {
			q.Name = "q"
		}
		return Topology{Queues: []Queue{q}}
	}
	for _, c := range []struct {
		name    string
		t       Topology
		setting string
		says    string
	}{
		{"queue without a name", Topology{Queues: []Queue{{}}}, "Name", "empty"},
		{"queue with a long name", queue(Queue{Name: long}), "Name", "256 bytes"},
		{"the same queue twice", Topology{Queues: []Queue{{Name: "q"}, {Name: "q"}}}, "Name", "twice"},
		{"unknown kind", queue(Queue{Kind: 7}), "Kind", "queue kind 7"},
		{"negative TTL", queue(Queue{TTL: -time.Second}), "TTL", "negative"},
		{"TTL under a millisecond", queue(Queue{TTL: time.Microsecond}), "TTL", "whole milliseconds"},
		{"TTL too long", queue(Queue{TTL: (mostMillis + 1) * time.Millisecond}), "TTL", "at most"},
		{"expires under a millisecond, which is 0 to the server", queue(Queue{Expires: time.Microsecond}), "Expires", "whole milliseconds"},
		{"expires 0 as an argument", queue(Queue{Arguments: map[string]any{"x-expires": 0}}), "x-expires", "has a field"},
		{"negative length", queue(Queue{MaxLength: -1}), "MaxLength", "negative"},
		{"negative bytes", queue(Queue{MaxBytes: -1}), "MaxBytes", "negative"},
		{"negative deliveries", queue(Queue{MaxDeliveries: -1}), "MaxDeliveries", "negative"},
		{"unknown overflow", queue(Queue{Overflow: 9}), "Overflow", "no overflow 9"},
		{"priorities on a quorum queue", queue(Queue{MaxPriority: 5}), "MaxPriority", "quorum"},
		{"priority argument on a quorum queue", queue(Queue{Arguments: map[string]any{"x-max-priority": 5}}), "x-max-priority", "has a field"},
		{"queue mode on a quorum queue", queue(Queue{Arguments: map[string]any{"x-queue-mode": "lazy"}}), "x-queue-mode", "refuses it on a quorum queue"},
		{"queue version on a quorum queue", queue(Queue{Arguments: map[string]any{"x-queue-version": 2}}), "x-queue-version", "refuses it on a quorum queue"},
		{"reject-publish-dlx on a quorum queue", queue(Queue{Overflow: RejectPublishDLX}), "Overflow", "loses the oldest"},
		{"priority too high", queue(Queue{Kind: Classic, MaxPriority: 256}), "MaxPriority", "between 0 and 255"},
		{"delivery limit on a classic queue", queue(Queue{Kind: Classic, MaxDeliveries: 5}), "MaxDeliveries", "does not count"},
		{"dead letters to nowhere", queue(Queue{DeadLetter: &DeadLetterRoute{}}), "DeadLetter.Key", "there is no key"},
		{"dead letters to itself", queue(Queue{DeadLetter: &DeadLetterRoute{Key: "q"}}), "DeadLetter.Key", "back to this queue"},
		{"long dead-letter key", queue(Queue{DeadLetter: &DeadLetterRoute{Key: long}}), "DeadLetter.Key", "256 bytes"},
		{"at-least-once on a classic queue", queue(Queue{Kind: Classic, Overflow: RejectPublish, DeadLetter: &DeadLetterRoute{Key: "dead", AtLeastOnce: true}}), "DeadLetter.AtLeastOnce", "only quorum"},
		{"at-least-once with drop-head", queue(Queue{DeadLetter: &DeadLetterRoute{Key: "dead", AtLeastOnce: true}}), "DeadLetter.AtLeastOnce", "at-most-once"},
		{"argument of a type that AMQP lacks", queue(Queue{Arguments: map[string]any{"x": time.Second}}), "Arguments", "time.Duration"},
		{"dead-letter exchange without a binding", Topology{
			Exchanges: []Exchange{{Name: "dlx", Kind: Direct}}, Queues: []Queue{{Name: "q", DeadLetter: &DeadLetterRoute{Exchange: "dlx"}}},
		}, "DeadLetter", "no binding"},
		{"dead-letter exchange without a binding for the key", Topology{
			Exchanges: []Exchange{{Name: "dlx", Kind: Direct}}, Queues: []Queue{{Name: "q", DeadLetter: &DeadLetterRoute{Exchange: "dlx", Key: "k"}}, {Name: "dead"}},
			Bindings: []Binding{{Exchange: "dlx", Queue: "dead", Key: "other"}},
		}, "DeadLetter", "no binding"},
		{"dead-letter topic without a binding for the key", Topology{
			Exchanges: []Exchange{{Name: "dlx", Kind: Topic}}, Queues: []Queue{{Name: "q", DeadLetter: &DeadLetterRoute{Exchange: "dlx", Key: "a.b"}}, {Name: "dead"}},
			Bindings: []Binding{{Exchange: "dlx", Queue: "dead", Key: "a.*.c"}},
		}, "DeadLetter", "no binding"},
		{"alternate exchange without a binding", Topology{
			Exchanges: []Exchange{{Name: "x", Kind: Direct, Alternate: "alternate"}, {Name: "alternate", Kind: Fanout}},
		}, "Alternate", "no binding"},
		{"alternate exchange is the exchange", Topology{Exchanges: []Exchange{{Name: "x", Kind: Direct, Alternate: "x"}}}, "Alternate", "itself"},
		{"alternate as an argument", Topology{Exchanges: []Exchange{{Name: "x", Kind: Direct, Arguments: map[string]any{"alternate-exchange": "y"}}}}, "Arguments", "has a field"},
		{"exchange without a name", Topology{Exchanges: []Exchange{{Kind: Direct}}}, "Name", "empty"},
		{"exchange without a kind", Topology{Exchanges: []Exchange{{Name: "x"}}}, "Kind", "empty"},
		{"the same exchange twice", Topology{Exchanges: []Exchange{{Name: "x", Kind: Direct}, {Name: "x", Kind: Fanout}}}, "Name", "twice"},
		{"binding from the default exchange", Topology{Bindings: []Binding{{Queue: "q"}}}, "Exchange", "by itself"},
		{"binding to nothing", Topology{Bindings: []Binding{{Exchange: "x"}}}, "Queue", "one thing"},
		{"binding to two", Topology{Bindings: []Binding{{Exchange: "x", Queue: "q", ToExchange: "y"}}}, "Queue", "one thing"},
		{"binding with a long key", Topology{Bindings: []Binding{{Exchange: "x", Queue: "q", Key: long}}}, "Key", "256 bytes"},
		{"binding with odd arguments", Topology{Bindings: []Binding{{Exchange: "x", Queue: "q", Arguments: map[string]any{"a": make(chan int)}}}}, "Arguments", "chan int"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, _ := testBroker(t, "amqp://"+unused(t), nil)
			err := b.Declare(within(t), c.t)
			var config *settle.ConfigError
			require.ErrorAs(t, err, &config, "refused before anybody is dialled")
			assert.Equal(t, c.setting, config.Setting)
			assert.Contains(t, config.Reason, c.says)
			assert.NotEmpty(t, config.Fix)
		})
	}
}

func TestTopologyRefusesAll(t *testing.T) {
	topology := Topology{Queues: []Queue{{Name: "a", MaxPriority: 1}, {Name: "b", TTL: -1}}}
	err := topology.check()
	assert.ErrorContains(t, err, `queue "a": MaxPriority`)
	assert.ErrorContains(t, err, `queue "b": TTL`)
}

func TestTopologyAccepts(t *testing.T) {
	for name, topology := range map[string]Topology{
		"nothing": {},
		"a dead letter by a topic": {
			Exchanges: []Exchange{{Name: "dlx", Kind: Topic}}, Queues: []Queue{{Name: "q", DeadLetter: &DeadLetterRoute{Exchange: "dlx", Key: "a.b"}}, {Name: "dead"}},
			Bindings: []Binding{{Exchange: "dlx", Queue: "dead", Key: "a.#"}},
		},
		"a dead letter under its own key, which may be any": {
			Exchanges: []Exchange{{Name: "dlx", Kind: Direct}}, Queues: []Queue{{Name: "q", DeadLetter: &DeadLetterRoute{Exchange: "dlx"}}, {Name: "dead"}},
			Bindings: []Binding{{Exchange: "dlx", Queue: "dead", Key: "k"}},
		},
		"a dead letter that the alternate exchange takes": {
			Exchanges: []Exchange{{Name: "dlx", Kind: Direct, Alternate: "rest"}, {Name: "rest", Kind: Fanout}},
			Queues:    []Queue{{Name: "q", DeadLetter: &DeadLetterRoute{Exchange: "dlx"}}, {Name: "dead"}},
			Bindings:  []Binding{{Exchange: "rest", Queue: "dead"}},
		},
		"a retry queue and back": {Queues: []Queue{
			{Name: "q", DeadLetter: &DeadLetterRoute{Key: "wait"}}, {Name: "wait", TTL: time.Second, DeadLetter: &DeadLetterRoute{Key: "q"}},
		}},
	} {
		assert.NoError(t, topology.check(), name)
	}
}

func TestQueueArguments(t *testing.T) {
	v4, v3 := version{4, 3, 0}, version{3, 10, 0}
	for _, c := range []struct {
		name   string
		queue  Queue
		server version
		want   amqp.Table
	}{
		{"quorum on 4", Queue{}, v4, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(-1)}},
		{"quorum on 3.10, which takes -1 for a limit", Queue{}, v3, amqp.Table{"x-queue-type": "quorum"}},
		{"one delivery", Queue{MaxDeliveries: 1}, v3, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(0)}},
		{"five deliveries", Queue{MaxDeliveries: 5}, v4, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(4)}},
		{"classic", Queue{Kind: Classic, MaxPriority: 9, Overflow: RejectPublishDLX}, v4, amqp.Table{"x-queue-type": "classic", "x-max-priority": int64(9), "x-overflow": "reject-publish-dlx"}},
		{"all", Queue{
			TTL: time.Minute, Expires: time.Hour, MaxLength: 10, MaxBytes: 1000, Overflow: RejectPublish, MaxDeliveries: 3, SingleActiveConsumer: true,
			DeadLetter: &DeadLetterRoute{Exchange: "dlx", Key: "k", AtLeastOnce: true}, Arguments: map[string]any{"x-queue-leader-locator": "balanced", "x-n": 1},
		}, v4, amqp.Table{
			"x-queue-type": "quorum", "x-message-ttl": int64(60_000), "x-expires": int64(3_600_000), "x-max-length": int64(10), "x-max-length-bytes": int64(1000), "x-overflow": "reject-publish",
			"x-delivery-limit": int64(2), "x-single-active-consumer": true, "x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "k", "x-dead-letter-strategy": "at-least-once",
			"x-queue-leader-locator": "balanced", "x-n": int64(1),
		}},
		{"dead letters to a queue", Queue{DeadLetter: &DeadLetterRoute{Key: "dead"}}, v3, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}},
	} {
		assert.Equal(t, c.want, c.queue.arguments(c.server), c.name)
	}
}

func TestTopicMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.b", "a", false},
		{"a", "a.b", false},
		{"a.*", "a.b", true},
		{"a.*", "a.b.c", false},
		{"a.*", "a", false},
		{"#", "", true},
		{"#", "a.b.c", true},
		{"a.#", "a", true},
		{"a.#", "a.b.c", true},
		{"a.#.c", "a.c", true},
		{"a.#.c", "a.b.b.c", true},
		{"a.#.c", "a.b", false},
		{"#.c", "a.b.c", true},
		{"*.#", "a", true},
		{"#.#", "a", true},
		{"*.*.#", "a", false},
	} {
		assert.Equal(t, c.want, topicMatches(strings.Split(c.pattern, "."), strings.Split(c.key, ".")), "%s %s", c.pattern, c.key)
	}
	// A word of the key may always be replaced by its wildcards.
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", ""}), 1, 5).Draw(t, "words")
		pattern := make([]string, len(words))
		for i, w := range words {
			pattern[i] = rapid.SampledFrom([]string{w, "*", "#"}).Draw(t, "p")
		}
		if !topicMatches(pattern, words) {
			t.Fatalf("%v does not match %v", pattern, words)
		}
	})
}
