package pulsar

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

// Type is the type of a subscription.
type Type uint8

// The types of subscriptions.
const (
	// Shared spreads the messages over all consumers, in no order. The broker
	// counts the failures of each message while anybody is subscribed.
	Shared Type = iota
	// KeyShared is Shared, but the messages of one key go to one consumer, in
	// order but for retries.
	KeyShared
	// Exclusive has one consumer; another is refused. A retry has the broker send again all that is
	// unsettled, and nothing counts.
	Exclusive
	// Failover has one consumer at a time for each partition, and others that take over. It retries as
	// Exclusive does.
	Failover
)

func (t Type) String() string {
	switch t {
	case Shared:
		return "Shared"
	case KeyShared:
		return "KeyShared"
	case Exclusive:
		return "Exclusive"
	case Failover:
		return "Failover"
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// native is the type in the client library.
func (t Type) native() client.SubscriptionType {
	return map[Type]client.SubscriptionType{
		Shared: client.Shared, KeyShared: client.KeyShared, Exclusive: client.Exclusive, Failover: client.Failover,
	}[t]
}

// counts reports whether the broker counts redeliveries on this type.
func (t Type) counts() bool { return t == Shared || t == KeyShared }

const (
	defaultRetryDelay = 30 * time.Millisecond
	leastRetryDelay   = 10 * time.Millisecond
	mostRetryDelay    = time.Second
	leastAckTimeout   = time.Second
	defaultMaxHeld    = 10_000
	defaultChunkWait  = time.Hour
	mostQueue         = 1000 // of ReceiverQueue by default; it is the library's default
	mostRoom          = 1_000_000
)

// Subscription is a subscription on one or more topics: a [settle.Source]. Set its
// fields before it is first used and do not copy it after. A subscription that does not
// exist is made.
//
// Options.DeadLetter is the topic that dead letters go to; it comes with
// Options.MaxAttempts or not at all. A message is then handled MaxAttempts times. On Exclusive and
// Failover that needs CountedCopies.
type Subscription struct {
	// Broker is needed.
	Broker *Broker
	// Topic is what to consume: a name in public/default, "tenant/namespace/name", or with
	// "persistent://" before that; partitioned or not. Needed, or Topics.
	Topic string
	// Topics are several topics in place of one.
	Topics []string
	// SubscriptionName is needed.
	SubscriptionName string
	// Type is its type. Default Shared. All its consumers must have the same.
	Type Type
	// FromNow lets a subscription that is made here begin with what is published
	// from then on. Default: it begins with the oldest message that the topic has.
	FromNow bool

	// AckTimeout takes a message away from its handler and gives it back when it
	// is unsettled for so long; that is a failed attempt. It is
	// also the delay that is too long to hold. With it no message waits for a worker here, whatever
	// Options.Prefetch; one that waits for its lane does, and its time runs. Default 0: a message is ours as
	// long as the session lives. At least 1 s.
	AckTimeout time.Duration
	// RetryDelay is the least time between a failure and the next delivery. Default
	// 30 ms; at least 10 ms and at most 1 s. It is up to a third longer. The client library
	// looks that often, for each partition: dozens of partitions want a longer one.
	RetryDelay time.Duration
	// CountedCopies makes each retry a copy on the same topic that carries the number of
	// attempts, and acknowledges the original when the copy is confirmed. So the count
	// outlives the last consumer's restart, and a cap can be kept on Exclusive
	// and Failover. A copy goes to the end of the topic, under a new id. Other
	// subscriptions of the topic get it too: those of this package skip it, others see a duplicate.
	CountedCopies bool

	// DeadLetterSubscription is the name of the subscription that is made on
	// the dead-letter topic, without which the topic would not keep what it is
	// sent. Default: SubscriptionName.
	DeadLetterSubscription string
	// NoDeadLetterSubscription leaves it to you that the dead-letter topic keeps
	// its messages, by a subscription or by retention.
	NoDeadLetterSubscription bool

	// MaxHeld is how many messages wait for their delay in this process before
	// they take the place of new ones. Default 10,000; the broker's own limit
	// is its maxUnackedMessagesPerConsumer, 50,000 unless changed.
	MaxHeld int
	// ReceiverQueue is how many messages the client library fetches ahead from each
	// partition, beside Options.Prefetch. Other consumers do not get those.
	// Default: Options.Prefetch, and no more than 1000.
	ReceiverQueue int
	// ChunkWait is how long the library waits for the rest of a message that is
	// published in chunks before it acknowledges, and so drops, the chunks it
	// has. A chunked message costs it a small goroutine for that long.
	// Default 1 h.
	ChunkWait time.Duration
	// ConsumerName is how the name in the broker's statistics begins; on
	// Failover the consumer whose name sorts first is preferred. It ends at random. Default: no beginning.
	ConsumerName string

	// opened has the dead-letter topics of registrations that have had a session,
	// "" for none: what they miss now may come back.
	opened sync.Map
}

var _ settle.Source = (*Subscription)(nil)

// Name returns the subscription's name as logs and errors show it.
func (s *Subscription) Name() string {
	return fmt.Sprintf("pulsar: subscription %q on %q", s.SubscriptionName, strings.Join(s.given(), ", "))
}

func (s *Subscription) given() []string {
	if s.Topic != "" {
		return append([]string{s.Topic}, s.Topics...)
	}
	return s.Topics
}

// Open implements [settle.Source].
func (s *Subscription) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	set := &settings{Subscription: s, reg: r}
	if err := set.check(); err != nil {
		return nil, err
	}
	return set.open(ctx)
}

// settings are those of a subscription for one registration.
type settings struct {
	*Subscription
	reg        settle.Registration
	topics     []string // full names
	deadLetter string   // full name; empty: none
}

// seen reports whether the registration has had a session.
func (s *settings) seen() bool {
	_, seen := s.opened.Load(s.deadLetter)
	return seen
}

func (s *settings) refuse(setting, reason, fix string) error {
	return &settle.ConfigError{Source: s.Name(), Setting: setting, Reason: reason, Fix: fix}
}

// check fills in what follows from the settings and returns a ConfigError for
// what cannot be kept whatever the broker says.
func (s *settings) check() error {
	switch {
	case s.Broker == nil || s.Broker.consuming == nil:
		return s.refuse("Broker", "it is nil", "set it to what pulsar.New returned")
	case s.SubscriptionName == "":
		return s.refuse("SubscriptionName", "it is empty", "set it to the name of the subscription")
	case s.Type > Failover:
		return s.refuse("Type", s.Type.String()+" is none", "use Shared, KeyShared, Exclusive or Failover")
	case s.Topic != "" && len(s.Topics) > 0:
		return s.refuse("Topics", "Topic is set too", "leave one of the two out")
	case len(s.given()) == 0:
		return s.refuse("Topic", "it is empty", "set it to the topic to consume")
	}
	if err := s.checkTopics(); err != nil {
		return err
	}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"AckTimeout", int64(s.AckTimeout)},
		{"RetryDelay", int64(s.RetryDelay)},
		{"MaxHeld", int64(s.MaxHeld)},
		{"ReceiverQueue", int64(s.ReceiverQueue)},
		{"ChunkWait", int64(s.ChunkWait)},
	} {
		if n.value < 0 {
			return s.refuse(n.name, fmt.Sprintf("%d is negative", n.value), "use zero for the default, or a positive value")
		}
	}
	switch {
	case s.ReceiverQueue > mostRoom:
		return s.refuse("ReceiverQueue", fmt.Sprintf("the client library sets memory aside for each of %d", s.ReceiverQueue), fmt.Sprintf("use %d at most", mostRoom))
	case s.RetryDelay > 0 && s.RetryDelay < leastRetryDelay:
		return s.refuse("RetryDelay", fmt.Sprintf("the client library looks every third of it, so %v keeps a processor busy, and a few nanoseconds make it panic", s.RetryDelay),
			fmt.Sprintf("use %v at least, or zero for %v", leastRetryDelay, defaultRetryDelay))
	case s.RetryDelay > mostRetryDelay:
		return s.refuse("RetryDelay", fmt.Sprintf("each stop waits for it, so %v is too long", s.RetryDelay),
			fmt.Sprintf("use %v at most, and have handlers return RetryAfter for longer waits", mostRetryDelay))
	case s.AckTimeout > 0 && s.AckTimeout < leastAckTimeout:
		return s.refuse("AckTimeout", fmt.Sprintf("%v is so short that messages are taken away before they can be handled", s.AckTimeout),
			fmt.Sprintf("use %v at least, or zero for none", leastAckTimeout))
	case s.AckTimeout > 0 && s.AckTimeout <= 2*s.retryDelay():
		return s.refuse("AckTimeout", fmt.Sprintf("it is %v and RetryDelay %v, so that a message is taken away again before it has come back", s.AckTimeout, s.retryDelay()),
			"make AckTimeout more than twice RetryDelay")
	case s.AckTimeout > 0 && s.reg.Timeout >= s.AckTimeout:
		return s.refuse("Timeout", fmt.Sprintf("it is %v and AckTimeout %v, so that a message is taken away before its handler's time is over", s.reg.Timeout, s.AckTimeout),
			"make Timeout shorter than AckTimeout")
	}
	return s.checkCap()
}

func (s *settings) checkTopics() error {
	for _, topic := range s.given() {
		name, reason := fullName(topic)
		if reason != "" {
			return s.refuse("Topic", fmt.Sprintf("%q is not a topic that can be consumed: %s", topic, reason), `write it as "persistent://tenant/namespace/name"`)
		}
		if slices.Contains(s.topics, name) {
			return s.refuse("Topics", fmt.Sprintf("%q is among them twice", topic), "leave one of them out")
		}
		s.topics = append(s.topics, name)
	}
	return nil
}

// checkCap refuses what cannot be kept about the cap and the dead letter.
func (s *settings) checkCap() error {
	attempts, dead := s.reg.MaxAttempts, s.reg.DeadLetter
	switch {
	case attempts > 0 && dead == "":
		return s.refuse("DeadLetter", fmt.Sprintf("MaxAttempts is %d and there is no topic for what has reached it", attempts), "name a dead-letter topic, or leave MaxAttempts out")
	case attempts == 0 && dead != "":
		return s.refuse("MaxAttempts", "there is a dead-letter topic and no cap that would send messages there", "set MaxAttempts, or leave DeadLetter out")
	case attempts > 0 && !s.countsAttempts():
		return s.refuse("MaxAttempts", "on a subscription of type "+s.Type.String()+" the broker counts no redeliveries",
			"set CountedCopies, use Shared or KeyShared, or leave MaxAttempts out")
	case dead == "":
		return nil
	}
	name, reason := fullName(dead)
	if reason != "" {
		return s.refuse("DeadLetter", strconv.Quote(dead)+" is not a topic that can keep dead letters: "+reason, `write it as "persistent://tenant/namespace/name"`)
	}
	for _, topic := range s.topics {
		if wholeTopic(topic) == wholeTopic(name) {
			return s.refuse("DeadLetter", "it is a topic that is consumed here, so that its dead letters would come back for ever", "name another topic")
		}
	}
	s.deadLetter = name
	return nil
}

// countsAttempts reports whether the number of an attempt is known.
func (s *settings) countsAttempts() bool { return s.Type.counts() || s.CountedCopies }

// copyTopic is where the copy of a message goes that is to be handled again: the
// topic as it was given, so that the copy of one partition alone stays on it.
func (s *settings) copyTopic(topic string) string {
	if slices.Contains(s.topics, topic) {
		return topic
	}
	return wholeTopic(topic)
}

// copies reports whether any verdict needs a copy.
func (s *settings) copies() bool { return s.deadLetter != "" || s.CountedCopies }

// receiverQueue is how far the library fetches ahead. On KeyShared it is never 1: a broker of
// version 3.0 then stops delivering after some retries.
func (s *settings) receiverQueue() int {
	n := cmp.Or(s.ReceiverQueue, min(s.reg.Prefetch, mostQueue))
	if s.Type == KeyShared {
		n = max(n, 2)
	}
	return n
}

func (s *settings) retryDelay() time.Duration { return cmp.Or(s.RetryDelay, defaultRetryDelay) }

func (s *settings) traits() settle.Traits {
	t := settle.Traits{
		Delay:          settle.DelayInProcess,
		LongestDelay:   s.AckTimeout,
		MaxHeld:        cmp.Or(s.MaxHeld, defaultMaxHeld),
		AttemptUnknown: !s.countsAttempts(),
	}
	if s.AckTimeout > 0 {
		t.Prefetch = s.reg.Workers * s.reg.Batch // the time runs from the arrival: nothing waits for a worker
	}
	if s.copies() {
		t.Settlers = 2 // one may wait for a copy while the other goes on with the acks
	}
	return t
}
