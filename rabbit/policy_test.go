package rabbit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle"
)

// The table of docs/rabbitmq.md: which frame makes which verdict true.
func TestFrames(t *testing.T) {
	registration := func(limit int, dead string) settle.Registration {
		return settle.Registration{MaxAttempts: limit, DeadLetter: dead, Prefetch: 1}
	}
	classic := func(limit int, dead string, d Delay) policy {
		s := settings{queue: "q", delay: d, reg: registration(limit, dead)}
		return s.policy()
	}
	quorum := func(limit int, dead string, d Delay) policy {
		s := settings{queue: "q", quorum: true, delay: d, reg: registration(limit, dead)}
		return s.policy()
	}
	ack := settle.Verdict{Action: settle.ActionAck}
	drop := settle.Verdict{Action: settle.ActionDrop}
	retry := settle.Verdict{Action: settle.ActionRetry}
	later := settle.Verdict{Action: settle.ActionRetry, Delay: time.Second}
	dead := settle.Verdict{Action: settle.ActionDeadLetter}
	release := settle.Verdict{Action: settle.ActionRelease}
	for _, c := range []struct {
		name    string
		policy  policy
		verdict settle.Verdict
		counts  counts
		want    frame
	}{
		{"classic: ack", classic(0, "", nil), ack, counts{}, frameAck},
		{"classic: drop", classic(0, "", nil), drop, counts{}, frameReject},
		{"classic: drop, dead letter", classic(5, "dead", nil), drop, counts{}, frameReject},
		{"classic: retry, no cap", classic(0, "", nil), retry, counts{}, frameRequeue},
		{"classic: retry, no cap, dead letter", classic(0, "dead", nil), retry, counts{}, frameRequeue},
		{"classic: retry, cap", classic(5, "", nil), retry, counts{}, frameCopy},
		{"classic: retry, no cap, wait queue", classic(0, "", WaitQueue{}), retry, counts{}, frameRequeue},
		{"classic: later, wait queue", classic(0, "", WaitQueue{}), later, counts{}, frameCopy},
		{"classic: later, exchange", classic(5, "", DelayedExchange{}), later, counts{}, frameCopy},
		{"classic: dead letter", classic(5, "dead", nil), dead, counts{header: 4}, frameCopy},
		{"classic: dead letter nowhere", classic(5, "", nil), dead, counts{header: 4}, frameReject},
		{"classic: release", classic(5, "dead", nil), release, counts{}, frameRelease},

		{"quorum: ack", quorum(0, "", nil), ack, counts{}, frameAck},
		{"quorum: drop", quorum(0, "", nil), drop, counts{}, frameReject},
		{"quorum: retry, no cap", quorum(0, "", nil), retry, counts{}, frameRequeue},
		{"quorum: retry, cap", quorum(5, "dead", nil), retry, counts{}, frameRequeue},
		{"quorum: later, wait queue", quorum(5, "dead", WaitQueue{}), later, counts{}, frameCopy},
		{"quorum: dead letter before the limit", quorum(5, "dead", nil), dead, counts{server: 3}, frameCopy},
		{"quorum: dead letter at the limit", quorum(5, "dead", nil), dead, counts{server: 4}, frameRequeue},
		{"quorum: dead letter at a limit of 0", quorum(1, "dead", nil), dead, counts{}, frameRequeue},
		{"quorum: dead letter by copies", quorum(5, "dead", nil), dead, counts{header: 4}, frameCopy},
		{"quorum: dead letter, no cap", quorum(0, "dead", nil), dead, counts{server: 9}, frameCopy},
		{"quorum: dead letter nowhere", quorum(5, "", nil), dead, counts{server: 4}, frameReject},
		{"quorum: release", quorum(5, "dead", nil), release, counts{}, frameRelease},
		{"no such verdict", quorum(5, "dead", nil), settle.Verdict{}, counts{}, frameNone},
	} {
		assert.Equal(t, c.want, c.policy.frame(c.verdict, &delivery{counts: c.counts}), c.name)
	}
}
