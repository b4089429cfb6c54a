package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/examples/internal/exampletest"
)

func TestRun(t *testing.T) {
	out := exampletest.Rabbit(t, run)
	assert.Contains(t, out, "call bob, attempt 1")
	var at []time.Duration
	for _, line := range strings.Split(out, "\n") {
		var ms int
		if _, err := fmt.Sscanf(line, "%d ms: call ann", &ms); err == nil {
			at = append(at, time.Duration(ms)*time.Millisecond)
		}
	}
	require.Len(t, at, 3)
	for i := 1; i < len(at); i++ {
		assert.GreaterOrEqual(t, at[i]-at[i-1], delay-time.Millisecond, "never earlier, but for what the print rounds")
	}
}
