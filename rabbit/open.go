package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// This file opens a session: it declares or checks what the session needs on
// the server, and begins to consume.

// consumerTag names the one consumer of a session's channel.
const consumerTag = "settle"

// opening is a session that is being opened.
type opening struct {
	*settings
	ch *channel
}

// open opens a session.
func open(ctx context.Context, s settings) (settle.Consumer, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	ch, err := s.broker.consumeChannel(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name(), err)
	}
	o := &opening{settings: &s, ch: ch}
	c := newConsumer(&s, ch)
	err = o.topology(ctx)
	if err == nil {
		err = o.consume(ctx, c)
	}
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), openGrace)
		defer cancel()
		_ = ch.close(closing) // gone or not, nothing of it is used any more
		return nil, err
	}
	o.weakened()
	s.seen.Store(true)
	return c, nil
}

// topology declares everything, or checks that everything is there.
func (o *opening) topology(ctx context.Context) error {
	if err := o.pace.supported(o.settings, o.ch.server); err != nil {
		return err
	}
	if dead := o.reg.DeadLetter; dead != "" {
		if err := o.deadLetter(ctx, dead); err != nil {
			return err
		}
	}
	var err error
	if o.declare {
		args := o.queueArguments(o.ch.server)
		for name, v := range o.arguments {
			args[name] = v
		}
		err = o.put(ctx, o.queue, args)
	} else {
		err = o.find(ctx, "Queue", o.queue)
	}
	if err != nil || o.inProcess() {
		return err
	}
	return o.delay.open(ctx, o)
}

// deadLetter sees to it that the dead-letter queue is there. One that exists is taken
// as it is.
func (o *opening) deadLetter(ctx context.Context, name string) error {
	if !o.declare {
		return o.find(ctx, "DeadLetter", name)
	}
	exists, err := o.exists(ctx, name)
	if err != nil || exists {
		return err
	}
	return o.put(ctx, name, o.deadLetterArguments(o.ch.server))
}

// deadLetterArguments are those of a dead-letter queue that we declare: it is
// of the consumed queue's kind, and has no limit that would drop what was looked at too often.
func (s *settings) deadLetterArguments(server version) amqp.Table {
	dead := settings{quorum: s.quorum}
	return dead.queueArguments(server)
}

// put declares a durable queue.
func (o *opening) put(ctx context.Context, name string, args amqp.Table) error {
	err := o.ch.do(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
	return o.answer("DeclareTopology", "queue "+strconv.Quote(name), err)
}

// find checks that a queue is there.
func (o *opening) find(ctx context.Context, setting, name string) error {
	err := o.ch.do(ctx, passive(name))
	return o.answer(setting, "queue "+strconv.Quote(name), err)
}

// exists reports whether a queue is there. It asks on a channel of its own, as
// the answer for one that is not closes the channel.
func (o *opening) exists(ctx context.Context, name string) (bool, error) {
	ch, err := o.broker.consumeChannel(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: %w", o.name(), err)
	}
	err = ch.do(ctx, passive(name))
	if missing(err) {
		return false, nil
	}
	if err != nil {
		return false, o.answer("DeadLetter", "queue "+strconv.Quote(name), err)
	}
	return true, ch.close(ctx)
}

func passive(name string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	}
}

// consume begins to consume.
func (o *opening) consume(ctx context.Context, c *consumer) error {
	err := o.ch.do(ctx, func(ch *amqp.Channel) error {
		if err := ch.Qos(o.prefetch(), 0, false); err != nil {
			return err
		}
		c.cancelled = ch.NotifyCancel(make(chan string, 1))
		var err error
		c.deliveries, err = ch.Consume(o.queue, consumerTag, false, false, false, false, nil)
		return err
	})
	return o.answer("Queue", "queue "+strconv.Quote(o.queue), err)
}

// weakened tells what is not as safe as it looks, or was not checked.
func (o *opening) weakened() {
	tell := func(text string) {
		o.reg.Notify(settle.Notice{Kind: settle.NoticeWeakened, Err: errors.New(text)})
	}
	if o.seen.Load() {
		return // told when the first session was opened
	}
	if !o.declare {
		o.reg.Logger.Info("rabbit: the queues are there; their types and arguments were not checked, as that needs DeclareTopology")
		if o.quorum && o.ch.server.atLeast(4, 0) {
			tell("a quorum queue that was declared without x-delivery-limit drops a message after the server's default of 20 failures; set DeclareTopology, or declare it with -1 or with a dead-letter exchange")
		}
	}
	if o.reg.MaxAttempts > 0 && o.reg.DeadLetter == "" {
		tell("MaxAttempts without DeadLetter: a message that reaches the cap follows the queue's own dead-letter exchange if it has one, else it is dropped")
	}
	if o.traitsDelay() == settle.NoDelay {
		tell("NoDelay: a message that is to be retried after a while is retried at once")
	}
}

// answer makes an error of the server's answer about a thing: final where the same
// request would be refused again.
func (o *opening) answer(setting, thing string, err error) error {
	if err == nil {
		return nil
	}
	var reply *amqp.Error
	if !errors.As(err, &reply) {
		return fmt.Errorf("%s: %s: %w", o.name(), thing, err)
	}
	final := func(reason, fix string) error {
		return &settle.ConfigError{Source: o.name(), Setting: setting, Reason: reason, Fix: fix, Err: err}
	}
	switch {
	case missing(err) && !o.seen.Load():
		return final(thing+" does not exist", "declare it, or set DeclareTopology")
	case reply.Code == amqp.PreconditionFailed:
		if arg := differing(reply.Reason); arg != "" {
			return final(fmt.Sprintf("%s exists with another %s", thing, arg),
				"give it the settings that it has, or delete it and let it be declared again")
		}
		return final("the server refuses "+thing, "look at what it says")
	case reply.Code == amqp.AccessRefused && !strings.Contains(reply.Reason, "exclusive"):
		return final("the server refuses "+thing, "give the user permissions on it")
	}
	return fmt.Errorf("%s: %s: %w", o.name(), thing, err)
}

// missing reports whether err says that something does not exist. A queue whose node is down is
// there all the same.
func missing(err error) bool {
	var reply *amqp.Error
	return errors.As(err, &reply) && reply.Code == amqp.NotFound && !strings.Contains(reply.Reason, "down or inaccessible")
}

// differing returns the argument that a 406 names as other than the queue's own.
func differing(reason string) string {
	_, after, found := strings.Cut(reason, "inequivalent arg '")
	if !found {
		return ""
	}
	arg, _, _ := strings.Cut(after, "'")
	return arg
}

// unknownExchangeType reports whether the server has no plugin for the type: 406
// from 4.0 on, and 503 before, which closes the connection.
func unknownExchangeType(err error) bool {
	var reply *amqp.Error
	return errors.As(err, &reply) && strings.Contains(reply.Reason, "unknown exchange type")
}
