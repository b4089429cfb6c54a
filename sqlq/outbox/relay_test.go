package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq/outbox"
	"github.com/settlemq/settle/sqlq/sqlite"
)

// What is recorded in a transaction is sent as it was given once that commits, and never if it does not.
func TestWhatIsCommittedIsSentAndNothingElse(t *testing.T) {
	everyStore(t, func(t *testing.T, s store) {
		db, box, log := standard(t, s)
		tx, err := db.begin(context.Background())
		require.NoError(t, err)
		require.NoError(t, box.Record(context.Background(), tx, text("undone")))
		require.NoError(t, tx.rollback())

		full := settle.Message{
			ID: "m-1", To: "orders", Key: "customer", Body: []byte("full"), Priority: 7,
			Headers: settle.Headers{"tenant": "a", "count": int64(3), outbox.DefaultHeader: "of another"},
		}
		db.record(t, box, full, settle.Message{To: "plain", Body: []byte("plain")})
		p := &script{}
		start(t, &outbox.Relay{Box: box, Publisher: p})
		got := p.await(t, 2)

		assert.Equal(t, []string{"full", "plain"}, bodies(got))
		assert.NotEmpty(t, got[0].id)
		assert.NotEqual(t, "of another", got[0].id)
		full.Headers = settle.Headers{"tenant": "a", "count": int64(3), outbox.DefaultHeader: got[0].id}
		assert.Equal(t, full, got[0].Message)
		assert.Equal(t, settle.Message{
			ID: got[1].id, To: "plain", Body: []byte("plain"), Headers: settle.Headers{outbox.DefaultHeader: got[1].id},
		}, got[1].Message, "without an ID of its own it has the record's")
		require.Eventually(t, func() bool { return len(log.of(outbox.EventSent)) == 2 }, sqltest.Deadline, time.Millisecond)
		assert.Empty(t, log.log(), "there is nothing to complain about")
	})
}

// The publisher is for those without a transaction: it records all messages or none.
func TestThePublisherRecordsBeforeAnythingIsSent(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		_, box, _ := standard(t, s)
		require.NoError(t, box.Publisher().Publish(context.Background(), texts(3, "m")...))
		awaitCounts(t, box, outbox.Counts{Waiting: 3})

		bad := settle.Message{To: "orders", Headers: settle.Headers{"bytes": []byte{0xff}}}
		err := box.Publisher().Publish(context.Background(), text("good"), bad)
		require.ErrorContains(t, err, "message 1")
		assert.True(t, settle.IsPermanent(err))
		awaitCounts(t, box, outbox.Counts{Waiting: 3})

		p := &script{}
		start(t, &outbox.Relay{Box: box, Publisher: p})
		assert.Equal(t, []string{"m0", "m1", "m2"}, bodies(p.await(t, 3)))
		require.NoError(t, box.Publisher().Publish(context.Background(), text("late")))
		assert.Equal(t, "late", string(p.await(t, 4)[3].Body))
	})
}

// A relay in the same process does not wait for its next look at the table.
func TestTheRelayIsWokenByWhatIsRecordedHere(t *testing.T) {
	raw, err := sqlite.Open(filepath.Join(t.TempDir(), "outbox.db"), sqlite.Options{Poll: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, raw.Close()) })
	box := outbox.New(raw, outbox.Standard("outbox"), new(events).options())
	require.NoError(t, box.CreateTable(context.Background()))
	p := &script{}
	start(t, &outbox.Relay{Box: box, Publisher: p})
	for n := range 3 {
		require.NoError(t, box.Publisher().Publish(context.Background(), text("m")))
		p.await(t, n+1)
	}
}

// While consumers are down the copies stay few: each pause is twice the one before it, up to the longest.
func TestAConsumerThatIsDownIsNoStorm(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		const records, first, most = 20, 50 * time.Millisecond, 400 * time.Millisecond
		db, box, log := standard(t, s)
		db.record(t, box, texts(records, "m")...)
		p := &script{}
		stop := start(t, &outbox.Relay{Box: box, Publisher: p, Pause: first, MaxPause: most, MaxSends: 5})
		awaitCounts(t, box, outbox.Counts{SetAside: records})
		stop()

		sent := make(map[string][]time.Time)
		for _, c := range p.copies() {
			sent[c.id] = append(sent[c.id], c.at)
		}
		require.Len(t, sent, records)
		for id, at := range sent {
			require.Len(t, at, 5, "record %s is sent as often as the cap says", id)
			for i, pause := range []time.Duration{first, 2 * first, 4 * first, most} {
				assert.GreaterOrEqual(t, at[i+1].Sub(at[i]), pause, "record %s, pause %d", id, i+1)
			}
		}
		aside := log.of(outbox.EventSetAside)
		require.Len(t, aside, records)
		assert.Equal(t, 5, aside[0].Sends)
		assert.ErrorContains(t, aside[0].Err, "5 times to send, and nobody marked it")
	})
}

// What the publisher refuses for good is set aside with the reason at once, and
// the others go on, those of its key among them.
func TestWhatIsRefusedForGoodIsInNobodysWay(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		db, box, log := standard(t, s)
		p := &script{answer: func(m settle.Message) error {
			switch string(m.Body) {
			case "large":
				return settle.Permanent(errors.New("too large"))
			case "lost":
				return fmt.Errorf("no binding: %w", settle.ErrUnroutable)
			}
			return nil
		}}
		var msgs []settle.Message
		for _, body := range []string{"large", "a", "lost", "b"} {
			msgs = append(msgs, settle.Message{To: "orders", Key: "one", Body: []byte(body)})
		}
		db.record(t, box, msgs...)
		start(t, &outbox.Relay{Box: box, Publisher: p})
		assert.Equal(t, []string{"a", "b"}, bodies(p.await(t, 2)))
		awaitCounts(t, box, outbox.Counts{Waiting: 2, SetAside: 2})

		aside, err := box.SetAside(context.Background(), 10)
		require.NoError(t, err)
		require.Len(t, aside, 2)
		assert.Equal(t, "too large", aside[0].Reason)
		assert.Zero(t, aside[0].Sends)
		assert.Equal(t, "one", aside[0].Key)
		assert.Contains(t, aside[1].Reason, "could not be routed")
		assert.Len(t, log.of(outbox.EventSetAside), 2)
		assert.Contains(t, log.log(), "set aside")

		// Once its cause is gone a person sends it again.
		p.mu.Lock()
		p.answer = nil
		p.mu.Unlock()
		n, err := box.SendAgain(context.Background(), aside[1].ID)
		require.NoError(t, err)
		assert.EqualValues(t, 1, n)
		assert.Equal(t, "lost", string(p.await(t, 3)[2].Body))
		n, err = box.SendAgain(context.Background())
		require.NoError(t, err)
		assert.EqualValues(t, 1, n)
		assert.Equal(t, "large", string(p.await(t, 4)[3].Body))
	})
}

// A message that the broker refuses for now keeps its place: its key waits for it, other keys do not. At the cap it is set aside.
func TestWhatIsRefusedForNowKeepsItsPlace(t *testing.T) {
	everyStore(t, func(t *testing.T, s store) {
		db, box, log := standard(t, s)
		for key := range 3 {
			for i := range 4 {
				db.record(t, box, settle.Message{To: "orders", Key: fmt.Sprint(key), Body: fmt.Append(nil, key, "-", i)})
			}
		}
		refusals := map[string]int{"0-1": 2, "1-0": 1 << 20}
		tries := make(map[string][]time.Time)
		p := &script{answer: func(m settle.Message) error {
			if refusals[string(m.Body)] > 0 {
				refusals[string(m.Body)]--
				tries[string(m.Body)] = append(tries[string(m.Body)], time.Now())
				return errors.New("the queue is full")
			}
			return nil
		}}
		const lease = 500 * time.Millisecond // longer than a busy machine keeps a relay from its work
		stop := start(t, &outbox.Relay{Box: box, Publisher: p, Lease: lease, MaxSends: 3})
		got := p.await(t, 11)
		awaitCounts(t, box, outbox.Counts{Waiting: 11, SetAside: 1})
		byKey := make(map[string][]string)
		for _, c := range got {
			byKey[c.Key] = append(byKey[c.Key], string(c.Body))
		}
		assert.Equal(t, map[string][]string{
			"0": {"0-0", "0-1", "0-2", "0-3"},
			"1": {"1-1", "1-2", "1-3"},
			"2": {"2-0", "2-1", "2-2", "2-3"},
		}, byKey)
		stop()
		at := tries["1-0"]
		require.Len(t, at, 3)
		assert.GreaterOrEqual(t, at[1].Sub(at[0]), lease)
		assert.GreaterOrEqual(t, at[2].Sub(at[1]), 2*lease, "it asks ever less often")
		assert.Len(t, log.of(outbox.EventParked), 5)
		aside, err := box.SetAside(context.Background(), 1)
		require.NoError(t, err)
		assert.Equal(t, "it was tried 3 times; the last time: the queue is full", aside[0].Reason)
		assert.Equal(t, 3, aside[0].Sends)
	})
}

// A message that alone is not taken in time, or has nowhere to go, is refused like any other: the broker, which takes the rest, is not away.
func TestOneDestinationThatDoesNotAnswerIsInNobodysWay(t *testing.T) {
	for name, alone := range map[string]error{"late": context.DeadlineExceeded, "nowhere": &settle.ConfigError{Source: "pulsar", Reason: "no topic"}} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, s store) {
				db, box, log := standard(t, s)
				db.record(t, box, append(texts(20, "m"), text("alone"))...)
				p := &script{answer: func(m settle.Message) error {
					if string(m.Body) == "alone" {
						return alone
					}
					return nil
				}}
				start(t, &outbox.Relay{Box: box, Publisher: p, Lease: 2 * time.Second, MaxSends: 1})
				p.await(t, 20)
				assert.Empty(t, log.of(outbox.EventHeld))
				awaitCounts(t, box, outbox.Counts{Waiting: 20, SetAside: 1})
			})
		})
	}
}

// While the broker is away nothing is counted, nothing loses its place, and the relay asks ever less often.
func TestABrokerThatIsAwayCostsNothing(t *testing.T) {
	for name, away := range map[string]error{
		"blocked": fmt.Errorf("rabbit: %w", settle.ErrBlocked), "lost": settle.ErrSessionLost, "in time": context.DeadlineExceeded,
		"settings": &settle.ConfigError{Source: "rabbit", Reason: "no exchange"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, s store) {
				db, box, log := standard(t, s)
				var msgs []settle.Message
				for i := range 10 {
					msgs = append(msgs, settle.Message{To: "orders", Key: "one", Body: fmt.Append(nil, i)})
				}
				db.record(t, box, msgs...)
				var tries []time.Time
				p := &script{answer: func(settle.Message) error {
					if tries = append(tries, time.Now()); len(tries) <= 6 {
						return away
					}
					return nil
				}}
				start(t, &outbox.Relay{Box: box, Publisher: p, MaxSends: 1, MaxBackoff: 200 * time.Millisecond})
				got := p.await(t, 10)
				assert.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, bodies(got))
				assert.NotEmpty(t, log.of(outbox.EventHeld))
				for _, e := range log.of(outbox.EventSent) {
					assert.Equal(t, 1, e.Sends)
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				const least = 50 * time.Millisecond // between two tries of a lane, of which there are two
				assert.GreaterOrEqual(t, tries[6].Sub(tries[0]), 3*least)
			})
		})
	}
}

// By choice a record is done when the broker has it.
func TestOnConfirmARecordIsDoneWhenTheBrokerHasIt(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		for _, table := range []outbox.Table{outbox.Standard("outbox"), {Name: "bare", ID: "id", To: "name", Payload: "payload"}} {
			t.Run(table.Name, func(t *testing.T) {
				db, log := s.open(t), new(events)
				box := newBox(t, db, table, log)
				db.record(t, box, texts(30, "m")...)
				p := &script{answer: func(m settle.Message) error {
					if string(m.Body) == "m3" {
						return settle.Permanent(errBroken)
					}
					return nil
				}}
				start(t, &outbox.Relay{Box: box, Publisher: p, Done: outbox.OnConfirm, Pause: time.Millisecond, Batch: 7})
				awaitCounts(t, box, outbox.Counts{SetAside: 1})
				assert.Len(t, p.copies(), 29)
				n, err := box.Purge(context.Background(), 0)
				require.NoError(t, err)
				assert.EqualValues(t, 29, n, "all of them are marked")
			})
		}
	})
}

const leastBackoff = 50 * time.Millisecond

// Two relays share an outbox: each record is sent by one of them, those of a key in order.
func TestTwoRelaysKeepTheOrderOfEachKey(t *testing.T) {
	everyStore(t, func(t *testing.T, s store) {
		db, box, _ := standard(t, s)
		const keys, each = 5, 20
		tries := 0
		p := &script{answer: func(settle.Message) error {
			if tries++; tries%7 == 0 {
				return settle.ErrBlocked
			}
			return nil
		}}
		other := s.open(t)
		second := outbox.New(other, outbox.Standard("outbox"), new(events).options())
		start(t, &outbox.Relay{Box: box, Publisher: p, Batch: 10, MaxBackoff: leastBackoff})
		start(t, &outbox.Relay{Box: second, Publisher: p, Batch: 10, MaxBackoff: leastBackoff})
		for i := range each {
			for k := range keys {
				db.record(t, box, settle.Message{To: "orders", Key: fmt.Sprint(k), Body: fmt.Append(nil, i)})
			}
		}
		got := p.await(t, keys*each)
		byKey := make(map[string][]string)
		for _, c := range got {
			byKey[c.Key] = append(byKey[c.Key], string(c.Body))
		}
		var want []string
		for i := range each {
			want = append(want, fmt.Sprint(i))
		}
		require.Len(t, byKey, keys)
		for k, bodies := range byKey {
			assert.Equal(t, want, bodies, "key %s", k)
		}
	})
}

// A delay counts from the recording.
func TestADelayedRecordIsSentNoSooner(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		db, box, _ := standard(t, s)
		p := &script{}
		start(t, &outbox.Relay{Box: box, Publisher: p})
		began := time.Now()
		later := text("later")
		later.Delay = 300 * time.Millisecond
		db.record(t, box, later, text("now"))
		got := p.await(t, 2)
		assert.Equal(t, []string{"now", "later"}, bodies(got))
		assert.GreaterOrEqual(t, got[1].at.Sub(began), later.Delay)
		assert.Zero(t, got[1].Delay, "the broker is not asked for it again")
	})
}
