package rabbit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// ClassicQueue is a classic queue as a source of deliveries: pass a pointer to one to
// [settle.Runtime.Handle]. The zero value of each field but Broker and Queue means the
// default that stands beside it. Do not change or copy it once it is registered.
//
// A classic queue counts nothing itself. So with Options.MaxAttempts a retry is a
// copy of the message with the attempts so far in its header, published to the
// end of the queue and confirmed before the original is acknowledged. Without a
// cap a retry is a basic.reject with requeue, uncounted. Options.DeadLetter is the name of
// the queue dead letters go to, as such a copy too. A crash of the consumer is not counted by anybody.
type ClassicQueue struct {
	// Broker is needed.
	Broker *Broker
	// Queue is the name of the queue to consume. Needed.
	Queue string
	// DeclareTopology declares the queue at each start, durable, and with it the
	// dead-letter queue and what Delay needs; a dead-letter queue that exists is taken as it is. Default: the queues are
	// checked at each start, and one that is missing stops the start. That check
	// cannot see a queue's type or arguments.
	DeclareTopology bool
	// Settings are further settings of the queue for DeclareTopology: its time to live, its
	// bounds, a single active consumer and more. Its name and kind, and with a
	// cap its limit and dead letter, follow from the rest.
	Settings Queue
	// Bindings lead messages to the queue, for DeclareTopology. Their exchanges must
	// exist; their Queue is this one.
	Bindings []Binding
	// Delay says where a message waits that is to be retried after a while.
	// Default: in this process, unacknowledged.
	Delay Delay
	// MaxHeld is how many deliveries may wait in this process beside those in
	// work: as many more the server hands out. Default: Options.Prefetch. With
	// a Delay there are none.
	MaxHeld int
	// AckEach acknowledges each delivery by a frame of its own. Default: those that are
	// ready together and have nothing unsettled before them share one (basic.ack
	// with multiple), which is faster.
	AckEach bool
	// ConsumerTimeout is the server's consumer_timeout, after which it takes back
	// a delivery that is not settled. A delay that would reach it is not waited out
	// in this process. Default 30 min, as the server's.
	ConsumerTimeout time.Duration
	// CountHeader is the header for the attempts so far. Default: the constant [CountHeader].
	CountHeader string
	// RetryPublisher sends the copies of retries, waits and dead letters: a publisher with a window of
	// its own, or on another connection. Its Exchange and routing key do not matter. Default: the broker sends them.
	RetryPublisher *Publisher

	seen atomic.Bool
}

var _ settle.Source = (*ClassicQueue)(nil)

// Name implements [settle.Source].
func (q *ClassicQueue) Name() string { return queueName(q.Queue) }

// Open implements [settle.Source].
func (q *ClassicQueue) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	return open(ctx, settings{
		broker: q.Broker, queue: q.Queue, declare: q.DeclareTopology, with: q.Settings, bindings: q.Bindings,
		delay: q.Delay, maxHeld: q.MaxHeld, consumerTimeout: q.ConsumerTimeout, countHeader: q.CountHeader,
		ackEach: q.AckEach, retries: q.RetryPublisher, seen: &q.seen, reg: r,
	})
}
