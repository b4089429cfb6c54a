package settle

import (
	"errors"
	"fmt"
	"time"
)

// This file is how deliveries go out: the settlers of a session, what becomes of
// a settlement that fails, and what is held back until its time.

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
		failing := &s.failing[batch[i].Verdict.Action]
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
			s.sub.notify(Notice{Kind: NoticeSettleFailed, Delivery: d, Err: err}, !failing.Swap(true))
			if group == nil {
				group = d
			} else {
				tail.work.next = d
			}
			tail = d
		} else {
			s.settled(d, err)
			done++
			if err == nil && failing.Load() {
				failing.Store(false)
			}
			if errors.Is(err, ErrSessionLost) {
				s.lose(err) // no Receive may be under way to tell
			}
		}
		if last && group != nil {
			s.hold(group, pause(settleBackoff, mostBackoff, group.work.tries))
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
