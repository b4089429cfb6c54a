package settle

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever a broker and its handlers do, the runtime keeps to source.go, no
// message is settled twice, none is left, and each delivery has one end.
//
// Each round is another broker, other options and other faults, by its seed,
// under a fake clock. Rounds go on for 3 s, a minute with SETTLE_TEST_ALL=1.
// SETTLE_CHAOS_SEED sets the seed of the first round. Goroutines run as they
// like, so a seed may have to be tried more than once.
func TestChaos(t *testing.T) {
	first := rand.Uint64N(1_000_000_000)
	if text := os.Getenv("SETTLE_CHAOS_SEED"); text != "" {
		var err error
		first, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "SETTLE_CHAOS_SEED")
	}
	most := 3 * time.Second
	if os.Getenv("SETTLE_TEST_ALL") == "1" {
		most = time.Minute
	}
	rounds := 0
	for begin := time.Now(); time.Since(begin) < most && !t.Failed(); rounds++ {
		seed := first + uint64(rounds)
		synctest.Test(t, func(t *testing.T) { newChaosRound(seed).play(t) })
	}
	t.Logf("%d rounds, from seed %d", rounds, first)
}

// chaosRound is one broker with one set of options, through one Run or several.
type chaosRound struct {
	*model
	seed    uint64
	dice    *rand.Rand // of play; the model's are another's
	options Options
	batch   bool
	inLane  map[string]int // handlers at work; the model's mu guards it
}

func newChaosRound(seed uint64) *chaosRound {
	dice := rand.New(rand.NewPCG(seed, 1))
	r := &chaosRound{seed: seed, dice: dice, inLane: map[string]int{}}
	r.options = Options{
		Workers:     1 + dice.IntN(6),
		Prefetch:    oneOf(dice, 0, 8, 20),
		MaxAttempts: oneOf(dice, 0, 3, 30),
		DeadLetter:  "dead",
		Timeout:     oneOf(dice, 0, 50*time.Millisecond),
	}
	if r.batch = dice.IntN(2) == 0; r.batch {
		r.options.BatchSize = 1 + dice.IntN(6)
		r.options.BatchWait = oneOf(dice, 0, 20*time.Millisecond)
	}
	r.model = &model{
		traits: Traits{
			Receivers: 1 + dice.IntN(3), Settlers: 1 + dice.IntN(3),
			MaxReceive: oneOf(dice, 0, 1, 2, 5), MaxSettle: oneOf(dice, 0, 1, 3),
			Prefetch: oneOf(dice, 0, 0, 4, 9), MaxHeld: oneOf(dice, 0, 1, 3), Whole: dice.IntN(3) == 0,
			Delay: DelayPlace(dice.IntN(3)), LongestDelay: oneOf(dice, 0, 0, 300*time.Millisecond),
		},
		cap:    r.options.MaxAttempts,
		losses: oneOf(dice, 0, 0.003, 0.02),
		dice:   rand.New(rand.NewPCG(seed, 2)),
		total:  100 + dice.IntN(200),
		ended:  map[string]Action{},
		handed: map[*Delivery]*handout{},
	}
	for i := range r.total {
		r.ready = append(r.ready, &modelMessage{id: strconv.Itoa(i)})
	}
	if dice.IntN(2) == 0 && !r.traits.Whole {
		r.options.Lane = func(d *Delivery) string {
			if laneBreaks(d) && !r.calm.Load() {
				panic("a lane that panics")
			}
			return laneOf(d)
		}
	}
	return r
}

func oneOf[T any](dice *rand.Rand, values ...T) T { return values[dice.IntN(len(values))] }

func laneOf(d *Delivery) string { return d.ID[len(d.ID)-1:] }

// play runs runtimes on the broker, one after another; the last one goes on
// until every message has left the broker.
func (r *chaosRound) play(t *testing.T) {
	for run := 1; ; run++ {
		last := run == 5 || r.seed%2 == 0
		r.runOnce(last)
		time.Sleep(10 * time.Minute) // until the handlers that hang are through
		if last || len(r.violations()) > 0 {
			break
		}
	}
	broken := r.violations()
	if len(broken) == 0 {
		return
	}
	t.Errorf("try again: SETTLE_CHAOS_SEED=%d go test -race -run TestChaos .", r.seed)
	t.Errorf("traits %+v, options %+v, batch %v", r.traits, r.options, r.batch)
	for _, rule := range broken {
		t.Error(rule)
	}
}

func (r *chaosRound) violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken
}

func (r *chaosRound) runOnce(last bool) {
	rt := &Runtime{
		Logger: discard, Observer: r.model, StartTimeout: time.Hour,
		DrainTimeout: oneOf(r.dice, time.Millisecond, 100*time.Millisecond, 3*time.Second),
	}
	if r.batch {
		rt.HandleBatch(r, r.handleBatch, r.options)
	} else {
		rt.Handle(r, r.handle, r.options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- rt.Run(ctx) }()
	faulty := time.Duration(r.dice.IntN(2000)) * time.Millisecond
	if r.seed%2 == 0 {
		faulty *= 10 // it is the only one
	}
	time.Sleep(faulty)
	if last {
		r.calm.Store(true)
		r.waitUntilAllEnded()
	}
	begin := time.Now()
	cancel()
	select {
	case <-result: // a DrainError is no fault of the runtime here
	case <-time.After(time.Hour):
		r.breaksNow("Run does not return")
	}
	if took := time.Since(begin); took > rt.DrainTimeout+4*time.Second {
		r.breaksNow("a drain of %v took %v", rt.DrainTimeout, took)
	}
	r.checkEnds()
}

func (r *chaosRound) breaksNow(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breaks(format, args...)
}

// waitUntilAllEnded waits until every message has left the broker. What a
// permanent error left with it comes back with the session's end.
func (r *chaosRound) waitUntilAllEnded() {
	for begin := time.Now(); ; time.Sleep(time.Second) {
		r.mu.Lock()
		left, broken := r.total-len(r.ended), len(r.broken) > 0
		if s := r.open; s != nil {
			for _, h := range s.out {
				if h.final {
					s.lose()
					break
				}
			}
		}
		stalled := time.Since(begin) > 3*time.Hour // longer than any hold
		if left > 0 && stalled {
			r.breaks("it stands still: %d of %d messages are left, %d of them ready", left, r.total, len(r.ready))
		}
		r.mu.Unlock()
		if left == 0 || broken || stalled {
			return
		}
	}
}

// handle is the Handler: what it says is kept for the model to check.
func (r *chaosRound) handle(ctx context.Context, d *Delivery) (o Outcome) {
	o = Outcome{kind: outcomePanic} // unless decide returns
	defer func() { r.said(o, d) }()
	o = r.decide(ctx, d)
	return o
}

// handleBatch is the BatchHandler. Some batches fail as a whole.
func (r *chaosRound) handleBatch(ctx context.Context, ds []*Delivery) (all []Outcome) {
	defer func() {
		if len(all) < len(ds) {
			r.said(Outcome{kind: outcomePanic}, ds...)
		}
	}()
	if len(ds) > r.options.BatchSize {
		r.breaksNow("a batch of %d, BatchSize is %d", len(ds), r.options.BatchSize)
	}
	for _, d := range ds {
		_ = d.Context().Err()
		all = append(all, r.handle(ctx, d))
	}
	if !r.calm.Load() {
		switch ds[0].ID[0] {
		case '3':
			all = nil
			runtime.Goexit()
		case '4':
			all = nil
		}
	}
	return all
}

func (r *chaosRound) said(o Outcome, ds ...*Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range ds {
		if h := r.handed[d]; h != nil { // else it outlived its Run
			h.said, h.saidAt = o, time.Now()
		}
	}
}

// decide takes its time, or more, and comes to some outcome or to none.
func (r *chaosRound) decide(ctx context.Context, d *Delivery) Outcome {
	r.mu.Lock()
	if lane := laneOf(d); r.options.Lane != nil {
		if r.inLane[lane]++; r.inLane[lane] > 1 {
			r.breaks("%d handlers of lane %s at once", r.inLane[lane], lane)
		}
		defer func() {
			r.mu.Lock()
			r.inLane[lane]--
			r.mu.Unlock()
		}()
	}
	if r.cap > 0 && d.Attempt > r.cap {
		r.breaks("a handler saw attempt %d of %d", d.Attempt, r.cap)
	}
	hangs, how, what, wait := r.fault(0.01), r.model.dice.Float64(), r.model.dice.Float64(), r.millis(40)
	r.mu.Unlock()

	switch {
	case hangs:
		time.Sleep(20 * time.Second)
	case how < 0.3:
		time.Sleep(wait) // whatever becomes of ctx
	case how < 0.65:
		sleep(ctx, wait)
		if ctx.Err() != nil {
			return Retry(context.Cause(ctx))
		}
	}
	switch {
	case r.calm.Load(), what < 0.6:
		return Ack()
	case what < 0.7:
		return Retry(errTest)
	case what < 0.8:
		return RetryAfter(3*wait, errTest)
	case what < 0.83:
		return RetryAfter(time.Hour, errTest)
	case what < 0.86:
		return DeadLetter(errTest)
	case what < 0.89:
		panic("a handler that panics")
	case what < 0.91 && !r.batch: // handleBatch has it for the whole batch
		runtime.Goexit()
	case what < 0.94:
		return Outcome{}
	}
	return Drop(nil)
}
