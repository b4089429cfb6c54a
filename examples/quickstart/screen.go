package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq/sqlite"
)

// tally counts how deliveries end. It is a settle.Observer.
type tally struct{ delivered, retried, dead, unsettled atomic.Int64 }

// Received implements settle.Observer.
func (t *tally) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }

// Settled implements settle.Observer.
func (t *tally) Settled(_ context.Context, s settle.Settled) {
	switch {
	case s.Err != nil:
		t.unsettled.Add(1)
	case s.Verdict.Action == settle.ActionAck:
		t.delivered.Add(1)
	case s.Verdict.Action == settle.ActionRetry:
		t.retried.Add(1)
	case s.Verdict.Action == settle.ActionDeadLetter:
		t.dead.Add(1)
	}
}

// Noticed implements settle.Observer.
func (t *tally) Noticed(settle.Notice) {}

// watch shows the counts on a line that renews itself, until the queue is empty
// or ctx ends. On what is no terminal it writes a line now and then.
func watch(ctx context.Context, queue *sqlite.Queue, t *tally, lease time.Duration, out io.Writer) {
	live := isTerminal(out)
	every, looks := 200*time.Millisecond, 0
	ended, still := int64(-1), 0 // how many looks have seen nothing end
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		left, err := queue.Len(ctx)
		if err == nil {
			line := fmt.Sprintf("%4d waiting  %4d delivered  %4d retries  %4d dead letters", left, t.delivered.Load(), t.retried.Load(), t.dead.Load())
			if n := t.delivered.Load() + t.retried.Load() + t.dead.Load(); n != ended {
				ended, still = n, 0
			} else if still++; still > 5 {
				line += fmt.Sprintf("  (what a killed process had in work comes back within %v)", lease)
			}
			switch {
			case live:
				fmt.Fprintf(out, "\r%s\x1b[K", line)
			case looks%10 == 0 || left == 0:
				fmt.Fprintln(out, line)
			}
			looks++
			if left == 0 {
				break
			}
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	if live {
		fmt.Fprintln(out)
	}
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// summary prints what became of the webhooks, and where each dead letter is and
// why. It returns an error if some are left.
func (t *tally) summary(ctx context.Context, db *sqlite.DB, queue *sqlite.Queue, path string, kept bool, out io.Writer) error {
	left, err := queue.Len(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintf(out, "%-12s %6s\n", "outcome", "count")
	for _, row := range []struct {
		name  string
		count int64
	}{{"delivered", t.delivered.Load()}, {"retried", t.retried.Load()}, {"dead letter", t.dead.Load()}, {"still queued", int64(left)}} {
		fmt.Fprintf(out, "%-12s %6d\n", row.name, row.count)
	}

	rows, err := db.SQL().QueryContext(ctx, `SELECT id, attempt - 1, coalesce(cause, ''), payload FROM webhooks WHERE queue = ? ORDER BY id`, deadGroup)
	if err != nil {
		return err
	}
	defer rows.Close()
	header := false
	for rows.Next() {
		var id, attempts int64
		var cause string
		var body []byte
		if err := rows.Scan(&id, &attempts, &cause, &body); err != nil {
			return err
		}
		if !header {
			header = true
			fmt.Fprintf(out, "\ndead letters, in table webhooks, queue %q, of %s:\n", deadGroup, path)
			fmt.Fprintf(out, "%6s %8s  %-60s %s\n", "id", "attempts", "why", "event")
		}
		fmt.Fprintf(out, "%6d %8d  %-60s %s\n", id, attempts, cut(cause, 60), cut(string(body), 60))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	switch {
	case header && !kept:
		fmt.Fprintln(out, "\nThat file is temporary and goes now; -db FILE keeps it.")
	case header:
		fmt.Fprintf(out, "\nTo deliver them again: UPDATE webhooks SET queue = 'webhooks', attempt = 1, retry_after = 0 WHERE queue = '%s'; then run it once more.\n", deadGroup)
	}
	if left > 0 {
		again := "with -db FILE a second run would deliver them"
		if kept {
			again = "run it again to deliver them"
		}
		return errors.Join(context.Cause(ctx), fmt.Errorf("%d webhooks are still in the queue; %s", left, again))
	}
	return nil
}

// cut shortens text to one line of so many characters.
func cut(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}
