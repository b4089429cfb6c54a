package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle/examples/internal/pulsarserver/pulsartest"
)

func TestRun(t *testing.T) {
	out := pulsartest.Run(t, run)
	var order []string
	for _, found := range regexp.MustCompile(`remind (\w+)`).FindAllStringSubmatch(out, -1) {
		order = append(order, found[1])
	}
	assert.Equal(t, []string{"Abe", "Bea", "Cid"}, order, out)
}
