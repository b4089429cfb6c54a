package rabbit

import (
	"context"
	"math"
	"time"

	"github.com/settlemq/settle"
)

// Delay says where a message waits that is to be retried after a while:
// [WaitQueue], [DelayedExchange] or [NoDelay]. A queue without one holds such a delivery
// unacknowledged in this process: that costs nothing on the server, but the wait is
// over when the session ends, and long or many waits keep prefetch busy. What waits on the server
// outlives this process and its connections.
type Delay interface {
	// place says who waits, and the delay at which waiting ends to be possible; 0: none.
	place() (settle.DelayPlace, time.Duration)
	// check returns a ConfigError for what cannot be kept, before anything is sent.
	check(s *settings) error
	// open declares, or checks, what the delay needs on the server.
	open(ctx context.Context, o *opening) error
	// send points a copy at the place where it waits.
	send(queue string, out *outgoing, d time.Duration)
}

// longestServerDelay is the longest delay that the server's 32 bits of
// milliseconds can carry, 49 days.
const longestServerDelay = (math.MaxUint32 - 2) * time.Millisecond

// NoDelay retries at once whatever delay was asked for, and each subscription
// says so in its log: for handlers that never return settle.RetryAfter, and for those
// who want the order of the queue more than the pause.
type NoDelay struct{}

func (NoDelay) place() (settle.DelayPlace, time.Duration) { return settle.NoDelay, 0 }

func (NoDelay) check(*settings) error { return nil }

func (NoDelay) open(context.Context, *opening) error { return nil }

func (NoDelay) send(string, *outgoing, time.Duration) {}
