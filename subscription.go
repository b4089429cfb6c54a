package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	mu     sync.Mutex // guards logged
	logged map[NoticeKind]bool
}

// handle is what Handle and HandleBatch keep until Run.
type handle struct {
	source  Source
	handler Handler
	batch   BatchHandler
	isBatch bool // by HandleBatch
	options Options
}

func newSubscription(h handle, observer Observer, logger *slog.Logger) *subscription {
	sub := &subscription{
		source:   h.source,
		batch:    h.batch,
		observer: observer,
		logger:   logger.With("source", h.source.Name()),
		logged:   make(map[NoticeKind]bool),
	}
	if h.handler != nil {
		sub.handler = chain(h.handler, h.options.Middleware)
	}
	sub.reg = h.options.registration(h.batch != nil, sub.logger, sub.fromSource)
	sub.lanes.key = h.options.Lane
	sub.intake.init()
	for range sub.reg.Workers {
		sub.crew = append(sub.crew, &worker{sub: sub, into: make([]*Delivery, sub.reg.Batch)})
	}
	return sub
}

// open opens a session, trying again until ctx ends or the refusal is final.
func (sub *subscription) open(ctx context.Context) (*session, error) {
	for failures := 0; ; {
		c, err := sub.source.Open(ctx, sub.reg)
		if err == nil {
			s := newSession(sub, c)
			if s.traits.Whole && sub.lanes.key != nil && s.traits.MaxReceive > 1 {
				err = &ConfigError{
					Source: sub.source.Name(), Setting: "Lane",
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
		sleep(ctx, pause(reopenBackoff, failures))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: could not be opened: %w", sub.source.Name(), err)
		}
	}
}

// run serves the first session and those that follow it until ctx ends, then
// drains. It returns how many deliveries were unfinished, and the error that ended the source for good.
func (sub *subscription) run(ctx context.Context, s *session, drain *drainClock) (int, error) {
	for _, w := range sub.crew {
		sub.workers.Go(w.run)
	}
	var failed error
	for s != nil {
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
		var config *ConfigError
		s = nil
		if errors.As(err, &config) {
			failed = err
		} else if s, err = sub.open(ctx); err != nil && ctx.Err() == nil {
			failed = err
		}
		if failed != nil {
			sub.notify(Notice{Kind: NoticeFailed, Err: failed}, true)
			failed = fmt.Errorf("%s: %w", sub.source.Name(), failed)
		}
	}
	// No session: what handlers still have is lost to us already.
	return sub.leave(ctx, drain), failed
}

// leave ends the workers of a subscription that has no session. Handlers that
// are still at work keep their time until the drain deadline.
func (sub *subscription) leave(ctx context.Context, drain *drainClock) int {
	sub.intake.close()
	done := make(chan struct{})
	go func() {
		sub.workers.Wait()
		close(done)
	}()
	select {
	case <-done:
		return 0
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-drain.begin().Done():
	}
	sub.cut.Store(true)
	return sub.cutWorkers()
}

// drain ends intake, lets the handlers and the near holds end until the
// deadline, gives back the rest and closes. It returns how many were unfinished.
func (sub *subscription) drain(s *session, drain *drainClock) int {
	draining := drain.begin()
	end, _ := draining.Deadline()
	s.endIntake()
	s.waitFor(&s.receivers, "Receive")

	// What no handler has started goes back now, before the workers get to it;
	// so does what is held past the end.
	unstarted := append(sub.lanes.purge(), sub.intake.purge()...)
	for _, d := range unstarted {
		s.release(d)
	}
	sub.intake.close()
	s.dropHolds(end)
	if !s.over.Load() {
		stopping, cancel := context.WithTimeout(context.Background(), closeTimeout)
		if err := s.consumer.Stop(stopping); err != nil && !s.over.Load() {
			sub.logger.Warn("the source did not stop cleanly", "error", err)
		}
		cancel()
	}

	unfinished := 0
	if !s.waitResolved(draining) {
		sub.cut.Store(true)
		s.cancel(ErrDraining)
		s.dropHolds(time.Time{})
		if !s.waitGrace() {
			unfinished = sub.cutWorkers()
			s.waitGrace()
		}
	}

	if err := s.close(); err != nil {
		sub.logger.Warn("the source did not close cleanly", "error", err)
	}
	unfinished += int(s.unsettled.Load() + s.pending.Load())
	if unfinished == 0 {
		sub.workers.Wait()
	}
	sub.notify(Notice{Kind: NoticeDrained}, true)
	return unfinished
}

// cutWorkers takes away what handlers have not ended and returns how many that were.
func (sub *subscription) cutWorkers() int {
	n := 0
	for _, w := range sub.crew {
		n += w.takeAway()
	}
	return n
}

// handlerDeadline is when the Timeout of a handler that starts now passes.
func (sub *subscription) handlerDeadline() time.Time {
	if sub.reg.Timeout == 0 {
		return time.Time{}
	}
	return time.Now().Add(sub.reg.Timeout)
}

// fromSource is the Notify of the registration.
func (sub *subscription) fromSource(n Notice) {
	if n.Kind == NoticeLeaseLost && n.Delivery != nil {
		cause := n.Err
		if !errors.Is(cause, ErrLeaseLost) {
			cause = errors.Join(ErrLeaseLost, cause)
		}
		n.Err = cause
		n.Delivery.endContext(cause)
	}
	sub.notify(n, true)
}

// onceOnly are the notices that are logged once a subscription, however often
// they are observed.
var onceOnly = map[NoticeKind]bool{NoticeDelayTooLong: true, NoticeHoldsFull: true}

var noticeLevels = map[NoticeKind]slog.Level{
	NoticeOpened: slog.LevelInfo, NoticeUnblocked: slog.LevelInfo, NoticeDrained: slog.LevelInfo,
	NoticeFailed: slog.LevelError,
}

// notify tells the observer of n, and the log if loud says so.
func (sub *subscription) notify(n Notice, loud bool) {
	n.Source = sub.source.Name()
	if sub.observer != nil {
		sub.observer.Noticed(n)
	}
	if !loud {
		return
	}
	if onceOnly[n.Kind] {
		sub.mu.Lock()
		again := sub.logged[n.Kind]
		sub.logged[n.Kind] = true
		sub.mu.Unlock()
		if again {
			return
		}
	}
	level, ok := noticeLevels[n.Kind]
	if !ok {
		level = slog.LevelWarn
	}
	attrs := make([]slog.Attr, 0, 5)
	if n.Delivery != nil {
		attrs = append(attrs, slog.String("id", n.Delivery.ID), slog.Int("attempt", n.Delivery.Attempt))
	}
	if n.Delay > 0 {
		attrs = append(attrs, slog.Duration("delay", n.Delay))
	}
	if n.Err != nil {
		attrs = append(attrs, slog.Any("error", n.Err))
	}
	sub.logger.LogAttrs(context.Background(), level, n.Kind.String(), attrs...)
}

// observeSettled tells the observer and the log how a delivery ended.
func (sub *subscription) observeSettled(d *Delivery, err error) {
	v := d.work.verdict
	if sub.observer != nil {
		ctx := d.work.ctx
		if ctx == nil {
			ctx = context.Background()
		}
		sub.observer.Settled(ctx, Settled{Source: sub.source.Name(), Delivery: d, Verdict: v, Duration: d.work.took, Err: err})
	}
	var level slog.Level
	var text string
	switch {
	case err != nil && v.Action == ActionRelease:
		return // the broker has it again either way
	case err != nil:
		level, text = slog.LevelWarn, "not settled; the broker delivers it again"
	case v.Action == ActionDeadLetter:
		level, text = slog.LevelWarn, "dead-lettered"
	case v.Action == ActionDrop && v.Cause != nil:
		level, text = slog.LevelInfo, "dropped"
	case v.Action == ActionRetry:
		level, text = slog.LevelDebug, "retried"
	default:
		return
	}
	ctx := context.Background()
	if !sub.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("id", d.ID), slog.Int("attempt", d.Attempt), slog.String("verdict", v.Action.String())}
	if v.Cause != nil {
		attrs = append(attrs, slog.Any("cause", v.Cause))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	sub.logger.LogAttrs(ctx, level, text, attrs...)
}
