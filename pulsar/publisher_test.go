package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// soon is a context for what must not take long.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestPublishCarriesEverything(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, batch := range map[string]int{"alone": 0, "batches": 10} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic, elsewhere := v.topic(0, ""), v.topic(0, "")
			p := &Publisher{Broker: v.broker(), Topic: topic, Batch: batch}
			event := time.UnixMilli(1_600_000_000_000)
			require.NoError(t, p.Send(soon(t),
				Message{Message: settle.Message{
					ID: "one", Key: "k", Body: []byte("first"), Headers: settle.Headers{"tenant": "a", "n": 3, "raw": []byte("b")},
				}, OrderingKey: "o", EventTime: event},
				Message{Message: settle.Message{Body: []byte("second")}},
				Message{Message: settle.Message{}},
				Message{Message: settle.Message{To: elsewhere, Body: []byte("third")}},
			))
			got, err := v.all(topic)
			require.NoError(t, err)
			require.Len(t, got, 3)
			assert.Equal(t, "first", string(got[0].Payload()))
			assert.Equal(t, "k", got[0].Key())
			assert.Equal(t, "o", got[0].OrderingKey())
			assert.Equal(t, event.UnixMilli(), got[0].EventTime().UnixMilli())
			assert.Equal(t, map[string]string{"tenant": "a", "n": "3", "raw": "b", PropertyID: "one"}, got[0].Properties())
			assert.Equal(t, "second", string(got[1].Payload()))
			assert.Empty(t, got[1].Properties())
			assert.Empty(t, got[2].Payload(), "an empty body arrives")
			got, err = v.all(elsewhere)
			require.NoError(t, err)
			require.Len(t, got, 1)
			assert.Equal(t, "third", string(got[0].Payload()))
		})
	}
}

// A delayed message comes when it is due and not before, to Shared; in steps of the broker's tick.
func TestPublishDelayed(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	j := newJournal()
	r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{})
	p := &Publisher{Broker: b, Topic: topic, Batch: 10}
	start := time.Now()
	at := start.Add(2 * time.Second)
	require.NoError(t, p.Send(soon(t),
		Message{Message: settle.Message{Body: []byte("after"), Delay: 2 * time.Second}},
		Message{Message: settle.Message{Body: []byte("at")}, DeliverAt: at},
		Message{Message: settle.Message{Body: []byte("now")}},
	))
	all := []string{"after", "at", "now"}
	await(t, "not every message came", func() bool { return j.ackedOf(all) == len(all) })
	r.stop()
	for _, name := range all[:2] {
		came := j.timesOf(name)[0]
		assert.GreaterOrEqual(t, came.Sub(start), 2*time.Second-time.Millisecond, name)
		t.Logf("%q came %v late", name, came.Sub(at).Round(time.Millisecond))
	}
	assert.True(t, j.timesOf("now")[0].Before(j.timesOf("at")[0]))
}

// Each message that cannot be carried is named, with an error that will come
// again; the others are published.
func TestPublishNamesWhatFailed(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, "")
	p := &Publisher{Broker: v.broker(), Topic: topic}
	large := strings.Repeat("x", 6<<20)
	err := p.Publish(soon(t),
		settle.Message{Body: []byte("first")},
		settle.Message{Body: []byte(large)},
		settle.Message{Body: []byte("second")},
		settle.Message{Body: []byte("properties"), Headers: settle.Headers{"large": large}},
		settle.Message{Body: []byte("nowhere"), To: "public/nothing/here"},
		settle.Message{Body: []byte("third")},
	)
	var publish *settle.PublishError
	require.ErrorAs(t, err, &publish)
	var at []int
	for _, failed := range publish.Failed {
		at = append(at, failed.Index)
		assert.True(t, settle.IsPermanent(failed.Err), failed.Err)
	}
	assert.Equal(t, []int{1, 3, 4}, at)
	got, err := v.all(topic)
	require.NoError(t, err)
	assert.Len(t, got, 3)
}

// Errors tell what may pass from what will not.
func TestPublishErrors(t *testing.T) {
	v := serverOf(t, services.Pulsar)

	t.Run("a terminated topic", func(t *testing.T) {
		topic := v.in(t).topic(0, "")
		p := &Publisher{Broker: v.in(t).broker(), Topic: topic}
		publish(t, p, "before")
		v.do(http.MethodPost, path(topic)+"/terminate", nil)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		// The library does not tell the first; it does the next at the latest.
		err := p.Publish(ctx, settle.Message{Body: []byte("first")})
		require.Error(t, err)
		awaitFor(t, time.Minute, "it is not said that the topic is terminated", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			err := p.Publish(ctx, settle.Message{Body: []byte("next")})
			return settle.IsPermanent(err)
		})
	})
	t.Run("no rights", func(t *testing.T) {
		topic := v.in(t).topic(0, "")
		b := v.in(t).broker(func(c *Config) { c.Token = services.PulsarGuestToken(t) })
		err := (&Publisher{Broker: b, Topic: topic}).Publish(soon(t), settle.Message{})
		assert.True(t, settle.IsPermanent(err))
		assert.ErrorContains(t, err, `grant the role "produce" on the topic`)
	})
	t.Run("a wrong token", func(t *testing.T) {
		b := v.in(t).broker(func(c *Config) { c.Token = "wrong" })
		assert.True(t, settle.IsPermanent((&Publisher{Broker: b, Topic: "t"}).Publish(soon(t), settle.Message{})))
	})
	t.Run("a quota that is used up", func(t *testing.T) {
		namespace := "public/" + newName()
		v.do(http.MethodPut, "namespaces/"+namespace, nil)
		topic := namespace + "/orders"
		t.Cleanup(func() {
			v.remove(topic, 0)
			_, _ = v.call(http.MethodDelete, "namespaces/"+namespace, nil)
		})
		v.do(http.MethodPut, path(topic), nil)
		v.do(http.MethodPut, path(topic)+"/subscription/slow", nil)
		p := &Publisher{Broker: v.in(t).broker(), Topic: topic}
		for range 10 {
			publish(t, p, strings.Repeat("x", 100_000))
		}
		v.do(http.MethodPost, "namespaces/"+namespace+"/backlogQuota", map[string]any{"limitSize": 1000, "policy": "producer_exception"})
		v.unload(topic) // new producers are checked at once, old ones once a minute
		var err error
		awaitFor(t, time.Minute, "the quota does not block", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			err = p.Publish(ctx, settle.Message{Body: []byte("more")})
			return errors.Is(err, settle.ErrBlocked)
		})
		assert.False(t, settle.IsPermanent(err))
	})
	t.Run("nobody there", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		err := (&Publisher{Broker: brokerAt(t, nil, unused(t)), Topic: "t"}).Publish(ctx, settle.Message{})
		require.Error(t, err)
		assert.False(t, settle.IsPermanent(err))
	})
	t.Run("after Close", func(t *testing.T) {
		b := v.in(t).broker()
		p := &Publisher{Broker: b, Topic: v.in(t).topic(0, "")}
		publish(t, p, "before")
		require.NoError(t, b.Close(soon(t)))
		var config *settle.ConfigError
		assert.ErrorAs(t, p.Publish(soon(t), settle.Message{}), &config)
	})
}

// A broken connection costs a publisher nothing but time: every message
// arrives, some perhaps twice.
func TestPublishOverABreak(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, "")
	b, line := v.proxied()
	p := &Publisher{Broker: b, Topic: topic}
	all := numbered(300)
	publish(t, p, all[0])
	line.Delay(30 * time.Millisecond) // so that the broker has what is not confirmed when it breaks
	for part := range 3 {
		now, err := v.stats(topic, 0)
		require.NoError(t, err)
		before := now.MsgInCounter
		done := make(chan error, 1)
		go func() {
			var msgs []settle.Message
			for _, name := range all[100*part : 100*part+100] {
				msgs = append(msgs, settle.Message{Body: []byte(name)})
			}
			done <- p.Publish(soon(t), msgs...)
		}()
		await(t, "nothing arrived", func() bool {
			s, err := v.stats(topic, 0)
			return err == nil && s.MsgInCounter > before || len(done) > 0
		})
		line.Sever()
		require.NoError(t, receive(t, done))
	}
	got, err := v.all(topic)
	require.NoError(t, err)
	seen := make(map[string]bool)
	for _, m := range got {
		seen[string(m.Payload())] = true
	}
	assert.Len(t, seen, len(all))
	t.Logf("%d messages arrived %d times", len(seen), len(got))
}

// What is not confirmed by the deadline is said so, promptly, and bounded: a
// publisher does not take in more than its window.
func TestPublishOnAMuteNetwork(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, "")
	b, line := v.proxied()
	p := &Publisher{Broker: b, Topic: topic, Window: 10}
	publish(t, p, "first")
	line.Blackhole()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	msgs := make([]settle.Message, 50)
	for i := range msgs {
		msgs[i].Body = []byte("more")
	}
	err := p.Publish(ctx, msgs...)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	for _, err := range settle.PublishErrors(err, len(msgs)) {
		require.Error(t, err)
		assert.False(t, settle.IsPermanent(err))
	}
	line.Restore()
	publish(t, p, "last")
	got, err := v.all(topic)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(got), 12, "the first, the window and the last")
}

// An answer that has come is an answer, also when the time is over: a copy that
// failed would otherwise be kept as one that is under way.
func TestAnswerComesBeforeTheDeadline(t *testing.T) {
	c := &sends{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.False(t, c.wait(ctx))
	close(c.done)
	for range 100 {
		require.True(t, c.wait(ctx))
	}
}

// What a producer has not confirmed when it is given up is answered at once,
// though closing it waits for a broker that says nothing.
func TestGivenUpSendsAreAnsweredAtOnce(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, "")
	b, line := v.proxied(func(c *Config) { c.OperationTimeout, c.KeepAlive = time.Minute, time.Minute })
	s := b.copies(topic)
	_, err := s.ready(soon(t))
	require.NoError(t, err)
	line.Blackhole()
	sent := s.send(soon(t), []*client.ProducerMessage{{Payload: []byte("m")}})
	s.discard(sent.by)
	select {
	case <-sent.done:
		_, err := sent.answer(0)
		assert.ErrorIs(t, err, errUnsent)
	case <-time.After(20 * time.Second):
		assert.Fail(t, "it has no answer")
	}
	line.Restore()
}

// Keys pick the partition, so that the messages of one key stay in order: the
// same partition as the client library by itself would.
func TestPublishByKey(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, batch := range map[string]int{"alone": 0, "batches": 10} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(4, subscriptionName)
			producer, err := v.raw.CreateProducer(client.ProducerOptions{Topic: topic, DisableBatching: true, SendTimeout: -1})
			require.NoError(t, err)
			defer producer.Close()
			p := &Publisher{Broker: v.broker(), Topic: topic, Batch: batch, BatchByKey: batch > 1}
			var msgs []Message
			for i, name := range numbered(40) {
				key, ordering := "key-"+name[len(name)-1:], ""
				if i%4 == 0 {
					ordering = "a longer key " + key
				}
				_, err := producer.Send(soon(t), &client.ProducerMessage{Key: key, OrderingKey: ordering, Payload: []byte("0")})
				require.NoError(t, err)
				msgs = append(msgs, Message{Message: settle.Message{Key: key, Body: []byte(name)}, OrderingKey: ordering})
			}
			require.NoError(t, p.Send(soon(t), msgs...))
			reader, err := v.raw.Subscribe(client.ConsumerOptions{Topic: topic, SubscriptionName: subscriptionName, Type: client.Exclusive})
			require.NoError(t, err)
			defer reader.Close()
			last, at := make(map[string]string), make(map[string]string)
			for range 2 * len(msgs) {
				m, err := reader.Receive(soon(t))
				require.NoError(t, err)
				key := cmp.Or(m.OrderingKey(), m.Key())
				if name := string(m.Payload()); name != "0" {
					assert.Less(t, last[key], name)
					last[key] = name
				}
				if at[key] != "" {
					assert.Equal(t, at[key], m.Topic())
				}
				at[key] = m.Topic()
			}
		})
	}
}

// Messages without a key go to every partition in turn, whoever publishes them.
func TestPublishInTurn(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(4, subscriptionName)
	p := &Publisher{Broker: v.broker(), Topic: topic}
	publish(t, p, "0", "1", "2", "3")
	var publishing sync.WaitGroup
	for range 8 {
		publishing.Go(func() { assert.NoError(t, p.Publish(soon(t), make([]settle.Message, 8)...)) })
	}
	publishing.Wait()
	for part := range 4 {
		got, err := v.all(fmt.Sprintf("%s-partition-%d", topic, part))
		require.NoError(t, err)
		assert.Len(t, got, 17, part)
	}
}
