package settle

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

type contextKey struct{}

func begun(parent context.Context, deadline time.Time) *lazyContext {
	c := new(lazyContext)
	c.begin(parent, deadline)
	return c
}

func TestLazyContextCostsNothingUnlooked(t *testing.T) {
	parent := context.Background()
	c := new(lazyContext)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		*c = lazyContext{}
		c.begin(parent, time.Time{})
		c.end(nil)
	}))
}

// Looked at or not before it ends, a context says the same afterwards.
func TestLazyContextEnds(t *testing.T) {
	cause := errors.New("cause")
	for _, looked := range []bool{false, true} {
		for _, with := range []error{nil, cause} {
			c := begun(context.Background(), time.Time{})
			if looked {
				assert.NoError(t, c.Err())
			}
			c.end(with)
			c.end(errors.New("a second end"))
			<-c.Done()
			assert.Equal(t, context.Canceled, c.Err())
			want := with
			if want == nil {
				want = context.Canceled
			}
			assert.Equal(t, want, context.Cause(c), "looked %v", looked)
		}
	}
}

// The standard library treats it as one of its own.
func TestLazyContextUnderTheStandardLibrary(t *testing.T) {
	parent := context.WithValue(context.Background(), contextKey{}, "value")
	parent, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	c := begun(parent, time.Time{})
	assert.Equal(t, "value", c.Value(contextKey{}))

	child, stop := context.WithCancel(c)
	defer stop()
	ran := make(chan struct{})
	context.AfterFunc(child, func() { close(ran) })
	detached := context.WithoutCancel(c)
	cause := errors.New("lease")
	c.end(cause)
	<-ran
	assert.Equal(t, cause, context.Cause(child))
	assert.NoError(t, detached.Err())

	d := begun(parent, time.Time{})
	assert.NoError(t, d.Err())
	cancel(cause)
	assert.Equal(t, cause, context.Cause(d), "the parent's end is the child's")
	assert.Equal(t, cause, context.Cause(begun(parent, time.Time{})), "also where the parent had ended before")
}

func TestLazyContextDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := time.Now().Add(time.Minute)
		c := begun(context.Background(), at)
		got, ok := c.Deadline()
		assert.True(t, ok)
		assert.Equal(t, at, got)
		time.Sleep(time.Minute - 1)
		assert.NoError(t, c.Err())
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, context.DeadlineExceeded, c.Err())
		assert.Equal(t, ErrTimeout, context.Cause(c))

		late := begun(context.Background(), at)
		assert.Equal(t, context.DeadlineExceeded, late.Err(), "looked at for the first time after the deadline")

		parent, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		got, _ = begun(parent, time.Now().Add(time.Minute)).Deadline()
		assert.Equal(t, time.Now().Add(time.Second), got, "the parent's deadline, if it is earlier")
	})
}

func TestLazyContextRaces(t *testing.T) {
	for range 200 {
		c := begun(context.Background(), time.Time{})
		var all sync.WaitGroup
		all.Go(func() { <-c.Done() })
		all.Go(func() { _ = c.Err() })
		all.Go(func() { c.end(ErrLeaseLost) })
		all.Wait()
		assert.Equal(t, ErrLeaseLost, context.Cause(c))
	}
}
