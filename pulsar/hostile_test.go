package pulsar

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// The tests here do to a service what its messages, its neighbours and its
// broker may do to it.

// A handler may publish another message with the headers of the one it has. On
// the other topic that is a message like any other: seen, and at its first attempt.
func TestHeadersCanBePassedOn(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	first, second := v.topic(0, "billing"), v.topic(0, "shipping")
	b := v.broker()
	p := &Publisher{Broker: b}
	require.NoError(t, p.Publish(soon(t), settle.Message{To: first, ID: "one", Body: []byte("m"), Headers: settle.Headers{"tenant": "a"}}))
	j, next := newJournal(), newJournal()
	var passed settle.Delivery
	var raw map[string]string
	billing := run(t, j, &Subscription{Broker: b, Topic: first, SubscriptionName: "billing", CountedCopies: true}, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		if d.Attempt < 3 {
			return settle.Retry(errFault)
		}
		var native client.Message
		d.As(&native)
		raw = native.Properties()
		if err := p.Publish(ctx, settle.Message{To: second, Body: []byte("by headers"), Headers: d.Headers}); err != nil {
			return settle.DeadLetter(err)
		}
		return settle.Ack()
	}, settle.Options{})
	shipping := run(t, next, &Subscription{Broker: b, Topic: second, SubscriptionName: "shipping"}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if string(d.Body) == "by headers" {
			passed.Headers, passed.ID = d.Headers, d.ID
		}
		return settle.Ack()
	}, settle.Options{})
	await(t, "the message that was passed on was not handled", func() bool { return next.ackedOf([]string{"by headers"}) == 1 })

	// Others pass all properties on: the tools of the broker, and other clients.
	producer, err := v.raw.CreateProducer(client.ProducerOptions{Topic: second, DisableBatching: true, SendTimeout: -1})
	require.NoError(t, err)
	defer producer.Close()
	require.Contains(t, raw, PropertyFor)
	_, err = producer.Send(soon(t), &client.ProducerMessage{Payload: []byte("by properties"), Properties: raw})
	require.NoError(t, err)
	await(t, "the message that was passed on was not handled", func() bool { return next.ackedOf([]string{"by properties"}) == 1 })
	billing.stop()
	shipping.stop()
	assert.Equal(t, []int{1}, next.attemptsOf("by headers"))
	assert.Equal(t, []int{1}, next.attemptsOf("by properties"))
	assert.Equal(t, "a", passed.Headers.Get("tenant"))
	assert.NotEqual(t, "one", passed.ID)
}

// The counted copy of a message of one partition, where that alone is consumed,
// stays on it.
func TestCountedCopyStaysOnItsPartition(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(4, "")
	part := "persistent://public/default/" + topic + "-partition-2"
	b := v.broker()
	j := newJournal()
	all, fails := numbered(8), make(map[string]int)
	for _, name := range all {
		fails[name] = 1
	}
	r := run(t, j, &Subscription{Broker: b, Topic: part, SubscriptionName: subscriptionName, CountedCopies: true}, failing(j, fails), settle.Options{})
	publish(t, &Publisher{Broker: b, Topic: part}, all...)
	await(t, "not every message came back", func() bool { return j.ackedOf(all) == len(all) })
	r.stop()
}

// A dead-letter topic that cannot be written holds up nothing else, also when the session
// ends meanwhile and another is opened.
func TestSessionOpensBesideABrokenDeadLetterTopic(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic, dead := v.topic(0, subscriptionName), v.topic(0, subscriptionName)
	j := newJournal()
	r := run(t, j, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{MaxAttempts: 2, DeadLetter: dead})
	v.do(http.MethodPost, path(dead)+"/terminate", nil)
	v.unload(dead)
	v.unload(topic)
	await(t, "no other session was opened", func() bool { return j.noticed(settle.NoticeOpened) > 1 })
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, "m")
	await(t, "what does not go to the dead-letter topic does not flow", func() bool { return j.ackedOf([]string{"m"}) == 1 })
	r.stop()
}

// A producer that is cut off before anybody could use it is an error, and not no producer.
func TestProducerThatWasCutOffIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(new(Broker), client.ProducerOptions{Topic: "t"})
		made := &incarnation{producer: noProducer{}, open: make(map[*sends]struct{}), cancel: func() {}}
		making := make(chan struct{})
		s.making = making
		result := make(chan error, 1)
		go func() {
			i, err := s.ready(t.Context())
			if i == nil && err == nil {
				err = errors.New("neither a producer nor an error")
			}
			result <- err
		}()
		synctest.Wait() // it waits for the producer
		s.mu.Lock()
		s.making, s.now = nil, made
		s.mu.Unlock()
		s.cutOff(made)
		close(making)
		assert.ErrorIs(t, <-result, errUnsent)
	})
}

// noProducer stands in for one of the library's whose end is all that matters.
type noProducer struct{ client.Producer }

func (noProducer) Close() {}

// A dead letter is written whatever its message's properties leave room for, and
// others are not held up.
func TestDeadLetterOfLargeProperties(t *testing.T) {
	expectLeak(leakOfChunks)
	v := serverOf(t, services.Pulsar)
	const most = 5 << 20
	for name, size := range map[string][2]int{ // of the properties, of the body
		"a little room":     {most / 4, 3*most/4 - 10<<10},
		"no room":           {most / 4, 3*most/4 - 300},
		"all in properties": {most - 320, 10},
	} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			options := settle.Options{MaxAttempts: 2, DeadLetter: topic + "-dead"}
			t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
			p := &Publisher{Broker: v.broker(), Topic: topic}
			body := strings.Repeat("b", size[1])
			require.NoError(t, p.Publish(soon(t), settle.Message{Body: []byte(body), Headers: settle.Headers{"p": strings.Repeat("p", size[0])}}))
			publish(t, p, "other")
			j := newJournal()
			r := run(t, j, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName, ChunkWait: 2 * time.Second},
				func(context.Context, *settle.Delivery) settle.Outcome { return settle.DeadLetter(errFault) }, options)
			await(t, "not every dead letter was written", func() bool { return j.settlements(body) == 1 && j.settlements("other") == 1 })
			r.stop()
			v.settledAll(topic)
		})
	}
}

// Where a counted copy is too large for the broker, the message comes again without.
func TestCountedCopyThatIsTooLarge(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	require.NoError(t, (&Publisher{Broker: b, Topic: topic}).Publish(soon(t), settle.Message{Body: []byte("m"), Headers: settle.Headers{"p": strings.Repeat("p", 5<<20-300)}}))
	j := newJournal()
	r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, CountedCopies: true}, failing(j, map[string]int{"m": 2}), settle.Options{})
	await(t, "the message was not acknowledged", func() bool { return j.ackedOf([]string{"m"}) == 1 })
	r.stop()
	assert.Equal(t, []int{1, 2, 3}, j.attemptsOf("m"))
	assert.Equal(t, 1, j.noticed(settle.NoticeWeakened))
	v.settledAll(topic)
}

// An encrypted message stays where it is, which is told, and the others flow:
// left to itself the library asks for it again and again until no message comes at all.
func TestEncryptedMessage(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	producer, err := v.raw.CreateProducer(client.ProducerOptions{
		Topic: topic, DisableBatching: true, SendTimeout: -1,
		Encryption: &client.ProducerEncryptionInfo{KeyReader: publicKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), Keys: []string{"k"}},
	})
	require.NoError(t, err)
	defer producer.Close()
	for range 2 {
		_, err = producer.Send(soon(t), &client.ProducerMessage{Payload: []byte("secret")})
		require.NoError(t, err)
	}
	b := v.broker()
	j, logged := newJournal(), new(logLines)
	r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{Prefetch: 4},
		func(rt *settle.Runtime) { rt.Logger = slog.New(slog.NewTextHandler(logged, nil)) })
	all := numbered(20)
	publish(t, &Publisher{Broker: b, Topic: topic}, all...)
	await(t, "the messages behind it do not flow", func() bool { return j.ackedOf(all) == len(all) })
	assert.Equal(t, 2, j.noticed(settle.NoticeWeakened))
	assert.Equal(t, 1, logged.count("level=ERROR"))
	s, err := v.stats(topic, 0)
	require.NoError(t, err)
	assert.Equal(t, 2, s.Subscriptions[subscriptionName].MsgBacklog, "they were not acknowledged")
	r.stop()
}

// publicKey is a key to encrypt by.
type publicKey []byte

func (k publicKey) PublicKey(name string, _ map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, k, nil), nil
}

func (publicKey) PrivateKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errors.New("there is none")
}

// A first host that takes connections and says nothing does not keep us from
// the second.
func TestMuteHostIsPassedBy(t *testing.T) {
	starting := framed(field(field(nil, commandType, commandError), commandError,
		field(field(field(nil, 1, 0), errorCode, 6), errorMessage, "not ready"))) // ServiceNotReady: another may be
	assert.NoError(t, brokerAt(t, nil, mockServer(t, starting)+","+mockServer(t, connected)).reach(context.Background()))
	assert.ErrorContains(t, brokerAt(t, nil, mockServer(t, starting)).reach(context.Background()), "not ready")

	b := brokerAt(t, func(c *Config) { c.ConnectTimeout = time.Minute }, mockServer(t, nil)+","+mockServer(t, connected))
	result := make(chan error, 1)
	go func() { result <- b.reach(context.Background()) }()
	assert.NoError(t, receive(t, result))
}

// A message that is too large for its batch is said so, and the others of the
// same flush are published.
func TestOneOfABatchIsTooLarge(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, "")
	p := &Publisher{Broker: v.broker(), Topic: topic, Batch: 100, BatchByKey: true, BatchDelay: 50 * time.Millisecond}
	var msgs []settle.Message
	for i := range 10 {
		msgs = append(msgs, settle.Message{Key: fmt.Sprint("k", i), Body: []byte("small")})
	}
	msgs[5].Headers = settle.Headers{"h": strings.Repeat("h", 6<<20)}
	for i, err := range settle.PublishErrors(p.Publish(soon(t), msgs...), len(msgs)) {
		if i == 5 {
			assert.True(t, settle.IsPermanent(err), err)
		} else {
			assert.NoError(t, err, i)
		}
	}
	got, err := v.all(topic)
	require.NoError(t, err)
	assert.Len(t, got, 9)
}

// Where a copy is confirmed and the original's acknowledgement is refused for a
// while, the next try sends no second copy.
func TestCopyIsSentOnce(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	publish(t, &Publisher{Broker: b, Topic: topic}, "m")
	c := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, CountedCopies: true}, newJournal())
	d := take(t, c, 1)[0]
	from := d.Native.(*delivery).from
	from.native = &refusingAcks{Consumer: from.native}
	err := settleAs(c, d, settle.ActionRetry)
	require.ErrorContains(t, err, "MetadataError")
	require.NotErrorIs(t, err, settle.ErrSessionLost)
	require.NoError(t, settleAs(c, d, settle.ActionRetry))
	all, err := v.all(topic)
	require.NoError(t, err)
	assert.Len(t, all, 2, "the original and one copy")

	// A drain gives back what is not settled; but this is done but for its acknowledgement.
	copied := take(t, c, 1)[0]
	from.native.(*refusingAcks).once = sync.Once{}
	require.Error(t, settleAs(c, copied, settle.ActionRetry))
	require.NoError(t, settleAs(c, copied, settle.ActionRelease))
	last := take(t, c, 1)[0]
	assert.Equal(t, 3, last.Attempt)
	require.NoError(t, settleAs(c, last, settle.ActionAck))
	v.settledAll(topic)
}

// refusingAcks answers the first acknowledgement as a broker does that cannot take it now.
type refusingAcks struct {
	client.Consumer
	once sync.Once
}

func (f *refusingAcks) AckIDList(ids []client.MessageID) (err error) {
	f.once.Do(func() {
		failed := make(client.AckError)
		for _, id := range ids {
			failed[id] = errors.New("ack response error: MetadataError: for the test")
		}
		err = failed
	})
	if err != nil {
		return err
	}
	return f.Consumer.AckIDList(ids)
}

// A dead-letter topic has its subscription whoever makes the topic: another
// registration of the same Subscription, or the producer after somebody deleted the topic.
func TestEachDeadLetterTopicIsKept(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	s := &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}
	handler := func(context.Context, *settle.Delivery) settle.Outcome { return settle.DeadLetter(errFault) }
	kept := func(dead string) bool {
		now, err := v.stats(dead, 0)
		return err == nil && now.Subscriptions[subscriptionName].MsgBacklog == 1
	}
	for i, dead := range []string{topic + "-first", topic + "-second"} {
		t.Cleanup(func() { v.remove(dead, 0) })
		j := newJournal()
		r := run(t, j, s, handler, settle.Options{MaxAttempts: 2, DeadLetter: dead})
		publish(t, &Publisher{Broker: v.broker(), Topic: topic}, "m")
		await(t, "the dead letter is not there", func() bool { return kept(dead) })
		if i == 1 {
			v.remove(dead, 0)
			publish(t, &Publisher{Broker: v.broker(), Topic: topic}, "again")
			await(t, "the dead letter is not there after the topic was deleted", func() bool { return kept(dead) })
		}
		r.stop()
	}
}

// What was not made by New is refused and does not panic.
func TestBrokerThatWasNotMade(t *testing.T) {
	for _, b := range []*Broker{nil, {}} {
		config := refused(t, &Subscription{Broker: b, Topic: "t", SubscriptionName: subscriptionName}, settle.Options{})
		assert.Equal(t, "Broker", config.Setting)
		require.ErrorAs(t, (&Publisher{Broker: b, Topic: "t"}).Publish(soon(t), settle.Message{}), &config)
		assert.Equal(t, "Broker", config.Setting)
	}
}

// A topic that gets more partitions ends the session, and the next has them all.
func TestTopicGetsMorePartitions(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(1, subscriptionName)
	b := v.broker()
	j := newJournal()
	c := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, j)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.watchPartitions(10 * time.Millisecond)
	}()
	require.NoError(t, settleAs(c, func() *settle.Delivery {
		publish(t, &Publisher{Broker: b, Topic: topic}, "before")
		return take(t, c, 1)[0]
	}(), settle.ActionAck), "while nothing has changed it goes on")
	v.do(http.MethodPost, path(topic)+"/partitions", 3)
	await(t, "the session did not end", c.isLost)
	<-watched
	assert.ErrorIs(t, c.why, errPartitions)
	shut(t, c)

	v.t.Cleanup(func() { v.remove(topic, 3) })
	c = open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, j)
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, numbered(9)...)
	seen := make(map[string]bool)
	for _, d := range take(t, c, 9) {
		seen[d.Native.(*delivery).from.topic] = true
	}
	assert.Len(t, seen, 3)
}
