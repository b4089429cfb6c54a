package rabbit

import (
	"context"
	"sync"

	"github.com/settlemq/settle"
)

// onTheFly declares, while a session runs, the queues that copies go to and
// that are not there yet: the wait queue of a delay that comes up for the first time, and one
// that somebody deleted.
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
	if !f.settings.declare {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[name] = true
	delete(f.made, name)
}

// ready declares the queue that the copy for v goes to if it may not be there.
func (f *onTheFly) ready(ctx context.Context, name string, v settle.Verdict) error {
	if !f.settings.declare || name == f.settings.queue {
		return nil
	}
	w, perDelay := f.settings.delay.(WaitQueue)
	perDelay = perDelay && w.PerDelay && v.Action == settle.ActionRetry
	f.mu.Lock()
	there := f.made[name] || !perDelay && !f.gone[name]
	f.mu.Unlock()
	if there {
		return nil
	}
	// A channel of its own: the session's may be busy with its end.
	ch, err := f.settings.broker.consumeChannel(ctx)
	if err != nil {
		return err
	}
	o := &opening{settings: f.settings, ch: ch}
	if v.Action == settle.ActionDeadLetter {
		err = o.put(ctx, name, f.settings.deadLetterArguments(ch.server))
	} else {
		err = o.put(ctx, name, w.arguments(f.settings.queue, v.Delay))
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.made[name] = true
	delete(f.gone, name)
	f.mu.Unlock()
	return ch.close(ctx)
}
