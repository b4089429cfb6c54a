package pulsar

import (
	"context"
	"strings"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// A message in several chunks is one message, also when it fails and when it is
// dead-lettered.
func TestChunkedMessage(t *testing.T) {
	expectLeak(leakOfChunks)
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	body := strings.Repeat("0123456789abcdef", 12<<20/16)
	publish(t, &Publisher{Broker: b, Topic: topic, Chunks: true}, body)
	j := newJournal()
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, ChunkWait: 2 * time.Second}
	options := settle.Options{MaxAttempts: 2, DeadLetter: topic + "-dead"}
	t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
	r := run(t, j, s, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Retry(errFault) }, options)
	await(t, "the message did not end", func() bool { return j.settlements(body) == 2 })
	r.stop()
	assert.Equal(t, []int{1, 2}, j.attemptsOf(body))
	v.settledAll(topic)
	// The library's reader, which other tests use, loses its way after a message in chunks.
	reader, err := v.raw.Subscribe(client.ConsumerOptions{
		Topic: options.DeadLetter, SubscriptionName: subscriptionName, Type: client.Shared, ExpireTimeOfIncompleteChunk: 2 * time.Second,
	})
	require.NoError(t, err)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dead, err := reader.Receive(ctx)
	require.NoError(t, err)
	assert.True(t, body == string(dead.Payload()), "the dead letter has %d bytes", len(dead.Payload()))
}

// A message in chunks is settled also where the subscription has several
// topics, which the client library itself does not do.
func TestChunkedMessageAmongTopics(t *testing.T) {
	expectLeak(leakOfChunks)
	v := serverOf(t, services.Pulsar)
	one, two := v.topic(0, subscriptionName), v.topic(0, subscriptionName)
	b := v.broker()
	body := strings.Repeat("0123456789abcdef", 6<<20/16)
	publish(t, &Publisher{Broker: b, Topic: one, Chunks: true}, body)
	publish(t, &Publisher{Broker: b, Topic: two}, "m")
	j := newJournal()
	s := &Subscription{Broker: b, Topics: []string{one, two}, SubscriptionName: subscriptionName, ChunkWait: 2 * time.Second}
	r := run(t, j, s, failing(j, map[string]int{body: 1, "m": 1}), settle.Options{})
	await(t, "not every message was acknowledged", func() bool { return j.ackedOf([]string{body, "m"}) == 2 })
	r.stop()
	assert.Equal(t, []int{1, 2}, j.attemptsOf(body))
	v.settledAll(one)
	v.settledAll(two)
}

// A message in chunks may fail for longer than ChunkWait: no chunk of it is lost.
func TestChunkedMessageFailsForLong(t *testing.T) {
	services.TestAll(t)
	expectLeak(leakOfChunks)
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	body := strings.Repeat("0123456789abcdef", 20<<20/16)
	publish(t, &Publisher{Broker: b, Topic: topic, Chunks: true}, body)
	j := newJournal()
	start := time.Now()
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, ChunkWait: 2 * time.Second}
	r := run(t, j, s, func(context.Context, *settle.Delivery) settle.Outcome {
		if time.Since(start) < 5*time.Second {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	}, settle.Options{})
	await(t, "the message was not acknowledged", func() bool { return j.ackedOf([]string{body}) == 1 })
	r.stop()
	v.settledAll(topic)
}

// A broker that takes small messages only takes chunks of that size.
func TestChunksOnASmallBroker(t *testing.T) {
	for name, c := range map[string]struct {
		most       int64
		properties int
		refused    bool
	}{"small": {2 << 20, 100, false}, "usual": {5 << 20, 100, false}, "usual, large properties": {5 << 20, 2 << 20, true}, "large": {10 << 20, 2 << 20, false}} {
		b := new(Broker)
		b.mostMessage.Store(c.most)
		s := newSender(b, client.ProducerOptions{Topic: "t", DisableBatching: true, EnableChunking: true})
		m := &client.ProducerMessage{Payload: make([]byte, 12<<20), Properties: map[string]string{"p": strings.Repeat("p", c.properties)}}
		assert.Equal(t, c.refused, s.refusal(m) != nil, name)
	}
}

// Chunks that found no room do not keep what room they had.
func TestChunksGiveTheirRoomBack(t *testing.T) {
	expectLeak(leakOfChunks)
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, "")
	p := &Publisher{Broker: v.broker(), Topic: topic, Chunks: true}
	publish(t, p, "first")
	full, _ := fullName(topic)
	s, err := p.sender(full)
	require.NoError(t, err)
	s.options.MaxPendingMessages = 2 // fewer than a Publisher may have, so that three chunks never find room
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	s.discard(now)
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		require.Error(t, p.Publish(ctx, settle.Message{Body: make([]byte, 9<<20)}))
		cancel()
	}
	require.NoError(t, p.Publish(soon(t), settle.Message{Body: make([]byte, 6<<20)}), "two chunks")
}
