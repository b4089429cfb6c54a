package rabbit

import (
	"context"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// DelayedExchange lets a message wait in an exchange of the delayed-message plugin, named after
// the consumed queue with ".delay" behind it. The plugin does not exist for
// RabbitMQ 4.3 and later; a server without it refuses at the start.
//
// What the plugin does with a message when its time is over, no confirm tells. So the binding is
// made sure of at each start, with or without DeclareTopology: to bind again is the
// only check there is. The waiting messages live on one node of the server; where that may fail use [WaitQueue].
type DelayedExchange struct{}

func delayExchange(queue string) string { return queue + ".delay" }

func (DelayedExchange) place() (settle.DelayPlace, time.Duration) {
	return settle.DelayBySource, longestServerDelay
}

func (DelayedExchange) check(*settings) error { return nil }

func (DelayedExchange) open(ctx context.Context, o *opening) error {
	name := delayExchange(o.queue)
	declare := func(ch *amqp.Channel) error {
		if !o.declare {
			return ch.ExchangeDeclarePassive(name, "x-delayed-message", true, false, false, false, nil)
		}
		return ch.ExchangeDeclare(name, "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"})
	}
	if err := o.ch.do(ctx, declare); err != nil {
		if unknownExchangeType(err) {
			return &settle.ConfigError{
				Source: o.name(), Setting: "Delay",
				Reason: "DelayedExchange needs the delayed-message plugin, which the server " + o.ch.server.String() + " does not have",
				Fix:    "use WaitQueue, or enable rabbitmq_delayed_message_exchange where it exists", Err: err,
			}
		}
		return o.answer("Delay", "exchange "+strconv.Quote(name), err)
	}
	bind := func(ch *amqp.Channel) error { return ch.QueueBind(o.queue, o.queue, name, false, nil) }
	if err := o.ch.do(ctx, bind); err != nil {
		return o.answer("Delay", "the binding of exchange "+strconv.Quote(name), err)
	}
	return nil
}

// send does not ask for a return: the plugin returns every message that waits.
func (DelayedExchange) send(queue string, out *outgoing, d time.Duration) {
	out.exchange, out.key, out.mandatory = delayExchange(queue), queue, false
	out.msg.Headers[delayHeader] = milliseconds(d)
}
