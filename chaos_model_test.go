package settle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// model is a broker that keeps to source.go and holds the runtime to it. As its
// dice say it loses sessions and leases, and fails or delays calls; it notes
// each rule that the runtime breaks. A real broker does such things too seldom
// to be tested with.
type model struct {
	traits Traits
	cap    int         // Options.MaxAttempts
	losses float64     // how likely a call loses the session
	calm   atomic.Bool // no more faults: whatever is left must end now

	mu       sync.Mutex // guards what follows, the sessions and the handouts
	dice     *rand.Rand
	total    int // messages
	sessions int // opened so far
	ready    []*modelMessage
	ended    map[string]Action      // how each message left the broker
	handed   map[*Delivery]*handout // what this Run was given
	open     *modelSession
	broken   []string // rules
}

type modelMessage struct {
	id       string
	attempts int
}

// handout is what the model knows of one delivery.
type handout struct {
	message   *modelMessage
	session   *modelSession
	group     int // the Receive it came by
	leaseLost bool
	settling  bool
	final     bool // Settle said its last word about it
	said      Outcome
	saidAt    time.Time // when its handler ended; zero: it has not
	received  int       // what the observer was told
	ends      int
}

// modelSession is one open session.
type modelSession struct {
	*model
	registration Registration
	number       int
	lost, closed bool
	stopped      bool
	told         bool // the runtime was told of the loss
	receiving    int
	settling     int
	groups       int
	out          map[*Delivery]*handout // what is not settled
	change       chan struct{}          // closed when a Receive should look again
}

// breaks notes a rule that the runtime broke. The caller holds mu.
func (m *model) breaks(format string, args ...any) {
	if len(m.broken) < 10 {
		m.broken = append(m.broken, fmt.Sprintf(format, args...))
	}
}

// fault rolls the dice for a fault. The caller holds mu.
func (m *model) fault(likely float64) bool { return !m.calm.Load() && m.dice.Float64() < likely }

func (m *model) millis(most int) time.Duration {
	return time.Duration(m.dice.IntN(most)) * time.Millisecond
}

func (m *model) Name() string { return "model" }

func (m *model) Open(_ context.Context, r Registration) (Consumer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open != nil {
		m.breaks("a second session opens beside one that has not closed")
	}
	if m.fault(0.2) {
		return nil, errTest
	}
	m.sessions++
	m.open = &modelSession{model: m, registration: r, number: m.sessions, out: map[*Delivery]*handout{}, change: make(chan struct{})}
	return m.open, nil
}

func (s *modelSession) Traits() Traits { return s.traits }

// changed has each Receive look again. The caller holds mu.
func (s *modelSession) changed() {
	close(s.change)
	s.change = make(chan struct{})
}

// lose loses the session; every other time the broker tells of it at once. The
// caller holds mu.
func (s *modelSession) lose() {
	if s.lost || s.closed {
		return
	}
	s.lost = true
	if s.dice.IntN(2) == 0 {
		time.AfterFunc(s.millis(3), func() {
			s.mu.Lock()
			closed := s.closed
			s.told = true
			s.mu.Unlock()
			if !closed {
				s.registration.Notify(Notice{Kind: NoticeLost, Err: errTest})
			}
		})
	}
	s.giveBack()
	s.changed()
}

// giveBack makes what is unsettled ready again. The caller holds mu.
func (s *modelSession) giveBack() {
	for d, h := range s.out {
		delete(s.out, d)
		s.ready = append(s.ready, h.message)
	}
}

func (s *modelSession) Receive(ctx context.Context, buf []*Delivery) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receiving++
	defer func() { s.receiving-- }()
	if s.receiving > max(1, s.traits.Receivers) {
		s.breaks("%d receives at once", s.receiving)
	}
	if s.closed {
		s.breaks("a receive on a closed session")
	}
	if len(buf) == 0 {
		s.breaks("a receive with no room")
	}
	for {
		if !s.lost && s.fault(s.losses) {
			s.lose()
		}
		switch {
		case s.lost:
			s.told = true
			return 0, fmt.Errorf("cut off: %w", ErrSessionLost)
		case s.fault(0.02):
			return 0, errTest
		case ctx.Err() != nil || s.stopped:
			return 0, ctx.Err()
		case len(s.ready) > 0:
			return s.hand(buf)
		}
		idle := time.Millisecond + s.millis(20) // then another fault may come
		if s.calm.Load() {
			idle = time.Hour
		}
		change, timer := s.change, time.NewTimer(idle)
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-change:
		case <-timer.C:
		}
		timer.Stop()
		s.mu.Lock()
	}
}

// hand hands out some of what is ready. The caller holds mu.
func (s *modelSession) hand(buf []*Delivery) (int, error) {
	n := 1 + s.dice.IntN(min(len(buf), len(s.ready)))
	s.groups++
	for i, message := range s.ready[:n] {
		message.attempts++
		d := &Delivery{ID: message.id, Attempt: message.attempts}
		h := &handout{message: message, session: s, group: s.groups}
		s.handed[d], s.out[d] = h, h
		buf[i] = d
	}
	s.ready = s.ready[n:]
	if s.fault(0.05) && !s.traits.Whole {
		d := buf[s.dice.IntN(n)]
		time.AfterFunc(s.millis(20), func() { s.loseLease(d) })
	}
	switch {
	case s.fault(0.02):
		return n, errTest
	case s.fault(0.01):
		s.lose()
		s.told = true
		return n, ErrSessionLost
	}
	return n, nil
}

func (s *modelSession) loseLease(d *Delivery) {
	s.mu.Lock()
	h := s.out[d]
	lost := h != nil && !h.final && !h.settling && !s.closed && !s.lost
	if lost {
		h.leaseLost = true
	}
	s.mu.Unlock()
	if lost {
		s.registration.Notify(Notice{Kind: NoticeLeaseLost, Delivery: d})
	}
}

func (s *modelSession) Settle(ctx context.Context, batch []Settlement) {
	s.mu.Lock()
	s.check(batch)
	var wait time.Duration
	if s.dice.Float64() < 0.3 {
		wait = s.millis(30)
	}
	s.mu.Unlock()
	if wait > 0 {
		sleep(ctx, wait)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settling--
	if s.fault(s.losses) {
		s.lose()
	}
	failing := s.fault(0.1)
	for i := range batch {
		b := &batch[i]
		if h := s.handed[b.Delivery]; h != nil {
			h.settling = false
			b.Err = s.conclude(b, h, failing)
			h.final = b.Err == nil || lost(b.Err) || IsPermanent(b.Err)
		}
	}
	s.changed()
}

// conclude makes one verdict true, or fails to. The caller holds mu.
func (s *modelSession) conclude(b *Settlement, h *handout, failing bool) error {
	message := h.message
	switch {
	case s.lost:
		return fmt.Errorf("cut off: %w", ErrSessionLost)
	case h.leaseLost, s.fault(0.02):
		delete(s.out, b.Delivery)
		s.ready = append(s.ready, message)
		return ErrLeaseLost
	case failing, s.fault(0.05):
		return errTest
	case s.fault(0.005):
		return Permanent(errTest) // the broker has it until the session ends
	}
	delete(s.out, b.Delivery)
	switch action := b.Verdict.Action; action {
	case ActionAck, ActionDrop, ActionDeadLetter:
		if was, twice := s.ended[message.id]; twice {
			s.breaks("%s is settled twice: %v, then %v", message.id, was, action)
		}
		s.ended[message.id] = action
	case ActionRelease:
		message.attempts--
		s.ready = append(s.ready, message)
	default:
		s.ready = append(s.ready, message)
	}
	return nil
}

func (s *modelSession) Stop(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		s.breaks("Stop is called twice")
	}
	if s.told {
		s.breaks("Stop is called on a session that told of its loss")
	}
	s.stopped = true
	s.changed()
	return nil
}

func (s *modelSession) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receiving > 0 || s.settling > 0 {
		s.breaks("Close is called with %d receives and %d settles under way", s.receiving, s.settling)
	}
	if s.closed {
		s.breaks("Close is called twice")
	}
	s.closed = true
	s.giveBack()
	s.changed()
	s.open = nil // of the model
	return nil
}
