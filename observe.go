package settle

import (
	"context"
	"fmt"
	"time"
)

// Observer is told what the runtime does. Its methods are called on the
// runtime's own goroutines, several at once, so they must be quick, must not
// block and must not call the runtime. A nil Observer costs nothing.
type Observer interface {
	// Received is called before the handler. The context it returns, made from
	// ctx, is the handler's (for a batch: each delivery's own, see
	// [Delivery.Context]) and comes back in Settled.
	Received(ctx context.Context, d *Delivery) context.Context
	// Settled is called once a delivery, when its settlement has ended: with a
	// nil Err when it is settled, else with the reason why it is not.
	Settled(ctx context.Context, s Settled)
	// Noticed is called for what is not about one settlement.
	Noticed(n Notice)
}

// Settled is how one delivery ended.
type Settled struct {
	Source   string
	Delivery *Delivery
	Verdict  Verdict       // what the settler was asked for
	Duration time.Duration // the handler's; zero where no handler was called
	Err      error         // nil: settled; else why not
}

// NoticeKind is what a [Notice] tells.
type NoticeKind uint8

// The kinds of notice.
const (
	NoticeOpened        NoticeKind = iota + 1 // a session is open
	NoticeLost                                // a session ended; Err says why
	NoticeReopening                           // an attempt to open failed with Err; another follows
	NoticeFailed                              // the source cannot go on: Err is final
	NoticeReceiveFailed                       // a receive failed with Err on a session that lives
	NoticeSettleFailed                        // a settlement failed with Err and is tried again
	NoticeBlocked                             // the broker takes no messages now
	NoticeUnblocked                           // it takes them again
	NoticeLeaseLost                           // Delivery is no longer ours
	NoticeDelayTooLong                        // Delivery asked for Delay, which its place cannot wait
	NoticeHoldsFull                           // intake pauses: as many deliveries as may be held are
	NoticeHoldsLost                           // a wait in the process ended early, with its session
	NoticeWeakened                            // the broker or table keeps less than was asked; Err says what
	NoticeDrained                             // intake ended and all work is settled or given back
)

var noticeWords = [...]string{
	NoticeOpened: "opened", NoticeLost: "lost", NoticeReopening: "reopening", NoticeFailed: "failed",
	NoticeReceiveFailed: "receive failed", NoticeSettleFailed: "settle failed",
	NoticeBlocked: "blocked", NoticeUnblocked: "unblocked", NoticeLeaseLost: "lease lost",
	NoticeDelayTooLong: "delay too long", NoticeHoldsFull: "holds full", NoticeHoldsLost: "holds lost",
	NoticeWeakened: "weakened", NoticeDrained: "drained",
}

func (k NoticeKind) String() string {
	if int(k) < len(noticeWords) && noticeWords[k] != "" {
		return noticeWords[k]
	}
	return fmt.Sprintf("notice %d", uint8(k))
}

// Notice is something a source or the runtime has to tell.
type Notice struct {
	Kind     NoticeKind
	Source   string    // filled in by the runtime
	Delivery *Delivery // where the notice is about one
	Delay    time.Duration
	Err      error
}
