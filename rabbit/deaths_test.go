package rabbit

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// Deaths reads what the servers write: a message that is rejected, waits, and
// comes back, twice.
func TestDeathsOfTheServer(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		for _, kind := range []QueueKind{Classic, Quorum} {
			t.Run(kind.String(), func(t *testing.T) {
				b, _ := testBroker(t, server, nil)
				queue, wait := unique(t, server, "q"), unique(t, server, "wait")
				require.NoError(t, b.Declare(within(t), Topology{Queues: []Queue{
					{Name: queue, Kind: kind, DeadLetter: &DeadLetterRoute{Key: wait}},
					{Name: wait, Kind: kind, TTL: time.Millisecond, DeadLetter: &DeadLetterRoute{Key: queue}},
				}}))
				raw := rawChannel(t, server)
				require.NoError(t, raw.Publish("", queue, true, false, amqp.Publishing{Expiration: "600000", Headers: amqp.Table{"CC": []any{"settle-test-nowhere"}}}))
				deliveries, err := raw.Consume(queue, "", false, false, false, false, nil)
				require.NoError(t, err)
				began := time.Now().Truncate(time.Second)
				for round := range 3 {
					var d amqp.Delivery
					select {
					case d = <-deliveries:
					case <-within(t).Done():
						require.Fail(t, "it comes back")
					}
					deaths := Deaths(&settle.Delivery{Headers: settle.Headers(d.Headers)})
					require.NoError(t, d.Reject(false))
					if round == 0 {
						assert.Nil(t, deaths)
						continue
					}
					require.Len(t, deaths, 2)
					for _, death := range deaths {
						assert.False(t, death.At.Before(began))
						assert.False(t, death.At.After(time.Now()))
					}
					deaths[0].At, deaths[1].At = time.Time{}, time.Time{}
					assert.Equal(t, []Death{
						{Queue: wait, Reason: "expired", Count: round, Keys: []string{wait}},
						{Queue: queue, Reason: "rejected", Count: round, Keys: []string{queue, "settle-test-nowhere"}, Expiration: "600000"},
					}, deaths)
				}
			})
		}
	})
}

// Other servers, older ones and publishers write it in other shapes.
func TestDeathsShapes(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	whole := Death{Queue: "q", Reason: "rejected", Count: 3, Exchange: "x", Keys: []string{"k", "cc"}, At: at, Expiration: "5"}
	entry := func(change func(amqp.Table)) amqp.Table {
		e := amqp.Table{"queue": "q", "reason": "rejected", "count": int64(3), "exchange": "x", "routing-keys": []any{"k", "cc"}, "time": at, "original-expiration": "5"}
		change(e)
		return e
	}
	same := func(amqp.Table) {}
	for _, c := range []struct {
		name   string
		header any
		want   []Death
	}{
		{"absent", nil, nil},
		{"no list", "rejected", nil},
		{"empty", []any{}, nil},
		{"whole", []any{entry(same)}, []Death{whole}},
		{"a list of tables", []amqp.Table{entry(same)}, []Death{whole}},
		{"a map", []any{map[string]any(entry(same))}, []Death{whole}},
		{"headers", []any{settle.Headers(entry(same))}, []Death{whole}},
		{"entries that are none are left out", []any{"x", nil, 7, entry(same)}, []Death{whole}},
		{"nothing in it", []any{amqp.Table{}}, []Death{{Count: 1}}},
		{"bytes for texts", []any{entry(func(e amqp.Table) { e["queue"], e["routing-keys"] = []byte("q"), []any{[]byte("k"), []byte("cc")} })}, []Death{whole}},
		{"texts", []any{entry(func(e amqp.Table) { e["routing-keys"] = []string{"k", "cc"} })}, []Death{whole}},
		{"seconds", []any{entry(func(e amqp.Table) { e["time"] = at.Unix() })}, []Death{whole}},
		{"int8", []any{entry(func(e amqp.Table) { e["count"] = int8(3) })}, []Death{whole}},
		{"uint8", []any{entry(func(e amqp.Table) { e["count"] = byte(3) })}, []Death{whole}},
		{"int16", []any{entry(func(e amqp.Table) { e["count"] = int16(3) })}, []Death{whole}},
		{"uint16", []any{entry(func(e amqp.Table) { e["count"] = uint16(3) })}, []Death{whole}},
		{"int32", []any{entry(func(e amqp.Table) { e["count"] = int32(3) })}, []Death{whole}},
		{"uint32", []any{entry(func(e amqp.Table) { e["count"] = uint32(3) })}, []Death{whole}},
		{"int", []any{entry(func(e amqp.Table) { e["count"] = 3 })}, []Death{whole}},
		{"a count that is none", []any{amqp.Table{"queue": "q", "count": "3"}}, []Death{{Queue: "q", Count: 1}}},
		{"values of other types", []any{amqp.Table{"queue": 7, "reason": true, "time": "now", "routing-keys": "k", "exchange": nil}}, []Death{{Count: 1}}},
	} {
		d := &settle.Delivery{}
		if c.header != nil {
			d.Headers = settle.Headers{"x-death": c.header}
		}
		assert.Equal(t, c.want, Deaths(d), c.name)
	}
}
