package settle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// worker calls the handler. A subscription has Options.Workers of them for its
// whole life, whatever sessions come and go.
//
// What a worker has in hand is a delivery, a batch, or a group that its source
// settles whole. It is handled first and decided afterwards in one step, because
// at the end of a drain the runtime may take it out of the worker's hand: then
// what the handler says no longer counts.
type worker struct {
	sub      *subscription
	into     []*Delivery // what next fills
	finished int         // deliveries that left this worker since it last asked
	results  []result    // of hand, index for index
	handled  int         // how many of hand have a result

	mu    sync.Mutex // guards what follows, against the drain
	hand  []*Delivery
	taken bool // hand was taken away
}

// result is what became of one delivery in its handler.
type result struct {
	decision
	took time.Duration
}

// run takes deliveries until the intake closes.
func (w *worker) run() {
	left := true
	defer func() {
		if left { // the handler ended this goroutine by Goexit: another goes on with what is in hand
			w.sub.workers.Go(w.run)
		}
	}()
	for len(w.hand) > 0 || w.take() {
		if w.sub.batch != nil {
			w.together()
		} else {
			w.each()
		}
		w.handOver()
	}
	left = false
}

// take waits for work and takes it in hand: a batch is what is there and what
// comes within BatchWait; a whole group is never split nor joined.
func (w *worker) take() bool {
	n := w.sub.intake.next(w.finished, w.into[:1])
	w.finished = 0
	if n == 0 {
		return false
	}
	if len(w.into) > 1 && !w.into[0].work.sess.traits.Whole {
		n += w.sub.intake.fill(w.into[1:], w.sub.reg.BatchWait)
	}
	w.mu.Lock()
	for _, d := range w.into[:n] {
		for ; d != nil; d = d.work.next {
			w.hand = append(w.hand, d)
		}
	}
	w.mu.Unlock()
	clear(w.into)
	w.handled, w.results = 0, w.results[:0]
	for range w.hand {
		w.results = append(w.results, result{})
	}
	return true
}

// each calls the Handler for one delivery in hand after another.
func (w *worker) each() {
	for w.handled < len(w.hand) {
		d, r := w.hand[w.handled], &w.results[w.handled]
		if w.skip(d, r) {
			w.handled++
			continue
		}
		s := d.work.sess
		d.work.lazy.begin(s.ctx, w.sub.handlerDeadline())
		var start time.Time
		var o Outcome
		guard(func() {
			var ctx context.Context = &d.work.lazy
			if w.sub.observer != nil {
				ctx = w.observe(ctx, d)
				start = time.Now()
			}
			o = w.sub.handler(ctx, d)
			o.sound()
		}, func(p *PanicError) {
			o = Outcome{kind: outcomePanic, cause: p}
			w.conclude(d, r, o, start)
			w.handled++
		})
		if o.kind != outcomePanic {
			w.conclude(d, r, o, start)
			w.handled++
		}
	}
}

// together calls the BatchHandler for those in hand that a handler should see.
func (w *worker) together() {
	if w.handled > 0 {
		return // Goexit: all have their result
	}
	w.handled = len(w.hand)
	batch := make([]*Delivery, 0, len(w.hand))
	at := make([]int, 0, len(w.hand))
	for i, d := range w.hand {
		if !w.skip(d, &w.results[i]) {
			batch, at = append(batch, d), append(at, i)
		}
	}
	if len(batch) == 0 {
		return
	}
	lead := batch[0]
	lead.work.lazy.begin(lead.work.sess.ctx, w.sub.handlerDeadline())
	ctx := &lead.work.lazy
	for _, d := range batch[1:] {
		d.work.lead.Store(lead)
		if d.work.lazy.hasEnded() { // its lease was lost meanwhile
			lead.work.lazy.end(ErrLeaseLost)
		}
	}
	var start time.Time
	conclude := func(outcome func(i int) Outcome) {
		for i, d := range batch {
			r := &w.results[at[i]]
			r.decision = w.decide(d, outcome(i))
			if !start.IsZero() {
				r.took = time.Since(start)
			}
		}
		lead.work.lazy.end(nil)
	}
	var outcomes []Outcome
	panicked := false
	given := append([]*Delivery(nil), batch...) // the handler's own, to do with as it likes
	guard(func() {
		if w.sub.observer != nil {
			for _, d := range batch {
				w.observe(ctx, d)
			}
			start = time.Now()
		}
		outcomes = w.sub.batch(ctx, given)
	}, func(p *PanicError) {
		panicked = true
		conclude(func(int) Outcome { return Outcome{kind: outcomePanic, cause: p} })
	})
	switch {
	case panicked:
	case len(outcomes) != len(batch):
		err := fmt.Errorf("settle: the batch handler returned %d outcomes for %d deliveries: %w", len(outcomes), len(batch), ErrNoOutcome)
		conclude(func(int) Outcome { return Outcome{kind: outcomePanic, cause: err} })
	default:
		conclude(func(i int) Outcome { return outcomes[i].checked() })
	}
}

// skip reports whether d does not reach the handler, with the result it gets instead.
func (w *worker) skip(d *Delivery, r *result) bool {
	switch {
	case d.work.decided: // on receipt
		r.verdict = d.work.verdict
	case d.work.broken != nil:
		r.decision = w.decide(d, Outcome{kind: outcomePanic, cause: d.work.broken})
	case d.work.sess.over.Load(), w.sub.cut.Load(), d.work.lazy.hasEnded():
		r.verdict.Action = ActionRelease // the settler knows if it is too late even for that
	default:
		return false
	}
	return true
}

// observe tells the observer of d and keeps the context it returns.
func (w *worker) observe(ctx context.Context, d *Delivery) context.Context {
	made := w.sub.observer.Received(ctx, d)
	if made == nil {
		made = ctx
	}
	w.mu.Lock()
	if !w.taken {
		d.work.ctx = made
	}
	w.mu.Unlock()
	return made
}

// conclude ends the handler's context and decides.
func (w *worker) conclude(d *Delivery, r *result, o Outcome, start time.Time) {
	if !start.IsZero() {
		r.took = time.Since(start)
	}
	d.work.lazy.end(nil)
	r.decision = w.decide(d, o)
}

// decide turns an outcome into a decision. Once the drain deadline has ended a
// handler's context its failure is not the message's: that is given back.
func (w *worker) decide(d *Delivery, o Outcome) decision {
	s := d.work.sess
	switch o.kind {
	case outcomeAck, outcomeDrop, outcomeDeadLetter:
	default:
		if w.sub.cut.Load() {
			return decision{verdict: Verdict{Action: ActionRelease, Cause: o.cause}}
		}
	}
	var age time.Duration
	if o.delay > 0 {
		age = time.Since(s.epoch) - d.work.received
	}
	return decide(o, d.Attempt, age, w.sub.reg.MaxAttempts, s.traits)
}

// handOver passes what is in hand on to the settlers or the holds, unless it
// was taken away meanwhile.
func (w *worker) handOver() {
	w.mu.Lock()
	hand, taken := w.hand, w.taken
	w.hand, w.taken = w.hand[:0], false
	if !taken {
		for i, d := range hand {
			d.work.verdict, d.work.took = w.results[i].verdict, w.results[i].took
		}
	}
	w.mu.Unlock()
	w.finished += len(hand)
	if taken {
		w.sub.logger.Warn("a handler ended after its delivery was given back", "deliveries", len(hand))
		clear(hand)
		return
	}
	var pause time.Duration // of a whole group: the longest of its holds
	for i, d := range hand {
		r := &w.results[i]
		pause = max(pause, r.hold)
		if r.problem != nil {
			w.sub.notify(Notice{Kind: NoticeDelayTooLong, Delivery: d, Delay: r.tooLong, Err: r.problem}, true)
		}
		s := d.work.sess
		if !s.traits.Whole {
			s.pass(d, r.hold)
		}
	}
	if s := hand[0].work.sess; s.traits.Whole {
		s.pass(hand[0], pause)
	}
	clear(hand)
	clear(w.results)
}

// takeAway takes what is in hand to be given back. The handler goes on; its
// outcome is void.
func (w *worker) takeAway() {
	for i, d := range w.seize() {
		if i == 0 || !d.work.sess.traits.Whole {
			d.work.sess.toStage(d, true)
		}
	}
}

// seize makes what is in hand the caller's, with its new verdict.
func (w *worker) seize() []*Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken {
		return nil
	}
	w.taken = len(w.hand) > 0
	for _, d := range w.hand {
		d.work.unfinished = true
		if !d.work.decided {
			d.work.verdict = Verdict{Action: ActionRelease, Cause: ErrDraining}
		}
	}
	return slices.Clone(w.hand)
}
