package rabbit

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// original is a delivery with everything on it that a delivery can have.
func original() *delivery {
	d := &delivery{native: amqp.Delivery{
		Headers: amqp.Table{
			"text": "t", "bytes": []byte{0, 1}, "bool": true, "void": nil, "when": time.Unix(1, 0).UTC(),
			"int8": int8(-8), "uint8": uint8(8), "int16": int16(-16), "uint16": uint16(16), "int32": int32(-32), "uint32": uint32(32), "int64": int64(-64),
			"float32": float32(1.5), "float64": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 314},
			"list": []any{int8(1), "two", amqp.Table{"three": int16(3)}}, "table": amqp.Table{"n": int32(1)},

			"x-death":             []any{amqp.Table{"queue": "orders.retry", "reason": "expired", "count": int64(2)}},
			"x-first-death-queue": "orders.retry", "x-first-death-reason": "expired", "x-first-death-exchange": "",
			"x-last-death-queue": "orders.retry", "x-last-death-reason": "expired", "x-last-death-exchange": "",
			"x-delivery-count": int64(3), "x-acquired-count": int64(4), "CC": []any{"copy"}, "BCC": []any{"blind"},
			"x-delay": int64(-300), returnHeader: int64(77), CountHeader: int32(1),
			"x-deaths": "mine", "cc": "mine", "x-first-name": "mine",
		},
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 7,
		CorrelationId: "c1", ReplyTo: "replies", Expiration: "1000", MessageId: "m1", Timestamp: time.Unix(2, 0).UTC(),
		Type: "order", UserId: "somebody", AppId: "shop",
		Exchange: "orders", RoutingKey: "eu.new", DeliveryTag: 9, Redelivered: true, Body: []byte(`{"id":1}`),
	}}
	d.Attempt = 5
	d.counts = counts{header: 1, server: 3}
	return d
}

func printed(o outgoing) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exchange %q key %q mandatory %v\n", o.exchange, o.key, o.mandatory)
	p := o.msg
	for _, field := range []struct {
		name  string
		value any
	}{
		{"content type", p.ContentType},
		{"content encoding", p.ContentEncoding},
		{"delivery mode", p.DeliveryMode},
		{"priority", p.Priority},
		{"correlation id", p.CorrelationId},
		{"reply to", p.ReplyTo},
		{"expiration", p.Expiration},
		{"message id", p.MessageId},
		{"timestamp", p.Timestamp},
		{"type", p.Type},
		{"user id", p.UserId},
		{"app id", p.AppId},
		{"body", string(p.Body)},
	} {
		fmt.Fprintf(&b, "%s: %#v\n", field.name, field.value)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
		fmt.Fprintf(&b, "header %s: %T %v\n", name, p.Headers[name], p.Headers[name])
	}
	return b.String()
}

// A copy is the message as it was, with the count, and without what belongs to
// its past.
func TestCopies(t *testing.T) {
	retry := settle.Verdict{Action: settle.ActionRetry, Cause: errors.New("down")}
	later := settle.Verdict{Action: settle.ActionRetry, Delay: 1500 * time.Millisecond}
	dead := settle.Verdict{Action: settle.ActionDeadLetter, Cause: errors.New("no such customer")}
	for name, c := range map[string]struct {
		verdict settle.Verdict
		delay   Delay
	}{
		"retry":          {retry, nil},
		"wait":           {later, WaitQueue{}},
		"wait-per-delay": {later, WaitQueue{PerDelay: true}},
		"delay-exchange": {later, DelayedExchange{}},
		"dead-letter":    {dead, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy{copyMaker: copyMaker{queue: "orders", countHeader: CountHeader}, counted: true, limit: -1, deadLetter: "orders.dead", delay: c.delay}
			d := original()
			before := printed(outgoing{msg: amqp.Publishing{Headers: d.native.Headers}})
			got := printed(p.copy(c.verdict, d))
			assert.Equal(t, before, printed(outgoing{msg: amqp.Publishing{Headers: d.native.Headers}}), "the original was changed")
			golden(t, "copy-"+name, got)
		})
	}
}

// golden compares with a file in testdata; SETTLE_GOLDEN=write writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if os.Getenv("SETTLE_GOLDEN") == "write" {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "SETTLE_GOLDEN=write writes it")
	assert.Equal(t, string(want), got)
}

// The exchange and key of the first delivery stay known over all copies.
func TestOriginStays(t *testing.T) {
	p := policy{copyMaker: copyMaker{queue: "orders", countHeader: CountHeader}, counted: true, delay: DelayedExchange{}}
	later := settle.Verdict{Action: settle.ActionRetry, Delay: time.Second}
	d := original()
	assert.Equal(t, "eu.new", p.key(&d.native))
	for range 3 {
		c := p.copy(later, d)
		d = &delivery{native: amqp.Delivery{Headers: c.msg.Headers, Exchange: c.exchange, RoutingKey: c.key}}
		assert.Equal(t, "eu.new", p.key(&d.native))
		assert.Equal(t, "orders", d.native.Headers[originExchangeHeader])
	}
	// Whoever publishes it anew to another exchange gives it another key.
	d.native.Exchange, d.native.RoutingKey = "orders", "us.new"
	assert.Equal(t, "us.new", p.key(&d.native))
	c := p.copy(settle.Verdict{Action: settle.ActionRetry}, d)
	assert.Equal(t, "us.new", c.msg.Headers[originKeyHeader])
}

// A cause is cut to what a header may hold, between characters.
func TestCauseText(t *testing.T) {
	assert.Equal(t, "down", causeText(errors.New("down")))
	long := causeText(errors.New(strings.Repeat("é", mostCause)))
	assert.LessOrEqual(t, len(long), mostCause)
	assert.Greater(t, len(long), mostCause-utf8.UTFMax)
	assert.True(t, utf8.ValidString(long))
	assert.True(t, utf8.ValidString(causeText(errors.New("\xff\xfe"))))
	odd := causeText(errors.New("a" + strings.Repeat("é", mostCause)))
	assert.True(t, utf8.ValidString(odd))
}

// A delay is never told to the server as less than it is.
func TestMilliseconds(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want int64
	}{{time.Nanosecond, 2}, {time.Millisecond, 2}, {time.Millisecond + 1, 3}, {time.Second, 1001}, {longestServerDelay, 1<<32 - 2}} {
		assert.Equal(t, c.want, milliseconds(c.d), c.d)
	}
}

// PerDelay rounds up to two digits, so that its queues are few, and keeps the
// delays that people choose.
func TestRoundUp(t *testing.T) {
	for n, want := range map[int64]int64{
		1: 1, 9: 9, 10: 10, 99: 99, 100: 100, 101: 110, 999: 1000, 1000: 1000, 1001: 1100, 5000: 5000, 30_000: 30_000,
		60_000: 60_000, 300_000: 300_000, 3_600_000: 3_600_000, 86_400_000: 87_000_000,
	} {
		assert.Equal(t, want, roundUp(n), n)
	}
	distinct := make(map[int64]bool)
	for n := int64(1000); n < 10_000; n++ {
		r := roundUp(n)
		assert.GreaterOrEqual(t, r, n)
		distinct[r] = true
	}
	assert.LessOrEqual(t, len(distinct), 91)
}
