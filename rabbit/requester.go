package rabbit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// directReplyTo is the server's name for "to the channel that asked".
const directReplyTo = "amq.rabbitmq.reply-to"

// Requester publishes requests and waits for their replies, over the server's
// direct reply-to: replies need no queue and are not acknowledged, so there is
// nothing to settle, and one that nobody waits for any more is gone. Set its
// fields before its first use, and do not copy it after. Request may be called by several
// goroutines at once.
type Requester struct {
	// Broker is needed.
	Broker *Broker
	// Exchange is where requests go. It must exist. Default: the default
	// exchange, which leads to the queue that the routing key names.
	Exchange string
	// RoutingKey is used for requests whose To is empty.
	RoutingKey string
	// Persistent keeps requests over a restart of the server. Default: they
	// are not, as their replies would find nobody.
	Persistent bool
	// ContentType is put on every request.
	ContentType string

	once      sync.Once
	publisher Publisher
	prefix    string // of this requester's correlation ids
	last      atomic.Uint64

	mu      sync.Mutex // guards waiting
	waiting map[string]chan<- Response
}

// Response is the reply to a request.
type Response struct {
	Body        []byte
	Headers     settle.Headers // nil when there are none
	ContentType string
}

// Request publishes the request, as a [Publisher] does, and returns its reply.
// The request expires when ctx does, so that nobody handles it in vain: give ctx a deadline. Errors are those of
// Publisher.Publish for one message (settle.ErrUnroutable: there is no queue to take it), ctx's
// when no reply came in time, and one that says that the connection was lost
// meanwhile: the request may have been handled then.
func (r *Requester) Request(ctx context.Context, m settle.Message) (Response, error) {
	if err := r.init(); err != nil {
		return Response{}, err
	}
	o, err := r.publisher.encode(&m, time.Now())
	if err != nil {
		return Response{}, settle.Permanent(err)
	}
	o.msg.ReplyTo = directReplyTo
	o.msg.CorrelationId = r.prefix + strconv.FormatUint(r.last.Add(1), 36)
	if deadline, ok := ctx.Deadline(); ok {
		o.msg.Expiration = strconv.FormatInt(min(max(time.Until(deadline).Milliseconds(), 1), mostMillis), 10)
	}
	reply := make(chan Response, 1)
	r.mu.Lock()
	r.waiting[o.msg.CorrelationId] = reply
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.waiting, o.msg.CorrelationId)
		r.mu.Unlock()
	}()

	out := []outgoing{o}
	if errs := r.publisher.sender.publish(ctx, out, users); errs != nil {
		return Response{}, routed(errs[0])
	}
	select {
	case response := <-reply:
		return response, nil
	case <-out[0].on.done:
		select {
		case response := <-reply:
			return response, nil
		default:
		}
		return Response{}, out[0].on.ended("reply, so the request may or may not have been handled")
	case <-ctx.Done():
		return Response{}, fmt.Errorf("rabbit: no reply in time: %w", context.Cause(ctx))
	}
}

func (r *Requester) init() error {
	r.once.Do(func() {
		p := &r.publisher
		p.Broker, p.Exchange, p.RoutingKey = r.Broker, r.Exchange, r.RoutingKey
		p.Transient, p.ContentType = !r.Persistent, r.ContentType
		r.prefix = rand.Text() + "."
		r.waiting = make(map[string]chan<- Response)
		if p.init() == nil {
			p.sender.setUp = r.listen
		}
	})
	return r.publisher.init()
}

// listen takes the replies that come to a channel until it ends. A request's
// reply comes to the channel that the request went out on.
func (r *Requester) listen(ch *amqp.Channel) error {
	replies, err := ch.Consume(directReplyTo, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	r.Broker.start(func() {
		for d := range replies {
			r.mu.Lock()
			reply := r.waiting[d.CorrelationId]
			delete(r.waiting, d.CorrelationId)
			r.mu.Unlock()
			if reply != nil {
				reply <- Response{Body: d.Body, Headers: settle.Headers(d.Headers), ContentType: d.ContentType}
			}
		}
	})
	return nil
}

// Reply answers a request, from its handler: it publishes the message to where
// the request asks and returns when the server has confirmed. To is ignored. A requester
// that has gone gets nothing, and Reply does not learn of it, as with direct reply-to the server
// does not tell. A handler that gets an error may retry: the requester takes the
// first reply. An error is permanent, and settle.ErrUnroutable where it names a queue that does not exist.
func (b *Broker) Reply(ctx context.Context, request *settle.Delivery, m settle.Message) error {
	var d amqp.Delivery
	if !request.As(&d) || d.ReplyTo == "" {
		return settle.Permanent(errors.New("rabbit: the message asks for no reply: it has no reply-to"))
	}
	m.To = d.ReplyTo
	p := Publisher{Transient: true}
	// The server takes a direct reply's address for no queue, so that a
	// mandatory one would always come back.
	p.DropUnroutable = strings.HasPrefix(d.ReplyTo, directReplyTo)
	o, err := p.encode(&m, time.Now())
	if err != nil {
		return settle.Permanent(err)
	}
	o.msg.CorrelationId = d.CorrelationId
	if errs := b.replies.publish(ctx, []outgoing{o}, users); errs != nil {
		return routed(errs[0])
	}
	return nil
}
