package pulsar

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle"
)

// While a topic cannot be written one copy at a time is tried, at growing
// distances; the source tells when that begins and when it ends.
func TestStuckTopicIsTriedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []settle.NoticeKind
		k := newCopier(&consumer{notify: func(n settle.Notice) { told = append(told, n.Kind) }})
		h := &sheaf{to: newSender(new(Broker), client.ProducerOptions{Topic: "t"})}
		broken := errors.New("it is full")
		trying, err := k.enter(h.to)
		assert.False(t, trying)
		assert.NoError(t, err, "nothing is known against it")
		k.result(h, false, broken)
		assert.Equal(t, []settle.NoticeKind{settle.NoticeBlocked}, told)

		tries := 0
		start := time.Now()
		for time.Since(start) < 10*time.Second && tries < 1000 {
			trying, err := k.enter(h.to)
			if !trying {
				assert.ErrorIs(t, err, broken)
				time.Sleep(leastPause / 10)
				continue
			}
			tries++
			again, err := k.enter(h.to)
			assert.False(t, again, "one at a time")
			assert.ErrorIs(t, err, broken)
			k.result(h, true, broken)
		}
		assert.GreaterOrEqual(t, tries, 10)
		assert.LessOrEqual(t, tries, 15)
		assert.Len(t, told, 1, "it is told once")

		time.Sleep(mostPause)
		trying, err = k.enter(h.to)
		assert.True(t, trying)
		assert.NoError(t, err)
		k.result(h, true, nil) // what was tried was a message's own fault: the topic is where it was
		time.Sleep(mostPause)
		trying, _ = k.enter(h.to)
		assert.True(t, trying)
		h.safe = []int{0}
		k.result(h, true, nil)
		assert.Equal(t, []settle.NoticeKind{settle.NoticeBlocked, settle.NoticeUnblocked}, told)
		trying, err = k.enter(h.to)
		assert.False(t, trying)
		assert.NoError(t, err)
	})
}
