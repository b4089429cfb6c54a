package settle

import "sync"

// lanes keeps the deliveries of one key apart: while one is in work the others
// wait here, in the order they came.
type lanes struct {
	key func(*Delivery) string

	mu     sync.Mutex // guards what follows
	byName map[string]*lane
}

// lane is one key with a delivery in work.
type lane struct {
	name    string
	waiting ring
}

// enter reports whether d may go to a worker now. If not, it waits in its lane
// until leave hands it out.
func (l *lanes) enter(d *Delivery) bool {
	name := l.key(d)
	if name == "" {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if busy := l.byName[name]; busy != nil {
		d.work.lane = busy
		busy.waiting.push(d)
		return false
	}
	if l.byName == nil {
		l.byName = make(map[string]*lane)
	}
	d.work.lane = &lane{name: name}
	l.byName[name] = d.work.lane
	return true
}

// leave frees the lane of d and returns the delivery that may go next, if one
// waits. A second call for the same delivery does nothing.
func (l *lanes) leave(d *Delivery) *Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := d.work.lane
	if lane == nil {
		return nil
	}
	d.work.lane = nil
	var next [1]*Delivery
	if lane.waiting.pop(next[:]) == 0 {
		delete(l.byName, lane.name)
	}
	return next[0]
}

// purge takes out every delivery that waits.
func (l *lanes) purge() []*Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*Delivery
	for _, lane := range l.byName {
		waiting := make([]*Delivery, lane.waiting.n)
		lane.waiting.pop(waiting)
		for _, d := range waiting {
			d.work.lane = nil // it never had the lane
		}
		all = append(all, waiting...)
	}
	return all
}
