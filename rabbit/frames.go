package rabbit

import (
	"fmt"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
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

// checkFrames refuses a message that cannot be written within frames of the
// given size; 0: no limit.
func checkFrames(o *outgoing, frameMax int) error {
	m := &o.msg
	for _, short := range [...]struct{ name, value string }{{"exchange", o.exchange}, {"routing key", o.key}} {
		if len(short.value) > shortMost {
			return tooLong(short.name, short.value)
		}
	}
	size := headerFixed
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
			return tooLong(short.name, short.value)
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
	if len(m.Headers) > 0 {
		size += 4
	}
	largest, largestSize := "", 0
	for name, value := range m.Headers {
		n, err := fieldSize(value)
		if err != nil {
			return fmt.Errorf("rabbit: header %q: %w", name, err)
		}
		if _, isList := value.([]any); !isList && (name == "CC" || name == "BCC") {
			return fmt.Errorf("rabbit: header %q: the server takes a list of routing keys, and this is a %T", name, value)
		}
		if len(name) > shortMost {
			return fmt.Errorf("rabbit: header %q...: its name has %d bytes and the protocol carries %d at most", name[:32], len(name), shortMost)
		}
		n += 1 + len(name)
		size += n
		if n > largestSize {
			largest, largestSize = name, n
		}
	}
	if frameMax > 0 && size > frameMax-frameOverhead {
		return fmt.Errorf("rabbit: the headers take %d bytes and the server carries %d at most (frame_max %d); the largest is %q with %d: shorten them, or raise the server's frame_max",
			size, frameMax-frameOverhead, frameMax, largest, largestSize)
	}
	return nil
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

// toTable makes headers that the protocol can carry, and a table of our own.
func toTable(headers settle.Headers, key string) (amqp.Table, error) {
	if len(headers) == 0 && key == "" {
		return nil, nil
	}
	table := make(amqp.Table, len(headers)+2)
	for name, value := range headers {
		field, err := toField(value)
		if err != nil {
			return nil, fmt.Errorf("rabbit: header %q: %w", name, err)
		}
		table[name] = field
	}
	if key != "" {
		table[keyHeader] = key
	}
	return table, nil
}

// toField widens what the library would cut short, and copies what it holds by reference.
func toField(value any) (any, error) {
	switch v := value.(type) {
	case int:
		return int64(v), nil
	case uint:
		return toField(uint64(v))
	case uint64:
		if v > math.MaxInt64 {
			return nil, fmt.Errorf("%d does not fit into the protocol's 64 bits with a sign", v)
		}
		return int64(v), nil
	case []byte:
		return slices.Clone(v), nil
	case []string:
		list := make([]any, len(v))
		for i, s := range v {
			list[i] = s
		}
		return list, nil
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			var err error
			if list[i], err = toField(e); err != nil {
				return nil, err
			}
		}
		return list, nil
	case amqp.Table:
		return toNested(v)
	case settle.Headers:
		return toNested(v)
	case map[string]any:
		return toNested(v)
	default:
		return value, nil // checkFrames refuses what cannot travel
	}
}

func toNested(headers map[string]any) (any, error) {
	table := make(amqp.Table, len(headers))
	for name, value := range headers {
		field, err := toField(value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		table[name] = field
	}
	return table, nil
}
