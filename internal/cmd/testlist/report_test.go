package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func events(t *testing.T, all ...event) string {
	t.Helper()
	var lines strings.Builder
	for _, e := range all {
		line, err := json.Marshal(e)
		require.NoError(t, err)
		lines.Write(append(line, '\n'))
	}
	return lines.String()
}

func output(test, text string) event { return event{"output", "p", test, text} }

func TestSkipsAreListedWithTheirReason(t *testing.T) {
	t.Setenv("SETTLE_REQUIRE_SERVICES", "") // make test sets it
	var out strings.Builder
	r := report{out: &out}
	require.NoError(t, r.read(strings.NewReader(events(
		t,
		output("TestA", "=== RUN   TestA\n"),
		output("TestA", "    a_test.go:3: an earlier remark\n"),
		output("TestA", "    a_test.go:4: no service rabbit: not set\n"),
		output("TestA", "--- SKIP: TestA (0.00s)\n"),
		event{"skip", "p", "TestA", ""},
		event{"skip", "p", "TestB/sub", ""},
		event{"pass", "p", "TestB", ""},
		output("", "PASS\n"),
		output("", "ok  \tp\t0.1s\n"),
		event{"pass", "p", "", ""},
	))))
	assert.True(t, r.finish())
	assert.Equal(t, "ok  \tp\t0.1s\n"+
		"skipped: p TestA: a_test.go:4: no service rabbit: not set\n"+
		"skipped: p TestB/sub: no reason given\n"+
		"1 passed, 0 failed, 1 skipped\n", out.String())
}

func TestASkippedServiceFailsARunThatRequiresServices(t *testing.T) {
	run := events(
		t,
		output("TestA", "    a_test.go:4: no service rabbit: not set\n"),
		event{"skip", "p", "TestA", ""},
	)
	for required, pass := range map[string]bool{"": true, "mysql": true, "mysql rabbit": false, "1": false} {
		t.Setenv("SETTLE_REQUIRE_SERVICES", required)
		var out strings.Builder
		r := report{out: &out}
		require.NoError(t, r.read(strings.NewReader(run)))
		assert.Equal(t, pass, r.finish(), "SETTLE_REQUIRE_SERVICES=%q", required)
	}
}

func TestOutputOfFailuresIsPrinted(t *testing.T) {
	var out strings.Builder
	r := report{out: &out}
	require.NoError(t, r.read(strings.NewReader(events(
		t,
		event{"build-output", "", "", "x.go:1: does not compile\n"},
		output("TestGood", "quiet\n"),
		event{"pass", "p", "TestGood", ""},
		output("TestBad", "loud\n"),
		event{"fail", "p", "TestBad", ""},
		output("TestHung", "never ended\n"),
		output("", "panic: test timed out\n"),
	)+"go: a plain line\n")))
	r.finish()
	for _, want := range []string{"does not compile", "loud", "never ended", "panic: test timed out", "go: a plain line", "1 passed, 1 failed, 0 skipped"} {
		assert.Contains(t, out.String(), want)
	}
	assert.NotContains(t, out.String(), "quiet")
}

// Packages run side by side; what belongs to one stands together.
func TestPackagesAreNotMixed(t *testing.T) {
	var out strings.Builder
	r := report{out: &out}
	require.NoError(t, r.read(strings.NewReader(events(
		t,
		event{"output", "p", "TestA", "p: loud\n"},
		event{"fail", "p", "TestA", ""},
		event{"output", "q", "TestB", "q: loud\n"},
		event{"fail", "q", "TestB", ""},
		event{"output", "q", "", "FAIL\tq\t1s\n"},
		event{"fail", "q", "", ""},
		event{"output", "p", "", "FAIL\tp\t2s\n"},
		event{"fail", "p", "", ""},
	))))
	assert.Equal(t, "q: loud\nFAIL\tq\t1s\np: loud\nFAIL\tp\t2s\n", out.String())
}
