package settletest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// journal is what was seen of one queue: each call of a handler, each
// settlement, each notice, over every service of the case. It is the observer
// of their runtimes.
type journal struct {
	mu       sync.Mutex // guards what follows
	calls    []*call
	byName   map[string][]*call
	running  int // handlers under way
	peak     int // the most of them at once
	settled  []settle.Settled
	ends     map[string]int // settlements that ended a message, by name
	notices  []settle.Notice
	arrived  []string // names, in the order Receive returned them
	inWork   int      // received and not settled for good
	inHand   int      // received, and its handler has not ended
	mostHand int
}

// call is one delivery in its handler.
type call struct {
	name     string
	delivery *settle.Delivery
	began    time.Time
	ended    time.Time // when the handler was about to return; zero while it runs
}

func newJournal() *journal {
	return &journal{byName: make(map[string][]*call), ends: make(map[string]int)}
}

// begin records that a handler has a delivery, and returns what ends that.
func (j *journal) begin(d *settle.Delivery) (end func()) {
	k := &call{name: nameOf(d.Body), delivery: d, began: time.Now()}
	j.mu.Lock()
	j.calls = append(j.calls, k)
	j.byName[k.name] = append(j.byName[k.name], k)
	j.running++
	j.peak = max(j.peak, j.running)
	j.mu.Unlock()
	return func() {
		now := time.Now()
		j.mu.Lock()
		k.ended = now
		j.running--
		j.inHand--
		j.mu.Unlock()
	}
}

// Received implements settle.Observer.
func (j *journal) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }

// Settled implements settle.Observer.
func (j *journal) Settled(_ context.Context, s settle.Settled) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.settled = append(j.settled, s)
	switch s.Verdict.Action {
	case settle.ActionAck, settle.ActionDrop, settle.ActionDeadLetter:
		if s.Err == nil {
			j.ends[nameOf(s.Delivery.Body)]++
		}
	}
}

// Noticed implements settle.Observer.
func (j *journal) Noticed(n settle.Notice) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.notices = append(j.notices, n)
}

// received records what one Receive returned.
func (j *journal) received(got []*settle.Delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range got {
		j.arrived = append(j.arrived, nameOf(d.Body))
	}
	j.inWork += len(got)
	j.inHand += len(got)
	j.mostHand = max(j.mostHand, j.inHand)
}

// left records that n deliveries are the runtime's no more.
func (j *journal) left(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.inWork -= n
}

// read returns what f makes of the journal, under its lock.
func read[T any](j *journal, f func(*journal) T) T {
	j.mu.Lock()
	defer j.mu.Unlock()
	return f(j)
}

// count is how many calls of handlers there were.
func (j *journal) count() int { return read(j, func(j *journal) int { return len(j.calls) }) }

// handled is how often handlers were called with the message of that name.
func (j *journal) handled(name string) int {
	return read(j, func(j *journal) int { return len(j.byName[name]) })
}

// ended is how many settlements have ended the message of that name.
func (j *journal) ended(name string) int {
	return read(j, func(j *journal) int { return j.ends[name] })
}

// allEnded reports whether every message of those names was ended.
func (j *journal) allEnded(names []string) bool {
	return read(j, func(j *journal) bool {
		for _, name := range names {
			if j.ends[name] == 0 {
				return false
			}
		}
		return true
	})
}

// working is how many handlers are under way.
func (j *journal) working() int { return read(j, func(j *journal) int { return j.running }) }

// unsettled is how many deliveries the runtimes have.
func (j *journal) unsettled() int { return read(j, func(j *journal) int { return j.inWork }) }

// callsOf returns the calls with the message of that name, in order.
func (j *journal) callsOf(name string) []call {
	return read(j, func(j *journal) []call {
		calls := make([]call, len(j.byName[name]))
		for i, k := range j.byName[name] {
			calls[i] = *k
		}
		return calls
	})
}

// attempts returns the attempts with which the message of that name was handled, in order.
func (j *journal) attempts(name string) []int {
	var all []int
	for _, k := range j.callsOf(name) {
		all = append(all, k.delivery.Attempt)
	}
	return all
}

// settlementsOf returns how the deliveries of the message of that name ended,
// in the order of its calls; those that no handler had come last.
func (j *journal) settlementsOf(name string) []settle.Settled {
	return read(j, func(j *journal) []settle.Settled {
		var all []settle.Settled
		for _, s := range j.settled {
			if nameOf(s.Delivery.Body) == name {
				all = append(all, s)
			}
		}
		turn := func(s settle.Settled) int {
			i := slices.IndexFunc(j.byName[name], func(k *call) bool { return k.delivery == s.Delivery })
			if i < 0 {
				return len(j.byName[name])
			}
			return i
		}
		slices.SortStableFunc(all, func(a, b settle.Settled) int { return turn(a) - turn(b) })
		return all
	})
}

// noticesOf returns the notices of a kind.
func (j *journal) noticesOf(kind settle.NoticeKind) []settle.Notice {
	return read(j, func(j *journal) []settle.Notice {
		var all []settle.Notice
		for _, n := range j.notices {
			if n.Kind == kind {
				all = append(all, n)
			}
		}
		return all
	})
}

const mostShown = 40

// String tells the end of the story, for failures.
func (j *journal) String() string {
	return read(j, func(j *journal) string {
		var b strings.Builder
		fmt.Fprintf(&b, "So far %d calls of handlers, %d of them under way, and %d settlements", len(j.calls), j.running, len(j.settled))
		for _, k := range j.calls[max(0, len(j.calls)-mostShown):] {
			fmt.Fprintf(&b, "\n\t\thandled %q attempt %d", k.name, k.delivery.Attempt)
			if k.ended.IsZero() {
				b.WriteString(" (under way)")
			}
		}
		for _, s := range j.settled[max(0, len(j.settled)-mostShown):] {
			fmt.Fprintf(&b, "\n\t\tsettled %q attempt %d: %v", nameOf(s.Delivery.Body), s.Delivery.Attempt, s.Verdict.Action)
			if s.Err != nil {
				fmt.Fprintf(&b, ", error: %v", s.Err)
			}
		}
		for _, n := range j.notices[max(0, len(j.notices)-mostShown):] {
			fmt.Fprintf(&b, "\n\t\tnotice: %v", n.Kind)
			if n.Err != nil {
				fmt.Fprintf(&b, ": %v", n.Err)
			}
		}
		return b.String()
	})
}
