package settletest_test

import (
	"context"
	"testing"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settlemem"
	"github.com/settlemq/settle/settletest"
)

// What a test of a source looks like. It stands in a _test file as
// func TestContract(t *testing.T); the source here is that of settlemem.
func ExampleRun() {
	TestContract := func(t *testing.T) {
		settletest.Run(t, settletest.Fixture{
			New: func(_ testing.TB, spec settletest.Spec) *settletest.Queue {
				broker := new(settlemem.Broker)
				orders, dead := broker.Queue("orders"), broker.Queue("orders.dead")
				queue := &settletest.Queue{
					Source:    orders,
					Publish:   orders.Publish,
					Remaining: func(context.Context) (int, error) { return orders.Len(), nil },
					DeadLetters: func(context.Context) ([]settletest.DeadLetter, error) {
						var all []settletest.DeadLetter
						for _, m := range dead.Messages() {
							all = append(all, settletest.DeadLetter{Body: m.Body, Headers: m.Headers})
						}
						return all, nil
					},
					Sever: func(context.Context) error {
						broker.Sever()
						return nil
					},
				}
				if spec.DeadLetter {
					queue.DeadLetter = "orders.dead"
				}
				return queue
			},
			Refused: func(testing.TB) (settle.Source, settle.Options) {
				return new(settlemem.Broker).Queue("orders"), settle.Options{MaxAttempts: 3, DeadLetter: "orders"}
			},
			Gaps: map[settletest.Rule]string{
				settletest.RulePastCap:      "this example leaves PublishAttempt out",
				settletest.RuleTwoConsumers: "this example leaves Second out",
			},
		})
	}
	_ = TestContract
}
