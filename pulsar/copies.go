package pulsar

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

// This file makes the message that a counted retry or a dead letter publishes
// before the original is acknowledged, and reads what such a message carries.

// Properties of messages, beside the user's own and those of settle.HeaderDead....
const (
	// PropertyID carries settle.Message.ID, which the protocol has no field for.
	PropertyID = "x-settle-id"
	// PropertyAttempts is on a counted copy: how many attempts there were before it.
	PropertyAttempts = "x-settle-attempts"
	// PropertyFor is on a counted copy: the subscription that it is for, an @,
	// and the topic. On another topic it means nothing.
	PropertyFor = "x-settle-for"
	// PropertyPublished is on every copy: when the message was first
	// published, in milliseconds since 1970.
	PropertyPublished = "x-settle-published"
	// PropertyRealTopic and PropertyOriginID are on every copy: the topic that
	// the message was first published to, and its id there. They are those of
	// the client libraries' own dead letters.
	PropertyRealTopic = "REAL_TOPIC"
	PropertyOriginID  = "ORIGIN_MESSAGE_ID"
)

// mostCause bounds the text of a cause in a property, in bytes.
const mostCause = 1000

// clean returns a message that carries d on: its body, keys, event time and
// properties, with where it comes from, and room for more properties.
func clean(d *delivery, room int) *client.ProducerMessage {
	m := d.native
	properties := make(map[string]string, len(m.Properties())+room)
	for name, value := range m.Properties() {
		if !ours(name) {
			properties[name] = value
		}
	}
	if !isCopy(m.Properties(), d.from.mark) && !d.isBare() {
		properties[PropertyRealTopic] = wholeTopic(m.Topic())
		properties[PropertyOriginID] = messageID(m.ID())
		properties[PropertyPublished] = strconv.FormatInt(m.PublishTime().UnixMilli(), 10)
	}
	p := &client.ProducerMessage{
		Payload:     body(m.Payload()),
		Key:         m.Key(),
		OrderingKey: m.OrderingKey(),
		Properties:  properties,
	}
	if t := m.EventTime(); t.UnixMilli() > 0 {
		p.EventTime = t
	}
	return p
}

// body is a payload as it can be published. The library takes a message with an empty payload for
// corrupt when it receives it, and acknowledges it unseen; a null value is how such a message can be sent.
func body(payload []byte) []byte {
	if len(payload) == 0 {
		return nil
	}
	return payload
}

// mark is what tells the counted copies of a subscription and a topic.
type mark string

func markOf(subscription, topic string) mark { return mark(subscription + "@" + wholeTopic(topic)) }

// on reports whether the properties are those of a counted copy for us.
func (m mark) on(properties map[string]string) bool {
	return m != "" && properties[PropertyFor] == string(m)
}

// another reports whether they are those of another subscription's on the same
// topic. What carries the mark of another topic was published here by somebody
// who passed the properties on: it is a message like any other.
func (m mark) another(properties map[string]string) bool {
	on := properties[PropertyFor]
	if on == "" || on == string(m) {
		return false
	}
	return strings.HasSuffix(on, string(m[strings.LastIndex(string(m), "@"+persistent):]))
}

// isCopy reports whether what the properties tell of an origin is of this
// message, and not of one whose properties somebody passed on.
func isCopy(properties map[string]string, mine mark) bool {
	return properties[PropertyOriginID] != "" && (mine.on(properties) || properties[settle.HeaderDeadSource] != "")
}

// ours reports whether a property is for this package alone.
func ours(name string) bool { return name == PropertyAttempts || name == PropertyFor }

// retryCopy is the copy that is d's next attempt.
func retryCopy(d *delivery) *client.ProducerMessage {
	p := clean(d, 5)
	p.Properties[PropertyAttempts] = strconv.Itoa(min(d.Attempt, math.MaxInt32))
	p.Properties[PropertyFor] = string(d.from.mark)
	p.DisableReplication = true // the other cluster's subscription has the original
	return p
}

// deadCopy is the copy for the dead-letter topic. It carries no count: whoever
// consumes that topic, or the topic it is sent back to, begins at the first attempt.
func deadCopy(d *delivery, source string, cause error) *client.ProducerMessage {
	p := clean(d, 6)
	for _, older := range []string{settle.HeaderDeadCause, settle.HeaderDeadAttempt, settle.HeaderDeadSource} {
		delete(p.Properties, older)
	}
	if d.isBare() {
		return p
	}
	p.Properties[settle.HeaderDeadSource] = source
	p.Properties[settle.HeaderDeadAttempt] = strconv.Itoa(d.Attempt)
	if cause != nil {
		p.Properties[settle.HeaderDeadCause] = causeText(cause)
	}
	return p
}

// causeText is the error's text as a property can carry it.
func causeText(cause error) string {
	text := strings.ToValidUTF8(cause.Error(), "\uFFFD")
	if len(text) <= mostCause {
		return text
	}
	end := mostCause
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// countOf returns how many attempts a message's properties tell of. What is no
// count is returned as odd and counts as none.
func countOf(properties map[string]string) (attempts int, odd string) {
	text, ok := properties[PropertyAttempts]
	if !ok {
		return 0, ""
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, text
	}
	return int(n), ""
}

// messageID is a message's id as Pulsar's tools write it: ledger:entry:partition,
// and :index where several messages were published as one.
func messageID(id client.MessageID) string {
	var buf [64]byte
	b := strconv.AppendInt(buf[:0], id.LedgerID(), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, id.EntryID(), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(id.PartitionIdx()), 10)
	if id.BatchSize() > 1 {
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(id.BatchIdx()), 10)
	}
	return string(b)
}
