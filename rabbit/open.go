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
	ch *channel // the session's
	at *declarer
}

// open opens a session.
func open(ctx context.Context, s settings) (settle.Consumer, error) {
	queue, err := s.check()
	if err != nil {
		return nil, err
	}
	ch, err := s.broker.consumeChannel(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name(), err)
	}
	o := &opening{settings: &s, ch: ch, at: s.declarer()}
	defer o.at.close()
	c := newConsumer(&s, ch)
	if err = o.topology(ctx, queue); err == nil {
		err = o.consume(ctx, c)
	}
	if err == nil && !s.broker.start(c.watch) {
		err = closedError()
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

// declarer declares on the connection that consumes.
func (s *settings) declarer() *declarer { return s.broker.declarer(s.broker.consuming) }

// topology declares everything, or checks that everything is there. The
// dead-letter queue is first, so that nothing is ever dead-lettered to nowhere.
func (o *opening) topology(ctx context.Context, queue *Queue) error {
	if err := o.pace.supported(o.settings, o.ch.server); err != nil {
		return err
	}
	if err := o.deadLetter(ctx); err != nil {
		return err
	}
	if !o.declare {
		if err := o.find(ctx, "Queue", o.queue); err != nil {
			return err
		}
	} else {
		if err := o.at.queue(ctx, queue); err != nil {
			return o.refused("Queue", err)
		}
		for _, b := range o.bindings {
			b.Queue = o.queue
			if err := o.at.binding(ctx, &b); err != nil {
				return o.refused("Bindings", err)
			}
		}
	}
	if o.inProcess() {
		return nil
	}
	return o.delay.open(ctx, o)
}

// deadLetter sees to it that the dead-letter queue is there. One that exists is taken
// as it is.
func (o *opening) deadLetter(ctx context.Context) error {
	if o.reg.DeadLetter == "" {
		return nil
	}
	return o.refused("DeadLetter", o.haveDeadLetter(ctx, o.at))
}

// haveDeadLetter checks that the dead-letter queue is there and, with DeclareTopology,
// declares it if it is not.
func (s *settings) haveDeadLetter(ctx context.Context, at *declarer) error {
	err := at.hasQueue(ctx, s.name(), s.reg.DeadLetter)
	if s.declare && isCode(err, amqp.NotFound) {
		return at.queue(ctx, s.deadLetterQueue())
	}
	return err
}

// find checks that a queue is there.
func (o *opening) find(ctx context.Context, setting, name string) error {
	return o.refused(setting, o.at.hasQueue(ctx, o.name(), name))
}

// refused names the setting in a refusal that does not. What is missing is no
// mistake in the settings once it was there: it may come back.
func (o *opening) refused(setting string, err error) error {
	var config *settle.ConfigError
	if !errors.As(err, &config) {
		return err
	}
	absent := isCode(err, amqp.NotFound)
	if absent && o.seen.Load() {
		return fmt.Errorf("%s: %s: %w", o.name(), config.Reason, config.Err)
	}
	named := *config
	if arg, how, ok := inequivalent(err); ok && arg == "x-delivery-limit" && o.capped() {
		named.Setting = "MaxAttempts"
		named.Reason = fmt.Sprintf("MaxAttempts %d asks for an x-delivery-limit of %d, one less, and the server has the queue with another (%s)", o.reg.MaxAttempts, o.limit(), how)
		named.Fix = "set MaxAttempts to one more than the limit that the queue has; or drain the queue, delete it once it is empty, and start again; or use a queue of another name"
	}
	if absent && !o.declare {
		named.Fix = "declare it, or set DeclareTopology"
	}
	if named.Setting == "" {
		named.Setting = setting
	}
	return &named
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
	var reply *amqp.Error
	if errors.As(err, &reply) && strings.HasSuffix(reply.Reason, "in exclusive use") {
		// Another consumer has the queue for itself, for now.
		return fmt.Errorf("%s: %w", o.name(), err)
	}
	return o.refused("Queue", declareError(o.name(), "consuming queue "+strconv.Quote(o.queue), err))
}

// weakened tells, once, what is not as safe as it looks and what was not checked.
func (o *opening) weakened() {
	if o.seen.Load() {
		return
	}
	tell := func(text string) {
		o.reg.Notify(settle.Notice{Kind: settle.NoticeWeakened, Err: errors.New(text)})
	}
	if !o.declare {
		o.reg.Logger.Info("rabbit: the queues are there; without DeclareTopology their types and arguments are unchecked")
		if o.quorum && o.ch.server.atLeast(4, 0) {
			tell("rabbit: if this quorum queue was declared without x-delivery-limit, it gives up a message after the server's default of 20 failures; set DeclareTopology, or declare it with a limit of -1 or a dead-letter exchange")
		}
	}
	if o.reg.MaxAttempts > 0 && o.reg.DeadLetter == "" {
		tell("rabbit: MaxAttempts without DeadLetter: a message at its cap follows the queue's own dead-letter exchange if it has one, else it is dropped")
	}
	if o.place() == settle.NoDelay {
		tell("rabbit: NoDelay: what is to be retried after a while is retried at once")
	}
}
