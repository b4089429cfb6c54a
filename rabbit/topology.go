package rabbit

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Topology is what a service wants the server to have. Make it one with
// [Broker.Declare]. Everything in it is durable.
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// The exchange kinds that every server has.
const (
	Direct  = amqp.ExchangeDirect
	Fanout  = amqp.ExchangeFanout
	Topic   = amqp.ExchangeTopic
	Headers = amqp.ExchangeHeaders
)

// Exchange is where publishers send.
type Exchange struct {
	// Name is needed; the default exchange exists already.
	Name string
	// Kind says how it routes: Direct, Fanout, Topic, Headers, or a plugin's own kind. Needed.
	Kind string
	// Alternate names the exchange that takes what this one routes nowhere. It must exist, or be
	// in the same Topology with a binding. Nothing published here is unroutable then. Default: none.
	Alternate string
	// Internal takes messages from other exchanges alone.
	Internal bool
	// Arguments are for what has no field, such as x-delayed-type.
	Arguments map[string]any
}

// QueueKind is how a queue keeps its messages.
type QueueKind uint8

// The kinds of queue.
const (
	// Quorum queues are replicated; they count deliveries. They have no priorities.
	Quorum QueueKind = iota
	// Classic queues live on one node.
	Classic
)

func (k QueueKind) String() string {
	switch k {
	case Quorum:
		return "quorum"
	case Classic:
		return "classic"
	default:
		return fmt.Sprintf("queue kind %d", uint8(k))
	}
}

// Overflow is what a full queue does.
type Overflow uint8

// What a full queue does.
const (
	// DropHead drops (or dead-letters) the oldest message.
	DropHead Overflow = iota
	// RejectPublish refuses the new message: its publisher is told.
	RejectPublish
	// RejectPublishDLX refuses the new message and dead-letters it. Classic queues only:
	// quorum queues take it for DropHead.
	RejectPublishDLX
)

// Queue is where messages wait. Durations are whole milliseconds.
type Queue struct {
	// Name is needed.
	Name string
	// Kind is Quorum or Classic. Default Quorum.
	Kind QueueKind
	// TTL is how long a message may wait before it expires; it is dead-lettered, or gone. Default 0: for ever.
	TTL time.Duration
	// Expires is how long the queue lives without consumers. It goes with all its messages. Default 0: for ever.
	Expires time.Duration
	// MaxLength and MaxBytes bound the queue. Default 0: no bound.
	MaxLength, MaxBytes int64
	// Overflow is what the queue does at its bound. Default DropHead.
	Overflow Overflow
	// DeadLetter is where messages go that are rejected, expire, or are
	// dropped at the bound. Default nil: nowhere, they are gone.
	DeadLetter *DeadLetterRoute
	// SingleActiveConsumer lets one consumer have the queue at a time; another takes over when it goes.
	SingleActiveConsumer bool
	// MaxPriority is the highest priority the queue tells apart, 1 to 255. Classic only. Default 0: no priorities.
	MaxPriority int
	// MaxDeliveries is how often a message is delivered at most before it is
	// dead-lettered, or gone. Quorum only. Default 0: no limit, also on servers since 4.0, whose
	// own default would be 21 deliveries.
	MaxDeliveries int
	// Arguments are for what has no field, such as x-queue-leader-locator. The server
	// ignores a name that it does not know.
	Arguments map[string]any
}

// DeadLetterRoute is where a queue's dead letters go.
type DeadLetterRoute struct {
	// Exchange must exist, or be in the same Topology with a binding that
	// takes them. Default: the default exchange, which leads to the queue that Key names.
	Exchange string
	// Key is the routing key of dead letters. Default: that of the message. Needed with the default exchange.
	Key string
	// AtLeastOnce lets the queue keep a message until its dead letter is safe.
	// Quorum only, and with Overflow RejectPublish; otherwise a dead letter can be lost on its way.
	AtLeastOnce bool
}

// Binding leads messages from an exchange to a queue, or to another exchange.
type Binding struct {
	Exchange   string // where they come from; needed
	Queue      string // where they go: this
	ToExchange string // or this
	// Key is what the routing key must be (Direct) or match (Topic).
	Key string
	// Arguments are for exchanges that route by them (Headers).
	Arguments map[string]any
}

func (e *Exchange) standard() bool {
	return e.Kind == Direct || e.Kind == Fanout || e.Kind == Topic || e.Kind == Headers
}

func (e *Exchange) arguments() amqp.Table {
	table := widen(e.Arguments)
	if e.Alternate != "" {
		table["alternate-exchange"] = e.Alternate
	}
	return table
}

// arguments returns what the queue is declared with on a server.
func (q *Queue) arguments(server version) amqp.Table {
	table := widen(q.Arguments)
	table["x-queue-type"] = q.Kind.String()
	for name, n := range map[string]int64{
		"x-message-ttl":      q.TTL.Milliseconds(),
		"x-expires":          q.Expires.Milliseconds(),
		"x-max-length":       q.MaxLength,
		"x-max-length-bytes": q.MaxBytes,
		"x-max-priority":     int64(q.MaxPriority),
	} {
		if n != 0 {
			table[name] = n
		}
	}
	switch q.Overflow {
	case RejectPublish:
		table["x-overflow"] = "reject-publish"
	case RejectPublishDLX:
		table["x-overflow"] = "reject-publish-dlx"
	}
	if dl := q.DeadLetter; dl != nil {
		table["x-dead-letter-exchange"] = dl.Exchange
		if dl.Key != "" {
			table["x-dead-letter-routing-key"] = dl.Key
		}
		if dl.AtLeastOnce {
			table["x-dead-letter-strategy"] = "at-least-once"
		}
	}
	if q.SingleActiveConsumer {
		table["x-single-active-consumer"] = true
	}
	switch {
	case q.Kind != Quorum:
	case q.MaxDeliveries > 0:
		table["x-delivery-limit"] = int64(q.MaxDeliveries - 1)
	case server.atLeast(4, 0):
		table["x-delivery-limit"] = int64(-1)
	}
	return table
}

func (b *Binding) String() string {
	to := fmt.Sprintf("queue %q", b.Queue)
	if b.Queue == "" {
		to = fmt.Sprintf("exchange %q", b.ToExchange)
	}
	return fmt.Sprintf("of %s to exchange %q with key %q", to, b.Exchange, b.Key)
}

// widen returns a table of our own; the arguments are checked already.
func widen(args map[string]any) amqp.Table {
	table, _ := toTable(args, "")
	if table == nil {
		table = make(amqp.Table)
	}
	return table
}
