// Package pulsar settles deliveries on Apache Pulsar and publishes to it.
//
// A [Broker] is a cluster as this process sees it. A [Subscription] is a
// settle.Source on it, a [Publisher] a settle.Publisher. docs/pulsar.md says
// what each outcome becomes on each type of subscription, what resets the
// count of attempts, and what a crash brings back.
package pulsar

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/auth"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/settlemq/settle"
)

const (
	defaultConnectTimeout   = 10 * time.Second
	defaultOperationTimeout = 10 * time.Second
	defaultKeepAlive        = 10 * time.Second
	defaultMostMessage      = 5 << 20
	closeGrace              = 5 * time.Second
)

// Config says where a cluster is and how to connect to it. The zero value of
// each field but URL means the default that stands beside it.
type Config struct {
	// URL is where the cluster is: "pulsar://host:6650", or
	// "pulsar+ssl://host:6651" for TLS. More hosts follow after commas. Needed.
	URL string
	// Token is the token that says who we are. Default: none.
	Token string
	// TokenSource is asked for a token at each new connection and whenever the
	// broker wants a fresh one, in place of Token. It may be called by several goroutines at once.
	TokenSource func() (string, error)
	// Authentication is any other way of the client library to say who we are,
	// in place of Token. Default: none.
	Authentication client.Authentication
	// TLS is used for pulsar+ssl URLs. Default: the system's certificate
	// authorities, and the name of the host verified.
	TLS *tls.Config
	// Listener is the name of the advertised listener to use, where the brokers have several.
	Listener string
	// Name is shown by the broker's tools beside each connection. Default: the
	// program's name.
	Name string
	// ConnectTimeout bounds one attempt to connect. Default 10 s.
	ConnectTimeout time.Duration
	// OperationTimeout bounds one request to the broker: an acknowledgement
	// that has no answer for so long ends the session. Default 10 s.
	OperationTimeout time.Duration
	// KeepAlive is how often an idle connection shows that it lives; one that
	// was silent for twice as long is taken for dead. Default 10 s; at least 1 s.
	KeepAlive time.Duration
	// Logger takes what a person may have to act on; never a body, never a
	// token. What the client library says goes there at debug level. Default slog.Default().
	Logger *slog.Logger
}

// Broker is a Pulsar cluster as this process sees it; New makes one. It has connections for consuming
// and others for producing, so that a topic which cannot be written disturbs no
// subscription. Subscriptions and publishers share it. Its methods may be called by
// several goroutines at once.
type Broker struct {
	config   Config
	hosts    []string
	provider auth.Provider
	logger   *slog.Logger

	consuming, producing client.Client
	words                *clientLog // what the consuming client says

	mostMessage atomic.Int64 // how large a message may be, body, properties and all; as the broker says

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // every goroutine of the broker
	calls  sync.WaitGroup // calls of the library that may make a connection

	mu       sync.Mutex // guards what follows
	closed   bool       // no goroutine is added to work any more
	sessions map[*consumer]struct{}
	senders  map[string]*sender // of copies, by topic
	pubs     map[*Publisher]struct{}
}

// New returns a broker and does not dial: subscriptions and publishers do, when
// they first need it. It returns a [*settle.ConfigError] for settings that
// cannot be kept, a bad URL among them. Close the broker when all that uses it
// has ended.
func New(config Config) (*Broker, error) {
	hosts, err := config.check()
	if err != nil {
		return nil, err
	}
	provider, err := config.auth()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		config: config, hosts: hosts, provider: provider, logger: config.Logger,
		sessions: make(map[*consumer]struct{}), senders: make(map[string]*sender), pubs: make(map[*Publisher]struct{}),
	}
	b.mostMessage.Store(defaultMostMessage)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.words = newClientLog(b.logger)
	if b.consuming, err = b.client(b.words); err != nil {
		return nil, err
	}
	words := newClientLog(b.logger)
	words.refused = b.refused
	if b.producing, err = b.client(words); err != nil {
		b.consuming.Close()
		return nil, err
	}
	return b, nil
}

// check fills in the defaults and returns the hosts of the URL.
func (config *Config) check() ([]string, error) {
	refuse := func(setting, reason, fix string) ([]string, error) {
		return nil, &settle.ConfigError{Source: "pulsar: broker", Setting: setting, Reason: reason, Fix: fix}
	}
	hosts, secure, reason := parseURL(config.URL)
	if reason != "" {
		return refuse("URL", reason, `write it as "pulsar://host:6650", or as "pulsar+ssl://host:6651" for TLS`)
	}
	if config.TLS != nil && !secure {
		return refuse("TLS", "the URL says that the connection is not encrypted", `write the URL as "pulsar+ssl://host:6651"`)
	}
	given := 0
	for _, set := range []bool{config.Token != "", config.TokenSource != nil, config.Authentication != nil} {
		if set {
			given++
		}
	}
	if given > 1 {
		return refuse("Authentication", "more than one of Token, TokenSource and Authentication is set", "leave all but one out")
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"ConnectTimeout", &config.ConnectTimeout, defaultConnectTimeout},
		{"OperationTimeout", &config.OperationTimeout, defaultOperationTimeout},
		{"KeepAlive", &config.KeepAlive, defaultKeepAlive},
	} {
		switch {
		case *d.value < 0:
			return refuse(d.name, fmt.Sprintf("%v is negative", *d.value), fmt.Sprintf("use zero for %v, or a positive value", d.standard))
		case *d.value == 0:
			*d.value = d.standard
		}
	}
	if config.KeepAlive < time.Second {
		return refuse("KeepAlive", fmt.Sprintf("%v is so short that a busy broker is taken for dead", config.KeepAlive), "use 1 s at least, or zero for 10 s")
	}
	if config.Name == "" {
		config.Name = filepath.Base(os.Args[0])
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	return hosts, nil
}

// auth returns what says who we are.
func (config *Config) auth() (auth.Provider, error) {
	switch {
	case config.Token != "":
		return auth.NewAuthenticationToken(config.Token), nil
	case config.TokenSource != nil:
		return auth.NewAuthenticationTokenFromSupplier(config.TokenSource), nil
	case config.Authentication == nil:
		return auth.NewAuthDisabled(), nil
	}
	p, ok := config.Authentication.(auth.Provider)
	if !ok {
		return nil, &settle.ConfigError{
			Source: "pulsar: broker", Setting: "Authentication", Reason: fmt.Sprintf("%T is none of the client library's", config.Authentication),
			Fix: "use what one of its NewAuthentication functions returns",
		}
	}
	return p, nil
}

// client makes a client, which does not dial yet. Its metrics have a registry
// of their own: two clients in the process's own would be in each other's way.
func (b *Broker) client(words *clientLog) (client.Client, error) {
	c, err := client.NewClient(client.ClientOptions{
		URL:               b.config.URL,
		ConnectionTimeout: b.config.ConnectTimeout,
		OperationTimeout:  b.config.OperationTimeout,
		KeepAliveInterval: b.config.KeepAlive,
		Authentication:    b.provider,
		TLSConfig:         b.config.TLS,
		ListenerName:      b.config.Listener,
		Logger:            words,
		MetricsRegisterer: prometheus.NewRegistry(),
		Description:       b.config.Name,
		MemoryLimitBytes:  -1, // it would be one for all producers, and one topic that cannot be written would use it up
	})
	if err != nil {
		return nil, &settle.ConfigError{Source: "pulsar: broker", Reason: "the client library refuses the settings", Fix: "see what it says", Err: err}
	}
	return c, nil
}

// Close ends every session that is still open, answers what is not confirmed
// with an error and closes the connections. It waits until nothing of the broker
// is left, or until ctx ends, and returns 5 s after OperationTimeout, or twice KeepAlive if that is
// longer, at the latest: so long it may take until a broker that does not answer is given up. Every later use of the broker fails. A second Close is harmless.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	first := !b.closed
	if first {
		b.work.Go(b.shut) // while work can still be added to
	}
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	ctx, cancel := context.WithTimeout(ctx, max(b.config.OperationTimeout, 2*b.config.KeepAlive)+closeGrace)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		b.work.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("pulsar: broker: not everything ended in time: %w", context.Cause(ctx))
	}
}

// shut closes what the broker has: sessions and producers first, each in a way
// that joins what is under way, then the clients. In the other order the
// library can hang, and what is still connecting leaves its connection behind.
func (b *Broker) shut() {
	b.mu.Lock()
	var closing sync.WaitGroup
	for c := range b.sessions {
		closing.Go(func() { c.shut(!c.isLost()) })
	}
	for _, s := range b.senders {
		closing.Go(s.close)
	}
	for p := range b.pubs {
		closing.Go(p.close)
	}
	b.mu.Unlock()
	closing.Wait()
	b.calls.Wait()
	b.consuming.Close()
	b.producing.Close()
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

// call is start for a call of the library that may make a connection.
func (b *Broker) call(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.calls.Add(1)
	b.work.Go(func() {
		defer b.calls.Done()
		f()
	})
	return true
}

// open notes a session that Close has to end. It reports false once the broker is closed.
func (b *Broker) open(c *consumer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.sessions[c] = struct{}{}
	return true
}

func (b *Broker) forget(c *consumer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, c)
}

// publishes notes a publisher that Close has to end. It reports false once the
// broker is closed.
func (b *Broker) publishes(p *Publisher) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.pubs[p] = struct{}{}
	return true
}

// copies returns the sender of copies to a topic. It lives as long as the
// broker: sessions come and go more often than topics.
func (b *Broker) copies(topic string) *sender {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.senders[topic]
	if s == nil {
		// A message that was published in chunks is copied in chunks.
		s = newSender(b, client.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: mostChunk})
		b.senders[topic] = s
	}
	return s
}

// errClosed says that the broker value was closed by its owner.
var errClosed = errors.New("the broker is closed")

// closedError is what every use of a closed broker gets.
func closedError() error {
	return &settle.ConfigError{
		Source: "pulsar: broker", Reason: "it was used after Close", Err: errClosed,
		Fix: "close the broker after Run has returned and publishers have ended",
	}
}
