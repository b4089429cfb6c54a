// Package rabbit makes the outcomes of package settle true on RabbitMQ, and
// publishes to it. It is held against RabbitMQ 4.3 and 3.10.
//
// Which type does what:
//
//   - [Broker] is a server or cluster: a connection for consuming and one for
//     publishing, dialled when they are needed.
//   - [ClassicQueue] and [QuorumQueue] are sources: handlers are registered on them.
//   - [Publisher] sends with confirms; [Requester] and [Broker.Reply] are for
//     requests and their replies.
//   - [Topology] is what a service wants the server to have; [Broker.Declare] makes it so.
//   - [Deaths] reads what the server wrote down about its own dead lettering.
package rabbit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

const (
	defaultHeartbeat   = 10 * time.Second
	defaultDialTimeout = 10 * time.Second
	mostClose          = 10 * time.Second // of Close
	mostFarewell       = 2 * time.Second  // how long a server may take to answer that we close
)

// Config says where a broker is and how to connect to it. The zero value of
// each field but URLs means the default that stands beside it.
type Config struct {
	// URLs are the nodes of one server or cluster, such as
	// "amqp://user:password@host:5672/vhost". The first that answers is used,
	// beginning at a random one. Needed. A password never appears in a log or an error.
	URLs []string
	// TLS is used for amqps URLs. Default nil: what the URL's own parameters say,
	// or the system's certificate authorities.
	TLS *tls.Config
	// Name is shown by the server's tools beside each connection. Default: the
	// program's name.
	Name string
	// Heartbeat is how often an idle connection shows that it lives; a peer
	// silent for one and a half of it is taken for dead. Default 10 s; at least 1 s, whole seconds. A heartbeat in
	// a URL comes first.
	Heartbeat time.Duration
	// DialTimeout bounds one attempt at one node, the handshakes included.
	// Default 10 s.
	DialTimeout time.Duration
	// Logger takes what a person may have to act on; never a body, never a password. Default slog.Default().
	Logger *slog.Logger
	// Dial makes the network connection, for proxies and tests. Default: a
	// net.Dialer's DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Broker is a RabbitMQ server or cluster as this process sees it: one
// connection for consuming and one for publishing, each dialled when it is
// first needed and again after it was lost. Sources, publishers and requesters
// share it. Its methods may be called by several goroutines at once.
type Broker struct {
	config Config
	nodes  []node
	logger *slog.Logger

	consuming, publishing *link
	copies                *sender // sends the copies of sources that have no publisher of their own
	replies               *sender // sends what Reply is given

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // every goroutine of the broker

	mu         sync.Mutex          // guards what follows
	closed     bool                // no goroutine is added to work any more
	alternates map[string]struct{} // exchanges that were declared with an alternate exchange
}

// errClosed says that the broker value was closed by its owner.
var errClosed = errors.New("the broker is closed")

// New returns a broker and does not dial: sources, publishers and requesters
// do, when they first need it. It returns a [*settle.ConfigError] for settings
// that cannot be kept, a bad URL among them. Close the broker when all that
// uses it has ended.
func New(config Config) (*Broker, error) {
	refuse := func(setting, reason, fix string) (*Broker, error) {
		return nil, &settle.ConfigError{Source: "rabbit: broker", Setting: setting, Reason: reason, Fix: fix}
	}
	if len(config.URLs) == 0 {
		return refuse("URLs", "there is none", `use one such as "amqp://user:password@host:5672/vhost"`)
	}
	switch h := config.Heartbeat; {
	case h == 0:
		config.Heartbeat = defaultHeartbeat
	case h < time.Second || h%time.Second != 0 || h > 65535*time.Second:
		return refuse("Heartbeat", fmt.Sprintf("the protocol cannot carry %v", h), "use whole seconds, 1 s at least, or zero for 10 s")
	}
	switch d := config.DialTimeout; {
	case d == 0:
		config.DialTimeout = defaultDialTimeout
	case d < 0:
		return refuse("DialTimeout", fmt.Sprintf("%v is negative", d), "use zero for 10 s, or a positive value")
	}
	if config.Name == "" {
		config.Name = filepath.Base(os.Args[0])
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Dial == nil {
		config.Dial = new(net.Dialer).DialContext
	}
	nodes := make([]node, len(config.URLs))
	for i, url := range config.URLs {
		n, reason := parseNode(url)
		if reason != "" {
			return refuse(fmt.Sprintf("URLs[%d]", i), reason,
				`write it as "amqp://user:password@host:5672/vhost" and percent-encode what is special in it, such as @ : / ? # in a password`)
		}
		nodes[i] = n
	}
	b := &Broker{config: config, nodes: nodes, logger: config.Logger, alternates: make(map[string]struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.consuming, b.publishing = newLink(b, "consuming"), newLink(b, "publishing")
	b.copies, b.replies = newSender(b, defaultWindow), newSender(b, defaultWindow)
	return b, nil
}

// Close closes both connections and waits until nothing of the broker is left,
// or until ctx ends, 10 s at most. What is unsettled then is the server's again, what is not
// confirmed is answered with an error, and every later use of the broker fails. A second Close is harmless.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	ctx, cancel := context.WithTimeout(ctx, mostClose)
	defer cancel()
	// Part of the time is for the server to answer; then the sockets close,
	// and the rest is for all that waits on them.
	deadline, _ := ctx.Deadline()
	farewell, done := context.WithTimeout(ctx, min(mostFarewell, time.Until(deadline)/2))
	defer done()
	var closing sync.WaitGroup
	for _, l := range []*link{b.publishing, b.consuming} {
		closing.Go(func() { l.close(farewell) })
	}
	closing.Wait()
	gone := make(chan struct{})
	go func() {
		b.work.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rabbit: broker: not everything ended in time: %w", context.Cause(ctx))
	}
}

// start runs f on a goroutine that Close waits for. It reports whether it did:
// not once the broker is closed.
func (b *Broker) start(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.work.Go(f)
	return true
}

// blocked reports whether the server takes no messages now.
func (b *Broker) blocked() bool {
	c, ok := b.publishing.conns.current()
	return ok && c.blockade.Load() != nil
}

// noteAlternate remembers that what is published to the exchange is never
// unroutable.
func (b *Broker) noteAlternate(exchange string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alternates[exchange] = struct{}{}
}

func (b *Broker) hasAlternate(exchange string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.alternates[exchange]
	return ok
}

// closedError is what every use of a closed broker gets.
func closedError() error {
	return &settle.ConfigError{
		Source: "rabbit: broker", Reason: "it was used after Close", Err: errClosed,
		Fix: "close the broker after Run has returned and publishers have ended",
	}
}
