package settletest

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settlemem"
)

// mutant is a settlemem source that is changed, mostly for the worse: a hook that
// is set stands in for the method of its name, or changes what passes. For the
// rest it has the real consumer's methods.
type mutant struct {
	delay   settle.DelayPlace // the broker's
	longest time.Duration     // its LongestDelay

	traits  func(m *mutated, t *settle.Traits) // changes what Traits returns
	open    func(m *mutated, ctx context.Context, r settle.Registration) (settle.Consumer, error)
	receive func(m *mutated, ctx context.Context, buf []*settle.Delivery) (int, error)
	arrive  func(m *mutated, d *settle.Delivery) // changes what Receive returns
	settle  func(m *mutated, ctx context.Context, batch []settle.Settlement)
	verdict func(m *mutated, s *settle.Settlement) // changes what Settle is asked
	settled func(m *mutated, s *settle.Settlement) // changes how it went
	stop    func(m *mutated, ctx context.Context) error
	close   func(m *mutated, ctx context.Context) error
}

// mutated is a source or one session of it, made wrong.
type mutated struct {
	settle.Source
	settle.Consumer
	mutant
	*shared
	registration settle.Registration
}

// shared is what a source and its sessions have together.
type shared struct {
	broker    *settlemem.Broker
	queue     *settlemem.Queue
	over      context.Context // ends with the case at the latest: what hangs, hangs until then
	after     context.Context // ends after that
	sessions  atomic.Int32    // opened so far
	unsettled atomic.Int64
	once      atomic.Bool // for what goes wrong once
}

func (m *mutated) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	if m.open != nil {
		return m.open(m, ctx, r)
	}
	return m.openReal(ctx, r)
}

func (m *mutated) openReal(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	c, err := m.Source.Open(ctx, r)
	if err != nil {
		return nil, err
	}
	m.sessions.Add(1)
	return &mutated{Source: m.Source, Consumer: c, mutant: m.mutant, shared: m.shared, registration: r}, nil
}

func (m *mutated) Traits() settle.Traits {
	t := m.Consumer.Traits()
	if m.traits != nil {
		m.traits(m, &t)
	}
	return t
}

func (m *mutated) Receive(ctx context.Context, buf []*settle.Delivery) (n int, err error) {
	if m.receive != nil {
		n, err = m.receive(m, ctx, buf)
	} else {
		n, err = m.Consumer.Receive(ctx, buf)
	}
	m.unsettled.Add(int64(n))
	if m.arrive != nil {
		for _, d := range buf[:min(n, len(buf))] {
			m.arrive(m, d)
		}
	}
	return n, err
}

func (m *mutated) Settle(ctx context.Context, batch []settle.Settlement) {
	if m.settle != nil {
		m.settle(m, ctx, batch)
		m.unsettled.Add(-int64(len(batch)))
		return
	}
	asked := slices.Clone(batch)
	for i := range asked {
		if m.verdict != nil {
			m.verdict(m, &asked[i])
		}
		asked[i].Err = nil
	}
	m.Consumer.Settle(ctx, asked)
	m.unsettled.Add(-int64(len(batch)))
	for i := range asked {
		if m.settled != nil {
			m.settled(m, &asked[i])
		}
		batch[i].Err = asked[i].Err
	}
}

func (m *mutated) Stop(ctx context.Context) error {
	if m.stop != nil {
		return m.stop(m, ctx)
	}
	return m.Consumer.Stop(ctx)
}

func (m *mutated) Close(ctx context.Context) error {
	if m.close != nil {
		return m.close(m, ctx)
	}
	return m.Consumer.Close(ctx)
}

// publish puts a message into a queue of the broker.
func (m *mutated) publish(to string, msg settle.Message) {
	_ = m.broker.Queue(to).Publish(context.Background(), msg)
}

func (m *mutated) hang() { <-m.over.Done() }

const (
	mutantQueue = "orders"
	mutantDead  = "orders.dead"
)

// fixture makes queues of mutants. What hangs does so for longer than the suite
// waits at the deadline.
func (b mutant) fixture(t testing.TB, deadline time.Duration) Fixture {
	after, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	source := func(t testing.TB) *mutated {
		broker := &settlemem.Broker{Delay: b.delay, LongestDelay: b.longest}
		s := &shared{broker: broker, queue: broker.Queue(mutantQueue), after: after}
		var end context.CancelFunc
		s.over, end = context.WithTimeout(context.Background(), 3*deadline)
		t.Cleanup(end)
		return &mutated{Source: s.queue, mutant: b, shared: s}
	}
	return Fixture{
		Deadline: deadline,
		Delay:    50 * time.Millisecond,
		New: func(t testing.TB, spec Spec) *Queue {
			m := source(t)
			q := &Queue{
				Source:    m,
				Publish:   m.queue.Publish,
				Remaining: func(context.Context) (int, error) { return m.queue.Len(), nil },
				Sever: func(context.Context) error {
					m.broker.Sever()
					return nil
				},
				PublishAttempt: func(_ context.Context, attempt int, msg settle.Message) error {
					m.queue.PublishAttempt(attempt, msg)
					return nil
				},
				Second: m,
				DeadLetters: func(context.Context) ([]DeadLetter, error) {
					var all []DeadLetter
					for _, msg := range m.broker.Queue(mutantDead).Messages() {
						all = append(all, DeadLetter{Body: msg.Body, Headers: msg.Headers})
					}
					return all, nil
				},
			}
			if spec.DeadLetter {
				q.DeadLetter = mutantDead
			}
			return q
		},
		Refused: func(t testing.TB) (settle.Source, settle.Options) {
			return source(t), settle.Options{MaxAttempts: 3, DeadLetter: mutantQueue}
		},
	}
}
