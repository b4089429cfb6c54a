package rabbit

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
	declare         bool // DeclareTopology
	arguments       amqp.Table
	delay           Delay
	maxHeld         int
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
	if s.inProcess() {
		t.Delay = settle.DelayInProcess
		t.LongestDelay = cmp.Or(s.consumerTimeout, defaultConsumerTimeout)
		t.MaxHeld = s.prefetch() - s.reg.Prefetch
	} else {
		t.Delay, t.LongestDelay = s.delay.place()
	}
	if s.copies() {
		// One settler may wait for confirms while the other goes on with the acks.
		t.Settlers = 2
	}
	return t
}

// copies reports whether any verdict needs a copy.
func (s *settings) copies() bool {
	return s.reg.DeadLetter != "" || s.counted() || s.traitsDelay() == settle.DelayBySource
}

func (s *settings) traitsDelay() settle.DelayPlace {
	if s.inProcess() {
		return settle.DelayInProcess
	}
	place, _ := s.delay.place()
	return place
}

// counted reports whether a plain retry is a counted copy.
func (s *settings) counted() bool { return !s.quorum && s.reg.MaxAttempts > 0 }

func (s *settings) policy() policy {
	p := policy{
		copyMaker:  copyMaker{queue: s.queue, countHeader: cmp.Or(s.countHeader, CountHeader)},
		quorum:     s.quorum,
		counted:    s.counted(),
		limit:      s.limit(),
		deadLetter: s.reg.DeadLetter,
		delay:      s.delay,
	}
	return p
}

// publisher is what sends the copies.
func (s *settings) publisher() copyPublisher {
	if s.retries != nil {
		return copyPublisher{broker: s.retries.Broker, publish: s.retries.publish}
	}
	return copyPublisher{broker: s.broker, publish: s.broker.publish}
}

// check returns a ConfigError for what cannot be kept whatever the server says.
func (s *settings) check() error {
	switch {
	case s.broker == nil:
		return s.refuse("Broker", "it is nil", "set it to what rabbit.New returned")
	case s.queue == "":
		return s.refuse("Queue", "it is empty", "set it to the name of the queue to consume")
	case len(s.queue) > math.MaxUint8-len(".retry.")-len("4294967295"):
		return s.refuse("Queue", fmt.Sprintf("a name of %d bytes is too long", len(s.queue)), "the protocol takes 255 bytes, and wait queues are named after the queue")
	case s.maxHeld < 0:
		return s.refuse("MaxHeld", fmt.Sprintf("%d is negative", s.maxHeld), "use zero for the prefetch, or a positive value")
	case s.maxHeld > 0 && !s.inProcess():
		return s.refuse("MaxHeld", "with a Delay nothing is held in this process", "leave one of the two out")
	case s.consumerTimeout < 0:
		return s.refuse("ConsumerTimeout", fmt.Sprintf("%v is negative", s.consumerTimeout), "use zero for 30 min, or a positive value")
	case s.prefetch() > math.MaxUint16:
		return s.refuse("Prefetch", fmt.Sprintf("%d deliveries in this process (Prefetch and MaxHeld) are more than the protocol's 65535", s.prefetch()), "lower one of them")
	case s.countHeader != "" && stale(s.countHeader):
		return s.refuse("CountHeader", strconv.Quote(s.countHeader)+" is the server's own or is taken off each copy", "choose another name")
	case s.reg.DeadLetter == s.queue:
		return s.refuse("DeadLetter", "it is the queue that is consumed, so that its dead letters would come back for ever", "name another queue")
	case s.capped() && !s.declare:
		return s.refuse("MaxAttempts", "a quorum queue keeps the cap by its delivery limit, which is put on it when it is declared",
			"set DeclareTopology, or leave MaxAttempts out and give the queue its limit where you declare it")
	case !s.declare && len(s.arguments) > 0:
		return s.refuse("Arguments", "they are for declaring the queue", "set DeclareTopology, or leave them out")
	}
	if s.retries != nil {
		if err := s.retries.init(); err != nil {
			return err
		}
	}
	if err := s.pace.check(s); err != nil {
		return err
	}
	if s.delay != nil {
		if err := s.delay.check(s); err != nil {
			return err
		}
	}
	own := s.queueArguments(version{4, 3, 0})
	for name := range s.arguments {
		if v, taken := own[name]; taken {
			return s.refuse("Arguments", fmt.Sprintf("%s follows from the other settings, which make it %v", name, v), "leave it out")
		}
	}
	if err := s.arguments.Validate(); err != nil {
		return &settle.ConfigError{Source: s.name(), Setting: "Arguments", Reason: "the protocol cannot carry them", Fix: "use the types that amqp.Table names", Err: err}
	}
	return nil
}

// queueArguments are what DeclareTopology puts on the consumed queue, without
// the user's own.
func (s *settings) queueArguments(server version) amqp.Table {
	if !s.quorum {
		return amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic}
	}
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	switch {
	case s.capped():
		args[deliveryLimitArg] = int64(s.limit())
		if s.reg.DeadLetter != "" {
			args["x-dead-letter-exchange"] = ""
			args["x-dead-letter-routing-key"] = s.reg.DeadLetter
			args["x-dead-letter-strategy"] = "at-least-once"
			args[amqp.QueueOverflowArg] = amqp.QueueOverflowRejectPublish
		}
	case !server.atLeast(4, 0): // no limit is its default
	case s.arguments[deliveryLimitArg] == nil:
		args[deliveryLimitArg] = int64(-1)
	}
	s.pace.put(args)
	return args
}

const deliveryLimitArg = "x-delivery-limit"
