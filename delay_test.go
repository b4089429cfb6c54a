package settle

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

func TestHoldsAreDueInOrderAndNeverEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		due := make(map[*Delivery]time.Time)
		var mu sync.Mutex
		left := 500
		var h holds
		h.epoch = time.Now()
		last := time.Time{}
		h.due = func(ds []*Delivery) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range ds {
				assert.Equal(t, due[d], time.Now(), "a hold ended at another time than its own")
				assert.False(t, due[d].Before(last))
				last = due[d]
				left--
			}
		}
		for range 500 {
			d, wait := new(Delivery), rand.N(time.Minute)+1
			mu.Lock()
			due[d] = time.Now().Add(wait)
			mu.Unlock()
			h.add(d, wait)
			time.Sleep(rand.N(10 * time.Millisecond))
		}
		time.Sleep(time.Minute)
		mu.Lock()
		assert.Zero(t, left)
		mu.Unlock()
		assert.Empty(t, h.close())
	})
}

func TestHoldsAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fired := make(chan []*Delivery, 1)
		h := holds{epoch: time.Now(), due: func(ds []*Delivery) { fired <- ds }}
		near, far := new(Delivery), new(Delivery)
		h.add(far, time.Hour)
		h.add(near, time.Second)
		assert.Equal(t, []*Delivery{far}, h.after(time.Now().Add(time.Minute)))
		assert.Equal(t, []*Delivery{near}, <-fired)
	})
}

func TestClosedHoldsKeepNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holds{epoch: time.Now(), due: func([]*Delivery) { t.Error("a closed hold fired") }}
		d := new(Delivery)
		h.add(d, time.Second)
		assert.Equal(t, []*Delivery{d}, h.close())
		_, ok := h.add(d, time.Second)
		assert.False(t, ok)
		time.Sleep(time.Hour)
	})
}

// A hold is to cost under 300 bytes beside its delivery.
func TestHoldSize(t *testing.T) {
	assert.LessOrEqual(t, 2*unsafe.Sizeof(hold{}), uintptr(300)) // a growing heap has twice what it needs at most
}
