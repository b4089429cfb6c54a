package rabbit

import (
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The client library writes whatever it is given: a header table larger than a
// frame, or a text longer than the 255 bytes that the protocol's short string has,
// ends the whole connection; a CC that is no list ends the channel, with all that
// waits on it. This file looks at a message before it is written.

const (
	shortMost     = 255 // bytes of a short string
	frameOverhead = 8   // bytes of a frame beside its payload
	headerFixed   = 14  // bytes of a content header before its properties
)

// headroom is what servers and our copies add to the headers of a message while it is
// retried and dead-lettered: x-death, counts, a cause. A message that has no room for it is
// fine until its second delivery, and then ends the connection of whoever consumes it.
const headroom = 4 << 10

// checkFrames refuses a message that cannot be written within frames of the
// given size; 0: no limit.
func checkFrames(o *outgoing, frameMax int) error {
	for _, short := range [...]struct{ name, value string }{{"exchange", o.exchange}, {"routing key", o.key}} {
		if len(short.value) > shortMost {
			return tooLong(short.name, short.value)
		}
	}
	properties, err := propertiesSize(&o.msg)
	if err != nil {
		return err
	}
	headers, largest, err := headersSize(o.msg.Headers)
	if err != nil {
		return err
	}
	if size := headerFixed + properties + headers; frameMax > 0 && size > frameMax-frameOverhead {
		return fmt.Errorf("rabbit: the headers take %d bytes and the server carries %d at most (frame_max %d); the largest is %q: shorten them, or raise the server's frame_max",
			size, frameMax-frameOverhead, frameMax, largest)
	}
	return nil
}

// propertiesSize returns how many bytes the properties take beside the headers.
func propertiesSize(m *amqp.Publishing) (size int, err error) {
	for _, short := range [...]struct{ name, value string }{
		{"content type", m.ContentType},
		{"content encoding", m.ContentEncoding},
		{"correlation id", m.CorrelationId},
		{"reply-to", m.ReplyTo},
		{"expiration", m.Expiration},
		{"message id", m.MessageId},
		{"type", m.Type},
		{"user id", m.UserId},
		{"app id", m.AppId},
	} {
		if len(short.value) > shortMost {
			return 0, tooLong(short.name, short.value)
		}
		if short.value != "" {
			size += 1 + len(short.value)
		}
	}
	if m.DeliveryMode > 0 {
		size++
	}
	if m.Priority > 0 {
		size++
	}
	if !m.Timestamp.IsZero() {
		size += 8
	}
	return size, nil
}

// headersSize returns how many bytes the headers take, and which takes the most.
func headersSize(headers amqp.Table) (size int, largest string, err error) {
	if len(headers) == 0 {
		return 0, "", nil
	}
	size = 4
	most := 0
	for name, value := range headers {
		n, err := fieldSize(value)
		if err != nil {
			return 0, "", fmt.Errorf("rabbit: header %q: %w", name, err)
		}
		if _, isList := value.([]any); !isList && (name == "CC" || name == "BCC") {
			return 0, "", fmt.Errorf("rabbit: header %q: the server takes a list of routing keys, and this is a %T", name, value)
		}
		if len(name) > shortMost {
			return 0, "", fmt.Errorf("rabbit: header %q...: its name has %d bytes and the protocol carries %d at most", name[:32], len(name), shortMost)
		}
		n += 1 + len(name)
		size += n
		if n > most {
			largest, most = name, n
		}
	}
	return size, largest, nil
}

func tooLong(name, value string) error {
	return fmt.Errorf("rabbit: the %s has %d bytes and the protocol carries %d at most", name, len(value), shortMost)
}

// fieldSize returns how many bytes a header's value takes, its type included.
func fieldSize(value any) (int, error) {
	switch v := value.(type) {
	case nil:
		return 1, nil
	case bool, byte, int8:
		return 2, nil
	case int16, uint16:
		return 3, nil
	case int32, uint32, float32:
		return 5, nil
	case int: // the library writes 32 bits of it
		if v < math.MinInt32 || v > math.MaxInt32 {
			return 0, fmt.Errorf("%d does not fit into the 32 bits that an int travels in; use int64", v)
		}
		return 5, nil
	case int64, float64, time.Time:
		return 9, nil
	case amqp.Decimal:
		return 6, nil
	case string:
		return 5 + len(v), nil
	case []byte:
		return 5 + len(v), nil
	case []any:
		size := 5
		for _, e := range v {
			n, err := fieldSize(e)
			if err != nil {
				return 0, err
			}
			size += n
		}
		return size, nil
	case amqp.Table:
		size := 5
		for name, e := range v {
			n, err := fieldSize(e)
			if err != nil {
				return 0, fmt.Errorf("%q: %w", name, err)
			}
			if len(name) > shortMost {
				return 0, fmt.Errorf("the name %q... in it has more than the %d bytes that the protocol carries", name[:32], shortMost)
			}
			size += 1 + len(name) + n
		}
		return size, nil
	default:
		return 0, fmt.Errorf("a %T cannot travel in a header", value)
	}
}
