package rabbit

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/settletest"
)

// profile is one configuration that is held to the contract.
type profile struct {
	quorum bool
	delay  Delay
	pace   DelayedRetry
	gaps   map[settletest.Rule]string
}

// source makes the profile's queue.
func (p profile) source(b *Broker, name string) settle.Source {
	if p.quorum {
		return &QuorumQueue{Broker: b, Queue: name, DeclareTopology: true, Delay: p.delay, DelayedRetry: p.pace}
	}
	return &ClassicQueue{Broker: b, Queue: name, DeclareTopology: true, Delay: p.delay}
}

func (p profile) fixture(url string, gaps map[settletest.Rule]string) settletest.Fixture {
	return settletest.Fixture{
		New: func(t testing.TB, spec settletest.Spec) *settletest.Queue {
			line := faults.Proxy(t, url)
			broken, direct, second := newBroker(t, line.URL()), newBroker(t, url), newBroker(t, url)
			server := dialServer(t, url)
			name := newName()
			waits := []string{name + ".retry", name + ".retry.250", name + ".retry.600000"}
			server.remove(append(waits, name, name+".dead")...)
			publisher := &Publisher{Broker: direct, RoutingKey: name}
			q := &settletest.Queue{
				Source: p.source(broken, name),
				Second: p.source(second, name),
				Publish: func(ctx context.Context, msgs ...settle.Message) error {
					if err := server.declare(p, broken, name, spec); err != nil {
						return err
					}
					return publisher.Publish(ctx, msgs...)
				},
				Remaining: func(context.Context) (int, error) { return server.count(append(waits, name)...) },
				Sever: func(context.Context) error {
					line.Sever()
					return nil
				},
			}
			q.PublishAttempt = func(ctx context.Context, attempt int, m settle.Message) error {
				m.Headers = settle.Headers{CountHeader: attempt - 1}
				return q.Publish(ctx, m)
			}
			if spec.DeadLetter {
				q.DeadLetter = name + ".dead"
				var found []settletest.DeadLetter
				q.DeadLetters = func(context.Context) ([]settletest.DeadLetter, error) {
					more, err := server.deadLetters(name + ".dead")
					found = append(found, more...)
					return found, err
				}
			}
			return q
		},
		Refused: func(t testing.TB) (settle.Source, settle.Options) {
			b, name := newBroker(t, url), newName()
			if p.quorum {
				return &QuorumQueue{Broker: b, Queue: name}, settle.Options{MaxAttempts: 3, DeadLetter: name + ".dead"}
			}
			return p.source(b, name), settle.Options{MaxAttempts: 3, DeadLetter: name}
		},
		Gaps: gaps,
	}
}

// newBroker is a broker value that ends with the test.
func newBroker(t testing.TB, url ...string) *Broker {
	t.Helper()
	b, err := New(Config{URLs: url, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, b.Close(ctx))
	})
	return b
}

var names atomic.Int64

// newName is a queue's that no other test has.
func newName() string { return fmt.Sprintf("settle.test.%d.%d", time.Now().UnixNano(), names.Add(1)) }

// server is the test's own view of a real server, past the code under test.
type server struct {
	t       testing.TB
	conn    *amqp.Connection
	version version
}

func dialServer(t testing.TB, url string) *server {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &server{t: t, conn: conn, version: parseVersion(conn.Properties["version"])}
}

// on runs f on a channel of its own.
func (s *server) on(f func(*amqp.Channel) error) error {
	ch, err := s.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	return f(ch)
}

// remove deletes queues when the test ends.
func (s *server) remove(names ...string) {
	s.t.Cleanup(func() {
		for _, name := range names {
			_ = s.on(func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete(name, false, false, false)
				return err
			})
		}
	})
}

// declare declares the profile's queue as its source does, so that something
// can be published before a consumer is open.
func (s *server) declare(p profile, b *Broker, name string, spec settletest.Spec) error {
	o := settings{broker: b, queue: name, quorum: p.quorum, declare: true, delay: p.delay, pace: p.pace, reg: settle.Registration{MaxAttempts: spec.MaxAttempts, Prefetch: 1}}
	if spec.DeadLetter {
		o.reg.DeadLetter = name + ".dead"
	}
	q, err := o.check()
	if err != nil {
		return err
	}
	return s.on(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, q.arguments(s.version))
		return err
	})
}

// count is how many messages wait in the queues; one that does not exist has none.
func (s *server) count(names ...string) (int, error) {
	n := 0
	for _, name := range names {
		err := s.on(func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			n += q.Messages
			return err
		})
		if err != nil && !isCode(err, amqp.NotFound) {
			return 0, err
		}
	}
	return n, nil
}

// deadLetters takes the dead letters out of a queue.
func (s *server) deadLetters(name string) (all []settletest.DeadLetter, err error) {
	err = s.on(func(ch *amqp.Channel) error {
		for {
			d, ok, err := ch.Get(name, true)
			if err != nil || !ok {
				return err
			}
			attempt, _ := count(d.Headers[settle.HeaderDeadAttempt])
			cause, _ := d.Headers[settle.HeaderDeadCause].(string)
			all = append(all, settletest.DeadLetter{Body: d.Body, Headers: settle.Headers(d.Headers), Attempt: attempt, Cause: cause})
		}
	})
	return all, err
}

// The gate runs one profile of each queue type.
func TestContractClassic(t *testing.T) {
	settletest.Run(t, profile{}.fixture(services.URL(t, services.Rabbit), nil))
}

func TestContractQuorum(t *testing.T) {
	settletest.Run(t, profile{quorum: true}.fixture(services.URL(t, services.Rabbit), nil))
}

var noDelay = map[settletest.Rule]string{
	settletest.RuleDelay:      "NoDelay{} does not wait; it says so",
	settletest.RuleDrainHolds: "NoDelay{} does not wait, so nothing waits at the end",
}

// Each place to wait, on each queue type and each server.
func TestContractAll(t *testing.T) {
	services.TestAll(t)
	for name, p := range map[string]profile{
		"classic, wait queue":           {delay: WaitQueue{}},
		"classic, wait queue per delay": {delay: WaitQueue{PerDelay: true}},
		"classic, no delay":             {delay: NoDelay{}, gaps: noDelay},
		"quorum, wait queue":            {quorum: true, delay: WaitQueue{}},
		"quorum, wait queue per delay":  {quorum: true, delay: WaitQueue{PerDelay: true}},
		"quorum, no delay":              {quorum: true, delay: NoDelay{}, gaps: noDelay},
		"quorum, delayed retry":         {quorum: true, pace: DelayedRetry{Min: 5 * time.Millisecond, Max: 20 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			settletest.Run(t, p.fixture(services.URL(t, services.Rabbit), p.gaps))
		})
	}
}

func TestContractAll310(t *testing.T) {
	services.TestAll(t)
	counts := map[settletest.Rule]string{settletest.RuleReleaseFree: "before 4.0 a quorum queue counts every return of a delivery"}
	for name, p := range map[string]profile{
		"classic":             {},
		"classic, wait queue": {delay: WaitQueue{}},
		"classic, no delay":   {delay: NoDelay{}, gaps: noDelay},
		"quorum":              {quorum: true, gaps: counts},
		"quorum, wait queue":  {quorum: true, delay: WaitQueue{PerDelay: true}, gaps: counts},
	} {
		t.Run(name, func(t *testing.T) {
			settletest.Run(t, p.fixture(services.URL(t, services.Rabbit310), p.gaps))
		})
	}
}
