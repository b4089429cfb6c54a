package settletest

import (
	"runtime"
	"strings"
	"time"
)

// goroutines returns the stack of every goroutine but the caller's, by its
// first words, "goroutine 7": a number is never used again.
func goroutines() map[string]string {
	buf := make([]byte, 256<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := make(map[string]string)
	for i, stack := range strings.Split(string(buf), "\n\n") {
		if name, _, ok := strings.Cut(stack, " ["); ok && i > 0 { // the first is the caller's
			all[name] = stack
		}
	}
	return all
}

// leftBehind waits until no goroutine runs that was not there before, and
// returns the stacks of those that still run at the deadline.
func leftBehind(before map[string]string, deadline time.Duration) string {
	end := time.Now().Add(deadline)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		var left []string
		for name, stack := range goroutines() {
			if _, ok := before[name]; !ok && !isOfTests(stack) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return strings.Join(left, "\n\n")
		}
		time.Sleep(pause)
	}
}

// isOfTests reports whether the goroutine is one that package testing or the
// runtime started, which come and go by themselves.
func isOfTests(stack string) bool {
	_, creator, _ := strings.Cut(stack, "\ncreated by ")
	for _, own := range []string{"testing.", "runtime.", "os/signal."} {
		if strings.HasPrefix(creator, own) {
			return true
		}
	}
	return false
}
