package rabbit

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// ledger plays the server's side: what is unacknowledged on a channel.
type ledger struct {
	open map[uint64]bool
	bad  []string // what closes the channel, or settles what should not be
}

func (l *ledger) ack(tag uint64, multiple bool, meant map[uint64]bool) {
	if !l.open[tag] {
		l.bad = append(l.bad, "an ack of a tag that is not open")
		return
	}
	for open := range l.open {
		if open == tag || multiple && open < tag {
			if !meant[open] {
				l.bad = append(l.bad, "an ack settled a delivery that was not to be acked")
			}
			delete(l.open, open)
		}
	}
}

// Whatever is received, acked, rejected and put back in whatever order, by calls
// that overlap, a grouped ack settles exactly what it should.
func TestGroupedAcks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o openDeliveries
		server := ledger{open: make(map[uint64]bool)}
		var tag uint64
		var waiting []*delivery
		type call struct {
			acks    []*delivery
			rejects []*delivery
		}
		var calls []call

		receive := func(n int) {
			var got []*delivery
			for range n {
				tag++
				server.open[tag] = true
				got = append(got, &delivery{native: amqp.Delivery{DeliveryTag: tag}})
			}
			o.add(got)
			waiting = append(waiting, got...)
		}
		begin := func() {
			var c call
			for range rapid.IntRange(1, 8).Draw(t, "settled together") {
				if len(waiting) == 0 {
					break
				}
				i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
				d := waiting[i]
				waiting = append(waiting[:i], waiting[i+1:]...)
				assert.True(t, o.claim(d))
				assert.False(t, o.claim(d), "a delivery in hand was claimed again")
				if rapid.IntRange(0, 3).Draw(t, "outcome") == 0 {
					c.rejects = append(c.rejects, d)
				} else {
					c.acks = append(c.acks, d)
				}
			}
			calls = append(calls, c)
		}
		end := func() {
			if len(calls) == 0 {
				return
			}
			i := rapid.IntRange(0, len(calls)-1).Draw(t, "call")
			c := calls[i]
			calls = append(calls[:i], calls[i+1:]...)
			for _, d := range c.rejects {
				delete(server.open, d.native.DeliveryTag)
			}
			o.leave(c.rejects)
			meant := make(map[uint64]bool)
			for _, d := range c.acks {
				meant[d.native.DeliveryTag] = true
			}
			upTo := uint64(0)
			if last := o.group(c.acks); last != nil {
				upTo = last.native.DeliveryTag
				server.ack(upTo, true, meant)
			}
			for _, d := range c.acks {
				if d.native.DeliveryTag > upTo {
					server.ack(d.native.DeliveryTag, false, meant)
				}
			}
			o.leave(c.acks)
			for _, d := range c.acks {
				assert.False(t, o.claim(d), "a settled delivery was claimed")
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				receive(rapid.IntRange(1, 5).Draw(t, "received"))
			case 1:
				begin()
			case 2:
				end()
			}
		}
		for len(calls) > 0 {
			end()
		}
		for len(waiting) > 0 {
			begin()
			end()
		}
		assert.Empty(t, server.bad)
		assert.Empty(t, server.open, "these were never settled")
		assert.Zero(t, o.n)
		assert.Nil(t, o.first)
		assert.Nil(t, o.last)
	})
}

// A grouped ack is written for a run from the first open delivery on, and no
// further than that run.
func TestGroupEnds(t *testing.T) {
	var o openDeliveries
	var all []*delivery
	for tag := range uint64(5) {
		all = append(all, &delivery{native: amqp.Delivery{DeliveryTag: tag + 1}})
	}
	o.add(all)
	for _, i := range []int{3, 1, 0} {
		assert.True(t, o.claim(all[i]))
	}
	assert.Equal(t, all[1], o.group([]*delivery{all[3], all[1], all[0]}))
	o.leave([]*delivery{all[3], all[1], all[0]})

	assert.True(t, o.claim(all[2]))
	assert.True(t, o.claim(all[4]))
	assert.Nil(t, o.group([]*delivery{all[4]}), "the one before it is in another's hand")
	o.putBack(all[2])
	o.putBack(all[4])
	assert.True(t, o.claim(all[2]))
	assert.True(t, o.claim(all[4]))
	assert.Equal(t, all[4], o.group([]*delivery{all[2], all[4]}))
}
