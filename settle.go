// Package settle runs handlers on messages and settles each message as its
// handler decided: acknowledged, dropped, retried, retried after a delay, or
// dead-lettered. The packages below it do so on RabbitMQ, on Apache Pulsar and
// on queue tables in SQL databases.
//
// Which type does what:
//
//   - [Runtime] takes registrations (Handle) and runs them (Run) until its
//     context ends; then it drains.
//   - [Handler] is the user's function; it returns an [Outcome]. [JSON] and
//     [FromError] make one from simpler functions.
//   - [Delivery] is one message, delivered once.
//   - [Message] and [Publisher] are for sending.
//   - [Observer] is told what happens.
//   - [Source] and [Consumer] are the contract with brokers, for those who
//     write one.
//
// # Promises
//
// A message is settled by the session that received it or not at all. Nothing
// is lost: a crash at any line leaves a duplicate at worst, so handlers should
// bear one. A failing message ends at Options.MaxAttempts. A retry is never
// earlier than its delay, but for three exceptions, each logged and observed:
// the wait was held in the process and its session or process ended first; the place cannot
// wait; the delay is at or over the longest that the place allows.
package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"
)

// Runtime runs handlers. Its zero value is ready for Handle. The exported
// fields are read when Run begins.
type Runtime struct {
	// Logger takes what a person may have to act on; never a body. Default slog.Default().
	Logger *slog.Logger
	// Observer is told what happens. Default nil: nobody.
	Observer Observer
	// DrainTimeout is how long handlers and holds may go on once Run's context
	// has ended. Then handlers' contexts end, and a second later what is
	// unsettled is given back. Default 30 s; negative is refused.
	DrainTimeout time.Duration
	// StartTimeout is how long Run tries to reach brokers that are down before
	// it gives up. Default 30 s; negative is refused.
	StartTimeout time.Duration

	mu       sync.Mutex // guards what follows
	handles  []handle
	running  bool
	stopping bool
	stop     context.CancelFunc // of a running Run
	clock    *drainClock
	done     chan struct{} // closed when Run returns
	result   error
}

// Handle registers a handler on a source. What is wrong with the arguments
// comes back from Run. Handle panics when Run has been called: a registration
// that nothing would run is a mistake in the program.
func (rt *Runtime) Handle(source Source, handler Handler, options Options) {
	rt.register(handle{source: source, handler: handler, options: options})
}

// HandleBatch registers a batch handler on a source, as Handle does.
func (rt *Runtime) HandleBatch(source Source, handler BatchHandler, options Options) {
	rt.register(handle{source: source, batch: handler, isBatch: true, options: options})
}

func (rt *Runtime) register(h handle) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.running {
		panic("settle: Handle was called after Run")
	}
	rt.handles = append(rt.handles, h)
}

// Run opens every source and calls handlers until ctx ends or [Runtime.Shutdown] is called.
// Then it drains: intake ends, what no handler has started is given back,
// handlers and near holds go on until DrainTimeout, the rest is given back, and
// the sessions close.
//
// It returns nil after a clean drain and a [*DrainError] after one that was
// not. Where a source cannot be opened it closes the others and returns every error,
// joined: a [*ConfigError] at once, any other after StartTimeout. A source that
// breaks for good while running does not end the others; its error comes back when
// Run ends, at once if it was the last. Run may be called once; a second call returns [ErrRunning].
func (rt *Runtime) Run(ctx context.Context) (err error) {
	rt.mu.Lock()
	if rt.running {
		rt.mu.Unlock()
		return ErrRunning
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rt.init()
	rt.running, rt.stop = true, cancel
	handles := rt.handles
	if rt.stopping {
		cancel()
	}
	rt.mu.Unlock()
	defer func() {
		rt.clock.stop()
		rt.mu.Lock()
		rt.result = err
		rt.mu.Unlock()
		close(rt.done)
	}()

	if err := rt.check(handles); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil // asked to end before it had begun
	}
	logger := rt.Logger
	if logger == nil {
		logger = slog.Default()
	}
	subs := make([]*subscription, len(handles))
	refused := make([]error, len(handles))
	for i, h := range handles {
		subs[i], refused[i] = newSubscription(h, rt.Observer, logger)
	}
	if err := errors.Join(refused...); err != nil {
		return err
	}
	sessions, err := rt.open(ctx, subs)
	if sessions == nil {
		return err
	}

	unfinished := make([]int, len(subs))
	errs := make([]error, len(subs), len(subs)+1)
	var running sync.WaitGroup
	for i, sub := range subs {
		running.Go(func() { unfinished[i], errs[i] = sub.run(ctx, sessions[i], rt.clock) })
	}
	running.Wait()
	left := 0
	for _, n := range unfinished {
		left += n
	}
	if left > 0 {
		errs = append(errs, &DrainError{Unfinished: left})
	}
	return errors.Join(errs...)
}

// Shutdown ends Run as the end of its context does, waits until Run has
// returned and returns what Run did. When ctx ends first it cuts the drain
// short, as if DrainTimeout had passed, and returns ctx's error at once. It may be called at any
// time, also before Run, and more than once.
func (rt *Runtime) Shutdown(ctx context.Context) error {
	rt.mu.Lock()
	rt.init()
	rt.stopping = true
	if !rt.running {
		rt.mu.Unlock()
		return nil
	}
	rt.stop()
	rt.mu.Unlock()
	select {
	case <-rt.done:
	default:
		select {
		case <-rt.done:
		case <-ctx.Done():
			rt.clock.stop()
			return ctx.Err()
		}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.result
}

// init makes what Run and Shutdown share. The caller holds mu.
func (rt *Runtime) init() {
	if rt.done == nil {
		rt.done = make(chan struct{})
		rt.clock = newDrainClock(rt.DrainTimeout)
	}
}

// check returns every reason why the registrations cannot run.
func (rt *Runtime) check(handles []handle) error {
	var errs []error
	refuse := func(source, setting, reason, fix string) {
		errs = append(errs, &ConfigError{Source: source, Setting: setting, Reason: reason, Fix: fix})
	}
	if rt.DrainTimeout < 0 {
		refuse("settle: Runtime", "DrainTimeout", fmt.Sprintf("%v is negative", rt.DrainTimeout), "use zero for 30 s, or a positive value")
	}
	if rt.StartTimeout < 0 {
		refuse("settle: Runtime", "StartTimeout", fmt.Sprintf("%v is negative", rt.StartTimeout), "use zero for 30 s, or a positive value")
	}
	if len(handles) == 0 {
		refuse("settle: Runtime", "Handle", "nothing is registered, so there is nothing to run", "call Handle before Run")
	}
	for i, h := range handles {
		if isNil(h.source) {
			refuse(fmt.Sprintf("settle: registration %d", i+1), "Source", "it is nil", "pass the queue or subscription to handle")
			continue
		}
		if h.handler == nil && h.batch == nil {
			refuse(h.source.Name(), "Handler", "it is nil", "pass a function")
		}
		errs = append(errs, h.options.check(h.source.Name(), h.isBatch)...)
	}
	return errors.Join(errs...)
}

// isNil reports whether there is no source, be it as a nil pointer of some type.
func isNil(source Source) bool {
	v := reflect.ValueOf(source)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// open opens a session for each subscription, or none.
func (rt *Runtime) open(ctx context.Context, subs []*subscription) ([]*session, error) {
	timeout := rt.StartTimeout
	if timeout == 0 {
		timeout = defaultStartTimeout
	}
	starting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	sessions := make([]*session, len(subs))
	errs := make([]error, len(subs))
	var opening sync.WaitGroup
	for i, sub := range subs {
		opening.Go(func() {
			sessions[i], errs[i] = sub.open(starting)
			var config *ConfigError
			if errors.As(errs[i], &config) {
				cancel() // the others need not try on
			}
		})
	}
	opening.Wait()
	var config *ConfigError
	err := errors.Join(errs...)
	if errors.As(err, &config) {
		for i := range errs {
			if errors.Is(errs[i], context.Canceled) && !errors.As(errs[i], &config) {
				errs[i] = nil // it stopped trying because another cannot open
			}
		}
		err = errors.Join(errs...)
	}
	if err == nil && ctx.Err() == nil {
		return sessions, nil
	}
	for _, s := range sessions {
		if s != nil {
			err = errors.Join(err, s.close())
		}
	}
	if ctx.Err() != nil && !errors.As(err, &config) {
		return nil, nil // asked to end before it had begun
	}
	return nil, err
}

// drainClock is the one deadline that all subscriptions drain by. It starts
// when the first of them drains.
type drainClock struct {
	timeout time.Duration

	once   sync.Once
	ctx    context.Context
	cancel context.CancelFunc
	early  context.Context // ends, with ctx, when the drain is over or cut short
	stop   context.CancelFunc
}

func newDrainClock(timeout time.Duration) *drainClock {
	if timeout == 0 {
		timeout = defaultDrainTimeout
	}
	c := &drainClock{timeout: timeout}
	c.early, c.stop = context.WithCancel(context.Background())
	return c
}

// begin starts the clock, at its first call, and returns a context that ends at
// the drain deadline.
func (c *drainClock) begin() context.Context {
	c.once.Do(func() { c.ctx, c.cancel = context.WithTimeout(c.early, c.timeout) })
	return c.ctx
}
