package pulsar

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// limit sets a topic's largest message, in bytes.
func (v *server) limit(topic string, most int) {
	v.do(http.MethodPost, path(topic)+"/maxMessageSize", most)
	await(v.t, "the limit does not come", func() bool {
		answer, err := v.call(http.MethodGet, path(topic)+"/maxMessageSize", nil)
		return err == nil && string(answer) == fmt.Sprint(most)
	})
}

// A message that the topic's own policy refuses is said so, and keeps no other
// from being published, now or later.
func TestTopicRefusesOneMessage(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, "")
	v.limit(topic, 1000)
	for name, batch := range map[string]int{"alone": 0, "batches": 2} {
		t.Run(name, func(t *testing.T) {
			p := inBatches(v.in(t).broker(), topic, batch)
			large := settle.Message{Body: []byte(strings.Repeat("x", 5000))}
			small := settle.Message{Body: []byte("small")}
			for i, err := range settle.PublishErrors(p.Publish(soon(t), small, small, large, small, small), 5) {
				if i == 2 {
					assert.True(t, settle.IsPermanent(err), err)
					assert.ErrorContains(t, err, "message size")
				} else {
					assert.NoError(t, err, i)
				}
			}
			assert.NoError(t, p.Publish(soon(t), small))
		})
	}
}

// On a topic in partitions the partition that refused it goes on too, while others
// are written to all the time.
func TestPartitionRefusesOneMessage(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(4, "")
	v.limit(topic, 1000)
	p := &Publisher{Broker: v.broker(), Topic: topic}
	keys := []string{"a", "b", "c", "d"}
	ctx, cancel := context.WithCancel(soon(t))
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = p.Publish(ctx, settle.Message{Key: keys[i%len(keys)], Body: []byte("small")})
		}
	})
	err := p.Publish(soon(t), settle.Message{Key: "b", Body: []byte(strings.Repeat("x", 5000))})
	assert.True(t, settle.IsPermanent(err), err)
	for _, key := range keys {
		assert.NoError(t, p.Publish(soon(t), settle.Message{Key: key, Body: []byte("later")}), key)
	}
	cancel()
	publishing.Wait()
}

// A dead letter that the topic's own policy refuses is left to the broker, and
// the others are written.
func TestTopicRefusesOneDeadLetter(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic, dead := v.topic(0, subscriptionName), v.topic(0, subscriptionName)
	v.limit(dead, 2000)
	p := &Publisher{Broker: v.broker(), Topic: topic}
	large := strings.Repeat("x", 5000)
	all := numbered(40)
	publish(t, p, large)
	publish(t, p, all...)
	j := newJournal()
	r := run(t, j, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName},
		func(context.Context, *settle.Delivery) settle.Outcome { return settle.DeadLetter(errFault) }, settle.Options{Workers: 4, MaxAttempts: 2, DeadLetter: dead})
	await(t, "the other dead letters were not written", func() bool {
		for _, name := range all {
			if j.settlements(name) != 1 {
				return false
			}
		}
		return true
	})
	await(t, "nobody was told of the one that was refused", func() bool { return len(j.errors()) > 0 })
	assert.True(t, settle.IsPermanent(j.errors()[0]), j.errors()[0])
	r.stop()
	assert.Zero(t, j.settlements(large))
}
