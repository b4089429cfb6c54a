package pulsar

import (
	"cmp"
	"strconv"
	"time"

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
	run    uint32
	tried  bool // to acknowledge it: the settler's that has it in hand

	// state belongs to work and is guarded by its lock.
	state state
}

// origin is a topic, or partition, of a session.
type origin struct {
	owner  *consumer
	topic  string
	number int32           // among those of the session
	native client.Consumer // the library's
	copies string          // the topic that copies for another attempt go to
	mark   mark            // of those copies

	// The receiver's own: see runOf.
	last    entryID // of the batches, where the last message was
	index   int32   // which it was there
	highest entryID
	run     uint32 // its run
	runs    uint32
}

// runOf counts the times that the library gets a batch: 0 is the first, and each
// time that may be another has a number of its own. The messages of a batch come one
// after another, by their index, and batches in their order unless they come again.
func (o *origin) runOf(id client.MessageID) uint32 {
	if id.BatchSize() <= 1 {
		return 0
	}
	at, index := entryOf(id), id.BatchIdx()
	switch {
	case at == o.last && index > o.index:
	case o.highest.before(at):
		o.highest, o.run = at, 0
	default:
		o.runs++
		o.run = o.runs
	}
	o.last, o.index = at, index
	return o.run
}

// rare is what few deliveries need: it is apart because thousands of others may wait here.
type rare struct {
	// The settler's that has it in hand.
	letter *sends // the copy that is under way for it, or confirmed
	bare   bool   // the copy may tell no more than it must, for its size
	apart  bool   // the copy goes by itself: it may have been refused

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

func (d *delivery) isBare() bool { return d.rare != nil && d.rare.bare }

// isCopied reports whether a copy of d is confirmed.
func (d *delivery) isCopied() bool {
	if d.rare == nil || d.rare.letter == nil {
		return false
	}
	answered, err := d.rare.letter.answer(0)
	return answered && err == nil
}

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
	d.ID = identity(m, properties, d.from.mark)
	d.Key = cmp.Or(m.Key(), m.OrderingKey())
	d.Body = m.Payload()
	d.Headers = headers(properties)
	d.Attempt = attempt
	d.Published = published(m, properties, d.from.mark)
	d.Native = d
}

// published is when the message was first published: by the broker's clock
// where the broker adds that to messages, else by the publisher's.
func published(m client.Message, properties map[string]string, mine mark) time.Time {
	if mine.on(properties) {
		if at, err := strconv.ParseInt(properties[PropertyPublished], 10, 64); err == nil {
			return time.UnixMilli(at)
		}
	}
	if t := m.BrokerPublishTime(); t != nil {
		return *t
	}
	return m.PublishTime()
}

// headers are the properties without those that speak of this delivery alone: a
// handler that publishes another message with the same headers must not pass
// them on.
func headers(properties map[string]string) settle.Headers {
	var all settle.Headers
	for name, value := range properties {
		if name == PropertyID || ours(name) {
			continue
		}
		if all == nil {
			all = make(settle.Headers, len(properties))
		}
		all[name] = value
	}
	return all
}

// identity is what the publisher called the message, else the id under which it
// was first published, where it is a copy.
func identity(m client.Message, properties map[string]string, mine mark) string {
	if id := properties[PropertyID]; id != "" {
		return id
	}
	if isCopy(properties, mine) {
		return properties[PropertyOriginID]
	}
	return messageID(m.ID())
}
