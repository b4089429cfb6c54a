package settlemem_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settlemem"
	"github.com/settlemq/settle/settletest"
)

// The broker is held to the contract with both places that wait out a delay,
// and with a delay that is too long.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		name   string
		broker func() *settlemem.Broker
	}{
		{"the process waits", func() *settlemem.Broker { return &settlemem.Broker{} }},
		{"the broker waits", func() *settlemem.Broker { return &settlemem.Broker{Delay: settle.DelayBySource} }},
		{"an hour at most", func() *settlemem.Broker { return &settlemem.Broker{LongestDelay: time.Hour} }},
	} {
		t.Run(c.name, func(t *testing.T) { settletest.Run(t, fixture(c.broker)) })
	}
}

func fixture(newBroker func() *settlemem.Broker) settletest.Fixture {
	return settletest.Fixture{
		New: func(_ testing.TB, spec settletest.Spec) *settletest.Queue {
			broker := newBroker()
			queue := broker.Queue("orders")
			made := &settletest.Queue{
				Source:    queue,
				Publish:   queue.Publish,
				Remaining: func(context.Context) (int, error) { return queue.Len(), nil },
				Sever: func(context.Context) error {
					broker.Sever()
					return nil
				},
				PublishAttempt: func(_ context.Context, attempt int, m settle.Message) error {
					queue.PublishAttempt(attempt, m)
					return nil
				},
				Second: queue,
			}
			if spec.DeadLetter {
				made.DeadLetter = "orders.dead"
				made.DeadLetters = func(context.Context) ([]settletest.DeadLetter, error) {
					return deadLetters(broker.Queue("orders.dead")), nil
				}
			}
			return made
		},
		Refused: func(testing.TB) (settle.Source, settle.Options) {
			return newBroker().Queue("orders"), settle.Options{MaxAttempts: 3, DeadLetter: "orders"}
		},
	}
}

func deadLetters(q *settlemem.Queue) []settletest.DeadLetter {
	var all []settletest.DeadLetter
	for _, m := range q.Messages() {
		attempt, _ := strconv.Atoi(m.Headers.Get(settle.HeaderDeadAttempt))
		all = append(all, settletest.DeadLetter{
			Body: m.Body, Headers: m.Headers, Attempt: attempt, Cause: m.Headers.Get(settle.HeaderDeadCause),
		})
	}
	return all
}
