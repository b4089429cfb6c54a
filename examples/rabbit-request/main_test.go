package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/exampletest"
)

func TestRun(t *testing.T) {
	assert.Equal(t, `apples: 3.20
pears: 4.10
unicorns: no reply in time
a queue that does not exist: told at once
`, exampletest.Rabbit(t, run))
}
