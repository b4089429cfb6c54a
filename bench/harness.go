package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// comparison is contestants on the same work in one run. They alternate: each
// round runs every contestant once, in an order of its own, so that nobody always
// follows the same other and finds the server as that one left it.
type comparison struct {
	part     string // what -only selects, such as "sqlite"
	name     string
	work     string // one sentence: what every contestant does
	messages int    // of one run of one contestant
	// base is the contestant that ratios are against. It runs twice a round: the
	// difference shows the noise, and the ratios are against the median of all its runs.
	base string
	// contestants in the order of the report.
	contestants []contestant
	bars        []bar
	// missed is the reason that a profile gave where a bar was missed; it is printed where one is.
	missed string
}

// contestant does the work once.
type contestant struct {
	name string
	// done says what holds when it reports a message as done.
	done string
	// settings says how it is set up, where that is not plain from its name.
	settings string
	// prepare makes ready what is not measured, for n messages.
	prepare func(ctx context.Context, n int) (run, error)
}

// run is one prepared run: do is measured, end is not.
type run struct {
	do  func(ctx context.Context) error
	end func()
	// notes are figures of the run beside its speed, such as statements a message.
	notes func() map[string]float64
	// slower says that it does that many times fewer messages than it was asked to; 0: all.
	slower int
}

// bar is what an issue of the project asks of a ratio of speeds.
type bar struct {
	contestant, against string
	ratio               float64
	aim                 bool // to be aimed at; else it must hold
}

// sample is one measured run.
type sample struct {
	perSecond float64
	cpu       time.Duration // a message, of the whole process, user and system
	allocs    float64       // a message
	bytes     float64       // allocated a message
	peak      uint64        // the largest heap seen
	notes     map[string]float64
}

// slower has a contestant do that many times fewer messages.
func slower(prepare func(context.Context, int) (run, error), times int) func(context.Context, int) (run, error) {
	return func(ctx context.Context, n int) (run, error) {
		r, err := prepare(ctx, max(1, n/times))
		r.slower = times
		return r, err
	}
}

const again = " (again)"

// against returns the samples of a contestant that another is compared with.
func against(samples map[string][]sample, name string) []sample {
	return slices.Concat(samples[name], samples[name+again])
}

// measure runs the comparison and returns the samples of each contestant.
func (c *comparison) measure(ctx context.Context, rounds, scale int) (map[string][]sample, error) {
	field := slices.Clone(c.contestants)
	for _, one := range c.contestants {
		if one.name == c.base {
			one.name += again
			field = append(field, one)
		}
	}
	samples := make(map[string][]sample)
	n := max(1, c.messages/scale)
	for round := range rounds + 1 { // the first warms up and does not count
		rand.New(rand.NewPCG(0, uint64(round))).Shuffle(len(field), func(i, j int) { field[i], field[j] = field[j], field[i] })
		for _, one := range field {
			s, err := one.measure(ctx, n)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %s: %w", c.part, c.name, one.name, err)
			}
			if round > 0 {
				samples[one.name] = append(samples[one.name], s)
			}
		}
	}
	return samples, nil
}

// runLimit bounds one run of one contestant.
const runLimit = 5 * time.Minute

func (one contestant) measure(ctx context.Context, n int) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	r, err := one.prepare(ctx, n)
	if err != nil {
		return sample{}, err
	}
	if r.end != nil {
		defer r.end()
	}
	runtime.GC()
	stopPeak := watchHeap()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := cpuTime(), time.Now()
	err = r.do(ctx)
	took := time.Since(start)
	n = max(1, n/max(1, r.slower))
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	s := sample{
		perSecond: float64(n) / took.Seconds(),
		cpu:       cpu / time.Duration(n),
		allocs:    float64(after.Mallocs-before.Mallocs) / float64(n),
		bytes:     float64(after.TotalAlloc-before.TotalAlloc) / float64(n),
		peak:      stopPeak(),
	}
	if r.notes != nil {
		s.notes = r.notes()
	}
	return s, err
}

// watchHeap looks at the heap now and then until the function it returns is
// called; that returns the largest size it saw.
func watchHeap() func() uint64 {
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		var m runtime.MemStats
		var most uint64
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
			select {
			case <-tick.C:
			case <-stop:
				peak <- most
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		return <-peak
	}
}

// cpuTime is the processor time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// of returns the median of a figure over samples, and its spread: the lowest
// and the highest.
func of(samples []sample, figure func(sample) float64) (median, low, high float64) {
	if len(samples) == 0 {
		return 0, 0, 0
	}
	all := make([]float64, len(samples))
	for i, s := range samples {
		all[i] = figure(s)
	}
	slices.Sort(all)
	median = all[len(all)/2]
	if len(all)%2 == 0 {
		median = (all[len(all)/2-1] + median) / 2
	}
	return median, all[0], all[len(all)-1]
}

// medianOf returns the median of some durations.
func medianOf(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
