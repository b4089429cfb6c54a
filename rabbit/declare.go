package rabbit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// Declare makes the server have the topology: exchanges, then queues, then
// bindings. What it has already the same stays as it is. Nothing is declared
// when the topology itself is refused, by a [*settle.ConfigError] for each reason, joined: what the
// server would refuse, and what it would take and then lose messages by. A thing that the server
// has with other arguments is a ConfigError that names the argument; other errors may pass.
func (b *Broker) Declare(ctx context.Context, t Topology) error {
	if err := t.check(); err != nil {
		return err
	}
	d := b.declarer(b.publishing)
	defer d.close()
	if err := t.checkServer(ctx, d); err != nil {
		return err
	}
	for i := range t.Exchanges {
		if err := d.exchange(ctx, &t.Exchanges[i]); err != nil {
			return err
		}
	}
	for i := range t.Queues {
		if err := d.queue(ctx, &t.Queues[i]); err != nil {
			return err
		}
	}
	for i := range t.Bindings {
		if err := d.binding(ctx, &t.Bindings[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkServer refuses routes to what is neither in the topology nor on the
// server. Whether an exchange on the server has bindings cannot be asked.
func (t *Topology) checkServer(ctx context.Context, d *declarer) error {
	for _, e := range t.Exchanges {
		if err := t.checkExchange(ctx, d, fmt.Sprintf("rabbit: exchange %q", e.Name), "Alternate", e.Alternate); err != nil {
			return err
		}
	}
	for _, q := range t.Queues {
		dl := q.DeadLetter
		if dl == nil {
			continue
		}
		source := fmt.Sprintf("rabbit: queue %q", q.Name)
		if err := t.checkExchange(ctx, d, source, "DeadLetter", dl.Exchange); err != nil {
			return err
		}
		if dl.Exchange != "" || slices.ContainsFunc(t.Queues, func(q Queue) bool { return q.Name == dl.Key }) {
			continue
		}
		if err := d.hasQueue(ctx, source, dl.Key); err != nil {
			return routeError(source, "DeadLetter", err)
		}
	}
	return nil
}

// checkExchange refuses a route through an exchange that does not exist.
func (t *Topology) checkExchange(ctx context.Context, d *declarer, source, setting, name string) error {
	if name == "" || slices.ContainsFunc(t.Exchanges, func(e Exchange) bool { return e.Name == name }) {
		return nil
	}
	if err := d.hasExchange(ctx, source, name); err != nil {
		return routeError(source, setting, err)
	}
	d.broker.logger.Info("rabbit: a route leads through an exchange outside the topology; its bindings are unchecked",
		"of", source, "setting", setting, "exchange", name)
	return nil
}

// routeError says what the loss would be where the target of a route is missing.
func routeError(source, setting string, err error) error {
	var config *settle.ConfigError
	if errors.As(err, &config) && isCode(err, amqp.NotFound) {
		return &settle.ConfigError{
			Source: source, Setting: setting, Reason: config.Reason + ", and it would drop in silence what is routed there",
			Fix: "add it to the Topology, or declare it first", Err: config.Err,
		}
	}
	return err
}

// declarer declares things one after the other. The server ends a channel with
// each refusal, so it opens them as it needs them.
type declarer struct {
	broker *Broker
	link   *link
	ch     *channel // nil before the first
}

func (b *Broker) declarer(l *link) *declarer { return &declarer{broker: b, link: l} }

func (d *declarer) do(ctx context.Context, request func(*amqp.Channel) error) error {
	if d.ch == nil || d.ch.IsClosed() {
		ch, err := d.link.channel(ctx)
		if err != nil {
			return err
		}
		d.ch = ch
	}
	return d.ch.do(ctx, request)
}

func (d *declarer) close() {
	if d.ch != nil {
		d.broker.start(func() { _ = d.ch.Close() })
	}
}

// hasQueue and hasExchange refuse what does not exist on the server.
func (d *declarer) hasQueue(ctx context.Context, source, name string) error {
	err := d.do(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	return declareError(source, fmt.Sprintf("queue %q", name), err)
}

func (d *declarer) hasExchange(ctx context.Context, source, name string) error {
	err := d.do(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, Direct, true, false, false, false, nil)
	})
	return declareError(source, fmt.Sprintf("exchange %q", name), err)
}

// exchange declares an exchange; one of a plugin's kind on a connection of its
// own, because servers before 4.0 answer a kind they do not know by ending the
// connection.
func (d *declarer) exchange(ctx context.Context, e *Exchange) error {
	on := d
	if !e.standard() {
		on = d.broker.declarer(newLink(d.broker, "declaring"))
		defer on.link.close(ctx)
	}
	err := on.do(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(e.Name, e.Kind, true, false, e.Internal, false, e.arguments())
	})
	if err == nil && e.Alternate != "" {
		d.broker.noteAlternate(e.Name)
	}
	return declareError(fmt.Sprintf("rabbit: exchange %q", e.Name), fmt.Sprintf("exchange %q", e.Name), err)
}

// queue declares a queue.
func (d *declarer) queue(ctx context.Context, q *Queue) error {
	var args amqp.Table
	declare := func(ch *amqp.Channel) error {
		if args == nil {
			args = q.arguments(d.ch.server)
		}
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, args)
		return err
	}
	err := d.do(ctx, declare)
	if q.Kind == Quorum && q.MaxDeliveries == 0 && undeclaredLimit(err) {
		// The arguments of a queue cannot be changed, and this one may be from
		// a time when the server had no limit of its own.
		d.broker.logger.Warn("rabbit: the queue was declared without a delivery limit, so the server's own of 20 failures holds; past it a message is dead-lettered or, without a dead letter, gone",
			"queue", q.Name, "dead letter", q.DeadLetter != nil, "fix", "set MaxDeliveries and declare the queue anew, or set delivery-limit by a policy")
		delete(args, "x-delivery-limit")
		err = d.do(ctx, declare)
	}
	return declareError(fmt.Sprintf("rabbit: queue %q", q.Name), fmt.Sprintf("queue %q", q.Name), err)
}

func (d *declarer) binding(ctx context.Context, b *Binding) error {
	err := d.do(ctx, func(ch *amqp.Channel) error {
		if b.Queue != "" {
			return ch.QueueBind(b.Queue, b.Key, b.Exchange, false, widen(b.Arguments))
		}
		return ch.ExchangeBind(b.ToExchange, b.Key, b.Exchange, false, widen(b.Arguments))
	})
	return declareError(fmt.Sprintf("rabbit: binding %v", b), fmt.Sprintf("binding %v", b), err)
}
