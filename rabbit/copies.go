package rabbit

import (
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// This file makes the copy of a message that a retry, a wait or a dead letter
// publishes before the original is acknowledged.

// Headers that a copy carries beside the message's own and those of settle.HeaderDead..., so that
// the consumer or the person who finds it knows where it came from.
const (
	originExchangeHeader = "x-settle-exchange"    // what the message was first published to
	originKeyHeader      = "x-settle-routing-key" // and under which key
	countQueueHeader     = "x-settle-queue"       // the queue that the count is for
)

// delayHeader is how the delayed-message exchange is told the delay; it
// leaves the header on the message.
const delayHeader = "x-delay"

// mostCause bounds the text of a cause in a header, in bytes: headers share one frame.
const mostCause = 1000

// stale reports whether a header belongs to the message's past: to deliveries
// and deaths that the server recorded, or to routing that was done. A copy with
// it would be counted, routed or taken for a cycle on account of its original.
func stale(header string) bool {
	switch header {
	case deathHeader, deliveryCountHeader, acquiredCountHeader, "CC", "BCC", delayHeader, returnHeader:
		return true
	}
	return strings.HasPrefix(header, "x-first-death-") || strings.HasPrefix(header, "x-last-death-")
}

// clean returns the publishing that carries d on: its body, and all properties
// and headers that are the message's own, in their AMQP types. The user ID goes, as the
// server refuses another's; so does the expiration.
func clean(d *amqp.Delivery, room int) amqp.Publishing {
	headers := make(amqp.Table, len(d.Headers)+room)
	for name, v := range d.Headers {
		if !stale(name) {
			headers[name] = v
		}
	}
	return amqp.Publishing{
		Headers:         headers,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    d.DeliveryMode,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}

// copyMaker makes the copies of one queue.
type copyMaker struct {
	queue       string
	countHeader string
}

// again is the copy that is the message's next attempt on the same queue.
func (m *copyMaker) again(d *amqp.Delivery, attempt int) amqp.Publishing {
	p := clean(d, 5)
	p.Headers[m.countHeader] = int64(attempt)
	p.Headers[countQueueHeader] = m.queue
	m.keepOrigin(d, p.Headers)
	return p
}

// dead is the copy for the dead-letter queue. It carries no count: whoever
// consumes that queue begins at the first attempt.
func (m *copyMaker) dead(d *amqp.Delivery, attempt int, cause error) amqp.Publishing {
	p := clean(d, 6)
	delete(p.Headers, m.countHeader)
	delete(p.Headers, countQueueHeader)
	delete(p.Headers, settle.HeaderDeadCause)
	m.keepOrigin(d, p.Headers)
	p.Headers[settle.HeaderDeadSource] = queueName(m.queue)
	p.Headers[settle.HeaderDeadAttempt] = int64(attempt)
	if cause != nil {
		p.Headers[settle.HeaderDeadCause] = causeText(cause)
	}
	return p
}

// keepOrigin notes exchange and routing key, which a copy by the default
// exchange does not have any more. The first copy's note stays.
func (m *copyMaker) keepOrigin(d *amqp.Delivery, headers amqp.Table) {
	if m.cameBack(d) {
		return
	}
	headers[originExchangeHeader] = d.Exchange
	headers[originKeyHeader] = d.RoutingKey
}

// cameBack reports whether d was published to this very queue, as copies are.
func (m *copyMaker) cameBack(d *amqp.Delivery) bool {
	return d.RoutingKey == m.queue && (d.Exchange == "" || d.Exchange == delayExchange(m.queue))
}

// key is the key that the message was published with, by our publisher, else
// the routing key that it was first published under.
func (m *copyMaker) key(d *amqp.Delivery) string {
	if len(d.Headers) == 0 {
		return d.RoutingKey
	}
	if key, ok := d.Headers[keyHeader].(string); ok {
		return key
	}
	if origin, ok := d.Headers[originKeyHeader].(string); ok && m.cameBack(d) {
		return origin
	}
	return d.RoutingKey
}

// causeText is the error's text as a header can carry it.
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

// milliseconds is the delay that the server is told for d: never less than d,
// also where its clock drops fractions.
func milliseconds(d time.Duration) int64 { return ceilMilliseconds(d) + 1 }

func ceilMilliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
