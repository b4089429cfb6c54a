package settle

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Source is a place deliveries come from: a queue, a subscription, a table.
// Handlers are registered on one with [Runtime.Handle]. This file is for those
// who write sources; the suite in settletest holds one to every rule below.
type Source interface {
	// Name tells the source from others in logs and errors, such as
	// `rabbit: queue "orders"`.
	Name() string

	// Open starts one session for the registration. It refuses with a
	// [*ConfigError] what it cannot keep: that is final. Any other error is
	// tried again. Everything it started is gone when it returns an error. It
	// returns promptly when ctx ends; ctx is not the session's.
	//
	// The runtime has at most one session open a registration at a time, and
	// may open the same source for several registrations.
	Open(ctx context.Context, r Registration) (Consumer, error)
}

// Consumer is one open session. When it is lost the runtime closes it and opens
// another; a delivery belongs to the session that received it, for ever.
//
// Receive, Settle and Stop may be called at the same time; Close comes after
// every Receive and Settle has returned.
type Consumer interface {
	// Traits says what this session can do. It does not change.
	Traits() Traits

	// Receive waits for deliveries, fills buf from the start and returns how
	// many it wrote: at least one, unless it returns an error or ctx ends.
	// len(buf) is what the runtime can take now; a source that claims takes no
	// more than that. It is called by up to Traits.Receivers goroutines at
	// once. When ctx ends it returns at once what it has, possibly with
	// ctx.Err(); a delivery it returns in no buffer is given back at no cost
	// in attempts. A count above zero may come with an error.
	//
	// Errors: one that wraps [ErrSessionLost] ends the session and the runtime
	// opens another; a [*ConfigError] is final; after any other the runtime
	// calls Receive again, with backoff, on the same session.
	Receive(ctx context.Context, buf []*Delivery) (int, error)

	// Settle makes each verdict true and sets each Err, nil where the database
	// committed or the broker was told. It is called by up to Traits.Settlers
	// goroutines at once, never twice at once for one delivery, and never again
	// for one whose Err was nil, or wrapped ErrLeaseLost or ErrSessionLost.
	// After any other Err the runtime asks again later, with the same verdict
	// or with Release, unless the error is marked by [Permanent]: then the
	// delivery is left to the broker.
	//
	// Settle must not wait for what may never come, such as a blocked
	// connection: it sets an error and is asked again. It settles nothing for a
	// delivery that is no longer this session's. It does not keep batch. ctx
	// carries the deadline of this call and outlives Run's.
	Settle(ctx context.Context, batch []Settlement)

	// Stop ends intake: no delivery is claimed or taken from the broker any
	// more, those that Receive never returned are given back, and Receive
	// returns. Deliveries in work still settle. It is called at most once, and
	// not on a lost session.
	Stop(ctx context.Context) error

	// Close ends the session and leaves nothing behind. What is unsettled is
	// the broker's again. It returns by ctx's end at the latest.
	Close(ctx context.Context) error
}

// Registration is what one Handle call asked for, defaults filled in. The
// source puts it on the broker or refuses it.
type Registration struct {
	Workers     int           // handlers that run at once; at least 1
	Prefetch    int           // deliveries in this process at once; at least 1
	MaxAttempts int           // the cap; 0: none
	DeadLetter  string        // where dead letters go; empty: nowhere
	Batch       int           // the most deliveries a handler takes at once; 1 for a Handler
	BatchWait   time.Duration // how long a batch waits to fill
	Timeout     time.Duration // of a handler; 0: none

	// Logger is never nil.
	Logger *slog.Logger
	// Notify takes what the source has to tell. It does not block and may be
	// called by any goroutine, Close included, until Close returns.
	// [NoticeLeaseLost] ends the context of the delivery's handler. [NoticeLost]
	// ends the session, as a Receive that returns its Err does: while the
	// prefetch is full no Receive is under way that could tell.
	Notify func(Notice)
}

// Traits are what a session can do. The zero value is a source that knows the
// attempt and leaves delays to the runtime, with one receiver and one settler.
type Traits struct {
	// Receivers and Settlers are how many calls of Receive and of Settle may
	// run at once. 0 means 1.
	Receivers, Settlers int
	// MaxReceive and MaxSettle bound what one call is asked for. 0 means 512.
	MaxReceive, MaxSettle int
	// Prefetch bounds the deliveries in work below what the registration asked
	// for; a source that claims for the free workers alone sets it to Workers
	// times Batch. 0: no bound.
	Prefetch int
	// Whole says that what one Receive returned goes to one worker and settles
	// in one Settle call: the rows of one transaction.
	Whole bool
	// Delay says who waits out a RetryAfter.
	Delay DelayPlace
	// LongestDelay is the delay at which, and over which, a message is retried
	// without it. 0: any delay can be kept. Where the runtime waits, the time
	// since the delivery was received counts towards it.
	LongestDelay time.Duration
	// MaxHeld is how many deliveries the runtime may hold beside those in work
	// before holds take the place of new deliveries. 0 means the prefetch.
	MaxHeld int
	// AttemptUnknown says that Delivery.Attempt is 0 on this source. A source
	// refuses a cap then.
	AttemptUnknown bool
}

// DelayPlace says who waits out a RetryAfter.
type DelayPlace uint8

// The places a delay can be waited out.
const (
	// DelayInProcess: the runtime holds the delivery unsettled, then asks for a plain retry.
	DelayInProcess DelayPlace = iota
	// DelayBySource: the source is asked for a retry with a delay at once.
	DelayBySource
	// NoDelay: the place cannot wait; the message is retried at once.
	NoDelay
)

// Action is what a settler does with one delivery.
type Action uint8

// The actions. Every source makes all of them true.
const (
	// ActionAck ends the message: processed.
	ActionAck Action = iota + 1
	// ActionDrop ends the message: not wanted.
	ActionDrop
	// ActionRetry brings the message back as its next attempt, after
	// Verdict.Delay where the source waits.
	ActionRetry
	// ActionDeadLetter moves the message to the registration's dead letter; the
	// original goes only when the copy is safe. Without a dead letter it is a
	// drop.
	ActionDeadLetter
	// ActionRelease gives the message back as if it had never been received, at
	// no cost in attempts where the broker allows that.
	ActionRelease
)

var actionWords = [...]string{
	ActionAck: "ack", ActionDrop: "drop", ActionRetry: "retry", ActionDeadLetter: "dead-letter", ActionRelease: "release",
}

func (a Action) String() string {
	if int(a) < len(actionWords) && actionWords[a] != "" {
		return actionWords[a]
	}
	return fmt.Sprintf("action %d", uint8(a))
}

// Verdict is what the runtime asks of a settler, after the cap and the delay.
type Verdict struct {
	Action Action
	Delay  time.Duration // for ActionRetry where Traits.Delay is DelayBySource
	Cause  error         // why; may be nil
}

// Settlement is one delivery to settle and, afterwards, how that went.
type Settlement struct {
	Delivery *Delivery
	Verdict  Verdict
	Err      error // set by Settle
}
