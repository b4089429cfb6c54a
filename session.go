package settle

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultMost    = 512              // deliveries in one Receive or Settle
	settleTimeout  = 30 * time.Second // of one Settle call
	closeTimeout   = 10 * time.Second // of Stop, of Close, and of waiting for a source's calls to return
	leastStage     = 256              // decided deliveries that may wait for a settler
	receiveBackoff = 100 * time.Millisecond
	settleBackoff  = 50 * time.Millisecond
	mostBackoff    = 5 * time.Second
	mostReopen     = 500 * time.Millisecond // between tries to open: work goes on soon after a broker is back
)

// session is the runtime's side of one open Consumer: its receivers, its
// settlers and its holds. A delivery points to the session it came from and can
// be settled by no other.
//
// Order of locks: excess before those of holds and intake; no other is taken
// under another.
type session struct {
	sub      *subscription
	consumer Consumer
	traits   Traits
	epoch    time.Time

	// ctx is the parent of handlers' contexts: it ends when the session is
	// lost or the drain deadline passes. settling is that of Settle calls: it ends when
	// the session is lost or closes.
	ctx        context.Context
	cancel     context.CancelCauseFunc
	receiving  context.Context
	stopIntake context.CancelFunc
	settling   context.Context
	stopSettle context.CancelCauseFunc

	stage  stage
	holds  holds
	excess sync.Mutex // held over countExcess; guards nothing

	closedIntake atomic.Bool   // no more receives
	over         atomic.Bool   // lost: nothing can be settled any more
	closing      atomic.Bool   // a settlement that fails is not tried again
	pending      atomic.Int64  // received and not resolved
	resolved     chan struct{} // a token when pending has reached zero
	// failing says, for each action, that no settlement has gone well since one failed: a
	// dead letter that cannot be sent is one event, however many others are acknowledged meanwhile.
	failing [len(actionWords)]atomic.Bool

	receivers, settlers sync.WaitGroup

	lostOnce sync.Once
	lost     chan struct{} // closed when the session is lost or failed
	lostErr  error         // why; read after lost is closed
}

func newSession(sub *subscription, c Consumer) *session {
	t := c.Traits()
	t.Receivers, t.Settlers = max(t.Receivers, 1), max(t.Settlers, 1)
	if t.MaxReceive <= 0 {
		t.MaxReceive = defaultMost
	}
	if t.MaxSettle <= 0 {
		t.MaxSettle = defaultMost
	}
	if t.Prefetch <= 0 || t.Prefetch > sub.reg.Prefetch {
		t.Prefetch = sub.reg.Prefetch
	}
	if t.MaxHeld <= 0 {
		t.MaxHeld = t.Prefetch
	}
	if t.Whole && t.Delay == DelayInProcess {
		t.Delay = NoDelay // a group settles at once or not at all
	}
	if t.Whole && sub.batch != nil {
		t.MaxReceive = min(t.MaxReceive, sub.reg.Batch) // a group is one batch
	}
	s := &session{sub: sub, consumer: c, traits: t, epoch: time.Now(), lost: make(chan struct{}), resolved: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.receiving, s.stopIntake = context.WithCancel(context.Background())
	s.settling, s.stopSettle = context.WithCancelCause(context.Background())
	s.stage.init(max(2*t.Prefetch, leastStage))
	s.holds.epoch, s.holds.due = s.epoch, s.unhold
	return s
}

// start begins intake and settlement.
func (s *session) start() {
	s.sub.intake.setLimit(s.traits.Prefetch)
	for range s.traits.Settlers {
		s.settlers.Go(s.settle)
	}
	for range s.traits.Receivers {
		s.receivers.Go(s.receive)
	}
}

// waitResolved waits until every delivery is resolved and reports whether that
// came before ctx ended.
func (s *session) waitResolved(ctx context.Context) bool {
	lost := s.lost
	for s.pending.Load() > 0 {
		select {
		case <-s.resolved:
		case <-lost: // nothing that is held can be settled any more
			lost = nil
			s.dropHolds(time.Time{})
		case <-ctx.Done():
			return s.pending.Load() == 0
		}
	}
	return true
}

// inGrace waits for the short while after the drain deadline until every
// delivery is resolved and, unless it is nil, ended is closed.
func (s *session) inGrace(ended <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(context.Background(), cutGrace)
	defer cancel()
	return s.waitResolved(ctx) && (ended == nil || within(ctx, ended))
}

// endIntake lets receivers return. Whoever calls it waits for them.
func (s *session) endIntake() {
	s.closedIntake.Store(true)
	s.stopIntake()
	s.sub.intake.wake()
}

// lose marks the session as lost, once: handlers' contexts end, and nothing of it settles any more.
func (s *session) lose(err error) {
	s.lostOnce.Do(func() {
		s.lostErr = err
		s.over.Store(true)
		close(s.lost)
		cause := because(ErrSessionLost, err)
		s.cancel(cause)
		s.stopSettle(cause)
		s.endIntake()
	})
}

// abandon ends a lost session: what is held or waits to be settled is resolved
// with its error, and the consumer closes. Handlers that have not ended are
// resolved as they do.
func (s *session) abandon() error {
	s.waitFor(&s.receivers, "Receive")
	s.dropHolds(time.Time{})
	return s.close()
}

// close ends settlement and the consumer: what still waits for a settler is
// settled if that goes at once.
func (s *session) close() error {
	s.closing.Store(true)
	for _, d := range s.holds.close() {
		s.release(d)
	}
	s.countExcess() // none: the next session starts without
	s.stage.close()
	if !returned(&s.settlers, cutGrace) {
		s.stopSettle(ErrSessionLost) // what has not settled by now is given up
		s.waitFor(&s.settlers, "Settle")
	}
	s.stopSettle(nil)
	err := s.ask("Close", s.consumer.Close)
	s.cancel(ErrSessionLost)
	return err
}

// ask calls Stop or Close.
func (s *session) ask(name string, call func(context.Context) error) error {
	var asked sync.WaitGroup
	result := make(chan error, 1)
	asked.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		result <- call(ctx)
	})
	s.waitFor(&asked, name)
	select {
	case err := <-result:
		return err
	default:
		return fmt.Errorf("%s does not return", name)
	}
}

// waitFor waits for a source's calls to return, but not for ever: a source that
// breaks that rule of its contract must not hang the service.
func (s *session) waitFor(calls *sync.WaitGroup, name string) {
	if !returned(calls, closeTimeout+cutGrace) { // one that keeps its deadline is in time
		s.sub.logger.Error("a call of the source does not return; going on without it", "call", name)
	}
}

// returned waits for calls and reports whether that came within the given time.
func returned(calls *sync.WaitGroup, most time.Duration) bool {
	done := make(chan struct{})
	go func() {
		calls.Wait()
		close(done)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return within(ctx, done)
}

// pause is the wait before try n+1 of something that failed n times.
func pause(base, most time.Duration, n int) time.Duration {
	return Backoff{Base: base, Max: most, Min: base / 2}.Delay(n)
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
