package sqlq

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// floor is how far the claims of a session have come in their order. A claim
// that begins there does not walk over what claims before it took, which a
// database may have to keep for a while for some older snapshot. Rows below it
// exist: those that were given back, and inserts that committed late. So a claim looks at all
// rows now and then, where it would find nothing else, and where this session itself set one free.
type floor struct {
	mu     sync.Mutex // guards what follows
	levels map[int64]place
	looked time.Time     // when a claim last looked at all rows
	cost   time.Duration // how long that took, mostCost at most
	denied bool          // a claim that found nothing above the floor since then could not look below
	off    bool          // there are too many levels
	lows   []low         // when it was lowered, as far as a claim may be under way that began before
	at     int           // how often it was lowered
}

// low is one time that the floor was lowered. A claim that was under way then did
// not see what stands there.
type low struct {
	at    int
	level int64
	place place
}

// mostLows bounds how many of them are kept.
const mostLows = 1024

// place is one in the order of claims, within a priority.
type place struct {
	due int64
	id  any
}

func (p place) before(q place) bool {
	return cmp.Or(cmp.Compare(p.due, q.due), compareIDs(p.id, q.id)) < 0
}

const (
	allEvery  = 500 * time.Millisecond // a claim looks at all rows, at least so often while there is work
	busyShare = 20                     // and for one part in so many of the time at most
	idleShare = 10                     // the same where a claim found nothing above the floor
	// mostCost bounds what a look is taken to cost: one that waited, for a lock or a
	// connection, says little of the next.
	mostCost = 250 * time.Millisecond
	// mostLevels is how many priorities a floor is kept for. With more of them claims do
	// without: they would walk a long list of empty ones.
	mostLevels = 16
)

// look is one claim's view of the floor. The zero value is that of a claim that takes no notice of it.
type look struct {
	f     *floor
	began time.Time
	text  *statement // of the claim
	from  map[int64]place
	at    int // how often the floor had been lowered before
}

// look begins a claim by the statement.
func (f *floor) look(st *statement) look {
	if !st.names(paramFloorID) && !st.names(paramFloors) {
		return look{}
	}
	l := look{f: f, began: time.Now(), text: st}
	f.mu.Lock()
	defer f.mu.Unlock()
	l.at = f.at
	if len(f.levels) > 0 && l.began.Sub(f.looked) < max(allEvery, busyShare*f.cost) {
		l.from = maps.Clone(f.levels)
	}
	return l
}

// bind sets what the claim's statement may name: :floor and :floor_id, or :floors
// for tables with priorities: a JSON list of [level, floor, id], the highest level first.
func (l *look) bind(vs *values) {
	vs.floor, vs.floorID, vs.floors = nil, nil, nil
	if len(l.from) == 0 {
		return
	}
	if !l.text.names(paramFloors) {
		p := l.from[0]
		vs.floor, vs.floorID = p.due, p.id
		return
	}
	levels := slices.Collect(maps.Keys(l.from))
	slices.SortFunc(levels, func(a, b int64) int { return cmp.Compare(b, a) })
	list := make([][3]string, len(levels))
	for i, level := range levels {
		p := l.from[level]
		list[i] = [3]string{strconv.FormatInt(level, 10), strconv.FormatInt(p.due, 10), idText(p.id)}
	}
	text, _ := json.Marshal(list) // of text alone: it cannot fail
	vs.floors = string(text)
}

// again reports whether a claim that found nothing should look once more, at all rows now.
func (l *look) again() bool {
	if len(l.from) == 0 {
		return false
	}
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	now := time.Now()
	if now.Sub(l.f.looked) < idleShare*l.f.cost {
		l.f.denied = true
		return false
	}
	l.from, l.began, l.at = nil, now, l.f.at
	return true
}

// blind returns how long it is until a claim that found nothing above the floor may look
// below it; zero where none has to.
func (f *floor) blind() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.denied {
		return 0
	}
	return max(0, idleShare*f.cost-time.Since(f.looked))
}

// found ends the claim with what it found, in the order of claims.
func (l *look) found(rows []*row) {
	f := l.f
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all := l.from == nil
	if all {
		f.looked, f.denied = time.Now(), false
		f.cost = min(f.looked.Sub(l.began), mostCost)
	}
	if f.off {
		return
	}
	for _, r := range rows {
		level, at := l.level(r), place{r.due, r.id}
		if known, ok := f.levels[level]; ok && !all && at.before(known) {
			continue
		}
		if f.levels == nil {
			f.levels = make(map[int64]place, 1)
		}
		f.levels[level] = at
	}
	for _, w := range slices.Backward(f.lows) {
		if w.at <= l.at {
			break // the claim began after this one and those before it
		}
		if known, ok := f.levels[w.level]; ok && w.place.before(known) {
			f.levels[w.level] = w.place
		}
	}
	if len(f.levels) > mostLevels {
		f.levels, f.lows, f.off = nil, nil, true
	}
}

func (l *look) level(r *row) int64 {
	if l.text.names(paramFloors) {
		return r.priority
	}
	return 0
}

// lower has the next claims see a row that was set free where it was, or what stood
// behind it.
func (f *floor) lower(r *row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.levels) == 0 {
		return
	}
	f.at++
	if len(f.lows) >= mostLows {
		f.lows = append(f.lows[:0], f.lows[mostLows/2:]...)
	}
	at := place{r.due, r.id}
	for _, level := range []int64{0, r.priority} {
		known, ok := f.levels[level]
		if !ok {
			continue
		}
		f.lows = append(f.lows, low{f.at, level, at})
		if at.before(known) {
			f.levels[level] = at
		}
	}
}
