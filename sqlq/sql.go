package sqlq

import (
	"context"
	"fmt"
	"strings"

	"github.com/settlemq/settle"
)

// SQL returns every statement that a consumer of the queue with these options
// runs, and that Publish runs, for those who want to read or explain them: one
// after the other, each under a comment with its name and its parameters in the order
// of their placeholders. It reads the table's columns.
func (q *Queue) SQL(ctx context.Context, o settle.Options) (string, error) {
	if q.invalid != nil {
		return "", q.invalid
	}
	r := settle.Registration{MaxAttempts: o.MaxAttempts, DeadLetter: o.DeadLetter, Batch: max(1, o.BatchSize)}
	if err := q.checkCap(r); err != nil {
		return "", err
	}
	l, err := q.layout(ctx, r)
	if err != nil {
		return "", err
	}
	t, err := build(l, r.Batch, q.name)
	if err != nil {
		return "", err
	}
	in, err := q.prepare(ctx, q.db.DB)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	write := func(name string, all ...*statement) {
		for _, s := range all {
			if s == nil {
				continue
			}
			fmt.Fprintf(&out, "-- %s", name)
			for _, p := range s.params {
				fmt.Fprintf(&out, " :%s", paramNames[p])
			}
			fmt.Fprintf(&out, "\n%s;\n\n", s.sql)
		}
	}
	write("publish", in.plain)
	write("publish with an id", in.byID)
	write("due", t.due)
	write("guard", t.guard)
	write("claim", t.claim)
	write("claim of a full batch", t.claimFull)
	write("claim again", t.second)
	write("mark", t.mark)
	write("unguard", t.unguard)
	write("candidates", t.candidates, t.seize)
	write("locks", t.busy)
	write("take", t.take, t.takeAll)
	write("unlock", t.unlock)
	write("lock again", t.relock)
	write("count", t.count)
	write("renew", t.renew)
	write("renew many", t.renewMany)
	write("holding", t.holding, t.holdingLong)
	for e := range eventCount {
		if e == eventDeadLetter && r.DeadLetter == "" {
			continue
		}
		write(strings.ToLower(eventNames[e]), t.events[e]...)
		write(strings.ToLower(eventNames[e])+" many", t.many[e])
	}
	write("confirm", t.confirm)
	write("committed", t.committed)
	return out.String(), nil
}
