package outbox

import "fmt"

// EventKind is what an [Event] tells.
type EventKind uint8

// The kinds of event.
const (
	EventSent       EventKind = iota + 1 // the broker confirmed a record, for the Sends-th time
	EventParked                          // the broker took others and not this one; it is tried again, Err says why
	EventSetAside                        // a record is sent no more; Err is the reason
	EventHeld                            // the broker is away, or records cannot be read; up to Records wait; Err says why
	EventMarked                          // a record is done
	EventMarkFailed                      // the mark of a record failed with Err; the handler's outcome stands
	EventSkipped                         // a delivery of a record that is done was acknowledged without its handler
	EventPurged                          // Records that were done are deleted
)

var eventWords = [...]string{
	EventSent: "sent", EventParked: "parked", EventSetAside: "set aside", EventHeld: "held", EventMarked: "marked",
	EventMarkFailed: "mark failed", EventSkipped: "skipped", EventPurged: "purged",
}

func (k EventKind) String() string {
	if int(k) < len(eventWords) && eventWords[k] != "" {
		return eventWords[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// Event is something that happened to a record, or to several.
type Event struct {
	Kind    EventKind
	Box     string // the outbox's Name
	Record  string // the record's id, where the event is about one
	Sends   int    // how often it was sent, as far as is known
	Records int    // where the event is about several
	Err     error
}

func (b *Box) tell(e Event) {
	if b.o.Observe != nil {
		e.Box = b.name
		b.o.Observe(e)
	}
}
