package pulsar

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// The failures of a message are counted one by one, whatever else was published
// with it; what was not to fail is handled once; nothing comes too early.
func TestRetriesAreCountedExactly(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, c := range map[string]struct {
		kind  Type
		batch int
	}{
		"shared": {Shared, 0}, "shared, batches": {Shared, 20}, "key shared": {KeyShared, 0}, "key shared, batches": {KeyShared, 20},
	} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			b := v.broker()
			all := numbered(20)
			publish(t, inBatches(b, topic, c.batch), all...)
			j := newJournal()
			s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: c.kind}
			fails := map[string]int{all[0]: 4, all[7]: 2, all[19]: 1}
			r := run(t, j, s, failing(j, fails), settle.Options{Workers: 8})
			await(t, "not every message was acknowledged", func() bool { return j.ackedOf(all) == len(all) })
			r.stop()
			for _, name := range all {
				want := []int{1, 2, 3, 4, 5}[:fails[name]+1]
				assert.Equal(t, want, j.attemptsOf(name), name)
				times := j.timesOf(name)
				for i := 1; i < len(times); i++ {
					assert.GreaterOrEqual(t, times[i].Sub(times[i-1]), defaultRetryDelay-time.Millisecond, name)
				}
			}
			v.settledAll(topic)
		})
	}
}

// in is the server for a subtest.
func (v *server) in(t testing.TB) *server {
	other := *v
	other.t = t
	return &other
}

// settledAll waits until the subscription has nothing left.
func (v *server) settledAll(topic string) {
	v.t.Helper()
	await(v.t, "the subscription still has messages", func() bool {
		s, err := v.stats(topic, 0)
		return err == nil && s.Subscriptions[subscriptionName].MsgBacklog == 0
	})
}

// A retry on Exclusive and Failover brings back that message and no other, and
// what waits out a delay is not disturbed.
func TestRetryDisturbsNoOther(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, c := range map[string]struct {
		kind  Type
		batch int
	}{
		"exclusive": {Exclusive, 0}, "exclusive, batches": {Exclusive, 50}, "failover": {Failover, 0}, "shared, batches": {Shared, 50},
	} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			b := v.broker()
			all := append([]string{"held", "slow"}, numbered(48)...)
			publish(t, inBatches(b, topic, c.batch), all...)
			j := newJournal()
			s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: c.kind}
			fails := make(map[string]int)
			for i, name := range all[2:] {
				fails[name] = i % 3
			}
			slow := make(chan struct{})
			inner := failing(j, fails)
			const delay = 500 * time.Millisecond
			r := run(t, j, s, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
				switch string(d.Body) {
				case "held":
					if len(j.attemptsOf("held")) == 1 {
						return settle.RetryAfter(delay, errFault)
					}
				case "slow":
					<-slow
					if ctx.Err() != nil {
						return settle.Retry(context.Cause(ctx))
					}
				default:
					return inner(ctx, d)
				}
				return settle.Ack()
			}, settle.Options{Workers: 4})
			await(t, "the others were not acknowledged", func() bool { return j.ackedOf(all[2:]) == len(all)-2 })
			close(slow)
			await(t, "not every message was acknowledged", func() bool { return j.ackedOf(all) == len(all) })
			r.stop()
			for _, name := range all[2:] {
				assert.Len(t, j.attemptsOf(name), fails[name]+1, name)
			}
			assert.Len(t, j.attemptsOf("slow"), 1)
			held := j.timesOf("held")
			require.Len(t, held, 2)
			assert.GreaterOrEqual(t, held[1].Sub(held[0]), delay)
			v.settledAll(topic)
		})
	}
}

// The broker's count goes back when the last consumer goes, and stays while
// another is there.
func TestCountNeedsSomebodySubscribed(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, watched := range map[string]bool{"alone": false, "with another": true} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			if watched {
				v.watch(topic, 0)
			}
			b := v.broker()
			publish(t, &Publisher{Broker: b, Topic: topic}, "m")
			s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}
			j := newJournal()
			for range 2 {
				before := j.settlements("m")
				var calls atomic.Int32
				r := run(t, j, s, func(ctx context.Context, _ *settle.Delivery) settle.Outcome {
					if calls.Add(1) > 2 {
						<-ctx.Done() // the drain gives it back
					}
					return settle.Retry(errFault)
				}, settle.Options{}, func(rt *settle.Runtime) { rt.DrainTimeout = time.Millisecond })
				await(t, "the message did not fail twice", func() bool { return j.settlements("m") >= before+2 && calls.Load() == 3 })
				r.stop()
			}
			want := []int{1, 2, 3, 1, 2, 3}
			if watched {
				want = []int{1, 2, 3, 3, 4, 5} // the third was given back by the drain, and costs nothing
			}
			assert.Equal(t, want, j.attemptsOf("m"))
		})
	}
}

// A counted copy keeps its count over the restart of the last consumer.
func TestCountedCopiesKeepTheCount(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for _, kind := range []Type{Shared, KeyShared, Exclusive, Failover} {
		t.Run(kind.String(), func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			b := v.broker()
			j := newJournal()
			s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: kind, CountedCopies: true}
			options := settle.Options{MaxAttempts: 3, DeadLetter: topic + "-dead"}
			t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			require.NoError(t, (&Publisher{Broker: b, Topic: topic}).Publish(ctx, settle.Message{Body: []byte("m"), Key: "k", ID: "first"}))
			for i := range 3 {
				var calls atomic.Int32
				r := run(t, j, s, func(ctx context.Context, _ *settle.Delivery) settle.Outcome {
					if calls.Add(1) > 1 {
						<-ctx.Done() // the next attempt is the next service's: the drain gives it back
					}
					return settle.Retry(errFault)
				}, options, func(rt *settle.Runtime) { rt.DrainTimeout = time.Millisecond })
				await(t, "the message was not settled", func() bool { return j.settlements("m") > i })
				r.stop()
			}
			assert.Equal(t, []int{1, 2, 3}, slices.Compact(j.attemptsOf("m")))
			dead, err := v.all(options.DeadLetter)
			require.NoError(t, err)
			require.Len(t, dead, 1)
			properties := dead[0].Properties()
			assert.Equal(t, "first", properties[PropertyID])
			assert.Equal(t, "3", properties[settle.HeaderDeadAttempt])
			assert.NotContains(t, properties, PropertyAttempts)
			assert.Equal(t, "k", dead[0].Key())
		})
	}
}

// A counted copy is for its own subscription: another of this package skips it.
func TestCountedCopiesAreForOneSubscription(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	v.do(http.MethodPut, path(topic)+"/subscription/other", map[string]any{"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
	b := v.broker()
	publish(t, &Publisher{Broker: b, Topic: topic}, "m")
	j, other := newJournal(), newJournal()
	r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, CountedCopies: true}, failing(j, map[string]int{"m": 3}), settle.Options{})
	await(t, "the message was not acknowledged", func() bool { return j.ackedOf([]string{"m"}) == 1 })
	r.stop()
	publish(t, &Publisher{Broker: b, Topic: topic}, "last")
	r = run(t, other, &Subscription{Broker: b, Topic: topic, SubscriptionName: "other"}, ack, settle.Options{})
	await(t, "the last message did not come", func() bool { return other.ackedOf([]string{"m", "last"}) == 2 })
	await(t, "the copies are not gone", func() bool {
		s, err := v.stats(topic, 0)
		return err == nil && s.Subscriptions["other"].MsgBacklog == 0
	})
	r.stop()
	assert.Equal(t, []int{1}, other.attemptsOf("m"))
}

// A dead letter tells all there is to know, and a topic without anybody
// subscribed keeps it: through an unload, after which it would be gone.
func TestDeadLetterIsKept(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, DeadLetterSubscription: "keeper"}
	options := settle.Options{MaxAttempts: 2, DeadLetter: topic + "-dead"}
	t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
	event := time.UnixMilli(1_600_000_000_000)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, (&Publisher{Broker: b, Topic: topic}).Send(ctx, Message{
		Message:     settle.Message{ID: "one", Key: "k", Body: []byte("m"), Headers: settle.Headers{"tenant": "a"}},
		OrderingKey: "o", EventTime: event,
	}))
	j := newJournal()
	r := run(t, j, s, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Retry(errFault) }, options)
	await(t, "the message did not end", func() bool { return j.settlements("m") == 2 })
	r.stop()
	v.settledAll(topic)

	v.unload(options.DeadLetter)
	keeper, err := v.raw.Subscribe(client.ConsumerOptions{Topic: options.DeadLetter, SubscriptionName: "keeper", Type: client.Shared})
	require.NoError(t, err)
	defer keeper.Close()
	m, err := keeper.Receive(ctx)
	require.NoError(t, err)
	assert.Equal(t, "m", string(m.Payload()))
	assert.Equal(t, "k", m.Key())
	assert.Equal(t, "o", m.OrderingKey())
	assert.Equal(t, event.UnixMilli(), m.EventTime().UnixMilli())
	properties := m.Properties()
	assert.Equal(t, "a", properties["tenant"])
	assert.Equal(t, "one", properties[PropertyID])
	full, _ := fullName(topic)
	assert.Equal(t, full, properties[PropertyRealTopic])
	assert.NotEmpty(t, properties[PropertyOriginID])
	assert.NotEmpty(t, properties[PropertyPublished])
	assert.Equal(t, "2", properties[settle.HeaderDeadAttempt])
	assert.Equal(t, errFault.Error(), properties[settle.HeaderDeadCause])
	assert.Equal(t, s.Name(), properties[settle.HeaderDeadSource])
	assert.Zero(t, m.RedeliveryCount(), "the consumer that made the subscription took nothing")
}

// Whoever reads the dead letters does so by a subscription of their own type.
func TestDeadLetterSubscriptionOfAnotherType(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	reader, err := v.raw.Subscribe(client.ConsumerOptions{Topic: topic + "-dead", SubscriptionName: subscriptionName, Type: client.Exclusive})
	require.NoError(t, err)
	defer reader.Close()
	t.Cleanup(func() { v.remove(topic+"-dead", 0) })
	s := &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}
	assert.NoError(t, runOnce(t, s, settle.Options{MaxAttempts: 2, DeadLetter: topic + "-dead"}, time.Minute))
}

// One service may read its own dead letters by a subscription of any type: that
// which keeps them is made at the same time, and is of another for a moment.
func TestDeadLettersOfTheSameService(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for range 5 {
		topic := v.topic(0, subscriptionName)
		deadTopic := v.topic(0, "")
		b := v.broker()
		j := newJournal()
		rt := &settle.Runtime{Logger: quiet, Observer: j.observer()}
		rt.Handle(&Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, func(context.Context, *settle.Delivery) settle.Outcome {
			return settle.DeadLetter(errFault)
		}, settle.Options{MaxAttempts: 2, DeadLetter: deadTopic})
		rt.Handle(&Subscription{Broker: b, Topic: deadTopic, SubscriptionName: subscriptionName, Type: Exclusive}, ack, settle.Options{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx) }()
		publish(t, &Publisher{Broker: b, Topic: topic}, "m")
		await(t, "the dead letter was not handled", func() bool { return j.ackedOf([]string{"m"}) == 1 || len(done) > 0 })
		cancel()
		require.NoError(t, receive(t, done))
	}
}

// AckTimeout takes a message away from a handler that hangs; what the handler says afterwards
// settles nothing; and the next delivery is the next attempt.
func TestAckTimeout(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, c := range map[string]struct {
		kind   Type
		copies bool
		batch  int
	}{
		"shared": {Shared, false, 0}, "shared, batches": {Shared, false, 5}, "exclusive, copies": {Exclusive, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			b := v.broker()
			publish(t, inBatches(b, topic, c.batch), "m", "other")
			j := newJournal()
			s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: c.kind, CountedCopies: c.copies, AckTimeout: time.Second}
			var cause atomic.Value
			late := make(chan struct{})
			r := run(t, j, s, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
				if string(d.Body) == "m" && d.Attempt == 1 {
					<-ctx.Done()
					cause.Store(context.Cause(ctx))
					<-late // until the next delivery is with its handler
					return settle.Ack()
				}
				if string(d.Body) == "m" {
					close(late)
					await(t, "the late settlement was not refused", func() bool { return len(j.errors()) > 0 })
				}
				return settle.Ack()
			}, settle.Options{Workers: 4})
			await(t, "the message was not acknowledged", func() bool { return j.ackedOf([]string{"m", "other"}) == 2 })
			r.stop()
			assert.ErrorIs(t, cause.Load().(error), settle.ErrLeaseLost)
			require.Len(t, j.errors(), 1)
			assert.ErrorIs(t, j.errors()[0], settle.ErrLeaseLost)
			assert.Equal(t, []int{1, 2}, j.attemptsOf("m"))
			assert.Equal(t, []int{1}, j.attemptsOf("other"), "what was published with it is not disturbed")
			times := j.timesOf("m")
			assert.GreaterOrEqual(t, times[1].Sub(times[0]), time.Second)
			v.settledAll(topic)
		})
	}
}

// With an AckTimeout nothing waits here for a worker: a message that no handler
// has seen is not taken away for being late.
func TestAckTimeoutTakesNothingUnseen(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	all := numbered(20)
	publish(t, &Publisher{Broker: b, Topic: topic}, all...)
	options := settle.Options{Workers: 2, Prefetch: 64, MaxAttempts: 1, DeadLetter: topic + "-dead"}
	t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
	j := newJournal()
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, AckTimeout: time.Second}
	r := run(t, j, s, func(context.Context, *settle.Delivery) settle.Outcome {
		time.Sleep(150 * time.Millisecond) // at work: ten one after another take longer than AckTimeout
		return settle.Ack()
	}, options)
	await(t, "not every message was acknowledged", func() bool { return j.ackedOf(all) == len(all) })
	r.stop()
	assert.Zero(t, j.noticed(settle.NoticeLeaseLost))
}

// Each partition of a topic is consumed, and several topics at once.
func TestSeveralTopics(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	one, two := v.topic(3, subscriptionName), v.topic(0, subscriptionName)
	b := v.broker()
	all := numbered(30)
	publish(t, &Publisher{Broker: b, Topic: one}, all[:15]...)
	publish(t, &Publisher{Broker: b, Topic: two}, all[15:]...)
	j := newJournal()
	s := &Subscription{Broker: b, Topics: []string{one, two}, SubscriptionName: subscriptionName, CountedCopies: true}
	fails := map[string]int{all[0]: 2, all[20]: 2}
	r := run(t, j, s, failing(j, fails), settle.Options{Workers: 4})
	await(t, "not every message was acknowledged", func() bool { return j.ackedOf(all) == len(all) })
	r.stop()
	assert.Equal(t, []int{1, 2, 3}, j.attemptsOf(all[0]))
	assert.Equal(t, []int{1, 2, 3}, j.attemptsOf(all[20]))
}
