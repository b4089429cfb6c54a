package sqlq

import (
	"context"
	"slices"
	"sync"
	"time"
)

// hub tells the sessions of this process that a queue has a row for them, so
// that they do not wait for their next look at the table.
type hub struct {
	mu       sync.Mutex // guards what follows
	sleepers map[line][]*sleeper
}

// line is one queue of a database.
type line struct{ schema, table, group string }

// line returns the queue under the one name that all its names come to.
func (t *Table) line(d Dialect) line {
	schema, name := t.Schema, t.Name
	if f, ok := d.(Folder); ok {
		schema, name = f.OneName(schema, name)
	}
	return line{schema, name, t.GroupValue}
}

func (h *hub) join(l line, s *sleeper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sleepers == nil {
		h.sleepers = make(map[line][]*sleeper)
	}
	h.sleepers[l] = append(slices.Clone(h.sleepers[l]), s)
}

func (h *hub) leave(l line, s *sleeper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var others []*sleeper
	for _, o := range h.sleepers[l] {
		if o != s {
			others = append(others, o)
		}
	}
	if len(others) == 0 {
		delete(h.sleepers, l)
	} else {
		h.sleepers[l] = others
	}
}

// lines returns the queues that have sessions here.
func (h *hub) lines() []line {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]line, 0, len(h.sleepers))
	for l := range h.sleepers {
		all = append(all, l)
	}
	return all
}

// wake says that a row of the queue is due after the given time.
func (h *hub) wake(l line, after time.Duration) {
	h.mu.Lock()
	sleepers := h.sleepers[l] // replaced when it changes, never written to
	h.mu.Unlock()
	if len(sleepers) == 0 {
		return
	}
	at := time.Now().Add(after)
	for _, s := range sleepers {
		s.wakeAt(at)
	}
}

// sleeper is one session that may wait for a row.
type sleeper struct {
	ring chan struct{} // a token when at has changed

	mu sync.Mutex // guards at
	at time.Time  // when it was told to look; zero: it was not
}

func newSleeper() *sleeper { return &sleeper{ring: make(chan struct{}, 1)} }

func (s *sleeper) wakeAt(at time.Time) {
	s.mu.Lock()
	sooner := s.at.IsZero() || at.Before(s.at)
	if sooner {
		s.at = at
	}
	s.mu.Unlock()
	if sooner {
		select {
		case s.ring <- struct{}{}:
		default:
		}
	}
}

// take forgets what it was told for before now, because the session looks now.
func (s *sleeper) take() {
	s.mu.Lock()
	if !s.at.IsZero() && !s.at.After(time.Now()) {
		s.at = time.Time{}
	}
	s.mu.Unlock()
}

// sleep waits until the given time, or until it is told to look sooner. It
// reports whether it was told. It ends with ctx and when stop is closed.
func (s *sleeper) sleep(ctx context.Context, stop <-chan struct{}, until time.Time) (told bool, err error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		s.mu.Lock()
		at := s.at
		s.mu.Unlock()
		told = !at.IsZero() && at.Before(until)
		if told {
			timer.Reset(time.Until(at))
		}
		select {
		case <-timer.C:
			return told, nil
		case <-s.ring:
		case <-ctx.Done():
			return false, ctx.Err()
		case <-stop:
			return false, errStopped
		}
	}
}
