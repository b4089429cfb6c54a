package pulsar

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

// Publisher publishes and returns when the broker has confirmed. It has a
// producer for each topic it has sent to, made when it is first needed and kept until
// Broker.Close: it is not for topics by the thousand. Set its fields before its first use, and do not copy
// it after. It implements [settle.Publisher].
//
// The parts of a [settle.Message]: ID travels in the property [PropertyID]; To is the
// topic; Key is the message key, which also picks the partition; Headers are the
// properties, as text; Delay is kept by the broker, for subscriptions of type Shared and KeyShared
// alone, and in steps of its tick, 1 s unless changed: one that is shorter is none. An empty Body is published as a null value, because
// the client library cannot receive an empty one: on a compacted topic that deletes the
// key. Priority is refused: Pulsar has none.
// [Publisher.Send] takes what else Pulsar has.
type Publisher struct {
	// Broker is needed.
	Broker *Broker
	// Topic is where messages go whose To is empty. One of the two is needed.
	Topic string
	// Batch is how many messages the client library publishes as one entry, at
	// most. That is several times faster, and the broker then delivers and gives
	// back those messages together: see docs/pulsar.md. Default 0: each alone.
	Batch int
	// BatchDelay is how long a batch waits to fill. Default 1 ms.
	BatchDelay time.Duration
	// BatchByKey makes a batch for each key: for KeyShared.
	BatchByKey bool
	// Chunks publishes a message that is larger than the broker takes, 5 MiB
	// unless changed, as several. Not with Batch. Default: such a message is refused.
	Chunks bool
	// Compression is the client library's. Default: none.
	Compression client.CompressionType
	// Window is how many messages, or chunks, to one partition may be unconfirmed at once;
	// Publish waits beyond that. It bounds no bytes. Default 1000; with Chunks at least 32.
	Window int

	once sync.Once
	err  error // why it cannot be used

	mu      sync.Mutex // guards what follows
	closed  bool
	senders map[string]*sender
}

var _ settle.Publisher = (*Publisher)(nil)

// leastChunkWindow is room for one message of 128 MiB.
const leastChunkWindow = 32

// Message is a message with what only Pulsar has.
type Message struct {
	settle.Message
	// OrderingKey decides on KeyShared which consumer gets the message, in
	// place of Key.
	OrderingKey string
	// EventTime is when what the message tells of happened. Zero: not said.
	EventTime time.Time
	// DeliverAt keeps the message from consumers until then, as Delay does.
	// Not with Delay. Zero: at once.
	DeliverAt time.Time
}

// Publish sends the messages in order, without waiting between them, and
// returns when each is confirmed, or when ctx ends. When the connection is broken
// it waits for another and sends again what had no answer, so give ctx a deadline; a message may then arrive
// twice. Where the first message to a topic finds no broker it returns that
// error at once.
//
// Errors, in a [*settle.PublishError] unless all failed alike: settle.ErrBlocked while the
// topic's backlog quota is used up; permanent ones for a message that is
// malformed or larger than the broker takes, and for a topic that does not exist, is
// terminated or may not be written. A [*settle.ConfigError] says that no
// message can be sent with these settings.
func (p *Publisher) Publish(ctx context.Context, msgs ...settle.Message) error {
	out := make([]Message, len(msgs))
	for i, m := range msgs {
		out[i].Message = m
	}
	return p.Send(ctx, out...)
}

// Send is Publish for messages with what only Pulsar has.
func (p *Publisher) Send(ctx context.Context, msgs ...Message) error {
	if err := p.init(); err != nil {
		return err
	}
	errs := make([]error, len(msgs))
	type group struct {
		at   []int
		msgs []*client.ProducerMessage
	}
	byTopic := make(map[*sender]*group)
	for i := range msgs {
		m, to, err := p.encode(&msgs[i])
		if err != nil {
			errs[i] = settle.Permanent(err)
			continue
		}
		s, err := p.sender(to)
		if err != nil {
			errs[i] = err
			continue
		}
		g := byTopic[s]
		if g == nil {
			g = new(group)
			byTopic[s] = g
		}
		g.at, g.msgs = append(g.at, i), append(g.msgs, m)
	}
	var topics sync.WaitGroup
	for s, g := range byTopic {
		topics.Go(func() {
			for j, err := range s.deliver(ctx, g.msgs) {
				errs[g.at[j]] = publishError(err)
			}
		})
	}
	topics.Wait()
	var failed []settle.FailedMessage
	for i, err := range errs {
		if err != nil {
			failed = append(failed, settle.FailedMessage{Index: i, Err: err})
		}
	}
	if failed == nil {
		return nil
	}
	return &settle.PublishError{Failed: failed, Total: len(msgs)}
}

// publishError marks what no second try can cure.
func publishError(err error) error {
	if err == nil {
		return nil
	}
	reason, fix := final(err, toProduce)
	if reason != "" {
		err = fmt.Errorf("%w: %s; %s", err, reason, fix)
	}
	if reason != "" || ofMessage(err) {
		return settle.Permanent(err)
	}
	return err
}

// init checks the settings, at the first use.
func (p *Publisher) init() error {
	p.once.Do(func() {
		refuse := func(setting, reason, fix string) {
			p.err = &settle.ConfigError{Source: fmt.Sprintf("pulsar: publisher to %q", p.Topic), Setting: setting, Reason: reason, Fix: fix}
		}
		switch {
		case p.Broker == nil || p.Broker.producing == nil:
			refuse("Broker", "it is nil", "set it to what pulsar.New returned")
			return
		case p.Batch < 0:
			refuse("Batch", fmt.Sprintf("%d is negative", p.Batch), "use zero for none, or a positive value")
		case p.BatchDelay < 0:
			refuse("BatchDelay", fmt.Sprintf("%v is negative", p.BatchDelay), "use zero for 1 ms, or a positive value")
		case p.Window < 0:
			refuse("Window", fmt.Sprintf("%d is negative", p.Window), "use zero for 1000, or a positive value")
		case p.Window > mostRoom:
			refuse("Window", fmt.Sprintf("the client library sets memory aside for each of %d", p.Window), fmt.Sprintf("use %d at most", mostRoom))
		case p.Batch > mostRoom:
			refuse("Batch", fmt.Sprintf("%d messages are no batch", p.Batch), fmt.Sprintf("use %d at most", mostRoom))
		case p.Batch <= 1 && p.BatchDelay > 0:
			refuse("BatchDelay", "there is no Batch that would wait", "set Batch, or leave it out")
		case p.Batch <= 1 && p.BatchByKey:
			refuse("BatchByKey", "there is no Batch", "set Batch, or leave it out")
		case p.Chunks && p.Window > 0 && p.Window < leastChunkWindow:
			refuse("Window", fmt.Sprintf("a message may be more chunks than %d, and would never find room", p.Window), fmt.Sprintf("use zero for 1000, or %d at least", leastChunkWindow))
		case p.Compression < client.NoCompression || p.Compression > client.SNAPPY:
			refuse("Compression", fmt.Sprintf("%d is none of the client library's", p.Compression), "use one of its constants, or leave it out")
		case p.Batch > 1 && p.Chunks:
			refuse("Chunks", "the client library cannot do both chunks and batches", "leave Chunks or Batch out")
		}
		p.senders = make(map[string]*sender)
		if p.err == nil && !p.Broker.publishes(p) {
			p.err = closedError()
		}
	})
	return p.err
}

// sender returns the sender to a topic.
func (p *Publisher) sender(topic string) (*sender, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, closedError()
	}
	s := p.senders[topic]
	if s == nil {
		options := client.ProducerOptions{
			Topic:               topic,
			DisableBatching:     p.Batch <= 1,
			MaxPendingMessages:  p.Window,
			CompressionType:     p.Compression,
			EnableChunking:      p.Chunks,
			ChunkMaxMessageSize: mostChunk,
		}
		if p.Batch > 1 {
			options.BatchingMaxMessages = uint(p.Batch)
			options.BatchingMaxPublishDelay = cmp.Or(p.BatchDelay, time.Millisecond)
		}
		if p.BatchByKey {
			options.BatcherBuilderType = client.KeyBasedBatchBuilder
		}
		s = newSender(p.Broker, options)
		p.senders[topic] = s
	}
	return s, nil
}

// suspect tells every producer that the broker has refused a message.
func (p *Publisher) suspect(answer error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.senders {
		s.suspect(answer)
	}
}

// close ends every producer; the broker is closing.
func (p *Publisher) close() {
	p.mu.Lock()
	p.closed = true
	var closing sync.WaitGroup
	for _, s := range p.senders {
		closing.Go(s.close)
	}
	p.mu.Unlock()
	closing.Wait()
}

// encode makes of a message what the library takes, and its topic, or says why
// it cannot.
func (p *Publisher) encode(m *Message) (*client.ProducerMessage, string, error) {
	topic, reason := fullName(cmp.Or(m.To, p.Topic))
	switch {
	case reason != "" && m.To == "" && p.Topic == "":
		return nil, "", errors.New("pulsar: the message has no To and the publisher no Topic, so there is nowhere to send it to")
	case reason != "":
		return nil, "", fmt.Errorf("pulsar: %q is not a topic that can be written: %s", cmp.Or(m.To, p.Topic), reason)
	case m.Priority != 0:
		return nil, "", fmt.Errorf("pulsar: the priority is %d, and Pulsar has no priorities: leave it out", m.Priority)
	case m.Delay < 0:
		return nil, "", fmt.Errorf("pulsar: the delay %v is negative", m.Delay)
	case m.Delay > 0 && !m.DeliverAt.IsZero():
		return nil, "", errors.New("pulsar: the message has both a Delay and a DeliverAt: leave one of them out")
	}
	properties, err := textOf(m.Headers)
	if err != nil {
		return nil, "", err
	}
	if m.ID != "" {
		if properties == nil {
			properties = make(map[string]string, 1)
		}
		properties[PropertyID] = m.ID
	}
	out := &client.ProducerMessage{
		Payload: body(bytes.Clone(m.Body)), Key: m.Key, OrderingKey: m.OrderingKey, Properties: properties,
		EventTime: m.EventTime, DeliverAfter: m.Delay, DeliverAt: m.DeliverAt,
	}
	return out, topic, nil
}

// textOf makes properties of headers: text and bytes as they are, numbers and
// truth values as Go writes them.
func textOf(headers settle.Headers) (map[string]string, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	properties := make(map[string]string, len(headers))
	for name, value := range headers {
		if ours(name) {
			return nil, fmt.Errorf("pulsar: the header %q is for copies that this package makes: leave it out", name)
		}
		switch value.(type) {
		case string, []byte, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
			properties[name] = headers.Get(name)
		default:
			return nil, fmt.Errorf("pulsar: the header %q is a %s, and properties are text: convert it", name, strings.TrimPrefix(fmt.Sprintf("%T", value), "*"))
		}
	}
	return properties, nil
}
