package settle

import (
	"errors"
	"time"
)

// This file is how deliveries come in: the receivers of a session, and the way
// of what they bring to the workers.

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
			sleep(s.receiving, pause(receiveBackoff, mostBackoff, failures))
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
