package pulsar

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/settletest"
)

// profile is one configuration that is held to the contract.
type profile struct {
	kind       Type
	copies     bool
	partitions int
	batch      int // of the publisher
	// watched says that somebody else stays subscribed, without taking messages:
	// then the broker keeps its counts over the end of a session.
	watched bool
}

const subscriptionName = "settle"

func (p profile) source(b *Broker, topic string) *Subscription {
	return &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: p.kind, CountedCopies: p.copies}
}

func (p profile) fixture(t testing.TB, s services.Service) settletest.Fixture {
	v := serverOf(t, s)
	line := faults.ProxyAt(t, v.proxy, v.url)
	return settletest.Fixture{
		New: func(t testing.TB, spec settletest.Spec) *settletest.Queue {
			return p.queue(t, serverOf(t, s), line, spec)
		},
		Refused: func(t testing.TB) (settle.Source, settle.Options) {
			v := serverOf(t, s)
			return p.source(v.broker(), newName()), settle.Options{MaxAttempts: 3}
		},
		Gaps: p.gaps(),
	}
}

func (p profile) queue(t testing.TB, v *server, line *faults.Line, spec settletest.Spec) *settletest.Queue {
	topic := v.topic(p.partitions, subscriptionName)
	broken := v.broker(func(c *Config) { c.URL, c.Listener = line.URL(), "proxied" })
	direct := v.broker()
	if p.watched {
		v.watch(topic, p.partitions)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broker's statistics of the topic:\n%s", v.statsText(topic, p.partitions))
		}
	})
	publisher := &Publisher{Broker: direct, Topic: topic, Batch: p.batch}
	q := &settletest.Queue{
		Source:    p.source(broken, topic),
		Second:    p.source(v.broker(), topic),
		Publish:   publisher.Publish,
		Remaining: func(context.Context) (int, error) { return v.remaining(topic, p) },
		Sever: func(context.Context) error {
			line.Sever()
			return nil
		},
		PublishAttempt: func(ctx context.Context, attempt int, m settle.Message) error {
			return v.publishCopy(ctx, topic, attempt, m)
		},
	}
	if spec.DeadLetter {
		q.DeadLetter = topic + "-dead"
		t.Cleanup(func() { v.remove(q.DeadLetter, 0) })
		q.DeadLetters = func(context.Context) ([]settletest.DeadLetter, error) { return v.deadLetters(q.DeadLetter) }
	}
	return q
}

// publishCopy publishes a message as a counted copy whose next attempt is the given one.
func (v *server) publishCopy(ctx context.Context, topic string, attempt int, m settle.Message) error {
	producer, err := v.raw.CreateProducer(client.ProducerOptions{Topic: topic, DisableBatching: true, SendTimeout: -1})
	if err != nil {
		return err
	}
	defer producer.Close()
	full, _ := fullName(topic)
	_, err = producer.Send(ctx, &client.ProducerMessage{Payload: m.Body, Key: m.Key, Properties: map[string]string{
		PropertyAttempts: strconv.Itoa(attempt - 1), PropertyFor: string(markOf(subscriptionName, full)),
	}})
	return err
}

// watch subscribes to a topic without taking a message.
func (v *server) watch(topic string, partitions int) {
	parts := []string{topic}
	if partitions > 0 {
		var err error
		parts, err = v.raw.TopicPartitions(topic)
		require.NoError(v.t, err)
	}
	for _, part := range parts {
		watcher, err := v.raw.Subscribe(client.ConsumerOptions{
			Topic: part, SubscriptionName: subscriptionName, Type: client.Shared, EnableZeroQueueConsumer: true,
		})
		require.NoError(v.t, err)
		v.t.Cleanup(watcher.Close)
	}
}

// remaining counts the messages of the subscription that are not acknowledged.
func (v *server) remaining(topic string, p profile) (int, error) {
	s, err := v.stats(topic, p.partitions)
	if err != nil || s.Subscriptions[subscriptionName].MsgBacklog == 0 || p.batch <= 1 {
		return s.Subscriptions[subscriptionName].MsgBacklog, err
	}
	return v.take(topic, p) // the broker counts batches
}

// take takes every message of the subscription, counts them, and gives them back.
func (v *server) take(topic string, p profile) (int, error) {
	c, err := v.raw.Subscribe(client.ConsumerOptions{
		Topic: topic, SubscriptionName: subscriptionName, Type: p.kind.native(), EnableBatchIndexAcknowledgment: true,
	})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		_, err := c.Receive(ctx)
		cancel()
		if err != nil {
			return n, nil
		}
	}
}

// deadLetters reads the dead letters of a topic and leaves them there.
func (v *server) deadLetters(topic string) (all []settletest.DeadLetter, err error) {
	messages, err := v.all(topic)
	for _, m := range messages {
		headers := make(settle.Headers)
		for name, value := range m.Properties() {
			headers[name] = value
		}
		attempt, _ := strconv.Atoi(headers.Get(settle.HeaderDeadAttempt))
		all = append(all, settletest.DeadLetter{Body: m.Payload(), Headers: headers, Attempt: attempt, Cause: headers.Get(settle.HeaderDeadCause)})
	}
	return all, err
}

func (p profile) gaps() map[settletest.Rule]string {
	gaps := make(map[settletest.Rule]string)
	if p.kind.counts() {
		gaps[settletest.RuleReleaseFree] = "the broker takes a message back as a failed one, but for the end of a session; the runtime releases only then"
	}
	if p.kind.counts() && !p.copies && (!p.watched || p.batch > 1) {
		gaps[settletest.RuleAttempt] = "the broker's count begins anew when the last consumer goes, as in the cases of a drain"
		if p.batch > 1 {
			gaps[settletest.RuleAttempt] = "the failures of a batch's messages are counted in the process, and a drain ends it"
		}
		gaps[settletest.RuleSeverAttempt] = gaps[settletest.RuleAttempt]
	}
	if !p.kind.counts() {
		gaps[settletest.RuleTwoConsumers] = p.kind.String() + " has one consumer at a time"
	}
	if !p.kind.counts() && !p.copies {
		for _, r := range []settletest.Rule{
			settletest.RuleAttempt, settletest.RuleSeverAttempt, settletest.RuleFinal, settletest.RuleCap, settletest.RuleCapOne,
			settletest.RulePastCap, settletest.RuleCapNowhere, settletest.RuleDelayCap, settletest.RuleReleaseFree,
		} {
			gaps[r] = "on " + p.kind.String() + " nothing counts without CountedCopies"
		}
		for _, r := range []settletest.Rule{settletest.RuleDeadLetter, settletest.RuleDeadLetterHeaders, settletest.RuleBodies} {
			gaps[r] = "a dead letter comes with a cap, which needs CountedCopies here"
		}
	}
	return gaps
}

// The gate runs one profile of each type that spreads messages.
func TestContractShared(t *testing.T) {
	settletest.Run(t, profile{watched: true}.fixture(t, services.Pulsar))
}

func TestContractKeyShared(t *testing.T) {
	settletest.Run(t, profile{kind: KeyShared, copies: true}.fixture(t, services.Pulsar))
}

// Each type, with batched and unbatched publishers, on a topic of one partition
// and on one of four, in turn on one server and the other, so that each server has each of them with each type; and
// counted copies in every second of them.
func TestContractAll(t *testing.T) {
	services.TestAll(t)
	servers := []services.Service{services.Pulsar, services.Pulsar30}
	for _, kind := range []Type{Shared, KeyShared, Exclusive, Failover} {
		for batches := range 2 {
			for partitioned := range 2 {
				s := servers[(batches+partitioned+int(kind))%2]
				copies := (partitioned+int(kind)/2)%2 == 1
				p := profile{kind: kind, batch: 100 * batches, partitions: 4 * partitioned, copies: copies, watched: kind == Shared && !copies}
				t.Run(fmt.Sprintf("%s, %v, batch %d, partitions %d, copies %v", s, kind, p.batch, p.partitions, copies), func(t *testing.T) {
					settletest.Run(t, p.fixture(t, s))
				})
			}
		}
	}
}
