package settletest

// Rule is one thing that every source keeps, by its name. The name is that of
// the rule's subtest, so `go test -run TestContract/cap$` runs one.
type Rule string

// The rules. Those that a broker cannot keep stand in Fixture.Gaps.
const (
	RuleAck               Rule = "ack"
	RuleDrop              Rule = "drop"
	RuleRetry             Rule = "retry"
	RuleNoOutcome         Rule = "no-outcome"
	RuleBodies            Rule = "bodies"
	RuleHeaders           Rule = "headers"
	RuleDeadLetter        Rule = "dead-letter"
	RuleDeadLetterHeaders Rule = "dead-letter-headers"
	RuleDeadLetterNowhere Rule = "dead-letter-nowhere"
	RuleAttempt           Rule = "attempt"
	RuleFinal             Rule = "final"
	RuleCap               Rule = "cap"
	RuleCapOne            Rule = "cap-one"
	RulePastCap           Rule = "past-cap"
	RuleCapNowhere        Rule = "cap-nowhere"
	RuleRefuse            Rule = "refuse"
	RuleDelay             Rule = "delay"
	RuleDelayCap          Rule = "delay-cap"
	RuleDelayTooLong      Rule = "delay-too-long"
	RuleBatch             Rule = "batch"
	RuleBatchLength       Rule = "batch-length"
	RuleBatchPanic        Rule = "batch-panic"
	RulePanic             Rule = "panic"
	RuleGoexit            Rule = "goexit"
	RuleTimeout           Rule = "timeout"
	RuleOneSettlement     Rule = "one-settlement"
	RuleTwoConsumers      Rule = "two-consumers"
	RuleWorkers           Rule = "workers"
	RulePrefetch          Rule = "prefetch"
	RuleSlowHandler       Rule = "slow-handler"
	RuleLanes             Rule = "lanes"
	RuleDrainInFlight     Rule = "drain-in-flight"
	RuleDrainUnstarted    Rule = "drain-unstarted"
	RuleDrainHolds        Rule = "drain-holds"
	RuleDrainOverstay     Rule = "drain-overstay"
	RuleRunOnce           Rule = "run-once"
	RuleShutdownTwice     Rule = "shutdown-twice"
	RuleSever             Rule = "sever"
	RuleSeverContext      Rule = "sever-context"
	RuleSeverAttempt      Rule = "sever-attempt"
	RuleReopen            Rule = "reopen"
	RuleOpenEnds          Rule = "open-ends"
	RuleReceiveEnds       Rule = "receive-ends"
	RuleReceiveRoom       Rule = "receive-room"
	RuleSettleEach        Rule = "settle-each"
	RuleSettleAgain       Rule = "settle-again"
	RuleSettleClosed      Rule = "settle-closed"
	RuleSettleForeign     Rule = "settle-foreign"
	RuleRelease           Rule = "release"
	RuleReleaseFree       Rule = "release-free"
	RuleStop              Rule = "stop"
	RuleClose             Rule = "close"
	RuleGoroutines        Rule = "goroutines"
)

// Rules returns every rule, in the order the suite runs them.
func Rules() []Rule {
	all := make([]Rule, len(rules))
	for i, r := range rules {
		all[i] = r.rule
	}
	return all
}

// Sentence returns the rule in words; empty for a rule that does not exist.
func (r Rule) Sentence() string {
	for _, known := range rules {
		if known.rule == r {
			return known.sentence
		}
	}
	return ""
}

var rules = []struct {
	rule     Rule
	sentence string
}{
	{RuleAck, "a message that was acknowledged is gone and never comes again"},
	{RuleDrop, "a message that was dropped is gone and never comes again"},
	{RuleRetry, "a message that is to be retried comes again with the same body and ID, and nothing else does"},
	{RuleNoOutcome, "a handler that decides nothing has failed: the message comes again, with ErrNoOutcome as the cause"},
	{RuleBodies, "a body of any bytes, also of none, arrives as it was published, every time the message comes and at the dead letter"},
	{RuleHeaders, "a delivery has the headers that were published, every time it comes"},
	{RuleDeadLetter, "a dead-lettered message goes to its dead letter at once, whatever its attempt, exactly once and with its body"},
	{RuleDeadLetterHeaders, "a dead letter keeps the headers of its message"},
	{RuleDeadLetterNowhere, "without a dead letter, dead-lettering a message drops it"},
	{RuleAttempt, "the attempt is 1 on the first delivery and one more after each failure"},
	{RuleFinal, "Final says that a failure of this attempt dead-letters the message, and only then"},
	{RuleCap, "with MaxAttempts n a message that always fails is handled n times, the first delivery counted, and is then dead-lettered"},
	{RuleCapOne, "with MaxAttempts 1 the first failure dead-letters the message"},
	{RulePastCap, "a message that is past its cap when it arrives is dead-lettered without its handler"},
	{RuleCapNowhere, "a cap without a dead letter is refused with a ConfigError, or the message is dropped at the cap"},
	{RuleRefuse, "a cap that the source cannot keep is refused at Open with a ConfigError that names the setting"},
	{RuleDelay, "a message that is to be retried after d does not come before d, and comes as its next attempt"},
	{RuleDelayCap, "a delayed retry at the cap dead-letters the message without the wait"},
	{RuleDelayTooLong, "a delay that the place cannot wait is told as NoticeDelayTooLong, and the message comes again at once"},
	{RuleBatch, "each delivery of a batch gets its own outcome"},
	{RuleBatchLength, "a batch handler that returns the wrong number of outcomes has failed for the whole batch"},
	{RuleBatchPanic, "a batch handler that panics has failed for the whole batch"},
	{RulePanic, "a handler that panics has failed: the message comes again, and the others go on"},
	{RuleGoexit, "a handler that ends its goroutine has failed: the message comes again, and the others go on"},
	{RuleTimeout, "a handler's context ends at Options.Timeout with ErrTimeout, and its outcome still counts"},
	{RuleOneSettlement, "whatever workers, outcomes and a drain do at the same time, each message is settled exactly once and none is lost"},
	{RuleTwoConsumers, "two processes that consume one queue settle each message exactly once, and lose none"},
	{RuleWorkers, "handlers run side by side, and never more of them than Options.Workers"},
	{RulePrefetch, "no more than Options.Prefetch deliveries are in work at once"},
	{RuleSlowHandler, "a slow handler does not hold up the others"},
	{RuleLanes, "the deliveries of one lane are handled one at a time and in order; other lanes go on beside it"},
	{RuleDrainInFlight, "at the end a handler under way finishes and its outcome is made true"},
	{RuleDrainUnstarted, "at the end what no handler has started goes back to the queue"},
	{RuleDrainHolds, "at the end a message that waits for its delay is not lost, and it comes again"},
	{RuleDrainOverstay, "a handler that overstays the drain is told so by its context; its message comes again and Run returns a DrainError"},
	{RuleRunOnce, "Run returns ErrRunning when the runtime runs or has run"},
	{RuleShutdownTwice, "Shutdown ends Run and may be called again"},
	{RuleSever, "a delivery whose session or lease is lost settles with ErrSessionLost or ErrLeaseLost, and the message comes again"},
	{RuleSeverContext, "the context of a handler whose session or lease is lost ends with that cause"},
	{RuleSeverAttempt, "the attempt does not go back when a session is lost"},
	{RuleReopen, "after a lost session work goes on by itself: what was in the queue and what is published later is handled"},
	{RuleOpenEnds, "Open returns promptly when its context has ended, and leaves nothing behind"},
	{RuleReceiveEnds, "Receive returns promptly when its context ends, and loses nothing by that"},
	{RuleReceiveRoom, "Receive returns at least one delivery and no more than the buffer takes, until its context ends or Stop is called"},
	{RuleSettleEach, "Settle sets the error of every settlement and makes each verdict true, mixed as they come"},
	{RuleSettleAgain, "settling a delivery a second time fails with ErrLeaseLost or ErrSessionLost and settles nothing"},
	{RuleSettleClosed, "settling after Close fails with ErrLeaseLost or ErrSessionLost and settles nothing"},
	{RuleSettleForeign, "a delivery of another session settles nothing and fails with ErrLeaseLost or ErrSessionLost"},
	{RuleRelease, "a released delivery comes again at once"},
	{RuleReleaseFree, "a delivery that goes back without its handler, released or at the end of a drain, costs no attempt"},
	{RuleStop, "Stop ends intake, gives back what was never received and lets deliveries in work settle"},
	{RuleClose, "Close returns, and what was unsettled is the broker's again"},
	{RuleGoroutines, "no goroutine is left behind"},
}
