package pulsar

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

// runOnce runs a source until it is open or refused, and returns how that went.
func runOnce(t testing.TB, s settle.Source, options settle.Options, start time.Duration) error {
	t.Helper()
	rt := &settle.Runtime{Logger: quiet, StartTimeout: start}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rt.Observer = observer{noticed: func(n settle.Notice) {
		if n.Kind == settle.NoticeOpened {
			cancel()
		}
	}}
	rt.Handle(s, ack, options)
	result := make(chan error, 1)
	go func() { result <- rt.Run(ctx) }()
	return receive(t, result)
}

// refused runs a source that must be refused for good, and promptly.
func refused(t testing.TB, s settle.Source, options settle.Options) *settle.ConfigError {
	t.Helper()
	start := time.Now()
	err := runOnce(t, s, options, time.Minute)
	require.Error(t, err, "it was opened")
	var config *settle.ConfigError
	require.ErrorAs(t, err, &config)
	for _, part := range []string{config.Source, config.Reason, config.Fix} {
		assert.NotEmpty(t, part, "%v", config)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Logf("it took %v to refuse it: %v", took, err)
	}
	return config
}

func ack(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }

// observer calls the functions that are set.
type observer struct {
	received func(*settle.Delivery)
	settled  func(settle.Settled)
	noticed  func(settle.Notice)
}

func (o observer) Received(ctx context.Context, d *settle.Delivery) context.Context {
	if o.received != nil {
		o.received(d)
	}
	return ctx
}

func (o observer) Settled(_ context.Context, s settle.Settled) {
	if o.settled != nil {
		o.settled(s)
	}
}

func (o observer) Noticed(n settle.Notice) {
	if o.noticed != nil {
		o.noticed(n)
	}
}

func TestConfigRefused(t *testing.T) {
	good := "pulsar://127.0.0.1:6650"
	for name, c := range map[string]struct {
		config  Config
		setting string
	}{
		"no URL":           {Config{}, "URL"},
		"another scheme":   {Config{URL: "amqp://127.0.0.1"}, "URL"},
		"a password":       {Config{URL: "pulsar://me:secret@host"}, "URL"},
		"TLS without ssl":  {Config{URL: good, TLS: tlsConfig()}, "TLS"},
		"two tokens":       {Config{URL: good, Token: "a", TokenSource: func() (string, error) { return "b", nil }}, "Authentication"},
		"not the client's": {Config{URL: good, Authentication: "password"}, "Authentication"},
		"a silent source":  {Config{URL: good, TokenSource: func() (string, error) { return "", assert.AnError }}, ""},
		"timeout":          {Config{URL: good, OperationTimeout: -1}, "OperationTimeout"},
		"connect timeout":  {Config{URL: good, ConnectTimeout: -time.Second}, "ConnectTimeout"},
		"keep-alive":       {Config{URL: good, KeepAlive: time.Millisecond}, "KeepAlive"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := New(c.config)
			require.Nil(t, b)
			var config *settle.ConfigError
			require.ErrorAs(t, err, &config)
			assert.Equal(t, c.setting, config.Setting)
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}

// What cannot be kept is refused without a broker.
func TestRefusedBeforeTheBroker(t *testing.T) {
	b := brokerAt(t, nil, unused(t))
	capped := settle.Options{MaxAttempts: 3, DeadLetter: "dead"}
	sub := func(change func(*Subscription)) *Subscription {
		s := &Subscription{Broker: b, Topic: "orders", SubscriptionName: "billing"}
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		change  func(*Subscription)
		options settle.Options
		setting string
	}{
		"no broker":             {func(s *Subscription) { s.Broker = nil }, settle.Options{}, "Broker"},
		"no name":               {func(s *Subscription) { s.SubscriptionName = "" }, settle.Options{}, "SubscriptionName"},
		"no topic":              {func(s *Subscription) { s.Topic = "" }, settle.Options{}, "Topic"},
		"topic and topics":      {func(s *Subscription) { s.Topics = []string{"x"} }, settle.Options{}, "Topics"},
		"a topic twice":         {func(s *Subscription) { s.Topic, s.Topics = "", []string{"x", "public/default/x"} }, settle.Options{}, "Topics"},
		"no such name":          {func(s *Subscription) { s.Topic = "a/b" }, settle.Options{}, "Topic"},
		"a topic that forgets":  {func(s *Subscription) { s.Topic = "non-persistent://public/default/x" }, settle.Options{}, "Topic"},
		"no such type":          {func(s *Subscription) { s.Type = 9 }, settle.Options{}, "Type"},
		"a nack that panics":    {func(s *Subscription) { s.RetryDelay = 2 }, settle.Options{}, "RetryDelay"},
		"a nack that spins":     {func(s *Subscription) { s.RetryDelay = 5 * time.Microsecond }, settle.Options{}, "RetryDelay"},
		"a nack too late":       {func(s *Subscription) { s.RetryDelay = time.Minute }, settle.Options{}, "RetryDelay"},
		"a delay under zero":    {func(s *Subscription) { s.RetryDelay = -1 }, settle.Options{}, "RetryDelay"},
		"a timeout too short":   {func(s *Subscription) { s.AckTimeout = 100 * time.Millisecond }, settle.Options{}, "AckTimeout"},
		"a timeout under delay": {func(s *Subscription) { s.AckTimeout, s.RetryDelay = 2*time.Second, time.Second }, settle.Options{}, "AckTimeout"},
		"a handler's too long":  {func(s *Subscription) { s.AckTimeout = time.Second }, settle.Options{Timeout: time.Second}, "Timeout"},
		"holds under zero":      {func(s *Subscription) { s.MaxHeld = -1 }, settle.Options{}, "MaxHeld"},
		"a queue beyond memory": {func(s *Subscription) { s.ReceiverQueue = 1 << 40 }, settle.Options{}, "ReceiverQueue"},
		"a name of old":         {func(s *Subscription) { s.Topic = "persistent://public/cluster/default/x" }, settle.Options{}, "Topic"},
		"queue under zero":      {func(s *Subscription) { s.ReceiverQueue = -1 }, settle.Options{}, "ReceiverQueue"},
		"chunks under zero":     {func(s *Subscription) { s.ChunkWait = -1 }, settle.Options{}, "ChunkWait"},
		"a cap alone":           {func(*Subscription) {}, settle.Options{MaxAttempts: 3}, "DeadLetter"},
		"a dead letter alone":   {func(*Subscription) {}, settle.Options{DeadLetter: "dead"}, "MaxAttempts"},
		"dead letters to self":  {func(*Subscription) {}, settle.Options{MaxAttempts: 3, DeadLetter: "persistent://public/default/orders"}, "DeadLetter"},
		"to a partition of it":  {func(*Subscription) {}, settle.Options{MaxAttempts: 3, DeadLetter: "orders-partition-1"}, "DeadLetter"},
		"a bad dead letter":     {func(*Subscription) {}, settle.Options{MaxAttempts: 3, DeadLetter: "a/b"}, "DeadLetter"},
		"a cap on Exclusive":    {func(s *Subscription) { s.Type = Exclusive }, capped, "MaxAttempts"},
		"a cap on Failover":     {func(s *Subscription) { s.Type = Failover }, capped, "MaxAttempts"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.setting, refused(t, sub(c.change), c.options).Setting)
		})
	}
}

// What the broker will not have, whatever is tried, is refused with what to do
// about it, and at once.
func TestRefusedByTheBroker(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	capped := settle.Options{MaxAttempts: 3, DeadLetter: topic + "-dead"}
	t.Cleanup(func() { v.remove(topic+"-dead", 0) })

	t.Run("a wrong token", func(t *testing.T) {
		b := v.broker(func(c *Config) { c.Token = "not-a-token" })
		config := refused(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, settle.Options{})
		assert.Contains(t, config.Fix, "look at Config.Token")
		assert.NotContains(t, config.Error(), "not-a-token")
		b = v.broker(func(c *Config) { c.Token = "" })
		config = refused(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, settle.Options{})
		assert.Contains(t, config.Fix, "set Config.Token, which is empty")
	})
	t.Run("no rights", func(t *testing.T) {
		b := v.broker(func(c *Config) { c.Token = services.PulsarGuestToken(t) })
		config := refused(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, settle.Options{})
		assert.Contains(t, config.Fix, `"consume"`)
	})
	t.Run("rights to consume alone", func(t *testing.T) {
		v.do(http.MethodPost, path(topic)+"/permissions/guest", []string{"consume"})
		b := v.broker(func(c *Config) { c.Token = services.PulsarGuestToken(t) })
		assert.NoError(t, runOnce(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, settle.Options{}, time.Minute))
		config := refused(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, capped)
		assert.Equal(t, "DeadLetter", config.Setting)
		assert.Contains(t, config.Fix, `"produce"`)
		config = refused(t, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, CountedCopies: true}, settle.Options{})
		assert.Equal(t, "CountedCopies", config.Setting)
	})
	t.Run("no such tenant", func(t *testing.T) {
		refused(t, &Subscription{Broker: v.broker(), Topic: "nobody/nothing/orders", SubscriptionName: subscriptionName}, settle.Options{})
	})
	t.Run("no such namespace", func(t *testing.T) {
		refused(t, &Subscription{Broker: v.broker(), Topic: "public/nothing/orders", SubscriptionName: subscriptionName}, settle.Options{})
	})
	t.Run("a dead letter without a namespace", func(t *testing.T) {
		config := refused(t, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}, settle.Options{MaxAttempts: 3, DeadLetter: "public/nothing/dead"})
		assert.Equal(t, "DeadLetter", config.Setting)
	})
	t.Run("a terminated dead letter", func(t *testing.T) {
		ended := v.topic(0, subscriptionName)
		v.do(http.MethodPost, path(ended)+"/terminate", nil)
		config := refused(t, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}, settle.Options{MaxAttempts: 3, DeadLetter: ended})
		assert.Equal(t, "DeadLetter", config.Setting)
	})
	t.Run("another type is connected", func(t *testing.T) {
		other, err := v.raw.Subscribe(client.ConsumerOptions{Topic: topic, SubscriptionName: subscriptionName, Type: client.Failover})
		require.NoError(t, err)
		defer other.Close()
		config := refused(t, &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName}, settle.Options{})
		assert.Contains(t, config.Reason, "another type")
	})
}

// Another consumer on an Exclusive subscription may go: it is waited for.
func TestExclusiveWaitsForItsTurn(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	other, err := v.raw.Subscribe(client.ConsumerOptions{Topic: topic, SubscriptionName: subscriptionName, Type: client.Exclusive})
	require.NoError(t, err)
	s := &Subscription{Broker: v.broker(), Topic: topic, SubscriptionName: subscriptionName, Type: Exclusive}
	err = runOnce(t, s, settle.Options{}, time.Second)
	require.ErrorContains(t, err, "ConsumerBusy")
	var config *settle.ConfigError
	require.NotErrorAs(t, err, &config)

	result := make(chan error, 1)
	go func() { result <- runOnce(t, s, settle.Options{}, time.Minute) }()
	other.Close()
	assert.NoError(t, receive(t, result))
}

// A broker that is down is tried until StartTimeout, and no longer.
func TestStartWithoutBroker(t *testing.T) {
	address := unused(t)
	s := &Subscription{Broker: brokerAt(t, nil, address), Topic: "orders", SubscriptionName: subscriptionName}
	start := time.Now()
	err := runOnce(t, s, settle.Options{}, 300*time.Millisecond)
	require.Error(t, err)
	require.Regexp(t, "dial tcp "+regexp.QuoteMeta(address)+": .*(connection refused|i/o timeout)", err.Error(), "the last try may end by the deadline")
	assert.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
}

// A network that swallows everything holds Open up to its deadline and no
// longer; what the library does meanwhile is cleaned up.
func TestOpenEndsOnAMuteNetwork(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	line := faults.ProxyAt(t, v.proxy, v.url)
	b := v.broker(func(c *Config) {
		c.URL, c.Listener, c.OperationTimeout, c.KeepAlive = line.URL(), "proxied", time.Second, time.Second
	})
	s := &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}
	require.NoError(t, runOnce(t, s, settle.Options{}, time.Minute), "while the network is good")
	line.Blackhole()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	result := make(chan error, 1)
	go func() {
		_, err := s.Open(ctx, settle.Registration{Workers: 1, Prefetch: 1, Batch: 1, Logger: quiet, Notify: func(settle.Notice) {}})
		result <- err
	}()
	assert.ErrorIs(t, receive(t, result), context.DeadlineExceeded)
	line.Restore()
}

// A subscription that opens late, because nobody waits for it any more, is
// closed again: on Exclusive it would keep everybody out.
func TestLateSubscriptionIsClosed(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	line := faults.ProxyAt(t, v.proxy, v.url)
	b := v.broker(func(c *Config) { c.URL, c.Listener = line.URL(), "proxied" })
	s := &settings{Subscription: &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: Exclusive}}
	s.reg = settle.Registration{Workers: 1, Prefetch: 1, Batch: 1, Logger: quiet, Notify: func(settle.Notice) {}}
	require.NoError(t, s.check())
	late := newConsumer(s, "late")
	line.Delay(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	_, err := s.subscribe(ctx, late.options(s.topics[0]), func() error { return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	seen := false
	await(t, "the late consumer did not come and go", func() bool {
		now, err := v.stats(topic, 0)
		here := err == nil && len(now.Subscriptions[subscriptionName].Consumers) > 0
		seen = seen || here
		return seen && !here
	})
}

func TestPublisherRefused(t *testing.T) {
	b := brokerAt(t, nil, unused(t))
	for setting, p := range map[string]*Publisher{
		"Broker":      {Topic: "t"},
		"Batch":       {Broker: b, Topic: "t", Batch: -1},
		"BatchDelay":  {Broker: b, Topic: "t", BatchDelay: -1},
		"Window":      {Broker: b, Topic: "t", Window: -1},
		"Chunks":      {Broker: b, Topic: "t", Batch: 2, Chunks: true},
		"BatchByKey":  {Broker: b, Topic: "t", BatchByKey: true}, // without Batch
		"Compression": {Broker: b, Topic: "t", Compression: 99},  // the client library panics
	} {
		var config *settle.ConfigError
		require.ErrorAs(t, p.Publish(context.Background(), settle.Message{}), &config)
		assert.Equal(t, setting, config.Setting)
	}
	var config *settle.ConfigError
	require.ErrorAs(t, (&Publisher{Broker: b, Topic: "t", Chunks: true, Window: 3}).Publish(context.Background(), settle.Message{}), &config)
	assert.Equal(t, "Window", config.Setting, "a message may be more chunks")
	require.ErrorAs(t, (&Publisher{Broker: b, Topic: "t", BatchDelay: time.Second}).Publish(context.Background(), settle.Message{}), &config)
	assert.Equal(t, "BatchDelay", config.Setting, "there is no batch that would wait")
	for _, p := range []*Publisher{{Broker: b, Topic: "t", Window: 1 << 40}, {Broker: b, Topic: "t", Batch: 1 << 40}} {
		require.ErrorAs(t, p.Publish(context.Background(), settle.Message{}), &config, "what is beyond memory")
	}
	p := &Publisher{Broker: b}
	later := time.Now().Add(time.Hour)
	for reason, m := range map[string]Message{
		"no To":               {},
		"not a topic":         {Message: settle.Message{To: "a/b"}},
		"no priorities":       {Message: settle.Message{To: "t", Priority: 1}},
		"negative":            {Message: settle.Message{To: "t", Delay: -1}},
		"both":                {Message: settle.Message{To: "t", Delay: 1}, DeliverAt: later},
		`the header "x" is a`: {Message: settle.Message{To: "t", Headers: settle.Headers{"x": []string{"a"}}}},
		"for copies":          {Message: settle.Message{To: "t", Headers: settle.Headers{PropertyFor: "billing"}}},
	} {
		err := p.Send(context.Background(), m)
		require.ErrorContains(t, err, reason)
		assert.True(t, settle.IsPermanent(err), reason)
	}
}

func TestHeadersAreText(t *testing.T) {
	properties, err := textOf(settle.Headers{"text": "a", "bytes": []byte("b"), "number": int64(3), "truth": true, "part": 1.5})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"text": "a", "bytes": "b", "number": "3", "truth": "true", "part": "1.5"}, properties)
	properties, err = textOf(nil)
	require.NoError(t, err)
	assert.Nil(t, properties)
}

// An error tells what it is about, in one line of plain words.
func TestErrorsNameTheSource(t *testing.T) {
	s := &Subscription{Broker: brokerAt(t, nil, unused(t)), Topics: []string{"orders", "shop/eu/returns"}, SubscriptionName: "billing", Type: Exclusive}
	config := refused(t, s, settle.Options{MaxAttempts: 3, DeadLetter: "dead"})
	text := config.Error()
	assert.True(t, strings.HasPrefix(text, `pulsar: subscription "billing" on "orders, shop/eu/returns": MaxAttempts: `), text)
	assert.Contains(t, text, "CountedCopies")
	assert.Equal(t, "Exclusive", Exclusive.String())
	assert.Equal(t, "Type(9)", Type(9).String())
}
