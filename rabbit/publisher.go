package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// keyHeader carries settle.Message.Key, which the protocol has no field for.
const keyHeader = "x-settle-key"

// Publisher publishes to one exchange and returns when the server has
// confirmed. It has a channel of its own on the broker's publishing connection,
// opened when it is first needed and again when it was lost; Broker.Close ends
// it. Set its fields before its first use, and do not copy it after. It implements [settle.Publisher].
//
// The parts of a [settle.Message]: ID is the message-id; To is the routing key, or
// with the default exchange the name of the queue; Key travels in the header
// x-settle-key; Priority is 0 to 255. Delay is refused: RabbitMQ does not keep a
// published message back. Headers keep their types as far as AMQP has them; ints become
// 64 bits wide.
type Publisher struct {
	// Broker is needed.
	Broker *Broker
	// Exchange is where messages go. It must exist. Default: the default
	// exchange, which leads to the queue that the routing key names.
	Exchange string
	// RoutingKey is used for messages whose To is empty. With the default
	// exchange one of the two is needed.
	RoutingKey string
	// DropUnroutable lets the server drop what reaches no queue. Default: such a message is
	// answered with settle.ErrUnroutable (a mandatory publish, to which the
	// header x-settle-return is added). Beside an alternate exchange a
	// message always reaches something, so it is never answered so.
	DropUnroutable bool
	// Transient lets messages be lost when the server restarts. Default: they
	// are persistent.
	Transient bool
	// ContentType is put on every message, such as "application/json".
	ContentType string
	// Window is how many messages may be unconfirmed at once. Default 512.
	Window int
	// MaxBody is the most bytes a body may have. The server refuses a larger one by closing
	// the channel, with everything that is under way on it, so it is refused here first. Default:
	// the server's own default, 16 MiB since 4.0 and 128 MiB before.
	MaxBody int

	once   sync.Once
	sender *sender
	err    error // why it cannot be used
}

var _ settle.Publisher = (*Publisher)(nil)

// Publish sends the messages in order, without waiting between them, and
// returns when each is confirmed and none came back, or when ctx ends. It
// waits for a server that is down or blocked until then, so give ctx a deadline.
//
// The error is a [*settle.PublishError] that names the messages that are not
// safe, with an error for each: settle.ErrUnroutable (permanent);
// settle.ErrBlocked when ctx ended while the server took no messages; a permanent one for a
// message that cannot be sent or is too large; others where the server refused
// it, or no confirm came before ctx ended or the connection was lost. Where no
// message can be sent with these settings there is a [*settle.ConfigError] in it.
func (p *Publisher) Publish(ctx context.Context, msgs ...settle.Message) error {
	if err := p.init(); err != nil {
		return err
	}
	out := make([]outgoing, len(msgs))
	good := make([]int, 0, len(msgs)) // the index of each message in out
	var failed []settle.FailedMessage
	now := time.Now()
	for i := range msgs {
		o, err := p.encode(&msgs[i], now)
		if err != nil {
			failed = append(failed, settle.FailedMessage{Index: i, Err: settle.Permanent(err)})
			continue
		}
		out[len(good)] = o
		good = append(good, i)
	}
	for j, err := range p.sender.publish(ctx, out[:len(good)], users) {
		if err != nil {
			failed = append(failed, settle.FailedMessage{Index: good[j], Err: routed(err)})
		}
	}
	if failed == nil {
		return nil
	}
	slices.SortFunc(failed, func(a, b settle.FailedMessage) int { return a.Index - b.Index })
	return &settle.PublishError{Failed: failed, Total: len(msgs)}
}

// routed marks what reached no queue as permanent. For the copies of sources
// it is not: their target may come back.
func routed(err error) error {
	if errors.Is(err, settle.ErrUnroutable) {
		return settle.Permanent(err)
	}
	return err
}

// publish sends what a source made of a delivery.
func (p *Publisher) publish(ctx context.Context, out []outgoing) []error {
	if err := p.init(); err != nil {
		errs := make([]error, len(out))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	return p.sender.publish(ctx, out, copies)
}

// init checks the settings, at the first use.
func (p *Publisher) init() error {
	p.once.Do(func() {
		refuse := func(setting, reason, fix string) {
			p.err = &settle.ConfigError{Source: fmt.Sprintf("rabbit: publisher to %q", p.Exchange), Setting: setting, Reason: reason, Fix: fix}
		}
		switch {
		case p.Broker == nil:
			refuse("Broker", "it is nil", "set it to what rabbit.New returned")
			return
		case p.Window < 0:
			refuse("Window", fmt.Sprintf("%d is negative", p.Window), "use zero for 512, or a positive value")
		case p.MaxBody < 0:
			refuse("MaxBody", fmt.Sprintf("%d is negative", p.MaxBody), "use zero for the server's default, or a positive value")
		}
		p.sender = newSender(p.Broker, cmp.Or(p.Window, defaultWindow))
		p.sender.maxBody = p.MaxBody
		if !p.DropUnroutable && p.Broker.hasAlternate(p.Exchange) {
			p.Broker.logger.Warn("rabbit: the exchange has an alternate exchange, which takes what is unroutable: the publisher is never told",
				"exchange", p.Exchange, "fix", "set DropUnroutable to say that this is meant, or declare the exchange without Alternate")
		}
	})
	return p.err
}

// encode makes of a message what the protocol has, or says why it cannot.
func (p *Publisher) encode(m *settle.Message, now time.Time) (outgoing, error) {
	o := outgoing{exchange: p.Exchange, key: cmp.Or(m.To, p.RoutingKey), mandatory: !p.DropUnroutable}
	switch {
	case o.exchange == "" && o.key == "":
		return o, errors.New("rabbit: the message has no To and the publisher no RoutingKey, so there is no queue to send it to")
	case m.Delay > 0:
		return o, fmt.Errorf("rabbit: RabbitMQ cannot keep a message back for %v as it is published: retry it with settle.RetryAfter where it is consumed", m.Delay)
	case m.Priority < 0 || m.Priority > math.MaxUint8:
		return o, fmt.Errorf("rabbit: the priority %d is not between 0 and 255", m.Priority)
	}
	headers, err := toTable(m.Headers, m.Key)
	if err != nil {
		return o, err
	}
	o.msg = amqp.Publishing{
		Headers:      headers,
		ContentType:  p.ContentType,
		DeliveryMode: amqp.Persistent,
		Priority:     uint8(m.Priority),
		MessageId:    m.ID,
		Timestamp:    now,
		Body:         m.Body,
	}
	if p.Transient {
		o.msg.DeliveryMode = amqp.Transient
	}
	return o, nil
}
