package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// What the relay asks of every dialect: a claim of runs takes the beginning of a key, in order, or nothing of it.
func TestARunIsTheBeginningOfItsKey(t *testing.T) {
	everyStore(t, func(t *testing.T, s store) {
		table := sqlq.Standard("jobs", "main")
		table.FIFO, table.Runs, table.Form = true, true, sqlq.Lease{For: time.Minute}
		q := sqltest.Create(t, s.open(t).Database(), table)
		for i := range 4 {
			for _, key := range []string{"a", "b", ""} {
				require.NoError(t, q.Publish(context.Background(), settle.Message{Key: key, Body: fmt.Append(nil, key, i)}))
			}
		}
		mine, theirs := sqltest.Open(t, q, settle.Registration{}), sqltest.Open(t, q, settle.Registration{})
		receive := func(c settle.Consumer, n int) []*settle.Delivery {
			buf := make([]*settle.Delivery, n)
			ctx, cancel := context.WithTimeout(context.Background(), sqltest.Deadline)
			defer cancel()
			got, err := c.Receive(ctx, buf)
			require.NoError(t, err)
			return buf[:got]
		}
		first := receive(mine, 5)
		require.Equal(t, []string{"a0", "b0", "0", "a1", "b1"}, sqltest.Bodies(first))
		rest := receive(theirs, 10)
		assert.Equal(t, []string{"1", "2", "3"}, sqltest.Bodies(rest), "both keys have rows in work, so nothing more of them")
		sqltest.Nothing(t, theirs, "all that waits is behind what is in work")

		require.NoError(t, sqltest.Settle(mine, first[0], sqltest.Ack))
		require.NoError(t, sqltest.Settle(mine, first[4], sqltest.Ack))
		sqltest.Nothing(t, theirs, "one of each key is still in work")
		require.NoError(t, sqltest.Settle(mine, first[3], sqltest.Retry))
		require.NoError(t, sqltest.Settle(mine, first[1], sqltest.Release))
		byKey := make(map[string][]string)
		for n := 0; n < 6; { // one claim may see more of it than another
			got := receive(theirs, 10)
			for _, d := range got {
				byKey[d.Key] = append(byKey[d.Key], string(d.Body))
			}
			for _, err := range sqltest.SettleAll(theirs, sqltest.Ack, got...) {
				require.NoError(t, err)
			}
			n += len(got)
		}
		assert.Equal(t, map[string][]string{"a": {"a1", "a2", "a3"}, "b": {"b0", "b2", "b3"}}, byKey, "what was given back is first again")
	})
}
