package rabbit

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// QuorumQueue is a quorum queue as a source of deliveries: pass a pointer to one to
// [settle.Runtime.Handle]. The zero value of each field but Broker and Queue means the
// default that stands beside it. Do not change or copy it once it is registered.
//
// The server counts the failures of a message: every basic.reject with requeue,
// which is what a retry is, and every crash of its consumer. Options.MaxAttempts becomes the
// queue's delivery limit, so it needs DeclareTopology; at the limit the server
// moves the message to Options.DeadLetter, the name of a queue, at least once. Before that a dead letter is a copy,
// confirmed before the original is acknowledged.
//
// Before 4.0 the server counts every return to the queue, also of a delivery that no
// handler started.
type QuorumQueue struct {
	// Broker is needed.
	Broker *Broker
	// Queue is the name of the queue to consume. Needed.
	Queue string
	// DeclareTopology declares the queue at each start, with the delivery limit
	// that the cap needs or without any, and with it the dead-letter queue and what Delay needs; a
	// dead-letter queue that exists is taken as it is. Default:
	// the queues are checked at each start, and one that is missing stops the
	// start. That check cannot see a queue's type or arguments; a queue that has no limit of its own drops a message after the
	// server's default of 20 failures, from 4.0 on.
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
	// DelayedRetry lets the server keep back every message that failed. Default: it comes again at once.
	DelayedRetry DelayedRetry
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
	// CountHeader is the header for the attempts so far that a copy carries.
	// Default: the constant [CountHeader].
	CountHeader string

	seen atomic.Bool
}

var _ settle.Source = (*QuorumQueue)(nil)

// Name implements [settle.Source].
func (q *QuorumQueue) Name() string { return queueName(q.Queue) }

// Open implements [settle.Source].
func (q *QuorumQueue) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	return open(ctx, settings{
		broker: q.Broker, queue: q.Queue, quorum: true, declare: q.DeclareTopology, with: q.Settings, bindings: q.Bindings,
		delay: q.Delay, pace: q.DelayedRetry, maxHeld: q.MaxHeld, consumerTimeout: q.ConsumerTimeout,
		ackEach: q.AckEach, countHeader: q.CountHeader, seen: &q.seen, reg: r,
	})
}

// DelayedRetry paces retries on the server, from RabbitMQ 4.3 on: a message
// that failed comes again after Min times its failures so far, and at most Max. It needs
// DeclareTopology. A settle.RetryAfter waits out its own delay first. The zero value is no pace.
type DelayedRetry struct {
	Min time.Duration // at least 1 ms
	Max time.Duration // 0: Min
}

func (p DelayedRetry) set() bool { return p != DelayedRetry{} }

func (p DelayedRetry) check(s *settings) error {
	switch {
	case !p.set():
		return nil
	case p.Min < time.Millisecond || p.Max != 0 && p.Max < p.Min || max(p.Min, p.Max) > longestServerDelay:
		return s.refuse("DelayedRetry", fmt.Sprintf("Min %v and Max %v make no pace", p.Min, p.Max), "use a Min of 1 ms at least, and a Max not below it")
	case !s.declare:
		return s.refuse("DelayedRetry", "it is put on the queue when that is declared", "set DeclareTopology")
	}
	return nil
}

// supported returns a ConfigError for a server that would take the arguments
// and ignore them.
func (p DelayedRetry) supported(s *settings, server version) error {
	if !p.set() || server.atLeast(4, 3) {
		return nil
	}
	return s.refuse("DelayedRetry", "the server "+server.String()+" has none", "use RabbitMQ 4.3 or later, or settle.RetryAfter")
}

func (p DelayedRetry) put(q *Queue) {
	if !p.set() {
		return
	}
	args := map[string]any{"x-delayed-retry-type": "failed", "x-delayed-retry-min": ceilMilliseconds(p.Min)}
	if p.Max > 0 {
		args["x-delayed-retry-max"] = ceilMilliseconds(p.Max)
	}
	maps.Copy(args, q.Arguments)
	q.Arguments = args
}
