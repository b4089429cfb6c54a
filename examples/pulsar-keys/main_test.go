package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/pulsarserver/pulsartest"
)

func TestRun(t *testing.T) {
	out := pulsartest.Run(t, run)
	for _, parcel := range parcels {
		assert.Contains(t, out, parcel+": packed, sent, delivered\n")
	}
}
