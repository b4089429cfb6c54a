package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/exampletest"
)

func TestRun(t *testing.T) {
	out := exampletest.Postgres(t, run)
	for _, line := range []string{
		"year, attempt 1: its lease is taken away\n",
		"year, attempt 1: stopped at page ",
		"the lease of this delivery is lost\n",
		"year, attempt 1: its retry settles nothing\n",
		"2 reports are in the archive\n",
	} {
		assert.Contains(t, out, line)
	}
	assert.NotContains(t, out, "year, attempt 1: written", "who has lost the lease is told in time to stop")
	written, renewals := 0, 0
	for _, line := range strings.Split(out, "\n") {
		name, _, _ := strings.Cut(line, ", ")
		var attempt, renewed int
		if _, err := fmt.Sscanf(strings.TrimPrefix(line, name), ", attempt %d: written in 2.5s, its lease of 1s renewed %d times", &attempt, &renewed); err == nil {
			written, renewals = written+1, renewals+renewed
		}
	}
	assert.GreaterOrEqual(t, written, 2, out)
	assert.Positive(t, renewals, "each takes longer than a lease")
}
