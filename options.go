package settle

import (
	"fmt"
	"log/slog"
	"time"
)

// Options are the settings of one Handle call. The zero value of each field
// means the default that stands beside it; a negative value is refused by Run.
type Options struct {
	// Workers is how many handlers run at once. Default 1.
	Workers int
	// Prefetch is how many deliveries this process has at once, waiting for a
	// worker or with one. Default: 32, or twice what the workers take at once
	// if that is more. A source that claims rows takes no more than the free workers
	// can use, whatever the prefetch.
	Prefetch int
	// MaxAttempts is the cap: an attempt with this number that fails is
	// dead-lettered, and one past it does not reach the handler. Default 0: no cap.
	MaxAttempts int
	// DeadLetter names where dead letters go: a queue, a topic, a group; the
	// page of each broker says which. Default empty: nowhere, a dead letter is a drop.
	DeadLetter string
	// Timeout ends a handler's context. Default 0: none.
	Timeout time.Duration
	// BatchSize is the most deliveries a BatchHandler takes at once. Default
	// 16. For HandleBatch only.
	BatchSize int
	// BatchWait is how long a worker waits for its batch to fill once it has a
	// first delivery; less where Prefetch has no room for more. Default 0: it takes
	// what is there. For HandleBatch only.
	BatchWait time.Duration
	// Lane gives a delivery's lane: those of one lane are handled one at a time
	// in this process, first deliveries in the order they arrived; those of
	// other lanes go in parallel, within the prefetch. A lane waits until its
	// delivery is settled or held; a retried one may fall behind those after
	// it. An empty string is no lane. Default nil: no lanes. It must be quick.
	//
	// Other processes know nothing of it: for order across processes use what
	// the broker has (single active consumer, Key_Shared, FIFO groups).
	Lane func(*Delivery) string
	// Middleware wraps the handler, the first outermost. Not for HandleBatch.
	Middleware []Middleware
}

const (
	defaultPrefetch     = 32
	defaultBatchSize    = 16
	mostAtOnce          = 1 << 20 // workers, prefetch or batch
	defaultDrainTimeout = 30 * time.Second
	defaultStartTimeout = 30 * time.Second
)

// check returns a ConfigError for each option that cannot be kept.
func (o *Options) check(source string, batch bool) []error {
	var errs []error
	refuse := func(setting, reason, fix string) {
		errs = append(errs, &ConfigError{Source: source, Setting: setting, Reason: reason, Fix: fix})
	}
	for _, s := range []struct {
		name  string
		value int64
	}{
		{"Workers", int64(o.Workers)},
		{"Prefetch", int64(o.Prefetch)},
		{"MaxAttempts", int64(o.MaxAttempts)},
		{"Timeout", int64(o.Timeout)},
		{"BatchSize", int64(o.BatchSize)},
		{"BatchWait", int64(o.BatchWait)},
	} {
		if s.value < 0 {
			refuse(s.name, fmt.Sprintf("%d is negative", s.value), "use zero for the default, or a positive value")
		}
	}
	for _, s := range []struct {
		name  string
		value int
	}{{"Workers", o.Workers}, {"Prefetch", o.Prefetch}, {"BatchSize", o.BatchSize}} {
		if s.value > mostAtOnce {
			refuse(s.name, fmt.Sprintf("%d is more than a process can work on", s.value), fmt.Sprintf("use %d at most", mostAtOnce))
		}
	}
	if batch {
		if len(o.Middleware) > 0 {
			refuse("Middleware", "middleware wraps a Handler, and HandleBatch has none", "wrap the BatchHandler yourself, or use Handle")
		}
		if size := o.batch(true); o.Prefetch > 0 && o.Prefetch < size {
			refuse("Prefetch", fmt.Sprintf("%d deliveries never fill a batch of %d", o.Prefetch, size), "raise Prefetch or lower BatchSize")
		}
	} else {
		if o.BatchSize != 0 {
			refuse("BatchSize", "a Handler takes one delivery at a time", "use HandleBatch, or leave BatchSize out")
		}
		if o.BatchWait != 0 {
			refuse("BatchWait", "a Handler takes one delivery at a time", "use HandleBatch, or leave BatchWait out")
		}
	}
	for i, m := range o.Middleware {
		if m == nil {
			refuse("Middleware", fmt.Sprintf("middleware %d is nil", i), "leave it out")
		}
	}
	return errs
}

func (o *Options) batch(batch bool) int {
	switch {
	case !batch:
		return 1
	case o.BatchSize == 0:
		return defaultBatchSize
	default:
		return o.BatchSize
	}
}

// registration returns what the source is told, defaults filled in.
func (o *Options) registration(batch bool, logger *slog.Logger) Registration {
	r := Registration{
		Workers:     max(o.Workers, 1),
		Prefetch:    o.Prefetch,
		MaxAttempts: o.MaxAttempts,
		DeadLetter:  o.DeadLetter,
		Batch:       o.batch(batch),
		BatchWait:   o.BatchWait,
		Timeout:     o.Timeout,
		Logger:      logger,
	}
	if r.Prefetch == 0 {
		r.Prefetch = max(defaultPrefetch, 2*r.Workers*r.Batch)
	}
	return r
}
