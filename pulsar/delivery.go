package pulsar

import (
	"cmp"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

// delivery is one delivery with what the session knows of it: one allocation a
// message. It is the Native of the settle.Delivery inside it.
type delivery struct {
	settle.Delivery
	native client.Message
	from   *origin
	rare   *rare // nil: none of it

	// state belongs to work and is guarded by its lock.
	state state
}

// origin is a topic, or partition, of a session.
type origin struct {
	owner  *consumer
	topic  string
	number int32           // among those of the session
	native client.Consumer // the library's
}

// rare is what few deliveries need: it is apart because thousands of others may wait here.
type rare struct {
	letter *sends // the copy that is under way for it, if any; the settler's that has it in hand

	// What follows is there with an AckTimeout, belongs to work and is guarded by its lock.
	older, newer *delivery // its neighbours in the order of arrival
	since        int64     // when it arrived, on the clock of work
}

// state is how far a delivery is.
type state uint8

const (
	inWork state = iota // with the runtime
	inHand              // with a Settle call
	over                // settled, given back or taken away: its token is spent
)

// As sets *target to the client library's Message when target is a pointer to
// one. The outcome settles it; nobody acknowledges it by hand.
func (d *delivery) As(target any) bool {
	t, ok := target.(*client.Message)
	if ok {
		*t = d.native
	}
	return ok
}

// read fills in what the runtime and the handler see of a message.
func (d *delivery) read(m client.Message, attempt int) {
	properties := m.Properties()
	d.native = m
	d.ID = identity(m, properties)
	d.Key = cmp.Or(m.Key(), m.OrderingKey())
	d.Body = m.Payload()
	if len(properties) > 0 {
		d.Headers = make(settle.Headers, len(properties))
		for name, value := range properties {
			d.Headers[name] = value
		}
	}
	d.Attempt = attempt
	d.Published = m.PublishTime()
	if t := m.BrokerPublishTime(); t != nil {
		d.Published = *t
	}
	d.Native = d
}

// identity is what the publisher called the message, else the id under which it
// was first published.
func identity(m client.Message, properties map[string]string) string {
	if id := properties[PropertyID]; id != "" {
		return id
	}
	if id := properties[PropertyOriginID]; id != "" {
		return id
	}
	return messageID(m.ID())
}
