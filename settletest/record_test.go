package settletest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// recorder is a testing.TB whose failures fail nothing: the suite's own test
// looks at them instead.
type recorder struct {
	testing.TB // the real test's, for what a case only reads

	mu       sync.Mutex // guards what follows
	texts    []string   // of failures
	skips    []string
	logs     []string
	failed   bool
	cleanups []func()
}

// recordRun runs the whole suite, or those of its rules that are named, on
// recorders and returns these by rule. The recorder of the empty rule is that of the suite.
func recordRun(t testing.TB, f Fixture, only ...Rule) map[Rule]*recorder {
	suite := &recorder{TB: t}
	all := map[Rule]*recorder{"": suite}
	run(suite, f, func(name string, fn func(testing.TB)) {
		if len(only) > 0 && !slices.Contains(only, Rule(name)) {
			return
		}
		r := &recorder{TB: t}
		all[Rule(name)] = r
		r.do(func() { fn(r) })
		r.end()
	})
	return all
}

// do calls fn on a goroutine of its own, which FailNow may end.
func (r *recorder) do(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	<-done
}

// end runs the cleanups, last in, first out.
func (r *recorder) end() {
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		fn := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		r.do(fn)
	}
}

func (r *recorder) note(texts *[]string, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*texts = append(*texts, text)
}

func (r *recorder) Cleanup(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, fn)
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Error(args ...any) {
	r.note(&r.texts, fmt.Sprint(args...))
	r.Fail()
}

func (r *recorder) Errorf(format string, args ...any) { r.Error(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

func (r *recorder) Log(args ...any) { r.note(&r.logs, fmt.Sprint(args...)) }

func (r *recorder) Logf(format string, args ...any) { r.Log(fmt.Sprintf(format, args...)) }

func (r *recorder) Skipf(format string, args ...any) {
	r.note(&r.skips, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// failures are all failures as one text.
func (r *recorder) failures() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.texts, "\n")
}
