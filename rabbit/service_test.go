package rabbit

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// This file runs a source under a settle.Runtime, as a user's service does,
// and keeps what its observer was told.

// service is one runtime at work on one source.
type service struct {
	t       testing.TB
	runtime *settle.Runtime
	log     *logged
	cancel  context.CancelFunc
	done    chan struct{} // closed when Run has returned
	err     error         // what it returned

	mu      sync.Mutex // guards what follows
	settled []settle.Settled
	notices []settle.Notice
}

// serve runs handler on source until the test or stop ends it.
func serve(t testing.TB, source settle.Source, o settle.Options, handler settle.Handler) *service {
	t.Helper()
	s := &service{t: t, log: new(logged), done: make(chan struct{})}
	s.start(source, o, handler, s)
	return s
}

// start begins a service whose observer may be another.
func (s *service) start(source settle.Source, o settle.Options, handler settle.Handler, observer settle.Observer) {
	s.t.Helper()
	s.runtime = &settle.Runtime{Logger: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Observer: observer, StartTimeout: patience, DrainTimeout: patience}
	s.runtime.Handle(source, handler, o)
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(s.done)
		s.err = s.runtime.Run(ctx)
	}()
	s.t.Cleanup(func() {
		s.cancel()
		<-s.done
		if s.t.Failed() {
			s.t.Logf("the runtime's log:\n%s", tail(s.log.String()))
		}
	})
}

// tail is the end of a long log.
func tail(log string) string {
	const most = 8 << 10
	if len(log) <= most {
		return log
	}
	return "..." + log[len(log)-most:]
}

func (s *service) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }

func (s *service) Settled(_ context.Context, e settle.Settled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = append(s.settled, e)
}

func (s *service) Noticed(n settle.Notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices = append(s.notices, n)
}

// noticed counts the notices of a kind.
func (s *service) noticed(kind settle.NoticeKind) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, notice := range s.notices {
		if notice.Kind == kind {
			n++
		}
	}
	return n
}

// notice returns the first notice of a kind.
func (s *service) notice(kind settle.NoticeKind) settle.Notice {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, notice := range s.notices {
		if notice.Kind == kind {
			return notice
		}
	}
	require.Failf(s.t, "no such notice", "%v", kind)
	return settle.Notice{}
}

// opened waits for the nth session.
func (s *service) opened(n int) {
	s.t.Helper()
	eventually(s.t, func() bool {
		select {
		case <-s.done:
			require.Failf(s.t, "Run returned", "%v", s.err)
		default:
		}
		return s.noticed(settle.NoticeOpened) >= n
	}, "the session is open")
}

// ended waits for n settlements.
func (s *service) ended(n int) []settle.Settled {
	s.t.Helper()
	var all []settle.Settled
	eventually(s.t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		all = append(all[:0], s.settled...)
		return len(all) >= n
	}, "the settlements have come")
	return all
}

// stop ends the service, which must drain cleanly.
func (s *service) stop() {
	s.t.Helper()
	s.cancel()
	assert.NoError(s.t, s.result())
}

// result waits until Run has returned.
func (s *service) result() error {
	s.t.Helper()
	select {
	case <-s.done:
		return s.err
	case <-time.After(2 * patience):
		require.Fail(s.t, "Run does not return")
		return nil
	}
}

// refused opens a source that must refuse with a ConfigError, promptly.
func refused(t testing.TB, source settle.Source, o settle.Options) *settle.ConfigError {
	t.Helper()
	s := serve(t, source, o, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() })
	err := s.result()
	var config *settle.ConfigError
	require.ErrorAs(t, err, &config)
	for field, value := range map[string]string{"Source": config.Source, "Setting": config.Setting, "Reason": config.Reason, "Fix": config.Fix} {
		assert.NotEmpty(t, value, "%s of %v", field, config)
	}
	return config
}

// tries counts, by the body of the message, how often handlers were called.
type tries struct {
	mu    sync.Mutex // guards count and all
	count map[string]int
	all   []*settle.Delivery
}

// next notes a delivery and returns how often its message was handled, this time included.
func (c *tries) next(d *settle.Delivery) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = make(map[string]int)
	}
	c.count[string(d.Body)]++
	c.all = append(c.all, d)
	return c.count[string(d.Body)]
}

func (c *tries) deliveries() []*settle.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*settle.Delivery(nil), c.all...)
}

// attempts of the deliveries so far.
func (c *tries) attempts() (all []int) {
	for _, d := range c.deliveries() {
		all = append(all, d.Attempt)
	}
	return all
}

var acks settle.Handler = func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }

// registration is what a runtime would ask for.
func registration(limit int, dead string) settle.Registration {
	return settle.Registration{
		Workers: 1, Prefetch: 8, Batch: 1, MaxAttempts: limit, DeadLetter: dead,
		Logger: slog.New(slog.DiscardHandler), Notify: func(settle.Notice) {},
	}
}

// receive takes n deliveries from a session.
func receive(t testing.TB, c settle.Consumer, n int) (all []*settle.Delivery) {
	t.Helper()
	for len(all) < n {
		buf := make([]*settle.Delivery, n-len(all))
		got, err := c.Receive(within(t), buf)
		require.NoError(t, err)
		all = append(all, buf[:got]...)
	}
	return all
}

// settleOne settles one delivery.
func settleOne(t testing.TB, c settle.Consumer, d *settle.Delivery, v settle.Verdict) error {
	t.Helper()
	batch := []settle.Settlement{{Delivery: d, Verdict: v}}
	c.Settle(within(t), batch)
	return batch[0].Err
}
