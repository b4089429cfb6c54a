package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// This file is what a subscription hears from its source and tells the observer
// and the log.

// ear hears what a source has to tell of one session: it is the Notify of one Open.
type ear struct {
	sub *subscription

	mu      sync.Mutex // guards what follows
	session *session   // nil while Open has not returned
	lost    error      // told before there was a session
}

func (e *ear) attach(s *session) {
	e.mu.Lock()
	e.session = s
	lost := e.lost
	e.mu.Unlock()
	if lost != nil {
		s.lose(lost)
	}
}

func (e *ear) notify(n Notice) {
	switch {
	case n.Kind == NoticeLost:
		e.loseSession(because(ErrSessionLost, n.Err))
		return // the runtime tells of it
	case n.Kind == NoticeLeaseLost && n.Delivery != nil:
		n.Err = because(ErrLeaseLost, n.Err)
		n.Delivery.endContext(n.Err)
	}
	e.sub.notify(n, true)
}

func (e *ear) loseSession(err error) {
	e.mu.Lock()
	s := e.session
	if s == nil {
		e.lost = err
	}
	e.mu.Unlock()
	if s != nil {
		s.lose(err)
	}
}

// because returns err as one that is of the given kind.
func because(kind, err error) error {
	switch {
	case err == nil:
		return kind
	case errors.Is(err, kind):
		return err
	default:
		return fmt.Errorf("%w: %w", kind, err)
	}
}

// mostOnce bounds what a subscription remembers to have logged.
const mostOnce = 100

// onceKey returns what a notice is logged once a subscription for, however
// often it is observed; empty: each time.
func onceKey(n Notice) string {
	switch {
	case n.Kind == NoticeDelayTooLong, n.Kind == NoticeHoldsFull:
		return n.Kind.String()
	case n.Kind == NoticeWeakened && n.Err != nil: // each session tells of it anew
		return n.Err.Error()
	default:
		return ""
	}
}

var noticeLevels = map[NoticeKind]slog.Level{
	NoticeOpened: slog.LevelInfo, NoticeUnblocked: slog.LevelInfo, NoticeDrained: slog.LevelInfo,
	NoticeFailed: slog.LevelError,
}

// notify tells the observer of n, and the log if loud says so.
func (sub *subscription) notify(n Notice, loud bool) {
	n.Source = sub.name
	if sub.observer != nil {
		sub.observer.Noticed(n)
	}
	if !loud {
		return
	}
	if key := onceKey(n); key != "" && !sub.first(key) {
		return
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

// first reports whether something that is logged once has not been.
func (sub *subscription) first(key string) bool {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if sub.logged[key] || len(sub.logged) >= mostOnce {
		return false
	}
	sub.logged[key] = true
	return true
}

// observeSettled tells the observer and the log how a delivery ended.
func (sub *subscription) observeSettled(d *Delivery, err error) {
	v := d.work.verdict
	if sub.observer != nil {
		ctx := d.work.ctx
		if ctx == nil {
			ctx = context.Background()
		}
		sub.observer.Settled(ctx, Settled{Source: sub.name, Delivery: d, Verdict: v, Duration: d.work.took, Err: err})
	}
	var level slog.Level
	var text string
	switch {
	case err != nil && v.Action == ActionRelease:
		return // the broker has it again either way
	case errors.Is(err, ErrSessionLost): // the session's end has a line of its own
		level, text = slog.LevelDebug, "not settled; the broker delivers it again"
	case err != nil:
		level, text = slog.LevelWarn, "not settled; the broker delivers it again"
	case v.Action == ActionDeadLetter:
		level, text = slog.LevelWarn, "dead-lettered"
	case v.Action == ActionDrop && v.Cause != nil:
		level, text = slog.LevelInfo, "dropped"
	case v.Action == ActionRetry && isFault(v.Cause):
		level, text = slog.LevelWarn, "retried: the handler is at fault"
	case v.Action == ActionRetry && sub.reg.MaxAttempts == 0 && sub.first("no cap"):
		level, text = slog.LevelWarn, "retried, and no cap is set: without MaxAttempts a message that always fails comes again for ever"
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
		var p *PanicError
		if errors.As(v.Cause, &p) {
			attrs = append(attrs, slog.String("stack", string(p.Stack)))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	sub.logger.LogAttrs(ctx, level, text, attrs...)
}

// isFault reports whether cause is a mistake in the program: a panic, or an
// outcome that was forgotten.
func isFault(cause error) bool {
	var p *PanicError
	return errors.Is(cause, ErrNoOutcome) || errors.As(cause, &p)
}
