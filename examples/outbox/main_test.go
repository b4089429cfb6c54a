package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/examples/internal/exampletest"
	"github.com/settlemq/settle/rabbit"
)

// TestMain plays the first process where the test has started it as one.
func TestMain(m *testing.M) {
	if os.Getenv(inherited) == "" {
		os.Exit(m.Run())
	}
	broker, err := rabbit.New(rabbit.Config{URLs: []string{os.Getenv("SETTLE_RABBIT_URL")}})
	if err == nil {
		err = first(context.Background(), broker, os.Stdout)
	}
	fmt.Println("the first process ended:", err)
	os.Exit(1)
}

// Wherever a process is killed, every order is shipped and every event marked. What was handled and not
// marked is handled once more.
func TestRun(t *testing.T) {
	for _, at := range []gap{nowhere, recorded, sent, handled} {
		t.Run("killed at "+string(at), func(t *testing.T) {
			out := exampletest.Rabbit(t, func(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
				return run(ctx, broker, out, at)
			})
			t.Log(out)
			if at != nowhere {
				assert.Contains(t, out, "the first process was killed (signal: killed) when an event was "+map[gap]string{recorded: "stored", sent: "sent", handled: "handled"}[at])
			}
			_, end, found := strings.Cut(out, "in the end: ")
			require.True(t, found)
			var orders, shipped, twice, marked int
			_, err := fmt.Sscanf(end, "orders %d, shipped %d, of them twice %d, events marked %d", &orders, &shipped, &twice, &marked)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, orders, 3)
			assert.Equal(t, orders, shipped)
			assert.Equal(t, orders, marked)
			switch at {
			case nowhere, recorded:
				assert.Zero(t, twice)
			case sent: // the consumer may have been killed as well, between its handler and the mark
				assert.LessOrEqual(t, twice, 1)
			case handled:
				assert.Equal(t, 1, twice)
			}
		})
	}
}

func TestAnUnknownGapIsRefused(t *testing.T) {
	assert.ErrorContains(t, run(context.Background(), nil, io.Discard, "elsewhere"), "recorded, sent or handled")
}
