package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/rabbit"
	"github.com/settlemq/settle/sqlq/outbox"
)

// This file kills other processes with kill -9 at each gap of a record's way:
// recorded and not sent, sent and not marked as sent, handled and not marked, marked and not acknowledged.

// roles are what another process can be. Its arguments are those of [line.spawn].
var roles = map[string]func(args []string) error{
	"relay that never sends":        func(args []string) error { return childRelay(args, false) },
	"relay that never knows":        func(args []string) error { return childRelay(args, true) },
	"consumer that never marks":     func(args []string) error { return childConsumer(args, false) },
	"consumer that never ends that": func(args []string) error { return childConsumer(args, true) },
}

func (l *line) spawn(t *testing.T, role string) *sqltest.Process {
	t.Helper()
	return sqltest.Spawn(t, role, l.store.kind, l.store.url, l.server, l.queue)
}

// child opens what a line is made of, in another process.
func child(args []string) (*database, *rabbit.Broker, error) {
	db, err := connect(store{args[0], args[1]})
	if err != nil {
		return nil, nil, err
	}
	b, err := openBroker(args[2])
	return db, b, err
}

// stuck is a publisher that stops for ever before, or after, it sends.
type stuck struct {
	settle.Publisher
	after bool
}

func (s stuck) Publish(ctx context.Context, msgs ...settle.Message) error {
	if s.after {
		if err := s.Publisher.Publish(ctx, msgs...); err != nil {
			return err
		}
	}
	fmt.Println("here")
	select {}
}

func childRelay(args []string, after bool) error {
	db, b, err := child(args)
	if err != nil {
		return err
	}
	box := outbox.New(db, outbox.Standard("outbox"), outbox.Options{Logger: sqltest.Quiet})
	relay := outbox.Relay{Box: box, Publisher: stuck{&rabbit.Publisher{Broker: b}, after}, Lease: time.Second, PublishTimeout: time.Minute}
	return relay.Run(context.Background())
}

func childConsumer(args []string, marked bool) error {
	db, b, err := child(args)
	if err != nil {
		return err
	}
	here := func() {
		fmt.Println("here")
		select {}
	}
	o := outbox.Options{Logger: sqltest.Quiet}
	var after func()
	if marked {
		o.Observe = func(e outbox.Event) {
			if e.Kind == outbox.EventMarked {
				here()
			}
		}
	} else {
		after = here
	}
	box := outbox.New(db, outbox.Standard("outbox"), o)
	rt := &settle.Runtime{Logger: sqltest.Quiet}
	rt.Handle(&rabbit.ClassicQueue{Broker: b, Queue: args[3]}, handle(db, after), settle.Options{Middleware: []settle.Middleware{box.Middleware()}})
	return rt.Run(context.Background())
}

func TestAProcessIsKilledAtEachGap(t *testing.T) {
	t.Parallel()
	const records = 40
	for role, relays := range map[string]bool{
		"relay that never sends": false, "relay that never knows": false,
		"consumer that never marks": true, "consumer that never ends that": true,
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, s store) {
				l := newLine(t, s)
				l.record(t, 0, records)
				b := newBroker(t, l.server)
				if relays {
					l.relay(t, b)
				}
				p := l.spawn(t, role)
				require.Equal(t, []string{"here"}, p.Lines(1))
				p.Kill()
				if !relays {
					l.relay(t, b)
					require.Eventually(t, func() bool { return len(l.log.of(outbox.EventSent)) >= records }, sqltest.Deadline, 5*time.Millisecond)
				}
				l.consume(t, b, 1)
				l.allMarked(t, records)
				handled := sqltest.One[int](t, l.db.Database(), "SELECT count(*) FROM handled")
				switch role {
				case "consumer that never marks":
					assert.Equal(t, records+1, handled, "what was handled and not marked is handled once more, and nothing else")
				default:
					assert.Equal(t, records, handled, "copies are not handled again")
				}
				switch role {
				case "relay that never knows", "consumer that never ends that":
					require.Eventually(t, func() bool { return len(l.log.of(outbox.EventSkipped)) > 0 }, sqltest.Deadline, 5*time.Millisecond, "a copy came, and its handler was not called")
				}
			})
		})
	}
}
