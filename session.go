package settle

import (
	"context"
	"errors"
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
	failing      atomic.Bool   // no settlement has gone well since one failed
	pending      atomic.Int64  // received and not resolved
	resolved     chan struct{} // a token when pending has reached zero

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

// receive is the loop of one receiver.
func (s *session) receive() {
	s.watch("Lane", s.receiveAll)
}

// watch runs a loop of the session. A callback of the user's in it that ends
// the goroutine, as t.FailNow does, ends the source, aloud: nothing can stop
// Goexit, and without the loop the source would stand still.
func (s *session) watch(callback string, loop func()) {
	returned := false
	defer func() {
		if !returned {
			s.lose(&ConfigError{
				Source: s.sub.name, Setting: callback, Reason: "it ended the goroutine that called it with runtime.Goexit",
				Fix: "return from it; a test fails there with t.Error or assert, not t.Fatal or require",
			})
		}
	}()
	loop()
	returned = true
}

func (s *session) receiveAll() {
	buf := make([]*Delivery, min(s.traits.Prefetch, s.traits.MaxReceive))
	for failures := 0; ; {
		room := s.sub.intake.reserve(len(buf), s.closedIntake.Load)
		if room == 0 {
			return
		}
		n, err := s.consumer.Receive(s.receiving, buf[:room])
		s.accept(buf[:n], room)
		clear(buf[:n])
		var config *ConfigError
		switch {
		case err == nil && n > 0:
			failures = 0
		case errors.Is(err, ErrSessionLost), !s.closedIntake.Load() && errors.As(err, &config):
			s.lose(err)
			return
		case s.closedIntake.Load():
			return
		default:
			if err == nil {
				err = errNothing
			}
			failures++
			s.sub.notify(Notice{Kind: NoticeReceiveFailed, Err: err}, failures == 1)
			sleep(s.receiving, pause(receiveBackoff, failures))
		}
	}
}

// errNothing is a source's mistake that would have us call it without end.
var errNothing = errors.New("settle: Receive returned no delivery and no error")

// accept takes what one Receive brought for the room reserved to it.
func (s *session) accept(got []*Delivery, room int) {
	if len(got) == 0 {
		s.sub.intake.put(nil, room)
		return
	}
	s.pending.Add(int64(len(got)))
	now := time.Since(s.epoch)
	limit := s.sub.reg.MaxAttempts
	for _, d := range got {
		w := &d.work
		w.sess, w.received = s, now
		d.Final = final(d.Attempt, limit)
		if pastCap(d.Attempt, limit) {
			w.decided = true
			w.verdict = Verdict{Action: ActionDeadLetter, Cause: ErrTooManyAttempts}
		}
	}
	unused := room - len(got)
	if s.traits.Whole && (s.sub.lanes.key == nil || len(got) > 1) {
		for i, d := range got[1:] {
			got[i].work.next = d
		}
		s.toWorkers(got[:1], unused)
		return
	}
	ready := got[:0]
	for _, d := range got {
		if d.work.decided || s.sub.lanes.key == nil || s.enterLane(d) {
			ready = append(ready, d)
		}
	}
	s.toWorkers(ready, unused)
}

// toWorkers puts deliveries, or a whole group by its first, where workers take
// them, with the room that was not used. Once the workers go it gives them back.
func (s *session) toWorkers(ready []*Delivery, unused int) {
	if s.sub.intake.put(ready, unused) {
		return
	}
	for _, d := range ready {
		d.work.sess.release(d)
	}
}

// enterLane reports whether d may go to a worker now. A panic in the user's
// Lane is a failure of the delivery's handler.
func (s *session) enterLane(d *Delivery) (now bool) {
	guard(func() { now = s.sub.lanes.enter(d) }, func(p *PanicError) {
		now = true
		d.work.broken = p
	})
	return now
}

// toStage hands a decided delivery, or a whole group by its first, to the
// settlers. Where the session is over it resolves it.
func (s *session) toStage(d *Delivery, force bool) {
	var taken bool
	if force {
		taken = s.stage.force(d)
	} else {
		taken = s.stage.put(d)
	}
	if taken {
		return
	}
	for d != nil {
		next := d.work.next
		d.work.unfinished = d.work.unfinished || !s.over.Load()
		s.resolve(d, s.gone())
		d = next
	}
}

// gone is the error of a delivery whose session is over.
func (s *session) gone() error {
	select {
	case <-s.lost:
		if errors.Is(s.lostErr, ErrSessionLost) {
			return s.lostErr
		}
	default:
	}
	return ErrSessionLost
}

// settle is the loop of one settler.
func (s *session) settle() { s.watch("Observer", s.settleAll) }

func (s *session) settleAll() {
	heads := make([]*Delivery, s.traits.MaxSettle)
	var batch []Settlement
	ctx := new(lazyContext)
	for {
		n := s.stage.take(heads)
		if n == 0 {
			return
		}
		batch = batch[:0]
		for _, d := range heads[:n] {
			for ; d != nil; d = d.work.next {
				batch = append(batch, Settlement{Delivery: d, Verdict: d.work.verdict})
			}
		}
		if s.over.Load() {
			err := s.gone()
			for i := range batch {
				batch[i].Err = err
			}
		} else {
			ctx.begin(s.settling, time.Now().Add(settleTimeout))
			s.consumer.Settle(ctx, batch)
			if ctx.used() {
				ctx.end(nil)
				ctx = new(lazyContext)
			}
		}
		s.finish(batch)
		clear(heads[:n])
		clear(batch)
	}
}

// finish takes the results of one Settle call: what failed for a while is held
// and tried again, whole groups together; the rest is over.
func (s *session) finish(batch []Settlement) {
	done := 0
	var group *Delivery // the first of a whole group to be tried again
	var tail *Delivery
	for i := range batch {
		d, err := batch[i].Delivery, batch[i].Err
		last := d.work.next == nil
		again := err != nil && !lost(err) && !IsPermanent(err)
		if again && s.over.Load() {
			again, err = false, errors.Join(s.gone(), err)
		}
		if again && s.closing.Load() {
			again, d.work.unfinished = false, true
		}
		d.work.next = nil
		if again {
			d.work.tries++
			s.sub.notify(Notice{Kind: NoticeSettleFailed, Delivery: d, Err: err}, !s.failing.Swap(true))
			if group == nil {
				group = d
			} else {
				tail.work.next = d
			}
			tail = d
		} else {
			s.settled(d, err)
			done++
			if err == nil && s.failing.Load() {
				s.failing.Store(false)
			}
			if errors.Is(err, ErrSessionLost) {
				s.lose(err) // no Receive may be under way to tell
			}
		}
		if last && group != nil {
			s.hold(group, pause(settleBackoff, group.work.tries))
			group, tail = nil, nil
		}
	}
	s.leavePending(done)
}

// resolve ends one delivery, settled or not.
func (s *session) resolve(d *Delivery, err error) {
	s.settled(d, err)
	s.leavePending(1)
}

func (s *session) leavePending(n int) {
	if n > 0 && s.pending.Add(-int64(n)) == 0 {
		select {
		case s.resolved <- struct{}{}:
		default:
		}
	}
}

// settled tells of one delivery's end and frees its lane.
func (s *session) settled(d *Delivery, err error) {
	if d.work.unfinished {
		s.sub.unfinished.Add(1)
	}
	s.freeLane(d)
	s.sub.observeSettled(d, err)
}

// freeLane lets the next delivery of d's lane go to a worker.
func (s *session) freeLane(d *Delivery) {
	if d.work.lane == nil {
		return
	}
	if next := s.sub.lanes.leave(d); next != nil {
		s.toWorkers([]*Delivery{next}, 0)
	}
}

// pass takes what a handler decided: it is held first, with its lane free, or
// goes to the settlers.
func (s *session) pass(d *Delivery, wait time.Duration) {
	if wait <= 0 {
		s.toStage(d, false)
		return
	}
	s.freeLane(d)
	s.hold(d, wait)
}

// hold keeps d, or a whole group by its first, for the given time.
func (s *session) hold(d *Delivery, wait time.Duration) {
	held, ok := s.holds.add(d, wait)
	if !ok { // it cannot be due before the session ends
		early := d.work.tries == 0 && !s.over.Load()
		s.release(d)
		if early {
			s.tellHoldsLost(1)
		}
		return
	}
	if held > s.traits.MaxHeld {
		s.countExcess()
	}
	if held == s.traits.MaxHeld+1 {
		s.sub.notify(Notice{Kind: NoticeHoldsFull}, true)
	}
}

// countExcess tells the intake how many holds take the place of deliveries. The
// lock makes the count that was taken last the one that is told last.
func (s *session) countExcess() {
	s.excess.Lock()
	defer s.excess.Unlock()
	s.sub.intake.setExcess(max(0, s.holds.count()-s.traits.MaxHeld))
}

// unhold hands to the settlers what was held long enough.
func (s *session) unhold(due []*Delivery) {
	s.countExcess()
	for _, d := range due {
		s.toStage(d, true)
	}
}

// release gives d, or a whole group by its first, back: what no handler has
// decided, and what was to be retried later. Any other decision stands.
func (s *session) release(d *Delivery) {
	for one := d; one != nil; one = one.work.next {
		v := &one.work.verdict
		if one.work.tries == 0 && (v.Action == 0 || v.Action == ActionRetry) {
			*v = Verdict{Action: ActionRelease}
		}
	}
	s.toStage(d, true)
}

// dropHolds ends the holds that are due after t: they are given back.
func (s *session) dropHolds(t time.Time) {
	waits := 0
	for _, d := range s.holds.after(t) {
		if d.work.tries == 0 {
			waits++
		}
		s.release(d)
	}
	if waits > 0 {
		s.tellHoldsLost(waits)
	}
}

func (s *session) tellHoldsLost(waits int) {
	s.sub.notify(Notice{Kind: NoticeHoldsLost, Err: fmt.Errorf("%d waits end early, with their session", waits)}, true)
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
func pause(base time.Duration, n int) time.Duration {
	return Backoff{Base: base, Max: mostBackoff, Min: base / 2}.Delay(n)
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
