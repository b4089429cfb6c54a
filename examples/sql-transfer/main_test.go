package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/exampletest"
)

func TestRun(t *testing.T) {
	out := exampletest.Postgres(t, run)
	for _, line := range []string{
		"and always had 150",
		"ann has 45\n", "bob has 20\n", "cleo has 85\n", // each transfer took effect once or not at all
		`{"From":"ann","To":"bob","Amount":30}, attempt 1: ack`,
		`{"From":"ann","To":"cleo","Amount":25}, attempt 2: ack`, // after the panic
		`dead after attempt 3: {"From":"cleo","To":"ann","Amount":500}, because: ERROR: new row for relation "accounts" violates check constraint`,
		`dead after attempt 1: {"From":"ann","To":"dora","Amount":10}, because: there is no such account`,
	} {
		assert.Contains(t, out, line)
	}
	assert.Equal(t, 3, strings.Count(out, `"Amount":500}, attempt `), "what fails is tried up to the cap")
}
