package sqlq

import (
	"context"
	"sync"
)

// lull is where the receivers of a session wait while the table has nothing for
// them. One of them looks for all, so that an idle queue costs no more with many
// receivers than with one; whoever finds something passes the word on.
type lull struct {
	mu      sync.Mutex // guards what follows
	looking bool
	waiting []chan struct{}
}

// enter makes the caller the one that looks, or waits until the word comes round.
// It reports which; leave ends looking.
func (l *lull) enter(ctx context.Context, stop <-chan struct{}) (looks bool, err error) {
	l.mu.Lock()
	if !l.looking {
		l.looking = true
		l.mu.Unlock()
		return true, nil
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return false, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stop:
		err = errStopped
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return false, err
		}
	}
	l.next() // the word had come to this one
	return false, err
}

func (l *lull) leave() {
	l.mu.Lock()
	l.looking = false
	l.mu.Unlock()
}

// pass has one of those that wait try for itself.
func (l *lull) pass() {
	l.mu.Lock()
	l.next()
	l.mu.Unlock()
}

// next wakes the first that waits. The caller holds mu.
func (l *lull) next() {
	if len(l.waiting) > 0 {
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
	}
}
