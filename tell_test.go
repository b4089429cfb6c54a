package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// logLines counts the lines of a log, those of Info and above, by their text.
type logLines struct {
	mu    sync.Mutex // guards what follows
	lines map[string]int
}

func newLogLines() *logLines { return &logLines{lines: make(map[string]int)} }

func (l *logLines) logger() *slog.Logger { return slog.New(l) }

func (l *logLines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *logLines) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *logLines) WithGroup(string) slog.Handler                    { return l }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines[r.Message]++
	return nil
}

// containing returns how many lines have the text in them.
func (l *logLines) containing(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line, times := range l.lines {
		if strings.Contains(line, text) {
			n += times
		}
	}
	return n
}

// logBubble is bubble with a log to look at. One of h and batch is nil.
func logBubble(t *testing.T, o Options, h Handler, batch BatchHandler, test func(t *testing.T, f *fakeSource, r *running, lines *logLines)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, lines := newFake("queue", Traits{}), newLogLines()
		rt := &Runtime{Logger: lines.logger()}
		if batch != nil {
			rt.HandleBatch(f, batch, o)
		} else {
			rt.Handle(f, h, o)
		}
		r := start(t, rt)
		synctest.Wait()
		test(t, f, r, lines)
	})
}

// One event is one line, however many deliveries meet it and however long it lasts.
func TestABrokerThatCannotSettleIsLoggedOnce(t *testing.T) {
	logBubble(t, Options{Prefetch: 64}, ackAll, nil, func(t *testing.T, f *fakeSource, _ *running, lines *logLines) {
		c := f.session(1)
		c.scripted(failing(errTest))
		for range 100 {
			c.incoming <- deliveries("a")
		}
		time.Sleep(time.Hour)
		failures := lines.containing("settle failed")
		assert.Positive(t, failures)
		assert.LessOrEqual(t, failures, 3)

		c.scripted(nil)
		time.Sleep(time.Minute)
		c.scripted(failing(errTest))
		c.incoming <- deliveries("b")
		time.Sleep(time.Minute)
		assert.Equal(t, failures+1, lines.containing("settle failed"), "a new event is told")

		f.session(1).fail <- ErrSessionLost
		time.Sleep(time.Minute)
		assert.Equal(t, 1, lines.containing("lost"))
		assert.Zero(t, lines.containing("not settled"), "the session's end has its one line")
	})
}

// What fails beside much that goes well is still one event.
func TestADeadLetterThatCannotBeSettledIsLoggedOnce(t *testing.T) {
	handler := func(_ context.Context, d *Delivery) Outcome {
		if d.ID == "dead" {
			return DeadLetter(errTest)
		}
		return Ack()
	}
	o := Options{Prefetch: 64, MaxAttempts: 3, DeadLetter: "dead"}
	logBubble(t, o, handler, nil, func(t *testing.T, f *fakeSource, _ *running, lines *logLines) {
		c := f.session(1)
		c.scripted(func(batch []Settlement) {
			for i := range batch {
				if batch[i].Verdict.Action == ActionDeadLetter {
					batch[i].Err = errTest
				}
			}
		})
		c.incoming <- deliveries("dead")
		for range 600 {
			c.incoming <- deliveries("well")
			time.Sleep(time.Second)
		}
		assert.Equal(t, 1, lines.containing("settle failed"))
		assert.Len(t, c.done(), 600)
	})
}

// Who retries without a cap is told once that nothing ends it.
func TestARetryWithoutACapIsWarnedOfOnce(t *testing.T) {
	retry := func(context.Context, *Delivery) Outcome { return Retry(errTest) }
	for _, c := range []struct {
		o    Options
		want int
	}{{Options{}, 1}, {Options{MaxAttempts: 10, DeadLetter: "dead"}, 0}} {
		logBubble(t, c.o, retry, nil, func(t *testing.T, f *fakeSource, _ *running, lines *logLines) {
			for range 5 {
				f.session(1).incoming <- deliveries("a")
			}
			synctest.Wait()
			assert.Equal(t, c.want, lines.containing("no cap is set"))
		})
	}
}

func TestABrokerThatIsAwayIsLoggedOnce(t *testing.T) {
	logBubble(t, Options{}, ackAll, nil, func(t *testing.T, f *fakeSource, _ *running, lines *logLines) {
		f.opensWith(func(int) error { return errTest })
		f.session(1).fail <- ErrSessionLost
		time.Sleep(time.Hour)
		assert.Equal(t, 1, lines.containing("reopening"))
	})
}

// Each session tells anew what its broker keeps less of; the log needs it once.
func TestWhatIsWeakenedIsLoggedOnce(t *testing.T) {
	logBubble(t, Options{}, ackAll, nil, func(t *testing.T, f *fakeSource, _ *running, lines *logLines) {
		for range 5 {
			f.notify(Notice{Kind: NoticeWeakened, Err: errTest})
		}
		assert.Equal(t, 1, lines.containing("weakened"))
		f.notify(Notice{Kind: NoticeWeakened, Err: errors.New("something else")})
		assert.Equal(t, 2, lines.containing("weakened"))
		for i := range 10 * mostOnce {
			f.notify(Notice{Kind: NoticeWeakened, Err: fmt.Errorf("message %d has a header we cannot read", i)})
		}
		assert.Equal(t, mostOnce, lines.containing("weakened"), "texts without end are not kept without end")
	})
}

// A mistake in the program is a line that a person sees, at the log's usual level.
func TestAHandlersMistakeIsLogged(t *testing.T) {
	for name, handler := range map[string]Handler{
		"panic":      func(context.Context, *Delivery) Outcome { panic("a value") },
		"no outcome": func(context.Context, *Delivery) Outcome { return Outcome{} },
	} {
		t.Run(name, func(t *testing.T) {
			logBubble(t, Options{}, handler, nil, func(t *testing.T, f *fakeSource, _ *running, lines *logLines) {
				f.session(1).incoming <- deliveries("a")
				time.Sleep(time.Minute)
				assert.Equal(t, 1, lines.containing("handler is at fault"))
			})
		})
	}
	t.Run("batch of the wrong length", func(t *testing.T) {
		batch := func(context.Context, []*Delivery) []Outcome { return nil }
		logBubble(t, Options{}, nil, batch, func(t *testing.T, f *fakeSource, _ *running, lines *logLines) {
			f.session(1).incoming <- deliveries("a")
			time.Sleep(time.Minute)
			assert.Equal(t, 1, lines.containing("handler is at fault"))
		})
	})
}

// leavingObserver ends the goroutine of one of its calls, as t.FailNow does.
type leavingObserver struct {
	recorder
	received, settled bool
}

func (o *leavingObserver) Received(ctx context.Context, d *Delivery) context.Context {
	ctx = o.recorder.Received(ctx, d)
	if o.received && d.ID == "a" {
		runtime.Goexit()
	}
	return ctx
}

func (o *leavingObserver) Settled(ctx context.Context, s Settled) {
	o.recorder.Settled(ctx, s)
	if o.settled && s.Delivery.ID == "a" {
		runtime.Goexit()
	}
}

func TestAnObserverThatLeavesItsGoroutine(t *testing.T) {
	t.Run("in Received, it fails its delivery", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, observer := newFake("queue", Traits{}), &leavingObserver{received: true}
			rt := &Runtime{Observer: observer}
			rt.Handle(f, ackAll, Options{MaxAttempts: 2, DeadLetter: "dead"})
			r := start(t, rt)
			synctest.Wait()
			f.session(1).incoming <- deliveries("a", "b")
			synctest.Wait()
			assert.Equal(t, []string{"a retry", "b ack"}, actions(f.session(1).done()))
			assert.Len(t, observer.got, 2, "each was received once")
			assert.NoError(t, r.stop())
		})
	})
	t.Run("in Settled, it ends the source aloud", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, observer := newFake("queue", Traits{}), &leavingObserver{settled: true}
			rt := &Runtime{Observer: observer}
			rt.Handle(f, ackAll, Options{})
			r := start(t, rt)
			synctest.Wait()
			f.session(1).incoming <- deliveries("a")
			var config *ConfigError
			require.ErrorAs(t, r.wait(), &config)
			assert.Equal(t, "Observer", config.Setting)
		})
	})
}

// A source may make its name anew at each call.
func TestASourcesNameIsNotAskedForWithEachMessage(t *testing.T) {
	bubble(t, Traits{}, Options{}, ackAll, func(t *testing.T, f *fakeSource, _ *running, seen *recorder) {
		before := f.named.Load()
		for range 50 {
			f.session(1).incoming <- deliveries("a")
		}
		synctest.Wait()
		assert.Len(t, seen.ended(), 50)
		assert.Equal(t, before, f.named.Load())
	})
}
