package pulsar

import (
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle"
)

// message stands in for the client library's Message where no broker is needed.
// It makes no more of it than the code under test asks for.
type message struct {
	client.Message
	topic      string
	id         client.MessageID
	payload    []byte
	key, order string
	properties map[string]string
	redelivery uint32
	event      time.Time
	broker     *time.Time
	null       bool
}

func (m *message) Topic() string                 { return m.topic }
func (m *message) ID() client.MessageID          { return m.id }
func (m *message) Payload() []byte               { return m.payload }
func (m *message) Key() string                   { return m.key }
func (m *message) OrderingKey() string           { return m.order }
func (m *message) Properties() map[string]string { return m.properties }
func (m *message) RedeliveryCount() uint32       { return m.redelivery }
func (m *message) EventTime() time.Time          { return m.event }
func (m *message) PublishTime() time.Time        { return time.UnixMilli(1_700_000_000_123) }
func (m *message) BrokerPublishTime() *time.Time { return m.broker }
func (m *message) IsNullValue() bool             { return m.null }

// at is the id of a message that was published alone.
func at(ledger, entry int64) client.MessageID { return client.NewMessageID(ledger, entry, 0, 0) }

func deliveryOf(m client.Message, attempt int) *delivery {
	d := &delivery{from: originOf(m)}
	d.read(m, attempt)
	return d
}

// originOf is that of a message in a test without a broker.
func originOf(m client.Message) *origin {
	o := &origin{topic: m.Topic(), mark: markOf("billing", m.Topic())}
	for _, c := range m.Topic() {
		o.number = 31*o.number + c
	}
	return o
}

func TestDeliveryReadsTheMessage(t *testing.T) {
	broker := time.UnixMilli(1_700_000_000_456)
	m := &message{
		topic: "persistent://public/default/orders", id: at(3, 7), payload: []byte("body"), order: "o",
		properties: map[string]string{"tenant": "a"}, broker: &broker,
	}
	d := deliveryOf(m, 2)
	assert.Equal(t, "3:7:0", d.ID)
	assert.Equal(t, "o", d.Key, "the ordering key decides where there is no key")
	assert.Equal(t, "a", d.Headers.Get("tenant"))
	assert.Equal(t, broker, d.Published, "the broker's clock comes first")
	assert.Equal(t, 2, d.Attempt)

	m.key, m.properties, m.broker = "k", map[string]string{}, nil
	d = deliveryOf(m, 1)
	assert.Equal(t, "k", d.Key)
	assert.Nil(t, d.Headers)
	assert.Equal(t, m.PublishTime(), d.Published)

	m.properties = map[string]string{PropertyOriginID: "1:2:-1"}
	assert.Equal(t, "3:7:0", deliveryOf(m, 1).ID, "somebody passed the property on")
	m.properties[PropertyFor] = "billing@" + m.topic
	m.properties[PropertyAttempts], m.properties[PropertyPublished] = "1", "1600000000000"
	assert.Equal(t, time.UnixMilli(1_600_000_000_000), deliveryOf(m, 1).Published, "when the first was published")
	assert.Equal(t, "1:2:-1", deliveryOf(m, 1).ID, "a copy is known by the id of the first")
	delete(m.properties, PropertyFor)
	m.properties[settle.HeaderDeadSource] = "pulsar: here"
	assert.Equal(t, "1:2:-1", deliveryOf(m, 1).ID, "and so is a dead letter")
	m.properties[PropertyID] = "mine"
	d = deliveryOf(m, 1)
	assert.Equal(t, "mine", d.ID, "the publisher's name comes first")
	assert.NotContains(t, d.Headers, PropertyID, "a handler that passes its headers on must not give another message this name")
	assert.NotContains(t, d.Headers, PropertyAttempts)

	var native client.Message
	assert.True(t, d.As(&native))
	assert.Same(t, m, native)
	var other string
	assert.False(t, d.As(&other))
}
