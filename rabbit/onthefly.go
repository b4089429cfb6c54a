package rabbit

import (
	"context"
	"sync"

	"github.com/settlemq/settle"
)

// onTheFly declares, while a session runs, the queues that copies go to and
// that are not there: the wait queue of a delay that comes up for the first time, and one
// that somebody deleted. It needs DeclareTopology; without it the copy fails
// until somebody declares the queue.
type onTheFly struct {
	settings *settings

	mu   sync.Mutex // guards what follows
	gone map[string]bool
	made map[string]bool
}

func newOnTheFly(s *settings) *onTheFly {
	return &onTheFly{settings: s, gone: make(map[string]bool), made: make(map[string]bool)}
}

// forget says that a queue was not there.
func (f *onTheFly) forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[name] = true
	delete(f.made, name)
}

// ready declares the queue that the copy for v goes to if it may not be there.
func (f *onTheFly) ready(ctx context.Context, name string, v settle.Verdict) error {
	s := f.settings
	if !s.declare || name == s.queue {
		return nil
	}
	w, waits := s.delay.(WaitQueue)
	waits = waits && v.Action == settle.ActionRetry
	f.mu.Lock()
	there := f.made[name] || !f.gone[name] && !(waits && w.PerDelay)
	f.mu.Unlock()
	if there {
		return nil
	}
	at := s.declarer() // has a channel of its own: the session's may be busy with its end
	defer at.close()
	var err error
	if waits {
		err = at.queue(ctx, w.waiting(s.queue, v.Delay))
	} else {
		err = s.haveDeadLetter(ctx, at)
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.made[name] = true
	delete(f.gone, name)
	f.mu.Unlock()
	return nil
}

// deadLetter checks that the dead-letter queue is there, and declares it if it
// is not.
func (f *onTheFly) deadLetter(ctx context.Context) error {
	at := f.settings.declarer()
	defer at.close()
	return f.settings.haveDeadLetter(ctx, at)
}
