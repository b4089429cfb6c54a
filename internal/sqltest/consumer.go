// Package sqltest is what the tests of queue tables have in common, whichever the
// database: driving a consumer by hand, the fixture of the contract, golden files
// of the SQL, processes to kill, a count of what goes to the database. A
// database under test is its *sqlq.Database, as NewQueue takes it. Tests alone import it.
package sqltest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// Deadline bounds what must happen; no test that passes waits for it.
const Deadline = 30 * time.Second

// Quiet logs nothing.
var Quiet = slog.New(slog.DiscardHandler)

// The verdicts without a delay or a cause.
var (
	Ack     = settle.Verdict{Action: settle.ActionAck}
	Drop    = settle.Verdict{Action: settle.ActionDrop}
	Retry   = settle.Verdict{Action: settle.ActionRetry}
	Release = settle.Verdict{Action: settle.ActionRelease}
	Bury    = settle.Verdict{Action: settle.ActionDeadLetter}
)

// RetryAfter is a retry with a delay.
func RetryAfter(d time.Duration) settle.Verdict {
	return settle.Verdict{Action: settle.ActionRetry, Delay: d}
}

// Registration fills in what the runtime would.
func Registration(r settle.Registration) settle.Registration {
	r.Workers, r.Prefetch, r.Batch = max(r.Workers, 1), max(r.Prefetch, 1), max(r.Batch, 1)
	if r.Logger == nil {
		r.Logger = Quiet
	}
	if r.Notify == nil {
		r.Notify = func(settle.Notice) {}
	}
	return r
}

// Open opens a consumer for a test that drives it directly.
func Open(t testing.TB, q settle.Source, r settle.Registration) settle.Consumer {
	t.Helper()
	c, err := q.Open(t.Context(), Registration(r))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Deadline)
		defer cancel()
		require.NoError(t, c.Close(ctx))
	})
	return c
}

// Refusal opens a source that must refuse, and returns why it does.
func Refusal(t testing.TB, q settle.Source, r settle.Registration) *settle.ConfigError {
	t.Helper()
	c, err := q.Open(t.Context(), Registration(r))
	if err == nil {
		_ = c.Close(t.Context())
	}
	require.Error(t, err, "it is not refused")
	var config *settle.ConfigError
	require.True(t, errors.As(err, &config), "%v", err)
	dialect, _, _ := strings.Cut(q.Name(), ":")
	require.Contains(t, config.Source, dialect, "%v", err)
	require.NotEmpty(t, config.Setting, "%v", err)
	require.NotEmpty(t, config.Reason, "%v", err)
	require.NotEmpty(t, config.Fix, "%v", err)
	return config
}

// Weakened opens the source, with the options' cap and dead letter, and returns
// what it says is weaker than it should be.
func Weakened(t testing.TB, q settle.Source, o settle.Options) []string {
	t.Helper()
	var all []string
	c, err := q.Open(t.Context(), Registration(settle.Registration{MaxAttempts: o.MaxAttempts, DeadLetter: o.DeadLetter, Notify: func(n settle.Notice) {
		if n.Kind == settle.NoticeWeakened {
			all = append(all, n.Err.Error())
		}
	}}))
	require.NoError(t, err)
	require.NoError(t, c.Close(t.Context()))
	return all
}

// Receive takes up to n deliveries, and at least one.
func Receive(t testing.TB, c settle.Consumer, n int) []*settle.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Deadline)
	defer cancel()
	buf := make([]*settle.Delivery, n)
	got, err := c.Receive(ctx, buf)
	require.NoError(t, err)
	require.NotZero(t, got, "nothing came within %v", Deadline)
	return buf[:got]
}

// Nothing checks that there is nothing to receive now.
func Nothing(t testing.TB, c settle.Consumer, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	n, _ := c.Receive(ctx, make([]*settle.Delivery, 8))
	require.Zero(t, n, why)
}

// Settle settles one delivery and returns its error.
func Settle(c settle.Consumer, d *settle.Delivery, v settle.Verdict) error {
	return SettleAll(c, v, d)[0]
}

// SettleAll settles deliveries in one call and returns their errors.
func SettleAll(c settle.Consumer, v settle.Verdict, ds ...*settle.Delivery) []error {
	ctx, cancel := context.WithTimeout(context.Background(), Deadline)
	defer cancel()
	batch := make([]settle.Settlement, len(ds))
	for i, d := range ds {
		batch[i] = settle.Settlement{Delivery: d, Verdict: v}
	}
	c.Settle(ctx, batch)
	errs := make([]error, len(ds))
	for i := range batch {
		errs[i] = batch[i].Err
	}
	return errs
}

// Drain receives one at a time, acknowledges each, and returns the bodies in that order.
func Drain(t testing.TB, c settle.Consumer, n int) []string {
	t.Helper()
	var all []string
	for range n {
		d := Receive(t, c, 1)[0]
		all = append(all, string(d.Body))
		require.NoError(t, Settle(c, d, Ack))
	}
	return all
}

// Bodies are the deliveries' bodies as text.
func Bodies(ds []*settle.Delivery) []string {
	all := make([]string, len(ds))
	for i, d := range ds {
		all[i] = string(d.Body)
	}
	return all
}

// Serve runs what register registers until the returned function is called or the test ends.
func Serve(t testing.TB, register func(*settle.Runtime)) (stop func() error) {
	t.Helper()
	rt := &settle.Runtime{Logger: Quiet, DrainTimeout: 5 * time.Second}
	register(rt)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- rt.Run(ctx) }()
	var result error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-done
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}
