package settle

import (
	"context"
	"strings"
	"time"
)

// This file is what the model checks: each Settle call, and what the observer
// is told.

// check holds one Settle call, at its start, to the contract. The caller holds mu.
func (s *modelSession) check(batch []Settlement) {
	s.settling++
	if s.settling > max(1, s.traits.Settlers) {
		s.breaks("%d settles at once", s.settling)
	}
	if s.closed {
		s.breaks("a settle on a closed session")
	}
	if most := s.traits.MaxSettle; most > 0 && !s.traits.Whole && len(batch) > most {
		s.breaks("a settle of %d, MaxSettle is %d", len(batch), most)
	}
	inBatch := map[int]int{}
	for i := range batch {
		d := batch[i].Delivery
		h := s.handed[d]
		switch {
		case h == nil:
			s.breaks("%s is settled and was never handed out to this Run", d.ID)
			continue
		case h.session != s:
			s.breaks("session %d is asked to settle %s of session %d", s.number, d.ID, h.session.number)
		case h.final:
			s.breaks("%s is asked for again after its end", d.ID)
		case h.settling:
			s.breaks("%s is settled twice at once", d.ID)
		}
		h.settling = true
		inBatch[h.group]++
		s.checkVerdict(d, h, batch[i].Verdict)
	}
	if !s.traits.Whole || s.lost {
		return
	}
	out := map[int]int{}
	for _, h := range s.out {
		if !h.final {
			out[h.group]++
		}
	}
	for group, n := range inBatch {
		if out[group] != n {
			s.breaks("of a whole group of %d, %d are settled", out[group], n)
		}
	}
}

var actionOf = map[outcomeKind]Action{
	outcomeAck: ActionAck, outcomeDrop: ActionDrop, outcomeDeadLetter: ActionDeadLetter, outcomeRetry: ActionRetry,
	outcomeRetryAfter: ActionRetry, outcomePanic: ActionRetry, outcomeNone: ActionRetry,
}

// checkVerdict holds a verdict to what the handler said. The caller holds mu.
func (s *modelSession) checkVerdict(d *Delivery, h *handout, v Verdict) {
	capped := s.cap > 0 && d.Attempt >= s.cap
	want := actionOf[h.said.kind]
	switch {
	case v.Action == ActionRelease:
	case h.saidAt.IsZero():
		past := s.cap > 0 && d.Attempt > s.cap && v.Action == ActionDeadLetter
		lane := laneBreaks(d) && (v.Action == ActionRetry || capped)
		if !past && !lane {
			s.breaks("%s: %v, and no handler has ended", d.ID, v.Action)
		}
	case want == ActionRetry && capped:
		if v.Action != ActionDeadLetter {
			s.breaks("%s: attempt %d of %d failed: %v", d.ID, d.Attempt, s.cap, v.Action)
		}
	case v.Action != want:
		s.breaks("%s: the handler said %v, the verdict is %v", d.ID, h.said, v.Action)
	}
	if v.Action != ActionRetry || h.said.kind != outcomeRetryAfter || s.traits.LongestDelay > 0 {
		return
	}
	switch waited := time.Since(h.saidAt); {
	case s.traits.Delay == DelayBySource && v.Delay != h.said.delay:
		s.breaks("%s: the handler said %v, the source is asked to wait %v", d.ID, h.said, v.Delay)
	case s.traits.Delay == DelayInProcess && !s.traits.Whole && waited < h.said.delay:
		s.breaks("%s: the handler said %v, it is retried after %v", d.ID, h.said, waited)
	}
}

// laneBreaks reports whether the chaos test's Lane panics for d.
func laneBreaks(d *Delivery) bool { return strings.HasSuffix(d.ID, "9") }

// Received, Settled and Noticed make the model the observer.

func (m *model) Received(ctx context.Context, d *Delivery) context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.handed[d]
	if h == nil {
		m.breaks("%s is received after Run has returned", d.ID)
		return ctx
	}
	if h.received++; h.received > 1 {
		m.breaks("%s is received twice", d.ID)
	}
	if h.ends > 0 {
		m.breaks("%s is received after its end", d.ID)
	}
	return context.WithValue(ctx, contextKey{}, d)
}

func (m *model) Settled(ctx context.Context, s Settled) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.handed[s.Delivery]
	if h == nil {
		m.breaks("%s ends after Run has returned", s.Delivery.ID)
		return
	}
	h.ends++ // checkEnds counts
	if s.Err == nil && !h.final {
		m.breaks("%s is told as settled and is not", s.Delivery.ID)
	}
	if h.received > 0 && ctx.Value(contextKey{}) != s.Delivery {
		m.breaks("%s: Settled has another's context", s.Delivery.ID)
	}
}

func (m *model) Noticed(Notice) {}

// checkEnds holds a Run that has returned to one end a delivery and no session
// left, and forgets what it was given.
func (m *model) checkEnds() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open != nil {
		m.breaks("session %d stays open", m.open.number)
		m.open = nil
	}
	for d, h := range m.handed {
		if h.ends != 1 {
			m.breaks("%s of session %d has %d ends (received %d times)", d.ID, h.session.number, h.ends, h.received)
		}
	}
	clear(m.handed)
}
