package rabbit

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// Death is one way in which a message died in one queue, once or more often:
// an entry of the header x-death, in which the server writes down its dead lettering.
type Death struct {
	Queue string // where it died
	// Reason is "rejected", "expired", "maxlen" or "delivery_limit".
	Reason   string
	Count    int       // how often it died there for that reason; 1 where the server does not tell
	Exchange string    // what it had been published to before it died; empty is the default exchange
	Keys     []string  // the routing keys it had, those of CC included
	At       time.Time // the first time, in whole seconds; zero where the server does not tell
	// Expiration is the message's own, which the server took off; empty where it had none.
	Expiration string
}

// Deaths returns what the server wrote down about the deaths of a message, the
// latest first, or nil. Entries that cannot be read are left out, missing
// fields are zero. Since 4.0 the server alone writes this header; before, any publisher could. The
// copies this library makes carry none: a dead letter of its own has the headers settle.HeaderDead....
func Deaths(d *settle.Delivery) []Death {
	var deaths []Death
	for _, entry := range list(d.Headers[deathHeader]) {
		e := fields(entry)
		if e == nil {
			continue
		}
		death := Death{
			Queue:      text(e["queue"]),
			Reason:     text(e["reason"]),
			Count:      1,
			Exchange:   text(e["exchange"]),
			Expiration: text(e["original-expiration"]),
		}
		if n, ok := count(e["count"]); ok {
			death.Count = n
		}
		for _, key := range list(e["routing-keys"]) {
			death.Keys = append(death.Keys, text(key))
		}
		switch at := e["time"].(type) {
		case time.Time:
			death.At = at
		case int64:
			death.At = time.Unix(at, 0)
		}
		deaths = append(deaths, death)
	}
	return deaths
}

// list, fields and text read a value in any of the types that stand for it;
// what is of another is empty.
func list(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case []amqp.Table:
		entries := make([]any, len(v))
		for i, e := range v {
			entries[i] = e
		}
		return entries
	case []string:
		entries := make([]any, len(v))
		for i, e := range v {
			entries[i] = e
		}
		return entries
	default:
		return nil
	}
}

func fields(v any) map[string]any {
	switch v := v.(type) {
	case amqp.Table:
		return v
	case settle.Headers:
		return v
	case map[string]any:
		return v
	default:
		return nil
	}
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return ""
	}
}
