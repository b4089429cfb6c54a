// Package settletest is the contract of package settle as a test suite. Who
// writes a [settle.Source] describes it with a [Fixture] and calls [Run] from a
// test; every rule that the source breaks fails in a subtest of its own, with
// the rule in words.
//
//	func TestContract(t *testing.T) {
//		settletest.Run(t, settletest.Fixture{New: newQueue})
//	}
package settletest

import (
	"context"
	"testing"
	"time"

	"github.com/settlemq/settle"
)

// Fixture is one broker in one configuration, as the suite needs it. Only New
// must be set; what else a broker cannot offer is left out and named in Gaps.
type Fixture struct {
	// New makes a fresh, empty queue for one case. It registers with t.Cleanup
	// what removes the queue again and closes all that New opened, idle HTTP
	// connections included: after the case no goroutine may be there that was
	// not before New. It ends the case with t.Fatal when it cannot make a queue.
	New func(t testing.TB, spec Spec) *Queue

	// Refused returns a source and options with a MaxAttempts that it cannot
	// keep, such as a table without an attempt column. Its Open must answer with
	// a [*settle.ConfigError]. Nil needs a gap at [RuleRefuse].
	Refused func(t testing.TB) (settle.Source, settle.Options)

	// Gaps says what this broker cannot do: rule by rule, the reason. Such a
	// rule is not run; each is listed in the output of the suite. A rule that
	// does not exist, and a gap without a reason, fail.
	Gaps map[Rule]string

	// Deadline is how long the suite waits for a thing that must happen, such as
	// a message that must come again. It bounds failures; a case that passes never
	// waits for it. It should be far above what the broker needs. Default 15 s.
	Deadline time.Duration

	// Delay is what the cases ask of RetryAfter. It should be well above the
	// precision of the broker's clock. Default 250 ms.
	Delay time.Duration
}

// Spec is what one case needs of its queue.
type Spec struct {
	// MaxAttempts is the cap that the case registers with. 0: none.
	MaxAttempts int
	// DeadLetter asks for a dead letter. It comes with a cap, but for two
	// cases: [RuleCapNowhere] has a cap alone, which the source may refuse at
	// Open; and where RuleCap is a gap, the cases of dead letters go without one.
	DeadLetter bool
	// Delay is the longest delay the case asks for. 0: none.
	Delay time.Duration
	// Batch is the BatchSize of a case that uses HandleBatch; else 1.
	Batch int
}

// Queue is what New made: a queue, the source that consumes it, and what the
// suite does to it from outside. Publish, Remaining and DeadLetters may be called
// while a consumer is open.
type Queue struct {
	// Source consumes the queue. The suite may open it again after it closed.
	Source settle.Source
	// DeadLetter is the value for Options.DeadLetter; empty where Spec asked for none.
	DeadLetter string

	// Publish puts messages into the queue, in order, as a [settle.Publisher]
	// does, also before Source was first opened and after Sever. The suite sets
	// Body alone, and tells messages apart by it: a short JSON string, but for
	// the case of [RuleBodies]. It sets Headers, text values only, in the cases
	// of [RuleHeaders] and [RuleDeadLetterHeaders].
	Publish func(ctx context.Context, msgs ...settle.Message) error

	// Remaining counts what is still in the queue: waiting, delayed, or with a
	// consumer and unsettled. It must be exact once no consumer is open; the
	// suite asks again while it may lag. Nil, where the broker cannot tell: the
	// suite then sends a last message through the queue and looks at what comes before it.
	Remaining func(ctx context.Context) (int, error)

	// DeadLetters returns every dead letter of this queue so far, in any order;
	// a fixture that has to take them out keeps them. Nil needs gaps at the
	// rules that read dead letters.
	DeadLetters func(ctx context.Context) ([]DeadLetter, error)

	// Sever takes what is in work away from the consumer, as a broken connection
	// or an ended lease does, and returns when that is done. The broker delivers
	// it again. Nil needs gaps at the rules of severed sessions.
	Sever func(ctx context.Context) error

	// PublishAttempt publishes a message whose next delivery has the given
	// Attempt, 2 or more. Nil needs a gap at [RulePastCap].
	PublishAttempt func(ctx context.Context, attempt int, m settle.Message) error

	// Second consumes the same queue and shares nothing with Source, as another
	// process would. Nil needs a gap at [RuleTwoConsumers].
	Second settle.Source
}

// DeadLetter is one message as it was found at its dead letter.
type DeadLetter struct {
	Body    []byte
	Headers settle.Headers
	Attempt int    // of the delivery that failed; 0 where the broker does not carry it
	Cause   string // why; empty where the broker does not carry it
}
