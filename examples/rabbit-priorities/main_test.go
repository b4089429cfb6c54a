package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/exampletest"
)

func TestRun(t *testing.T) {
	var alertsSeen, restSeen []string
	for _, line := range strings.Split(strings.TrimSpace(exampletest.Rabbit(t, run)), "\n") {
		queue, id, _ := strings.Cut(line, ": ")
		if queue == rest {
			restSeen = append(restSeen, id)
		} else {
			alertsSeen = append(alertsSeen, id)
		}
	}
	assert.Equal(t, []string{"the house is on fire", "disk is getting full", "somebody sneezed"}, alertsSeen)
	assert.Equal(t, []string{"a message nobody asked for"}, restSeen)
}
