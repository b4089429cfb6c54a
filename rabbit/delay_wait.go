package rabbit

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/settlemq/settle"
)

// WaitQueue lets a message wait in a queue of its own on the server, named after the
// consumed queue with ".retry" behind it, whose messages come back to the
// consumed queue when their time is over. It is a quorum queue, whatever the consumed queue
// is, because only that moves its messages safely. The retry is a copy: it
// goes to the end of the consumed queue and carries the count of attempts.
//
// A queue lets go of messages from its head alone: a message that waits long holds up
// those behind it that wait less, so that they come late. Where that matters use
// PerDelay.
type WaitQueue struct {
	// PerDelay gives each delay a wait queue of its own, such as
	// "orders.retry.5000" for 5 s, so that no delay waits for another.
	// It needs DeclareTopology, because the queues are declared as delays come up.
	// They stay on the server. To bound their number a delay is
	// rounded up to two digits: 1.23 s waits 1.3 s. It is for delays of a
	// few different lengths, not for those that are spread at random.
	PerDelay bool
}

func (WaitQueue) place() (settle.DelayPlace, time.Duration) {
	return settle.DelayBySource, longestServerDelay
}

func (w WaitQueue) check(s *settings) error {
	if w.PerDelay && !s.declare {
		return s.refuse("Delay", "the wait queues of PerDelay are declared when a delay first comes up",
			"set DeclareTopology, or use WaitQueue{} and declare its one queue yourself")
	}
	suffix, waits := strings.CutPrefix(s.reg.DeadLetter, s.queue+".retry")
	if w.PerDelay {
		n, err := strconv.ParseInt(strings.TrimPrefix(suffix, "."), 10, 64)
		waits = waits && err == nil && n > 0 && strings.HasPrefix(suffix, ".")
	} else {
		waits = waits && suffix == ""
	}
	if waits {
		return s.refuse("DeadLetter", strconv.Quote(s.reg.DeadLetter)+" is where messages wait, and they come back from there", "name another queue")
	}
	return nil
}

func (w WaitQueue) open(ctx context.Context, o *opening) error {
	switch {
	case w.PerDelay:
		return nil
	case o.declare:
		return o.refused("Delay", o.at.queue(ctx, w.waiting(o.queue, 0)))
	default:
		return o.find(ctx, "Delay", w.name(o.queue, 0))
	}
}

func (w WaitQueue) send(queue string, out *outgoing, d time.Duration) {
	out.key = w.name(queue, d)
	if !w.PerDelay {
		out.msg.Expiration = strconv.FormatInt(milliseconds(d), 10)
	}
}

// name is that of the wait queue for a delay of d.
func (w WaitQueue) name(queue string, d time.Duration) string {
	if !w.PerDelay {
		return queue + ".retry"
	}
	return queue + ".retry." + strconv.FormatInt(roundUp(ceilMilliseconds(d)), 10)
}

// waiting is the wait queue for a delay of d: what expires goes back to the consumed
// queue, and leaves only when it is safe there.
func (w WaitQueue) waiting(queue string, d time.Duration) *Queue {
	q := &Queue{
		Name: w.name(queue, d), Kind: Quorum, Overflow: RejectPublish,
		DeadLetter: &DeadLetterRoute{Key: queue, AtLeastOnce: true},
	}
	if w.PerDelay {
		// One more, for what the server's clock drops.
		q.TTL = time.Duration(roundUp(ceilMilliseconds(d))+1) * time.Millisecond
	}
	return q
}

// roundUp rounds up to two significant decimal digits.
func roundUp(n int64) int64 {
	unit := int64(1)
	for n > 99*unit {
		unit *= 10
	}
	return (n + unit - 1) / unit * unit
}
