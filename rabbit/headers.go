package rabbit

import (
	"fmt"
	"math"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

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
