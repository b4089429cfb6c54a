package pulsar

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

// open opens a session that the test drives itself. It is closed with the test.
func open(t testing.TB, s *Subscription, j *journal) *consumer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := s.Open(ctx, settle.Registration{
		Workers: 1, Prefetch: 16, Batch: 1, Logger: quiet, Notify: j.observer().noticed,
	})
	require.NoError(t, err)
	t.Cleanup(func() { shut(t, c.(*consumer)) })
	return c.(*consumer)
}

func shut(t testing.TB, c *consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, c.Close(ctx))
}

// take receives n deliveries.
func take(t testing.TB, c *consumer, n int) (all []*settle.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	buf := make([]*settle.Delivery, n)
	for len(all) < n {
		got, err := c.Receive(ctx, buf[:n-len(all)])
		require.NoError(t, err)
		all = append(all, buf[:got]...)
	}
	return all
}

// settleAs settles one delivery and returns the error.
func settleAs(c *consumer, d *settle.Delivery, action settle.Action) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	batch := []settle.Settlement{{Delivery: d, Verdict: settle.Verdict{Action: action}}}
	c.Settle(ctx, batch)
	return batch[0].Err
}

// proxied is a broker value behind a line that can be cut.
func (v *server) proxied(change ...func(*Config)) (*Broker, *faults.Line) {
	line := faults.ProxyAt(v.t, v.proxy, v.url)
	return v.broker(append(change, func(c *Config) { c.URL, c.Listener = line.URL(), "proxied" })...), line
}

// After a connection broke the message is somebody else's. The client library,
// left to itself, connects again and sends the old acknowledgement there, which settles the other's
// copy: here it fails and settles nothing.
func TestStaleSettlementSettlesNothing(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b, line := v.proxied()
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, "m")
	j := newJournal()
	c := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, j)
	old := take(t, c, 1)[0]

	line.Sever()
	other, err := v.raw.Subscribe(client.ConsumerOptions{Topic: topic, SubscriptionName: subscriptionName, Type: client.Shared})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = other.Receive(ctx)
	require.NoError(t, err)
	await(t, "the loss was not told", func() bool { return j.noticed(settle.NoticeLost) == 1 })
	for _, action := range []settle.Action{settle.ActionAck, settle.ActionRetry, settle.ActionRelease} {
		assert.ErrorIs(t, settleAs(c, old, action), settle.ErrSessionLost)
	}
	_, err = c.Receive(ctx, make([]*settle.Delivery, 1))
	assert.ErrorIs(t, err, settle.ErrSessionLost)
	shut(t, c)

	// The other has not acknowledged it, so it is still there.
	other.Close()
	again := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, j)
	d := take(t, again, 1)[0]
	assert.ErrorIs(t, settleAs(again, old, settle.ActionAck), settle.ErrSessionLost, "another session's delivery")
	assert.NoError(t, settleAs(again, d, settle.ActionAck))
	v.settledAll(topic)
}

// A delivery is settled once, whatever the order.
func TestDoubleSettlement(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	publish(t, &Publisher{Broker: b, Topic: topic}, "m")
	c := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, newJournal())
	d := take(t, c, 1)[0]
	require.NoError(t, settleAs(c, d, settle.ActionRetry))
	assert.ErrorIs(t, settleAs(c, d, settle.ActionAck), settle.ErrLeaseLost, "before the nack is sent an ack would win")
	next := take(t, c, 1)[0]
	assert.Equal(t, 2, next.Attempt)
	assert.ErrorIs(t, settleAs(c, d, settle.ActionAck), settle.ErrLeaseLost, "nor may it settle the copy")
	require.NoError(t, settleAs(c, next, settle.ActionAck))
	assert.ErrorIs(t, settleAs(c, next, settle.ActionRetry), settle.ErrLeaseLost)

	publish(t, &Publisher{Broker: b, Topic: topic}, "another")
	d = take(t, c, 1)[0]
	assert.True(t, settle.IsPermanent(settleAs(c, d, settle.Action(99))), "there is no such action")
	assert.NoError(t, settleAs(c, d, settle.ActionAck), "and it settled nothing")
	v.settledAll(topic)
}

// When the broker gives a message out again while it is in work, as it does on
// Exclusive after a nack, the newer delivery owns it and the older is told.
func TestBrokerGivesOutAgain(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	publish(t, &Publisher{Broker: b, Topic: topic}, "one", "two")
	j := newJournal()
	c := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: Exclusive}, j)
	old := take(t, c, 2)
	c.natives[0].NackID(old[0].Native.(*delivery).native.ID()) // past the code, which does not
	newer := take(t, c, 2)
	for _, d := range old {
		assert.ErrorIs(t, settleAs(c, d, settle.ActionAck), settle.ErrLeaseLost)
	}
	assert.Equal(t, 2, j.noticed(settle.NoticeLeaseLost))
	for _, d := range newer {
		assert.NoError(t, settleAs(c, d, settle.ActionAck))
	}
	v.settledAll(topic)
}

// A topic that is unloaded is noticed at once, also while the answer to an
// acknowledgement is waited for, which the broker does not give then.
func TestUnloadIsNoticedAtOnce(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker(func(c *Config) { c.OperationTimeout = 10 * time.Second })
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, numbered(3000)...)
	for round := range 5 {
		j := newJournal()
		c := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, j)
		ctx, cancel := context.WithCancel(context.Background())
		var working sync.WaitGroup
		var acked atomic.Int32
		working.Go(func() {
			buf := make([]*settle.Delivery, 16)
			for ctx.Err() == nil {
				n, err := c.Receive(ctx, buf)
				if err != nil {
					return
				}
				for _, d := range buf[:n] {
					if settleAs(c, d, settle.ActionAck) == nil {
						acked.Add(1)
					}
				}
			}
		})
		await(t, "nothing was acknowledged", func() bool { return acked.Load() > 20 })
		v.unload(topic)
		awaitFor(t, 5*time.Second, "the end of the session was not noticed before the library gave up on an answer", c.isLost)
		cancel()
		working.Wait()
		t.Logf("round %d: %d acknowledged before", round, acked.Load())
	}
}

// On Failover another consumer may take a topic over while messages are in work
// here: those are the other's then.
func TestFailoverTakesOver(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(2, subscriptionName)
	b := v.broker()
	publish(t, &Publisher{Broker: b, Topic: topic}, numbered(20)...)
	j := newJournal()
	c := open(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: Failover, ConsumerName: "a"}, j)
	all := take(t, c, 16)
	byTopic := make(map[string][]*settle.Delivery)
	for _, d := range all {
		at := d.Native.(*delivery).native.Topic()
		byTopic[at] = append(byTopic[at], d)
	}
	require.Len(t, byTopic, 2)

	other := open(t, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName, Type: Failover, ConsumerName: "b"}, newJournal())
	taken := take(t, other, 1)[0].Native.(*delivery).native.Topic()
	await(t, "the loss was not told", func() bool { return j.noticed(settle.NoticeLeaseLost) >= len(byTopic[taken]) })
	for at, deliveries := range byTopic {
		for _, d := range deliveries {
			err := settleAs(c, d, settle.ActionAck)
			if at == taken {
				assert.ErrorIs(t, err, settle.ErrLeaseLost)
			} else {
				assert.NoError(t, err)
			}
		}
	}
}

// A hold waits here, unacknowledged: the message comes neither early nor to
// another consumer, and comes to one at once when this process goes.
func TestHoldOfThreeSeconds(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	publish(t, &Publisher{Broker: b, Topic: topic}, "m", "kept")
	j, other := newJournal(), newJournal()
	const delay = 3 * time.Second
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}
	r := run(t, j, s, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		switch {
		case string(d.Body) == "kept":
			return settle.RetryAfter(time.Hour, errFault)
		case d.Attempt == 1:
			return settle.RetryAfter(delay, errFault)
		}
		return settle.Ack()
	}, settle.Options{})
	await(t, "the first attempts did not come", func() bool { return len(j.attemptsOf("m")) == 1 && len(j.attemptsOf("kept")) == 1 })
	second := run(t, other, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{})
	await(t, "the message was not acknowledged", func() bool {
		return j.ackedOf([]string{"m"})+other.ackedOf([]string{"m"}) == 1
	})
	when := append(j.timesOf("m"), other.timesOf("m")...)
	require.Len(t, when, 2)
	waited := when[1].Sub(when[0])
	assert.GreaterOrEqual(t, waited, delay)
	t.Logf("a hold of %v came %v late", delay, (waited - delay).Round(time.Millisecond))
	assert.Empty(t, other.attemptsOf("kept"), "what is held is nobody else's")
	r.stop()
	await(t, "what was held did not come to the other", func() bool { return other.ackedOf([]string{"kept"}) == 1 })
	assert.Equal(t, []int{1}, other.attemptsOf("kept"), "the end of the other's session cost no attempt")
	second.stop()
}

// Ten thousand holds wait beside one another at a cost under 10 MB, messages
// included, and a message that comes later is handled meanwhile.
func TestTenThousandHolds(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, batch := range map[string]int{"alone": 0, "batches": 100} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			p := inBatches(v.broker(), topic, batch)
			var held atomic.Int64
			var last atomic.Bool
			rt := &settle.Runtime{Logger: quiet}
			s := &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}
			rt.Handle(s, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				if string(d.Body) == "last" {
					last.Store(true)
					return settle.Ack()
				}
				held.Add(1)
				return settle.RetryAfter(time.Hour, nil)
			}, settle.Options{Workers: 4, Prefetch: 100})
			done := make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { done <- rt.Run(ctx) }()
			hold := func(names []string) {
				want := held.Load() + int64(len(names))
				publish(t, p, names...)
				await(t, "not every message is held", func() bool { return held.Load() == want })
			}
			hold(numbered(200)) // what is made once is there now
			all := numbered(defaultMaxHeld)
			before := heap()
			hold(all[:len(all)-200])
			grown := int64(heap()) - int64(before)
			runtime.KeepAlive(all)
			t.Logf("%d holds cost %.1f MB with their messages, the client library's part included", len(all)-200, float64(grown)/1e6)
			assert.Less(t, grown*int64(len(all))/int64(len(all)-200), int64(10_000_000))
			publish(t, p, "last")
			await(t, "a message beside them was not handled", last.Load)
			cancel()
			require.NoError(t, receive(t, done))
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// What nobody waits for is acknowledged too before the session closes: the
// library never answers an acknowledgement that its close overtakes.
func TestCloseJoinsAcknowledgements(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, numbered(160)...)
	for range 10 {
		c := open(t, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}, newJournal())
		for _, d := range take(t, c, 16) {
			native := d.Native.(*delivery)
			c.ackAside(acks{{id: native.native.ID(), from: native.from.native}})
		}
		shut(t, c)
	}
	v.settledAll(topic)
}

// A broker value that is closed under a running service ends it with an error
// that says so, and nothing hangs.
func TestCloseUnderARunningService(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, numbered(100)...)
	j := newJournal()
	rt := &settle.Runtime{Logger: quiet, Observer: j.observer()}
	rt.Handle(&Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{Workers: 4})
	done := make(chan error, 1)
	go func() { done <- rt.Run(context.Background()) }()
	await(t, "no message was handled", func() bool { return j.ackedOf(numbered(100)) > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, b.Close(ctx))
	err := receive(t, done)
	var config *settle.ConfigError
	require.ErrorAs(t, err, &config)
	assert.ErrorContains(t, err, "used after Close")
	assert.NoError(t, b.Close(ctx), "a second Close is harmless")
}

// What the service has in mid-ack when it stops is joined: no round hangs and
// nothing stays behind.
func TestStopInMidAck(t *testing.T) {
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	stopInMidAck(t, rounds)
}

func TestStopInMidAckHundredTimes(t *testing.T) {
	services.TestAll(t)
	stopInMidAck(t, 100)
}

func stopInMidAck(t *testing.T, rounds int) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	publisher := &Publisher{Broker: v.broker(), Topic: topic}
	all := numbered(300)
	for i := range rounds {
		publish(t, publisher, all...)
		b := v.broker()
		j := newJournal()
		s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: Type(i % 4), CountedCopies: i%3 == 0}
		r := run(t, j, s, func(context.Context, *settle.Delivery) settle.Outcome {
			if i%2 == 0 && time.Now().UnixNano()%5 == 0 {
				return settle.Retry(errFault)
			}
			return settle.Ack()
		}, settle.Options{Workers: 8, Prefetch: 200})
		await(t, "nothing was acknowledged", func() bool { return j.ackedOf(all) > 0 })
		r.stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		require.NoError(t, b.Close(ctx), "round %d", i)
		cancel()
		for _, err := range j.errors() {
			// A broker may deliver once more what a Failover consumer had before it was told that the topic is its own.
			require.ErrorIs(t, err, settle.ErrLeaseLost)
			require.Equal(t, Failover, s.Type, "every settlement was confirmed")
		}
	}
}
