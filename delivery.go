package settle

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"
)

// Delivery is one message as it was handed to this process once. A source
// fills the exported fields before it hands the delivery over; nobody changes
// them afterwards. Handlers may keep a Delivery after they return, and must not
// write to it or to what Body and Headers hold.
type Delivery struct {
	ID      string  // the message's identity as its publisher or table gave it; may be empty
	Key     string  // the ordering or routing key; may be empty
	Body    []byte  // the payload
	Headers Headers // nil when there are none
	// Attempt is the number of this delivery: 1 for the first. 0 where the
	// broker cannot tell (see the broker's page in docs/).
	Attempt int
	// Final says that a failure of this attempt dead-letters the message.
	Final bool
	// Published is when the message was published or inserted, by the broker's
	// clock; the zero time where the broker does not tell.
	Published time.Time
	// Native is the source's own record of this delivery, which its Settle reads
	// back and [Delivery.As] searches. It is for sources; handlers use As.
	Native any

	work work
}

// As finds the broker's own form of the delivery: it sets *target and returns
// true when the source has a value of that type, such as an amqp.Delivery or a
// pulsar.Message. The package of each source says which types it offers.
// target must be a non-nil pointer; As panics otherwise.
func (d *Delivery) As(target any) bool {
	t := reflect.ValueOf(target)
	if t.Kind() != reflect.Pointer || t.IsNil() {
		panic("settle: As needs a non-nil pointer")
	}
	if n, ok := d.Native.(interface{ As(target any) bool }); ok && n.As(target) {
		return true
	}
	n := reflect.ValueOf(d.Native)
	if n.IsValid() && n.Type().AssignableTo(t.Elem().Type()) {
		t.Elem().Set(n)
		return true
	}
	return false
}

// Context returns the context of this delivery: what the observer returned for
// it, or that of its handler. A batch handler uses it to reach each delivery's
// trace. Outside a handler it returns a context that has ended.
func (d *Delivery) Context() context.Context {
	switch lead := d.work.lead.Load(); {
	case d.work.ctx != nil:
		return d.work.ctx
	case lead != nil:
		return &lead.work.lazy
	case d.work.lazy.parent != nil:
		return &d.work.lazy
	default:
		return endedContext
	}
}

// Headers are the metadata of a message. Text values travel on every broker;
// what else does stands in the broker's page. A nil Headers can be read.
type Headers map[string]any

// Get returns the value of name as text: as it is if it is a string or bytes, formatted
// if it is another type, and empty if it is absent or nil.
func (h Headers) Get(name string) string {
	switch v := h[name].(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return fmt.Sprint(v)
	}
}

// Clone returns a copy that shares no map with h; values are shared.
func (h Headers) Clone() Headers {
	if h == nil {
		return nil
	}
	c := make(Headers, len(h)+1)
	for k, v := range h {
		c[k] = v
	}
	return c
}

// work is the runtime's own part of a delivery: it lives inside it, so that a
// message costs no allocation beside its source's.
type work struct {
	sess       *session
	received   time.Duration            // since the session's epoch
	lazy       lazyContext              // the handler's context
	lead       atomic.Pointer[Delivery] // the first of its batch, whose context is the handler's; nil: itself
	ctx        context.Context          // what the observer made of it; nil: nothing
	next       *Delivery                // the next of its group, while the group goes together
	lane       *lane                    // nil: none
	decided    bool                     // its verdict was set on receipt: no handler sees it
	broken     *PanicError              // the panic of the user's Lane: no handler sees it either
	verdict    Verdict
	took       time.Duration // the handler's; zero unless somebody observes
	tries      int           // settlements that failed
	unfinished bool          // the drain ended before its handler or its settlement did
}

// endContext ends the context of the handler that has d, or will have it.
func (d *Delivery) endContext(cause error) {
	d.work.lazy.end(cause)
	if lead := d.work.lead.Load(); lead != nil {
		lead.work.lazy.end(cause)
	}
}
