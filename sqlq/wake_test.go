package sqlq

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// asleep runs a sleep of the given length and returns how long it lasted and
// whether the sleeper was told.
func asleep(s *sleeper, length time.Duration) (time.Duration, bool, error) {
	start := time.Now()
	told, err := s.sleep(context.Background(), nil, start.Add(length))
	return time.Since(start), told, err
}

func TestASleeperSleepsUntilItsTimeOrUntilItIsTold(t *testing.T) {
	for _, c := range []struct {
		name  string
		wakes map[time.Duration]time.Duration // at which time: to look after how long
		lasts time.Duration
		told  bool
	}{
		{"nobody tells it", nil, time.Hour, false},
		{"told to look now", map[time.Duration]time.Duration{time.Minute: 0}, time.Minute, true},
		{"told to look later", map[time.Duration]time.Duration{time.Minute: 2 * time.Minute}, 3 * time.Minute, true},
		{"told to look after its time", map[time.Duration]time.Duration{time.Minute: 3 * time.Hour}, time.Hour, false},
		{"told twice, the sooner counts", map[time.Duration]time.Duration{time.Minute: 30 * time.Minute, 2 * time.Minute: time.Minute}, 3 * time.Minute, true},
		{"told twice, the first counts", map[time.Duration]time.Duration{time.Minute: time.Minute, 90 * time.Second: 30 * time.Minute}, 2 * time.Minute, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h hub
				s, l := newSleeper(), line{table: "t"}
				h.join(l, s)
				for at, after := range c.wakes {
					time.AfterFunc(at, func() { h.wake(l, after) })
				}
				lasted, told, err := asleep(s, time.Hour)
				assert.NoError(t, err)
				assert.Equal(t, c.lasts, lasted)
				assert.Equal(t, c.told, told)
			})
		})
	}
}

func TestASleeperDoesNotMissWhatItIsToldWhileAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hub
		s, l := newSleeper(), line{table: "t"}
		h.join(l, s)
		s.take()
		h.wake(l, 0) // while a claim is under way
		lasted, told, _ := asleep(s, time.Hour)
		assert.True(t, told)
		assert.Zero(t, lasted)
		s.take() // the claim that follows
		lasted, told, _ = asleep(s, time.Hour)
		assert.False(t, told)
		assert.Equal(t, time.Hour, lasted)

		h.wake(l, time.Minute)
		s.take() // a claim before that time leaves it standing
		lasted, told, _ = asleep(s, time.Hour)
		assert.True(t, told)
		assert.Equal(t, time.Minute, lasted)
	})
}

func TestASleeperHearsOfItsOwnQueueOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hub
		s := newSleeper()
		h.join(line{table: "t", group: "a"}, s)
		h.wake(line{table: "t", group: "b"}, 0)
		h.wake(line{table: "u", group: "a"}, 0)
		_, told, _ := asleep(s, time.Minute)
		assert.False(t, told)
		h.leave(line{table: "t", group: "a"}, s)
		h.wake(line{table: "t", group: "a"}, 0)
		_, told, _ = asleep(s, time.Minute)
		assert.False(t, told)
		assert.Empty(t, h.sleepers)
	})
}

func TestASleepEndsWithItsContextAndWithStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		_, err := newSleeper().sleep(ctx, nil, time.Now().Add(time.Hour))
		assert.ErrorIs(t, err, context.Canceled)
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		_, err = newSleeper().sleep(context.Background(), stop, time.Now().Add(time.Hour))
		assert.ErrorIs(t, err, errStopped)
	})
}
