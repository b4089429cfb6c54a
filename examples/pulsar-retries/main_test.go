package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/pulsarserver/pulsartest"
)

func TestRun(t *testing.T) {
	out := pulsartest.Run(t, run)
	for _, line := range []string{
		"payment 1 (good), attempt 1: charged",
		"payment 2 (slow), attempt 3: charged",
		`dead letter {"ID":3,"Card":"broken"} after attempt 3, because: the bank does not answer`,
		`dead letter {"ID":4,"Card":"stolen"} after attempt 1, because: the card is stolen`,
		"dead letter not json after attempt 1, because: ",
	} {
		assert.Contains(t, out, line)
	}
}
