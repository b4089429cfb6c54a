package settletest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// setup is what a case runs on its queue.
type setup struct {
	source  settle.Source // nil: the queue's Source
	options settle.Options
	handler settle.Handler      // one of handler
	batch   settle.BatchHandler // and batch
	drain   time.Duration       // DrainTimeout; 0: the deadline
}

// service is one Runtime at work on the queue of a case.
type service struct {
	c       *trial
	runtime *settle.Runtime
	spy     *spy
	cancel  context.CancelFunc
	done    chan struct{} // closed when Run has returned
	err     error         // what it returned; read after done
}

// options are those of the case's queue with so many workers.
func (c *trial) options(workers int) settle.Options {
	o := settle.Options{Workers: workers, MaxAttempts: c.spec.MaxAttempts, DeadLetter: c.queue.DeadLetter}
	if c.spec.Batch > 1 {
		o.BatchSize = c.spec.Batch
	}
	return o
}

// serve runs a setup. The zero options are those of the queue with one worker.
// A service that the case does not stop ends with it.
func (c *trial) serve(with setup) *service {
	c.Helper()
	source := with.source
	if source == nil {
		source = c.queue.Source
	}
	o := with.options
	if o.MaxAttempts == 0 && o.DeadLetter == "" {
		base := c.options(o.Workers)
		o.MaxAttempts, o.DeadLetter = base.MaxAttempts, base.DeadLetter
		if with.batch != nil && o.BatchSize == 0 {
			o.BatchSize = base.BatchSize
		}
	}
	s := &service{
		c:       c,
		runtime: &settle.Runtime{Logger: c.logger(), Observer: c.journal, DrainTimeout: with.drain},
		spy:     &spy{Source: source, c: c, journal: c.journal},
		done:    make(chan struct{}),
	}
	if with.drain == 0 {
		s.runtime.DrainTimeout = c.fixture.Deadline
	}
	seen := c.journal
	if with.batch != nil {
		s.runtime.HandleBatch(s.spy, func(ctx context.Context, batch []*settle.Delivery) []settle.Outcome {
			for _, d := range batch {
				defer seen.begin(d)()
			}
			return with.batch(ctx, batch)
		}, o)
	} else {
		s.runtime.Handle(s.spy, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
			defer seen.begin(d)()
			return with.handler(ctx, d)
		}, o)
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(s.done)
		s.err = s.runtime.Run(ctx)
	}()
	c.Cleanup(func() {
		c.finish()
		s.cancel()
		if !s.returned() {
			c.broken(RuleShutdownTwice, "Run has not returned %v after its context ended", c.fixture.Deadline)
		}
	})
	return s
}

// returned waits until Run has returned, and reports false at the deadline.
// A drain may take its whole DrainTimeout, and the runtime's grace after it.
func (s *service) returned() bool {
	timer := time.NewTimer(2*s.c.fixture.Deadline + 3*time.Second)
	defer timer.Stop()
	select {
	case <-s.done:
		return true
	case <-timer.C:
		return false
	}
}

// wait waits until Run has returned and returns what it did.
func (s *service) wait() error {
	s.c.Helper()
	if !s.returned() {
		s.c.halt("Run does not return. %s", s.c.journal)
	}
	return s.err
}

// drain ends Run's context and waits until the runtime has asked the source to
// stop: from then on it waits for what handlers have.
func (s *service) drain() {
	s.c.Helper()
	s.cancel()
	s.c.await(s.spy.stopped.Load, "the runtime has not called Stop after the end of Run's context")
}

// stop ends the service, which must drain cleanly.
func (s *service) stop() {
	s.c.Helper()
	s.cancel()
	if err := s.wait(); err != nil {
		s.c.halt("Run returned %q after a drain that should be clean. %s", err, s.c.journal)
	}
}

// traits waits until a session is open and returns what it can do.
func (s *service) traits() settle.Traits {
	s.c.Helper()
	s.opened()
	return *s.spy.traits.Load()
}

// opened waits until a session is open.
func (s *service) opened() {
	s.c.Helper()
	s.c.await(func() bool {
		select {
		case <-s.done:
			s.c.halt("Run returned %v. %s", s.err, s.c.journal)
		default:
		}
		return s.spy.traits.Load() != nil
	}, "no session is open")
}

// gate is where handlers wait until the case lets them go on, or is over.
type gate struct {
	c    *trial
	once sync.Once
	way  chan struct{}
}

func (c *trial) gate() *gate { return &gate{c: c, way: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.way) }) }

func (g *gate) pass() {
	select {
	case <-g.way:
	case <-g.c.over:
	}
}

// ack is the handler that acknowledges all it gets.
func ack(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }

// errFault is the cause that handlers of the suite give.
var errFault = errors.New("settletest: this attempt is to fail")
