package pulsar

import (
	"context"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// One message of a batch that fails for good is dead-lettered, and the rest of
// the batch is not.
func TestOneOfABatchIsDeadLettered(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	all := numbered(20)
	publish(t, inBatches(b, topic, 20), all...)
	options := settle.Options{Workers: 4, MaxAttempts: 3, DeadLetter: topic + "-dead"}
	t.Cleanup(func() { v.remove(options.DeadLetter, 0) })
	j := newJournal()
	r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, failing(j, map[string]int{all[7]: 99}), options)
	await(t, "not every message ended", func() bool { return j.ackedOf(all) == 19 && j.settlements(all[7]) == 3 })
	r.stop()
	for _, name := range all {
		if name == all[7] {
			assert.Equal(t, []int{1, 2, 3}, j.attemptsOf(name))
		} else {
			assert.Equal(t, []int{1}, j.attemptsOf(name), name)
		}
	}
	dead, err := v.deadLetters(options.DeadLetter)
	require.NoError(t, err)
	require.Len(t, dead, 1)
	assert.Equal(t, all[7], string(dead[0].Body))
	v.settledAll(topic)
}

// What is acknowledged of a batch does not come back with the rest after the
// session, where the broker keeps account of single messages as this one does.
func TestPartOfABatchIsAcknowledged(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	all := numbered(10)
	publish(t, inBatches(b, topic, 10), all...)
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}
	c := open(t, s, newJournal())
	for i, d := range take(t, c, 10) {
		require.Greater(t, d.Native.(*delivery).native.ID().BatchSize(), int32(1), "they were not published as a batch")
		if i%2 == 0 {
			require.NoError(t, settleAs(c, d, settle.ActionAck))
		}
	}
	shut(t, c)
	c = open(t, s, newJournal())
	for i, d := range take(t, c, 5) {
		assert.Equal(t, all[2*i+1], string(d.Body))
		assert.NoError(t, settleAs(c, d, settle.ActionAck))
	}
	v.settledAll(topic)
}

// What is settled together of a batch is acknowledged by one id, and each has
// the answer of that. What was refused is tried again id by id: with a set on which
// none is left the library would acknowledge the batch aside, whoever has it by then.
func TestPartOfABatchIsAcknowledgedTogether(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	all := numbered(2*pageSize + 6)
	publish(t, inBatches(b, topic, len(all)), all...)
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}
	c := open(t, s, newJournal())
	var batch []settle.Settlement
	var left []string
	for i, d := range take(t, c, len(all)) {
		require.EqualValues(t, len(all), d.Native.(*delivery).native.ID().BatchSize(), "they were not published as a batch")
		if i%3 == 0 {
			left = append(left, string(d.Body))
			continue
		}
		batch = append(batch, settle.Settlement{Delivery: d, Verdict: settle.Verdict{Action: settle.ActionAck}})
	}
	from := batch[0].Delivery.Native.(*delivery).from
	counting := &countingAcks{Consumer: &refusingAcks{Consumer: from.native}}
	from.native = counting
	c.Settle(soon(t), batch)
	for _, one := range batch {
		require.ErrorContains(t, one.Err, "MetadataError")
		require.NotErrorIs(t, one.Err, settle.ErrSessionLost)
	}
	assert.Equal(t, 1, counting.ids)
	c.Settle(soon(t), batch)
	for _, one := range batch {
		require.NoError(t, one.Err)
	}
	assert.Equal(t, 1+len(batch), counting.ids)
	shut(t, c)
	c = open(t, s, newJournal())
	for i, d := range take(t, c, len(left)) {
		assert.Equal(t, left[i], string(d.Body))
		assert.NoError(t, settleAs(c, d, settle.ActionAck))
	}
	v.settledAll(topic)
}

// countingAcks counts the ids that the library is given.
type countingAcks struct {
	client.Consumer
	ids int
}

func (f *countingAcks) AckIDList(ids []client.MessageID) error {
	f.ids += len(ids)
	return f.Consumer.AckIDList(ids)
}

// While nobody is connected the broker takes on another type, and says nothing.
func TestTypeChangesInSilence(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	for _, kind := range []Type{Shared, Exclusive, KeyShared} {
		assert.NoError(t, runOnce(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: kind}, settle.Options{}, time.Minute))
	}
}

// A topic that is deleted under a service ends its session; when the topic is
// there again work goes on.
func TestTopicDeletedUnderAService(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	j := newJournal()
	r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{})
	publish(t, &Publisher{Broker: b, Topic: topic}, "before")
	await(t, "the message was not acknowledged", func() bool { return j.ackedOf([]string{"before"}) == 1 })
	v.remove(topic, 0)
	await(t, "no other session was opened", func() bool { return j.noticed(settle.NoticeLost) > 0 && j.noticed(settle.NoticeOpened) > 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	require.NoError(t, (&Publisher{Broker: b, Topic: topic}).Publish(ctx, settle.Message{Body: []byte("after")}))
	await(t, "the message was not acknowledged", func() bool { return j.ackedOf([]string{"after"}) == 1 })
	r.stop()
}
