package settlemem_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settlemem"
)

var errTest = errors.New("an error of the test")

// run starts a runtime with one handler that ends with the test.
func run(t *testing.T, queue *settlemem.Queue, h settle.Handler, o settle.Options) {
	t.Helper()
	rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	rt.Handle(queue, h, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
}

// Under a fake clock an hour of waiting takes no time, whoever waits.
func TestDelaysUnderAFakeClock(t *testing.T) {
	for _, place := range []settle.DelayPlace{settle.DelayInProcess, settle.DelayBySource} {
		synctest.Test(t, func(t *testing.T) {
			broker := &settlemem.Broker{Delay: place}
			queue := broker.Queue("queue")
			begin := time.Now()
			var at []time.Duration
			run(t, queue, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				at = append(at, time.Since(begin))
				if d.Attempt < 3 {
					return settle.RetryAfter(time.Hour, errTest)
				}
				return settle.Ack()
			}, settle.Options{})
			require.NoError(t, queue.Publish(t.Context(), settle.Message{Delay: time.Minute}))
			require.NoError(t, queue.WaitEmpty(t.Context()))
			assert.Equal(t, []time.Duration{time.Minute, time.Minute + time.Hour, time.Minute + 2*time.Hour}, at)
		})
	}
}

func TestPriorities(t *testing.T) {
	var broker settlemem.Broker
	queue := broker.Queue("queue")
	var got string
	for i, priority := range []int{0, 5, -1, 5, 2} {
		require.NoError(t, queue.Publish(t.Context(), settle.Message{Priority: priority, Body: []byte{byte('a' + i)}}))
	}
	for _, m := range queue.Messages() {
		got += string(m.Body)
	}
	assert.Equal(t, "bdeac", got)
	got = ""
	run(t, queue, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		got += string(d.Body)
		return settle.Ack()
	}, settle.Options{})
	require.NoError(t, queue.WaitEmpty(t.Context()))
	assert.Equal(t, "bdeac", got)
}

func TestDeadLettersTellWhy(t *testing.T) {
	var broker settlemem.Broker
	queue := broker.Queue("queue")
	run(t, queue, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Retry(errTest) },
		settle.Options{MaxAttempts: 3, DeadLetter: "dead"})
	require.NoError(t, queue.Publish(t.Context(), settle.Message{ID: "1", Body: []byte("body"), Headers: settle.Headers{"mine": "kept"}}))
	require.NoError(t, queue.WaitEmpty(t.Context()))
	dead := broker.Queue("dead").Messages()
	require.Len(t, dead, 1)
	assert.Equal(t, settle.Message{ID: "1", Body: []byte("body"), Headers: settle.Headers{
		"mine": "kept", settle.HeaderDeadCause: errTest.Error(), settle.HeaderDeadAttempt: "3", settle.HeaderDeadSource: queue.Name(),
	}}, dead[0])
}

// What a drain gives back comes again in the order it had.
func TestReleasedMessagesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broker settlemem.Broker
		queue := broker.Queue("queue")
		for i := range 5 {
			require.NoError(t, queue.Publish(t.Context(), settle.Message{ID: fmt.Sprint(i)}))
		}
		rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
		rt.Handle(queue, func(context.Context, *settle.Delivery) settle.Outcome {
			time.Sleep(time.Second)
			return settle.Ack()
		}, settle.Options{})
		done := make(chan error, 1)
		go func() { done <- rt.Run(t.Context()) }()
		synctest.Wait()
		require.NoError(t, rt.Shutdown(t.Context()))
		require.NoError(t, <-done)
		var ids []string
		for _, m := range queue.Messages() {
			ids = append(ids, m.ID)
		}
		assert.Equal(t, []string{"1", "2", "3", "4"}, ids)
	})
}

func TestPublishToAnotherQueue(t *testing.T) {
	var broker settlemem.Broker
	require.NoError(t, broker.Queue("a").Publish(t.Context(), settle.Message{To: "b"}))
	assert.Equal(t, 0, broker.Queue("a").Len())
	assert.Equal(t, 1, broker.Queue("b").Len())
}

func TestWaitEmptyTellsWhatIsLeft(t *testing.T) {
	var broker settlemem.Broker
	queue := broker.Queue("queue")
	require.NoError(t, queue.Publish(t.Context(), settle.Message{}, settle.Message{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := queue.WaitEmpty(ctx)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, `queue "queue" still has 2 messages`)
}

func TestItselfAsItsDeadLetterIsRefused(t *testing.T) {
	var broker settlemem.Broker
	rt := &settle.Runtime{}
	rt.Handle(broker.Queue("queue"), func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() },
		settle.Options{MaxAttempts: 1, DeadLetter: "queue"})
	var config *settle.ConfigError
	require.ErrorAs(t, rt.Run(t.Context()), &config)
	assert.Equal(t, "DeadLetter", config.Setting)
}

// A test of a service: publish, wait, look.
func ExampleBroker() {
	var broker settlemem.Broker
	emails := broker.Queue("emails")
	rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	rt.Handle(emails, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		return settle.DeadLetter(errors.New("no such mailbox"))
	}, settle.Options{DeadLetter: "emails.dead"})
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	go rt.Run(ctx)

	_ = emails.Publish(ctx, settle.Message{Body: []byte("hello")})
	_ = emails.WaitEmpty(ctx)
	for _, m := range broker.Queue("emails.dead").Messages() {
		fmt.Printf("%s: %s\n", m.Body, m.Headers.Get(settle.HeaderDeadCause))
	}
	_ = rt.Shutdown(ctx)
	// Output: hello: no such mailbox
}
