package pulsar

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

// The tests here hold to account what is known of brokers and of the client library,
// and what follows from it for a service.

// What becomes of the count of a message when the session that has it ends, in each way
// that one may end: with nobody else there the broker forgets it; a counted copy has it.
func TestWhatResetsTheCount(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, c := range map[string]struct {
		end             func(v *server, topic string, line *faults.Line)
		watched, copies bool
		want            int
	}{
		"unload":              {unload, false, false, 1},
		"unload, watched":     {unload, true, false, 1},
		"unload, copies":      {unload, false, true, 3},
		"connection":          {sever, false, false, 1},
		"connection, watched": {sever, true, false, 3},
		"connection, copies":  {sever, false, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			if c.watched {
				v.watch(topic, 0)
			}
			b, line := v.proxied()
			publish(t, &Publisher{Broker: v.broker(), Topic: topic}, "m")
			j := newJournal()
			var attempt atomic.Int32
			r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, CountedCopies: c.copies}, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
				switch {
				case j.noticed(settle.NoticeOpened) > 1:
					attempt.Store(int32(d.Attempt))
				case d.Attempt == 3:
					<-ctx.Done() // it is in work when the session ends
					return settle.Ack()
				default:
					return settle.Retry(errFault)
				}
				return settle.Ack()
			}, settle.Options{})
			await(t, "the message did not fail twice", func() bool { return len(j.attemptsOf("m")) == 3 })
			c.end(v, topic, line)
			await(t, "the message did not come back", func() bool { return attempt.Load() > 0 })
			r.stop()
			assert.EqualValues(t, c.want, attempt.Load())
			v.settledAll(topic)
		})
	}
}

func unload(v *server, topic string, _ *faults.Line) { v.unload(topic) }

func sever(_ *server, _ string, line *faults.Line) { line.Sever() }

// What waits for its delay here when the connection breaks comes to another
// consumer at once, and the broken session has cost no attempt.
func TestHoldOfABrokenSession(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b, line := v.proxied()
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, "m")
	j, other := newJournal(), newJournal()
	r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if d.Attempt == 1 {
			return settle.Retry(errFault)
		}
		return settle.RetryAfter(time.Hour, errFault)
	}, settle.Options{})
	await(t, "the message did not fail", func() bool { return len(j.attemptsOf("m")) == 2 })
	second := run(t, other, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{})
	line.Refuse()
	line.Sever()
	await(t, "the message did not come to the other", func() bool { return other.ackedOf([]string{"m"}) == 1 })
	assert.Equal(t, []int{2}, other.attemptsOf("m"))
	assert.Equal(t, 1, j.noticed(settle.NoticeHoldsLost))
	second.stop()
	line.Restore()
	r.stop()
}

// Another attempt of one message takes from no other: each of thirty dead messages
// has had exactly as many as the cap.
func TestCapIsExact(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for _, kind := range []Type{Shared, KeyShared} {
		t.Run(kind.String(), func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			all := numbered(30)
			publish(t, &Publisher{Broker: v.broker(), Topic: topic}, all...)
			options := settle.Options{Workers: 8, MaxAttempts: 3, DeadLetter: topic + "-dead"}
			t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
			j := newJournal()
			r := run(t, j, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName, Type: kind},
				func(context.Context, *settle.Delivery) settle.Outcome { return settle.Retry(errFault) }, options)
			await(t, "not every message ended", func() bool {
				for _, name := range all {
					if j.settlements(name) < 3 {
						return false
					}
				}
				return true
			})
			r.stop()
			for _, name := range all {
				assert.Equal(t, []int{1, 2, 3}, j.attemptsOf(name), name)
			}
			dead, err := v.all(options.DeadLetter)
			require.NoError(t, err)
			assert.Len(t, dead, len(all))
			v.settledAll(topic)
		})
	}
}

// A service whose broker is away stops as soon as any other, and leaves nothing behind.
func TestStopWhileTheBrokerIsAway(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for name, goAway := range map[string]func(*faults.Line){
		"refused": func(l *faults.Line) { l.Refuse(); l.Sever() },
		"mute":    (*faults.Line).Blackhole,
	} {
		t.Run(name, func(t *testing.T) {
			v := v.in(t)
			topic := v.topic(0, subscriptionName)
			line := faults.ProxyAt(t, v.proxy, v.url)
			b, err := New(Config{URL: line.URL(), Listener: "proxied", Token: v.token, OperationTimeout: 2 * time.Second, KeepAlive: time.Second, Logger: quiet})
			require.NoError(t, err)
			publish(t, &Publisher{Broker: v.broker(), Topic: topic}, numbered(100)...)
			j := newJournal()
			r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, CountedCopies: true}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				if d.Attempt < 3 {
					return settle.Retry(errFault)
				}
				return settle.Ack()
			}, settle.Options{Workers: 4})
			await(t, "nothing was acknowledged", func() bool { return j.ackedOf(numbered(100)) > 0 })
			goAway(line)
			start := time.Now()
			r.cancel()
			r.stopped = true
			result := receive(t, r.done)
			t.Logf("stopped after %v: %v", time.Since(start).Round(time.Millisecond), result)
			require.NoError(t, b.Close(soon(t)))
			t.Logf("closed after %v", time.Since(start).Round(time.Millisecond))
		})
	}
}

// A delay at publishing is for Shared and KeyShared alone: to others the message
// comes at once.
func TestDelayIsNotForExclusive(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	for _, kind := range []Type{Exclusive, Failover} {
		topic := v.topic(0, subscriptionName)
		require.NoError(t, (&Publisher{Broker: v.broker(), Topic: topic}).Publish(soon(t), settle.Message{Body: []byte("m"), Delay: time.Hour}))
		j := newJournal()
		r := run(t, j, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName, Type: kind}, ack, settle.Options{})
		await(t, "the message did not come", func() bool { return j.ackedOf([]string{"m"}) == 1 })
		r.stop()
	}
}

// A dead-letter topic without a subscription keeps nothing once it is unloaded:
// why one is made, and what NoDeadLetterSubscription leaves to its user.
func TestUnkeptDeadLetterIsGone(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	options := settle.Options{MaxAttempts: 1, DeadLetter: topic + "-dead"}
	t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, "m")
	j := newJournal()
	r := run(t, j, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName, NoDeadLetterSubscription: true},
		func(context.Context, *settle.Delivery) settle.Outcome { return settle.Retry(errFault) }, options)
	await(t, "the message did not end", func() bool { return j.settlements("m") == 1 })
	r.stop()
	dead, err := v.all(options.DeadLetter)
	require.NoError(t, err)
	require.Len(t, dead, 1)
	v.unload(options.DeadLetter)
	awaitFor(t, time.Minute, "the broker keeps it", func() bool {
		_, _ = v.call(http.MethodPost, path(options.DeadLetter)+"/trim", nil) // it does so by itself, some time
		left, err := v.all(options.DeadLetter)
		return err == nil && len(left) == 0
	})
}

// Held messages count as unacknowledged with the broker, which has a limit of its own.
func TestHeldMessagesAreUnacknowledged(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	publish(t, &Publisher{Broker: v.broker(), Topic: topic}, numbered(20)...)
	j := newJournal()
	r := run(t, j, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName},
		func(context.Context, *settle.Delivery) settle.Outcome { return settle.RetryAfter(time.Hour, errFault) }, settle.Options{})
	await(t, "they are not counted", func() bool {
		s, err := v.stats(topic, 0)
		return err == nil && s.Subscriptions[subscriptionName].UnackedMessages == 20
	})
	r.stop()
}
