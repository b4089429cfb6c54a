package sqlq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestMicrosecondsAreNeverFewerThanTheDuration(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, time.Second: 1_000_000, time.Second + 1: 1_000_001, 1<<63 - 1: 9223372036854776,
	} {
		assert.Equal(t, want, micros(d), "%d ns", int64(d))
	}
}
