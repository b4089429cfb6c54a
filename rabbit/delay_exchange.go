package rabbit

import (
	"context"
	"errors"
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

const delayedKind = "x-delayed-message"

func delayExchange(queue string) string { return queue + ".delay" }

func (DelayedExchange) place() (settle.DelayPlace, time.Duration) {
	return settle.DelayBySource, longestServerDelay
}

func (DelayedExchange) check(*settings) error { return nil }

func (DelayedExchange) open(ctx context.Context, o *opening) error {
	name := delayExchange(o.queue)
	var err error
	if o.declare {
		err = o.at.exchange(ctx, &Exchange{Name: name, Kind: delayedKind, Arguments: map[string]any{"x-delayed-type": Direct}})
	} else {
		err = o.at.hasExchange(ctx, o.name(), name)
	}
	var config *settle.ConfigError
	if errors.As(err, &config) && config.Setting == "Kind" {
		return &settle.ConfigError{
			Source: o.name(), Setting: "Delay",
			Reason: "DelayedExchange needs the delayed-message plugin, which the server (" + o.ch.server.String() + ") does not have",
			Fix:    "use WaitQueue, or enable rabbitmq_delayed_message_exchange where it exists", Err: config.Err,
		}
	}
	if err != nil {
		return o.refused("Delay", err)
	}
	return o.refused("Delay", o.at.binding(ctx, &Binding{Exchange: name, Queue: o.queue, Key: o.queue}))
}

// send does not ask for a return: the plugin returns every message that waits.
func (DelayedExchange) send(queue string, out *outgoing, d time.Duration) {
	out.exchange, out.key, out.mandatory = delayExchange(queue), queue, false
	if out.msg.Headers == nil {
		out.msg.Headers = make(amqp.Table)
	}
	out.msg.Headers[delayHeader] = milliseconds(d)
}
