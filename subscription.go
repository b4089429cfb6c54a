package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	reopenBackoff = 100 * time.Millisecond
	cutGrace      = time.Second // for handlers to end once their context has
)

// subscription is one Handle call at work: its workers, and one session after
// another on its source.
type subscription struct {
	source   Source
	name     string
	reg      Registration
	handler  Handler      // one of handler
	batch    BatchHandler // and batch is nil
	observer Observer
	logger   *slog.Logger

	intake  intake
	lanes   lanes
	crew    []*worker
	workers sync.WaitGroup
	cut     atomic.Bool // the drain deadline has passed
	// unfinished counts the deliveries that were given back because their
	// handler or their settlement had not ended.
	unfinished atomic.Int64

	mu     sync.Mutex // guards logged
	logged map[string]bool
}

// handle is what Handle and HandleBatch keep until Run.
type handle struct {
	source  Source
	handler Handler
	batch   BatchHandler
	isBatch bool // by HandleBatch
	options Options
}

func newSubscription(h handle, observer Observer, logger *slog.Logger) (*subscription, error) {
	sub := &subscription{
		source:   h.source,
		name:     h.source.Name(), // once: it may be made at each call
		batch:    h.batch,
		observer: observer,
		logger:   logger.With("source", h.source.Name()),
		logged:   make(map[string]bool),
	}
	if h.handler != nil {
		var err error
		if sub.handler, err = chain(h.handler, h.options.Middleware); err != nil {
			return nil, &ConfigError{Source: h.source.Name(), Setting: "Middleware", Reason: err.Error(), Fix: "return a Handler from it"}
		}
	}
	sub.reg = h.options.registration(h.batch != nil, sub.logger)
	sub.lanes.key = h.options.Lane
	sub.intake.init()
	for range sub.reg.Workers {
		sub.crew = append(sub.crew, &worker{sub: sub, into: make([]*Delivery, sub.reg.Batch)})
	}
	return sub, nil
}

// open opens a session, trying again until ctx ends or the refusal is final.
func (sub *subscription) open(ctx context.Context) (*session, error) {
	for failures := 0; ; {
		asked, told := sub.reg, &ear{sub: sub}
		asked.Notify = told.notify
		c, err := openBounded(ctx, sub.source, asked)
		if err == nil {
			s := newSession(sub, c)
			told.attach(s)
			if s.traits.Whole && sub.lanes.key != nil && s.traits.MaxReceive > 1 {
				err = &ConfigError{
					Source: sub.name, Setting: "Lane",
					Reason: "the source settles several deliveries as one, so two of a lane among them would wait for each other",
					Fix:    "leave Lane out, or use Handle in the place of HandleBatch",
				}
				return nil, errors.Join(err, s.close())
			}
			sub.notify(Notice{Kind: NoticeOpened}, true)
			return s, nil
		}
		var config *ConfigError
		if errors.As(err, &config) {
			return nil, err
		}
		failures++
		sub.notify(Notice{Kind: NoticeReopening, Err: err}, failures == 1)
		sleep(ctx, pause(reopenBackoff, mostReopen, failures))
		if ctx.Err() != nil {
			if !strings.HasPrefix(err.Error(), sub.name) { // most sources name themselves
				err = fmt.Errorf("%s: %w", sub.name, err)
			}
			return nil, fmt.Errorf("opening: %w", err)
		}
	}
}

// openBounded calls Open and waits for it, but not for ever once ctx has ended:
// a source that does not return must not hang the service. What it opens later
// is closed.
func openBounded(ctx context.Context, source Source, r Registration) (Consumer, error) {
	type opened struct {
		c   Consumer
		err error
	}
	result := make(chan opened, 1)
	go func() {
		c, err := source.Open(ctx, r)
		result <- opened{c, err}
	}()
	select {
	case o := <-result:
		return o.c, o.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case o := <-result:
		return o.c, o.err
	case <-timer.C:
	}
	go func() {
		if o := <-result; o.err == nil {
			late, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			_ = o.c.Close(late)
		}
	}()
	return nil, fmt.Errorf("its Open does not return: %w", ctx.Err())
}

// run serves the first session and those that follow it until ctx ends, then
// drains. It returns how many deliveries were unfinished, and the error that ended the source for good.
func (sub *subscription) run(ctx context.Context, s *session, drain *drainClock) (int, error) {
	for _, w := range sub.crew {
		sub.workers.Go(w.run)
	}
	var failed error
	for short := 0; s != nil; {
		s.start()
		select {
		case <-ctx.Done():
			return sub.drain(s, drain), nil
		case <-s.lost:
		}
		err := s.lostErr
		sub.notify(Notice{Kind: NoticeLost, Err: err}, true)
		if closeErr := s.abandon(); closeErr != nil {
			sub.logger.Debug("closing a lost session failed", "error", closeErr)
		}
		if short++; time.Since(s.epoch) > mostBackoff {
			short = 0
		}
		var config *ConfigError
		if s = nil; errors.As(err, &config) {
			failed = err
		} else {
			if short > 0 { // what is lost as soon as it opens will be so again
				sleep(ctx, pause(reopenBackoff, mostBackoff, short))
			}
			s, err = sub.open(ctx)
			if err != nil && ctx.Err() == nil {
				failed = err
			}
		}
		if failed != nil {
			sub.notify(Notice{Kind: NoticeFailed, Err: failed}, true)
			failed = fmt.Errorf("%s: %w", sub.name, failed)
		}
	}
	// No session: what handlers still have is lost to us already.
	return sub.leave(ctx, drain), failed
}

// leave ends the workers of a subscription that has no session. Handlers that
// are still at work keep their time until the drain deadline.
func (sub *subscription) leave(ctx context.Context, drain *drainClock) int {
	giveBack(sub.unstarted())
	ended := sub.ended()
	defer sub.notify(Notice{Kind: NoticeDrained}, true)
	select {
	case <-ended:
		return 0
	case <-ctx.Done():
	}
	if !within(drain.begin(), ended) {
		sub.cut.Store(true)
		sub.cutWorkers()
	}
	return int(sub.unfinished.Load())
}

// drain ends intake, lets the handlers and the near holds end until the
// deadline, gives back the rest and closes. It returns how many were unfinished.
func (sub *subscription) drain(s *session, drain *drainClock) int {
	draining := drain.begin()
	end, _ := draining.Deadline()
	s.endIntake()
	s.waitFor(&s.receivers, "Receive")
	// What no handler has started goes back, out of the workers' reach at once
	// and to the broker when that sends no more; so does what is held past the end.
	unstarted := sub.unstarted()
	if !s.over.Load() {
		if err := s.ask("Stop", s.consumer.Stop); err != nil && !s.over.Load() {
			sub.logger.Warn("the source did not stop cleanly", "error", err)
		}
	}
	giveBack(unstarted)
	s.dropHolds(end)

	// The workers are waited for too: they may have deliveries of a session before this one.
	ended := sub.ended()
	if !s.waitResolved(draining) || !within(draining, ended) {
		sub.cut.Store(true)
		s.cancel(ErrDraining)
		s.dropHolds(time.Time{})
		if !s.inGrace(ended) {
			sub.cutWorkers()
			s.inGrace(nil)
		}
	}

	if err := s.close(); err != nil {
		sub.logger.Warn("the source did not close cleanly", "error", err)
	}
	sub.notify(Notice{Kind: NoticeDrained}, true)
	return int(sub.unfinished.Load() + s.pending.Load())
}

// unstarted closes the intake and returns what no handler has started.
func (sub *subscription) unstarted() []*Delivery {
	return append(sub.intake.close(), sub.lanes.purge()...)
}

// giveBack releases deliveries, each by the session it came from.
func giveBack(ds []*Delivery) {
	for _, d := range ds {
		d.work.sess.release(d)
	}
}

// ended returns a channel that closes when every worker has returned.
func (sub *subscription) ended() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		sub.workers.Wait()
		close(ended)
	}()
	return ended
}

// within waits for done and reports whether that came before ctx ended.
func within(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// cutWorkers takes away what handlers have not ended.
func (sub *subscription) cutWorkers() {
	for _, w := range sub.crew {
		w.takeAway()
	}
}

// handlerDeadline is when the Timeout of a handler that starts now passes.
func (sub *subscription) handlerDeadline() time.Time {
	if sub.reg.Timeout == 0 {
		return time.Time{}
	}
	return time.Now().Add(sub.reg.Timeout)
}
