package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/exampletest"
)

func TestRun(t *testing.T) {
	assert.Equal(t, `1000 messages are safe
first is safe
second reached no queue
third is safe
fourth may be dropped, and was
`, exampletest.Rabbit(t, run))
}
