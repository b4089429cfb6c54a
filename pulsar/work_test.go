package pulsar

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// of makes deliveries of messages at the given entries.
func of(topic string, entries ...int64) (all []*delivery) {
	for _, entry := range entries {
		all = append(all, deliveryOf(&message{topic: topic, id: at(1, entry)}, 1))
	}
	return all
}

func (w *work) tryClaim(d *delivery) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claim(d)
}

func (w *work) tryLeave(d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave(d)
}

// taken admits deliveries and returns those that lost theirs by that.
func (w *work) taken(arrived ...*delivery) []*delivery {
	_, taken := w.admit(arrived)
	return taken
}

func TestTokenIsSpentOnce(t *testing.T) {
	w := newWork(0, nil)
	d := of("t", 1)[0]
	assert.Empty(t, w.taken(d))
	require.NoError(t, w.tryClaim(d))
	assert.ErrorIs(t, w.tryClaim(d), settle.ErrLeaseLost, "while another settler has it in hand")
	w.mu.Lock()
	w.putBack(d)
	w.mu.Unlock()
	require.NoError(t, w.tryClaim(d), "after it was put back")
	w.tryLeave(d)
	assert.ErrorIs(t, w.tryClaim(d), settle.ErrLeaseLost, "after it was settled")
	assert.Empty(t, slices.Collect(w.owners.all()))
}

// What a broker gives out again belongs to the newer delivery, whatever the
// reason; the older can settle nothing any more.
func TestNewerDeliveryKillsTheOlder(t *testing.T) {
	w := newWork(0, nil)
	old, other, newer := of("t", 1)[0], of("u", 1)[0], of("t", 1)[0]
	assert.Empty(t, w.taken(old, other), "another topic's message is another")
	assert.Equal(t, []*delivery{old}, w.taken(newer))
	assert.ErrorIs(t, w.tryClaim(old), settle.ErrLeaseLost)
	assert.NoError(t, w.tryClaim(other))
	assert.NoError(t, w.tryClaim(newer))
	w.tryLeave(old) // it must not take the newer one's place
	assert.Len(t, slices.Collect(w.owners.all()), 2)
}

func TestMessagesOfABatchAreApart(t *testing.T) {
	w := newWork(0, nil)
	first := deliveryOf(&message{topic: "t", id: client.NewMessageID(1, 1, 0, 0)}, 1)
	second := deliveryOf(&message{topic: "t", id: client.NewMessageID(1, 1, 1, 0)}, 1)
	assert.Empty(t, w.taken(first, second))
	w.tryLeave(first)
	assert.NoError(t, w.tryClaim(second))
}

func TestForfeitTakesOneTopicAway(t *testing.T) {
	w := newWork(time.Minute, nil)
	gone, kept := of("t", 1, 2), of("u", 1)
	w.admit(append(gone, kept...))
	assert.ElementsMatch(t, gone, w.forfeit("t"))
	assert.ErrorIs(t, w.tryClaim(gone[0]), settle.ErrLeaseLost)
	assert.NoError(t, w.tryClaim(kept[0]))

	in, _ := w.admit(of("t", 3))
	assert.Empty(t, in, "what had arrived and was not handed out yet is the other's too")
	w.regain("t")
	in, _ = w.admit(of("t", 3))
	assert.Len(t, in, 1, "until the topic comes back")
	w.end()
}

func TestAckTimeoutTakesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken []*delivery
		var when []time.Duration
		start := time.Now()
		w := newWork(time.Second, func(all []*delivery) {
			taken = append(taken, all...)
			when = append(when, time.Since(start))
		})
		all := of("t", 1, 2, 3, 4)
		w.admit(all[:2])
		time.Sleep(400 * time.Millisecond)
		w.admit(all[2:])
		w.tryLeave(all[0]) // settled in time
		require.NoError(t, w.tryClaim(all[1]))

		time.Sleep(700 * time.Millisecond) // at 1.1 s the second is over its time, and in hand
		synctest.Wait()
		assert.Empty(t, taken, "what a settler has in hand stays his")
		w.mu.Lock()
		w.putBack(all[1])
		w.mu.Unlock()
		time.Sleep(recheck)
		synctest.Wait()
		assert.Equal(t, all[1:2], taken)
		assert.ErrorIs(t, w.tryClaim(all[1]), settle.ErrLeaseLost)

		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, all[1:], taken)
		assert.Equal(t, 1400*time.Millisecond, when[len(when)-1], "neither early nor late")

		w.admit(of("t", 9))
		w.end()
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Len(t, taken, 3, "after the end nobody is told")
	})
}

func TestAgainWaitsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgain(30 * time.Millisecond)
		all := of("t", 1, 2, 3)
		a.add(all[0])
		time.Sleep(10 * time.Millisecond)
		a.add(all[1])
		a.add(all[2])
		assert.Empty(t, a.take(nil, 10), "not early")
		<-a.due
		assert.Equal(t, all[:1], a.take(nil, 10))
		<-a.due
		assert.Equal(t, all[1:2], a.take(nil, 1), "no more than was asked for")
		<-a.due
		assert.Equal(t, all[2:], a.take(nil, 10))

		a.add(of("t", 4)[0])
		time.Sleep(10 * time.Millisecond)
		a.add(of("u", 4)[0])
		a.forfeit("t")
		<-a.due
		assert.Empty(t, a.take(nil, 10), "the one that was due first is gone")
		<-a.due
		left := a.take(nil, 10)
		require.Len(t, left, 1)
		assert.Equal(t, "u", left[0].native.Topic())

		a.add(all[0])
		a.end()
		a.add(all[0])
		time.Sleep(time.Hour)
		assert.Empty(t, a.take(nil, 10), "after the end nothing comes")
	})
}

func TestNacksAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n nacks
		start := time.Now()
		n.wait(time.Second)
		assert.Zero(t, time.Since(start), "there are none")

		n.add(at(1, 1))
		n.add(at(1, 2))
		go func() {
			time.Sleep(10 * time.Millisecond)
			n.sent([]client.MessageID{at(1, 1)})
			time.Sleep(10 * time.Millisecond)
			n.sent([]client.MessageID{at(1, 2), at(7, 7)})
		}()
		n.wait(time.Second)
		assert.Equal(t, 20*time.Millisecond, time.Since(start))

		n.add(at(1, 3))
		n.wait(time.Second)
		assert.Equal(t, 1020*time.Millisecond, time.Since(start), "but not for ever")
		n.sent([]client.MessageID{at(1, 3)})
	})
}
