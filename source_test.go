package settle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSource is a source that a test scripts: what a real broker does seldom or
// never. The broker in memory stands in where its behaviour is enough.
type fakeSource struct {
	name   string
	traits Traits
	open   func(n int) error // called at each Open, counted from 1; nil: no error

	// What a test has in the place of the fake's own calls; nil: those.
	receive func(ctx context.Context, c *fakeConsumer, buf []*Delivery) (int, error)
	settle  func(ctx context.Context, c *fakeConsumer, batch []Settlement)
	// Called first in Stop and Close; nil: nothing.
	stopping, closing func(ctx context.Context)

	named atomic.Int64 // calls of Name

	mu       sync.Mutex // guards what follows
	opens    int
	closes   int
	stops    int
	r        Registration
	sessions []*fakeConsumer
}

type fakeConsumer struct {
	source   *fakeSource
	incoming chan []*Delivery // each is what one Receive returns
	fail     chan error       // each is what one Receive fails with

	mu      sync.Mutex // guards what follows
	settle  func(batch []Settlement)
	settled []Settlement
	calls   [][]Settlement
}

func newFake(name string, traits Traits) *fakeSource { return &fakeSource{name: name, traits: traits} }

func (f *fakeSource) Name() string {
	f.named.Add(1)
	return f.name
}

func (f *fakeSource) Open(_ context.Context, r Registration) (Consumer, error) {
	f.mu.Lock()
	f.opens++
	f.r = r
	open, n := f.open, f.opens
	f.mu.Unlock()
	if open != nil {
		if err := open(n); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &fakeConsumer{source: f, incoming: make(chan []*Delivery, 100), fail: make(chan error, 100)}
	f.sessions = append(f.sessions, c)
	return c, nil
}

// opensWith has open called at each Open from now on.
func (f *fakeSource) opensWith(open func(n int) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = open
}

func (f *fakeSource) counts() (opens, stops, closes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opens, f.stops, f.closes
}

// session returns the n-th session, counted from 1.
func (f *fakeSource) session(n int) *fakeConsumer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n > len(f.sessions) {
		return nil
	}
	return f.sessions[n-1]
}

// heard returns the Notify of the last Open.
func (f *fakeSource) heard() func(Notice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.r.Notify
}

func (f *fakeSource) notify(n Notice) { f.heard()(n) }

func (c *fakeConsumer) Traits() Traits { return c.source.traits }

func (c *fakeConsumer) Receive(ctx context.Context, buf []*Delivery) (int, error) {
	if c.source.receive != nil {
		return c.source.receive(ctx, c, buf)
	}
	return c.take(ctx, buf)
}

// take is the fake's own Receive.
func (c *fakeConsumer) take(ctx context.Context, buf []*Delivery) (int, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case err := <-c.fail:
		return 0, err
	case ds := <-c.incoming:
		n := copy(buf, ds)
		if n < len(ds) {
			panic("the test sent more than the runtime had room for")
		}
		return n, nil
	}
}

func (c *fakeConsumer) Settle(ctx context.Context, batch []Settlement) {
	if c.source.settle != nil {
		c.source.settle(ctx, c, batch)
		return
	}
	c.keep(batch)
}

// keep is the fake's own Settle.
func (c *fakeConsumer) keep(batch []Settlement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		batch[i].Err = nil
	}
	if c.settle != nil {
		c.settle(batch)
	}
	c.calls = append(c.calls, append([]Settlement(nil), batch...))
	for _, s := range batch {
		if s.Err == nil {
			c.settled = append(c.settled, s)
		}
	}
}

// done returns what is settled so far.
func (c *fakeConsumer) done() []Settlement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Settlement(nil), c.settled...)
}

// asked returns the Settle calls so far.
func (c *fakeConsumer) asked() [][]Settlement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([][]Settlement(nil), c.calls...)
}

// scripted has settle called in each Settle from now on.
func (c *fakeConsumer) scripted(settle func(batch []Settlement)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle = settle
}

// failing is a script by which each settlement fails with err.
func failing(err error) func(batch []Settlement) {
	return func(batch []Settlement) {
		for i := range batch {
			batch[i].Err = err
		}
	}
}

func (c *fakeConsumer) Stop(ctx context.Context) error {
	if c.source.stopping != nil {
		c.source.stopping(ctx)
	}
	c.source.mu.Lock()
	defer c.source.mu.Unlock()
	c.source.stops++
	return nil
}

func (c *fakeConsumer) Close(ctx context.Context) error {
	if c.source.closing != nil {
		c.source.closing(ctx)
	}
	c.source.mu.Lock()
	defer c.source.mu.Unlock()
	c.source.closes++
	return nil
}

// bubble runs a test under a fake clock, with one source that is open.
func bubble(t *testing.T, traits Traits, o Options, h Handler, test func(t *testing.T, f *fakeSource, r *running, seen *recorder)) {
	t.Helper()
	bubbleOf(t, newFake("queue", traits), o, h, test)
}

// bubbleOf is bubble with a fake that the test has made.
func bubbleOf(t *testing.T, f *fakeSource, o Options, h Handler, test func(t *testing.T, f *fakeSource, r *running, seen *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		seen := &recorder{}
		rt := &Runtime{Observer: seen, DrainTimeout: 10 * time.Second}
		rt.Handle(f, h, o)
		r := start(t, rt)
		synctest.Wait()
		test(t, f, r, seen)
	})
}

var discard = slog.New(slog.DiscardHandler)

// running is a Run under way.
type running struct {
	*Runtime
	cancel context.CancelFunc
	result chan error
}

// start runs rt until the test ends or stop is called.
func start(t *testing.T, rt *Runtime) *running {
	t.Helper()
	if rt.Logger == nil {
		rt.Logger = discard
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Runtime: rt, cancel: cancel, result: make(chan error, 1)}
	go func() {
		r.result <- rt.Run(ctx)
		close(r.result)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.result
	})
	return r
}

// stop ends Run and returns its result.
func (r *running) stop() error {
	r.cancel()
	return <-r.result
}

// stopsWithin ends Run and fails the test if that takes longer than most.
func (r *running) stopsWithin(t *testing.T, most time.Duration) error {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.result:
		return err
	case <-time.After(most):
		require.FailNow(t, "Run has not returned", "%v after its context ended", most)
		return nil
	}
}

// wait waits for Run to return by itself and returns its result.
func (r *running) wait() error { return <-r.result }

// recorder is an Observer that keeps what it is told.
type recorder struct {
	mu      sync.Mutex // guards what follows
	got     []*Delivery
	settled []Settled
	notices []Notice
}

func (r *recorder) Received(ctx context.Context, d *Delivery) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, d)
	return context.WithValue(ctx, contextKey{}, d.ID)
}

func (r *recorder) Settled(_ context.Context, s Settled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled = append(r.settled, s)
}

func (r *recorder) Noticed(n Notice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notices = append(r.notices, n)
}

func (r *recorder) ended() []Settled {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Settled(nil), r.settled...)
}

// noticed returns the notices of a kind.
func (r *recorder) noticed(kind NoticeKind) []Notice {
	r.mu.Lock()
	defer r.mu.Unlock()
	var of []Notice
	for _, n := range r.notices {
		if n.Kind == kind {
			of = append(of, n)
		}
	}
	return of
}

func actions(settled []Settlement) (all []string) {
	for _, s := range settled {
		all = append(all, s.Delivery.ID+" "+s.Verdict.Action.String())
	}
	return all
}

// ids returns the deliveries that ended, in their order.
func ids(ended []Settled) (all []string) {
	for _, s := range ended {
		all = append(all, s.Delivery.ID)
	}
	return all
}

func ackAll(context.Context, *Delivery) Outcome { return Ack() }

func deliveries(ids ...string) []*Delivery {
	ds := make([]*Delivery, len(ids))
	for i, id := range ids {
		ds[i] = &Delivery{ID: id, Attempt: 1}
	}
	return ds
}

var errTest = errors.New("an error of the test")
