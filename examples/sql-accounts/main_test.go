package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/examples/internal/exampletest"
	"github.com/settlemq/settle/internal/services"
)

func TestRun(t *testing.T) {
	for _, service := range []services.Service{services.Postgres, services.MySQL, services.MariaDB} {
		t.Run(string(service), func(t *testing.T) {
			dsn := services.URL(t, service)
			out := exampletest.Run(t, func(ctx context.Context, out io.Writer) error { return run(ctx, dsn, out) })
			var most, beside int
			_, last, found := strings.Cut(out, "at most ")
			require.True(t, found, out)
			_, err := fmt.Sscanf(last, "%d payment of one account and %d of all", &most, &beside)
			require.NoError(t, err, out)
			assert.Equal(t, 1, most, "payments of one account go one at a time, over both services")
			assert.Greater(t, beside, 1, "those of others go side by side")
			done := make(map[string]int)
			for _, account := range accounts {
				var ada, ben int
				_, line, _ := strings.Cut(out, "account "+account+": ")
				_, err := fmt.Sscanf(line, "%d payments by Ada, %d by Ben", &ada, &ben)
				require.NoError(t, err, out)
				assert.Equal(t, each, ada+ben, "each payment is booked once")
				done["Ada"], done["Ben"] = done["Ada"]+ada, done["Ben"]+ben
			}
			assert.Positive(t, done["Ada"], "both services take part")
			assert.Positive(t, done["Ben"], "both services take part")
		})
	}
}
