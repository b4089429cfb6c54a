package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/exampletest"
)

func TestRun(t *testing.T) {
	out := exampletest.Rabbit(t, run)
	for _, line := range []string{
		"order 1 (book), attempt 1: ack",
		"order 2 (flaky), attempt 3: ack",
		`dead letter {"ID":3,"Item":"broken"}, because: delivery_limit in settle-example.orders`,
		`dead letter {"ID":4,"Item":"unicorn"}, because: there is no such item`,
		"dead letter not json, because: ",
	} {
		assert.Contains(t, out, line)
	}
}
