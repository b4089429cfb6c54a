package rabbit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// This file holds what ClassicQueue and QuorumQueue have in common: the
// settings of one registration, and what is refused about them before anything is
// sent to the server.

// defaultConsumerTimeout is the server's default.
const defaultConsumerTimeout = 30 * time.Minute

// settings are those of a ClassicQueue or QuorumQueue for one registration.
type settings struct {
	broker          *Broker
	queue           string
	quorum          bool
	declare         bool  // DeclareTopology
	with            Queue // further settings of the queue, for declare
	bindings        []Binding
	delay           Delay
	maxHeld         int
	ackEach         bool
	consumerTimeout time.Duration
	countHeader     string
	retries         *Publisher // of a ClassicQueue; may be nil
	pace            DelayedRetry
	// seen is set once a session was open: then a queue that is missing may
	// come back, and is no mistake in the settings.
	seen *atomic.Bool

	reg settle.Registration
}

func queueName(queue string) string { return "rabbit: queue " + strconv.Quote(queue) }

func (s *settings) name() string { return queueName(s.queue) }

func (s *settings) refuse(setting, reason, fix string) error {
	return &settle.ConfigError{Source: s.name(), Setting: setting, Reason: reason, Fix: fix}
}

// capped reports whether the server keeps the cap: a quorum queue's limit.
func (s *settings) capped() bool { return s.quorum && s.reg.MaxAttempts > 0 }

// limit is the x-delivery-limit for the cap: how many failures may be followed
// by another delivery. Negative: none.
func (s *settings) limit() int {
	if !s.capped() {
		return -1
	}
	return s.reg.MaxAttempts - 1
}

// inProcess reports whether the runtime waits out the delays.
func (s *settings) inProcess() bool { return s.delay == nil }

// prefetch is how many unacknowledged deliveries the server lets this consumer
// have: those in work and those that are held.
func (s *settings) prefetch() int {
	if !s.inProcess() {
		return s.reg.Prefetch
	}
	return s.reg.Prefetch + cmp.Or(s.maxHeld, s.reg.Prefetch)
}

func (s *settings) traits() settle.Traits {
	t := settle.Traits{}
	t.Delay = s.place()
	if s.inProcess() {
		t.LongestDelay = cmp.Or(s.consumerTimeout, defaultConsumerTimeout)
		t.MaxHeld = s.prefetch() - s.reg.Prefetch
	} else {
		_, t.LongestDelay = s.delay.place()
	}
	if s.copies() {
		// One settler may wait for confirms while the other goes on with the acks.
		t.Settlers = 2
	}
	return t
}

// copies reports whether any verdict needs a copy.
func (s *settings) copies() bool {
	return s.reg.DeadLetter != "" || s.counted() || s.place() == settle.DelayBySource
}

// place says who waits out a delay.
func (s *settings) place() settle.DelayPlace {
	if s.inProcess() {
		return settle.DelayInProcess
	}
	place, _ := s.delay.place()
	return place
}

// counted reports whether a plain retry is a counted copy.
func (s *settings) counted() bool { return !s.quorum && s.reg.MaxAttempts > 0 }

func (s *settings) policy() policy {
	return policy{
		copyMaker:  copyMaker{queue: s.queue, countHeader: cmp.Or(s.countHeader, CountHeader)},
		quorum:     s.quorum,
		counted:    s.counted(),
		limit:      s.limit(),
		deadLetter: s.reg.DeadLetter,
		delay:      s.delay,
	}
}

// publisher is what sends the copies.
func (s *settings) publisher() copyPublisher {
	if s.retries != nil {
		return copyPublisher{broker: s.retries.Broker, publish: s.retries.publish}
	}
	return copyPublisher{broker: s.broker, publish: s.broker.publish}
}

// check returns a ConfigError for what cannot be kept whatever the server
// says, and the queue as it is to be declared: nil where it is not.
func (s *settings) check() (*Queue, error) {
	if err := s.checkEach(); err != nil {
		return nil, err
	}
	if s.retries != nil {
		if err := s.retries.init(); err != nil {
			return nil, err
		}
	}
	if err := s.pace.check(s); err != nil {
		return nil, err
	}
	if s.delay != nil {
		if err := s.delay.check(s); err != nil {
			return nil, err
		}
	}
	if !s.declare {
		return nil, nil
	}
	q, err := s.declared()
	if err != nil {
		return nil, err
	}
	errs := q.check()
	for _, b := range s.bindings {
		b.Queue = s.queue
		errs = append(errs, b.check()...)
	}
	return q, errors.Join(errs...)
}

// checkEach looks at one setting after the other.
func (s *settings) checkEach() error {
	switch {
	case s.broker == nil:
		return s.refuse("Broker", "it is nil", "set it to what rabbit.New returned")
	case s.queue == "":
		return s.refuse("Queue", "it is empty", "set it to the name of the queue to consume")
	case len(s.queue) > mostName:
		return s.refuse("Queue", fmt.Sprintf("a name of %d bytes is too long: wait queues are named after the queue, and the protocol takes %d bytes", len(s.queue), shortMost),
			fmt.Sprintf("use %d at most", mostName))
	case s.maxHeld < 0:
		return s.refuse("MaxHeld", fmt.Sprintf("%d is negative", s.maxHeld), "use zero for the prefetch, or a positive value")
	case s.maxHeld > 0 && !s.inProcess():
		return s.refuse("MaxHeld", "with a Delay nothing is held in this process", "leave one of the two out")
	case s.consumerTimeout < 0:
		return s.refuse("ConsumerTimeout", fmt.Sprintf("%v is negative", s.consumerTimeout), "use zero for 30 min, or a positive value")
	case s.prefetch() > math.MaxUint16:
		return s.refuse("Prefetch", fmt.Sprintf("%d deliveries in this process (Prefetch and MaxHeld) are more than the protocol's 65535", s.prefetch()), "lower one of them")
	case stale(s.countHeader):
		return s.refuse("CountHeader", strconv.Quote(s.countHeader)+" is the server's own or is taken off each copy", "choose another name")
	case s.reg.DeadLetter == s.queue:
		return s.refuse("DeadLetter", "it is the queue that is consumed, so that its dead letters would come back for ever", "name another queue")
	case s.capped() && !s.declare:
		return s.refuse("MaxAttempts", "a quorum queue keeps the cap by its delivery limit, which is put on it when it is declared",
			"set DeclareTopology, or leave MaxAttempts out and give the queue its limit where you declare it")
	case !s.declare && !reflect.ValueOf(s.with).IsZero():
		return s.refuse("Settings", "they are for declaring the queue", "set DeclareTopology, or leave them out")
	case !s.declare && len(s.bindings) > 0:
		return s.refuse("Bindings", "they are for declaring the queue", "set DeclareTopology, or leave them out")
	}
	for _, b := range s.bindings {
		if b.ToExchange != "" || b.Queue != "" && b.Queue != s.queue {
			return s.refuse("Bindings", fmt.Sprintf("the binding %v does not lead to this queue", &b), "leave its Queue and ToExchange empty")
		}
	}
	return nil
}

// mostName leaves room for what is put behind the name of a queue.
const mostName = shortMost - len(".retry.4294967295")

// declared is the queue as DeclareTopology declares it.
func (s *settings) declared() (*Queue, error) {
	taken := func(field, by string) (*Queue, error) {
		return nil, s.refuse("Settings."+field, "it follows from "+by, "leave it out")
	}
	q := s.with
	switch {
	case q.Name != "":
		return taken("Name", "Queue")
	case s.quorum && q.Kind != Quorum:
		return taken("Kind", "the type of this source")
	case s.capped() && q.MaxDeliveries != 0:
		return taken("MaxDeliveries", "Options.MaxAttempts")
	case s.capped() && s.reg.DeadLetter != "" && q.DeadLetter != nil:
		return taken("DeadLetter", "Options.DeadLetter, where the server moves a message at its cap")
	}
	q.Name, q.Kind = s.queue, Quorum
	if !s.quorum {
		q.Kind = Classic
	}
	if s.capped() {
		q.MaxDeliveries = s.reg.MaxAttempts
		if s.reg.DeadLetter != "" {
			q.DeadLetter = &DeadLetterRoute{Key: s.reg.DeadLetter, AtLeastOnce: true}
			q.Overflow = max(q.Overflow, RejectPublish)
		}
	}
	s.pace.put(&q)
	return &q, nil
}

// deadLetterQueue is the dead-letter queue as we declare it: it is of the consumed queue's
// kind, and has no limit that would drop what was looked at too often.
func (s *settings) deadLetterQueue() *Queue {
	q := &Queue{Name: s.reg.DeadLetter, Kind: Quorum}
	if !s.quorum {
		q.Kind = Classic
	}
	return q
}
