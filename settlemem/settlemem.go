// Package settlemem is a message broker in memory: for tests of services that
// use settle, and the reference for what the contract of package settle asks.
//
//	var broker settlemem.Broker
//	emails := broker.Queue("emails")
//	rt.Handle(emails, handler, settle.Options{MaxAttempts: 3, DeadLetter: "emails.dead"})
//	...
//	emails.Publish(ctx, settle.Message{Body: body})
//	emails.WaitEmpty(ctx)                       // all settled
//	dead := broker.Queue("emails.dead").Messages()
//
// It uses package time alone, so that under testing/synctest delays pass at
// once. Nothing is written anywhere: what it holds ends with the process.
//
// The broker counts attempts when it delivers, so a lost session spends one; a
// released delivery gets its attempt back.
package settlemem

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// Broker is a set of queues that dead letters can move between. The zero value is ready for use. The fields
// are set before its first queue is opened. Its methods may be called by several goroutines at once.
type Broker struct {
	// Delay says who waits out a RetryAfter. The zero value is the process, as
	// on RabbitMQ; settle.DelayBySource is what a queue table does.
	Delay settle.DelayPlace
	// LongestDelay is the delay that is too long. Default 0: none is.
	LongestDelay time.Duration
	// FailSettle, if set, is asked before each settlement; an error it returns
	// fails that settlement, as a database's hiccup would. It must be safe for concurrent use.
	FailSettle func(d *settle.Delivery, v settle.Verdict) error

	mu     sync.Mutex // guards queues
	queues map[string]*Queue
}

// Queue returns the queue of that name, made at the first call.
func (b *Broker) Queue(name string) *Queue {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil {
		if b.queues == nil {
			b.queues = make(map[string]*Queue)
		}
		q = newQueue(b, name)
		b.queues[name] = q
	}
	return q
}

// Sever breaks every open session, as a lost connection does: its unsettled deliveries are in
// their queue again, one attempt older, and settle with settle.ErrSessionLost.
func (b *Broker) Sever() {
	b.mu.Lock()
	queues := make([]*Queue, 0, len(b.queues))
	for _, q := range b.queues {
		queues = append(queues, q)
	}
	b.mu.Unlock()
	for _, q := range queues {
		q.sever()
	}
}

// Publish puts messages into the queue. Message.To may name another queue of the broker.
// Body and Headers are not copied: the caller must not write to them afterwards.
func (q *Queue) Publish(ctx context.Context, msgs ...settle.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, m := range msgs {
		to := q
		if m.To != "" && m.To != q.name {
			to = q.broker.Queue(m.To)
		}
		to.add(&message{Message: m, published: time.Now()}, m.Delay)
	}
	return nil
}

// PublishAttempt puts one message into the queue whose next delivery has the
// given attempt, as if it had failed before.
func (q *Queue) PublishAttempt(attempt int, m settle.Message) {
	q.add(&message{Message: m, attempts: attempt - 1, published: time.Now()}, 0)
}

// Len returns how many messages the queue has: ready, delayed or unsettled.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// WaitEmpty waits until the queue has no message left: none ready, none delayed and
// none unsettled. It returns ctx's error, with the count that is left, when ctx ends first.
func (q *Queue) WaitEmpty(ctx context.Context) error {
	for {
		q.mu.Lock()
		left := q.size
		if left == 0 {
			q.mu.Unlock()
			return nil
		}
		if q.emptied == nil {
			q.emptied = make(chan struct{})
		}
		emptied := q.emptied
		q.mu.Unlock()
		select {
		case <-emptied:
		case <-ctx.Done():
			return fmt.Errorf("settlemem: queue %q still has %d messages: %w", q.name, left, ctx.Err())
		}
	}
}

// Messages returns the messages that are ready, in the order they would be
// delivered, and leaves them there. A dead letter has the headers of the
// settle.HeaderDead constants.
func (q *Queue) Messages() []settle.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	var all []settle.Message
	for i := range q.levels {
		for _, m := range q.levels[i].list() {
			all = append(all, m.Message)
		}
	}
	return all
}

// deadLetter makes the copy of d that goes to the dead-letter queue.
func deadLetter(source string, d *delivery, cause error) *message {
	m := d.message.Message
	m.Delay, m.To = 0, ""
	m.Headers = m.Headers.Clone()
	if m.Headers == nil {
		m.Headers = make(settle.Headers, 3)
	}
	m.Headers[settle.HeaderDeadSource] = source
	m.Headers[settle.HeaderDeadAttempt] = strconv.Itoa(d.Attempt)
	if cause != nil {
		m.Headers[settle.HeaderDeadCause] = cause.Error()
	}
	return &message{Message: m, published: d.message.published}
}
