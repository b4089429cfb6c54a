package rabbit

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// delivery is one delivery with what the session knows of it: one allocation a
// message. It is the Native of the settle.Delivery inside it.
type delivery struct {
	settle.Delivery
	native amqp.Delivery
	owner  *consumer
	counts counts

	refused uint8 // how often its retry copy was refused; the Settle call's that has it in hand

	// What follows belongs to owner.open and is guarded by its lock.
	before, after *delivery // its neighbours among the unsettled
	state         state
}

// state is how far a delivery is.
type state uint8

const (
	unsettled state = iota
	claimed         // a Settle call has it in hand
	acking          // its ack is about to be written
	settled         // the frame that settles it was written
)

// As sets *target to the amqp.Delivery when target is a pointer to one. Its
// Exchange and RoutingKey are those of this delivery: on a retry that was
// published as a copy they are the copy's, and the headers x-settle-exchange and
// x-settle-routing-key have those of the first. Its Ack, Nack and Reject return an error and do
// nothing: the outcome settles it.
func (d *delivery) As(target any) bool {
	t, ok := target.(*amqp.Delivery)
	if !ok {
		return false
	}
	*t = d.native
	t.Acknowledger = byOutcome{}
	return true
}

// byOutcome stands in the native delivery where the channel was.
type byOutcome struct{}

type byOutcomeError struct{}

func (byOutcomeError) Error() string {
	return "rabbit: the outcome that the handler returns settles this delivery; it was not settled by hand"
}

func (byOutcome) Ack(uint64, bool) error        { return byOutcomeError{} }
func (byOutcome) Nack(uint64, bool, bool) error { return byOutcomeError{} }
func (byOutcome) Reject(uint64, bool) error     { return byOutcomeError{} }
