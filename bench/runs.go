package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/settlemq/settle"
)

// This file is the runs of a settle.Runtime that every part measures.

// runtimeRun is a run of a settle.Runtime that acknowledges n messages.
func runtimeRun(n int, source settle.Source, options settle.Options, end func()) run {
	if options.BatchSize == 0 {
		return handlerRun(n, source, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }, options, end)
	}
	return untilAcknowledged(n, func(rt *settle.Runtime) {
		rt.HandleBatch(source, func(_ context.Context, batch []*settle.Delivery) []settle.Outcome {
			outcomes := make([]settle.Outcome, len(batch))
			for i := range outcomes {
				outcomes[i] = settle.Ack()
			}
			return outcomes
		}, options)
	}, end)
}

// handlerRun is a run of a settle.Runtime until n messages are acknowledged.
func handlerRun(n int, source settle.Source, handler settle.Handler, options settle.Options, end func()) run {
	return untilAcknowledged(n, func(rt *settle.Runtime) { rt.Handle(source, handler, options) }, end)
}

// untilAcknowledged is a run of a settle.Runtime until n messages are acknowledged.
func untilAcknowledged(n int, register func(*settle.Runtime), end func()) run {
	return run{
		do: func(ctx context.Context) error {
			counter := &acknowledged{left: int64(n), all: make(chan struct{})}
			rt := settle.Runtime{Logger: slog.New(slog.DiscardHandler), Observer: counter}
			register(&rt)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			go func() {
				select {
				case <-counter.all:
				case <-ctx.Done():
				}
				cancel()
			}()
			if err := rt.Run(ctx); err != nil {
				return err
			}
			if left := atomic.LoadInt64(&counter.left); left > 0 {
				return fmt.Errorf("%d messages were not settled", left)
			}
			return nil
		},
		end: end,
	}
}

// plainRun is a run that acknowledges all n messages there are, beside a loop that is told of nothing:
// the handler counts instead of an Observer, for which the runtime would read the clock twice a
// message. Run returns when what was handled is settled.
func plainRun(n int, source settle.Source, options settle.Options, end func()) run {
	return run{
		do: func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			left := int64(n)
			rt := settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
			rt.Handle(source, func(context.Context, *settle.Delivery) settle.Outcome {
				if atomic.AddInt64(&left, -1) == 0 {
					cancel()
				}
				return settle.Ack()
			}, options)
			if err := rt.Run(ctx); err != nil {
				return err
			}
			if left := atomic.LoadInt64(&left); left != 0 {
				return fmt.Errorf("%d messages were not handled", left)
			}
			return nil
		},
		end: end,
	}
}

// acknowledged counts settled deliveries: a contestant is done when all are.
type acknowledged struct {
	left int64
	all  chan struct{}
}

func (a *acknowledged) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }
func (a *acknowledged) Noticed(settle.Notice)                                            {}
func (a *acknowledged) Settled(_ context.Context, s settle.Settled) {
	if s.Err == nil && s.Verdict.Action == settle.ActionAck && atomic.AddInt64(&a.left, -1) == 0 {
		close(a.all)
	}
}
