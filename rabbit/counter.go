package rabbit

import (
	"math"

	amqp "github.com/rabbitmq/amqp091-go"
)

// This file reads how often a message was tried. Two counts add up: that of the
// header which a copy carries, and that of the server on a quorum queue.

// CountHeader is the header that carries the attempts so far on a counted copy, unless
// the queue's CountHeader names another.
const CountHeader = "x-ruststream-retry-count"

const (
	deliveryCountHeader = "x-delivery-count" // set by quorum queues
	acquiredCountHeader = "x-acquired-count" // and how often they handed the message out, from 4.0 on
	deathHeader         = "x-death"
)

// mostCount bounds a count that was read, so that sums of two stay in range.
const mostCount = math.MaxInt32

// counts are what the headers of one delivery say.
type counts struct {
	header int // attempts that copies carried
	server int // attempts that the server counted
}

// attempt is the number of the delivery: 1 for the first.
func (c counts) attempt() int { return c.header + c.server + 1 }

// countsOf reads the headers of a delivery. serverCounts says that the queue
// is a quorum queue; limit is the x-delivery-limit that was put on it, or
// negative for none. odd is the value of a count header that is no count; nil:
// it is one, or absent.
func countsOf(d *amqp.Delivery, queue, header string, serverCounts bool, limit int) (c counts, odd any) {
	if len(d.Headers) == 0 {
		return c, nil
	}
	if v, present := d.Headers[header]; present && !countedElsewhere(d.Headers, queue) {
		n, ok := count(v)
		if !ok {
			odd = v
			if v == nil {
				odd = struct{}{} // void
			}
		}
		c.header = n
	}
	// The first delivery of a message has no count of its queue yet: 4.3 shows
	// the publisher's header of that name in its place.
	if serverCounts && d.Redelivered {
		c.server, _ = count(d.Headers[deliveryCountHeader])
		// From 4.0 on it shows it too on one that came back without a failure. Its
		// own count is never more than how often it handed the message out.
		if acquired, ok := count(d.Headers[acquiredCountHeader]); ok && c.server > acquired {
			c.server = 0
		}
		// From 4.0 on a message that one quorum queue dead-lettered to another
		// keeps its count there, which may be past this queue's limit. Such a message is
		// delivered once, as its last attempt.
		if limit >= 0 {
			c.server = min(c.server, limit)
		}
	}
	return c, odd
}

// count reads an integer of any AMQP type as a count. Negative is none.
func count(v any) (int, bool) {
	var n int64
	switch v := v.(type) {
	case int8:
		n = int64(v)
	case uint8:
		n = int64(v)
	case int16:
		n = int64(v)
	case uint16:
		n = int64(v)
	case int32:
		n = int64(v)
	case uint32:
		n = int64(v)
	case int64:
		n = v
	case uint64:
		n = int64(min(v, mostCount))
	case int:
		n = int64(v)
	default:
		return 0, false
	}
	if n < 0 {
		return 0, false
	}
	return int(min(n, mostCount)), true
}

// countedElsewhere reports whether the count that a message carries is for
// another queue: the copy says so, or, where whoever made the copy did not say, the message came
// here because another queue rejected it or gave it up. One that expired
// in another queue was only waiting there.
func countedElsewhere(headers amqp.Table, queue string) bool {
	if counted, ok := headers[countQueueHeader].(string); ok {
		return counted != queue
	}
	died, present := headers[deathHeader]
	if !present {
		return false
	}
	deaths := list(died)
	if len(deaths) == 0 {
		return false
	}
	newest := fields(deaths[0])
	return text(newest["queue"]) != queue && text(newest["reason"]) != "expired"
}
