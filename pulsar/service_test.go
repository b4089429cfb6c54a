package pulsar

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// journal records what a running service did, by the bodies of its messages.
type journal struct {
	mu       sync.Mutex // guards what follows
	attempts map[string][]int
	times    map[string][]time.Time
	settled  map[string]int // with success, and not given back
	acked    map[string]int
	failures []error
	notices  []settle.Notice
}

func newJournal() *journal {
	return &journal{attempts: make(map[string][]int), times: make(map[string][]time.Time), settled: make(map[string]int), acked: make(map[string]int)}
}

func (j *journal) observer() observer {
	return observer{
		received: func(d *settle.Delivery) {
			j.mu.Lock()
			defer j.mu.Unlock()
			name := string(d.Body)
			j.attempts[name] = append(j.attempts[name], d.Attempt)
			j.times[name] = append(j.times[name], time.Now())
		},
		settled: func(s settle.Settled) {
			j.mu.Lock()
			defer j.mu.Unlock()
			switch {
			case s.Err != nil:
				j.failures = append(j.failures, s.Err)
				return
			case s.Verdict.Action == settle.ActionRelease:
				return
			case s.Verdict.Action == settle.ActionAck:
				j.acked[string(s.Delivery.Body)]++
			}
			j.settled[string(s.Delivery.Body)]++
		},
		noticed: func(n settle.Notice) {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.notices = append(j.notices, n)
		},
	}
}

func (j *journal) attemptsOf(name string) []int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.attempts[name])
}

func (j *journal) timesOf(name string) []time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.times[name])
}

// settlements is how many deliveries of a message were settled, whatever the verdict.
func (j *journal) settlements(name string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.settled[name]
}

// ackedOf is how many of the messages were acknowledged at least once.
func (j *journal) ackedOf(names []string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, name := range names {
		if j.acked[name] > 0 {
			n++
		}
	}
	return n
}

// noticed is how many notices of a kind there were.
func (j *journal) noticed(kind settle.NoticeKind) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, notice := range j.notices {
		if notice.Kind == kind {
			n++
		}
	}
	return n
}

func (j *journal) errors() []error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.failures)
}

// running is a service under way.
type running struct {
	t       testing.TB
	journal *journal
	cancel  context.CancelFunc
	done    chan error
	stopped bool
}

// run runs a service until the test ends or stops it, and returns when its session is open.
func run(t testing.TB, j *journal, s settle.Source, h settle.Handler, options settle.Options, change ...func(*settle.Runtime)) *running {
	t.Helper()
	rt := &settle.Runtime{Logger: quiet, Observer: j.observer()}
	for _, f := range change {
		f(rt)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, journal: j, cancel: cancel, done: make(chan error, 1)}
	rt.Handle(s, h, options)
	opened := j.noticed(settle.NoticeOpened)
	go func() { r.done <- rt.Run(ctx) }()
	t.Cleanup(func() {
		if !r.stopped {
			cancel()
			<-r.done
		}
	})
	await(t, "the service is not open", func() bool {
		select {
		case err := <-r.done:
			r.stopped = true
			require.FailNow(t, "Run returned", "%v", err)
		default:
		}
		return j.noticed(settle.NoticeOpened) > opened
	})
	return r
}

// stop ends the service in good order.
func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	r.stopped = true
	require.NoError(r.t, receive(r.t, r.done))
}

// publish publishes messages of those names.
func publish(t testing.TB, p settle.Publisher, names ...string) {
	t.Helper()
	msgs := make([]settle.Message, len(names))
	for i, name := range names {
		msgs[i].Body = []byte(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, p.Publish(ctx, msgs...))
}

// inBatches is a publisher of batches of so many messages, which it waits for; 0: each alone.
func inBatches(b *Broker, topic string, size int) *Publisher {
	p := &Publisher{Broker: b, Topic: topic, Batch: size}
	if size > 1 {
		p.BatchDelay = 100 * time.Millisecond
	}
	return p
}

// numbered are n names.
func numbered(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("m%05d", i)
	}
	return all
}

// failing is a handler that fails each message the given number of times.
func failing(j *journal, times map[string]int) settle.Handler {
	return func(_ context.Context, d *settle.Delivery) settle.Outcome {
		name := string(d.Body)
		if len(j.attemptsOf(name)) <= times[name] {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	}
}

var errFault = fmt.Errorf("this attempt is to fail")
