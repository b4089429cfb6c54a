package rabbit

import (
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

// A count is read from an integer of any AMQP type; any other type is no count.
func TestCount(t *testing.T) {
	for _, c := range []struct {
		value any
		want  int
		ok    bool
	}{
		{int8(3), 3, true},
		{uint8(200), 200, true},
		{int16(3), 3, true},
		{uint16(60000), 60000, true},
		{int32(3), 3, true},
		{uint32(math.MaxUint32), mostCount, true},
		{int64(3), 3, true},
		{int64(math.MaxInt64), mostCount, true},
		{uint64(math.MaxUint64), mostCount, true},
		{3, 3, true},
		{int64(0), 0, true},
		{int64(-1), 0, false},
		{int8(-128), 0, false},
		{int64(math.MinInt64), 0, false},
		{"3", 0, false},
		{[]byte("3"), 0, false},
		{3.0, 0, false},
		{float32(3), 0, false},
		{true, 0, false},
		{amqp.Decimal{Value: 3}, 0, false},
		{time.Unix(3, 0), 0, false},
		{amqp.Table{"n": int64(3)}, 0, false},
		{[]any{int64(3)}, 0, false},
		{nil, 0, false},
	} {
		got, ok := count(c.value)
		assert.Equal(t, c.want, got, "%T %v", c.value, c.value)
		assert.Equal(t, c.ok, ok, "%T %v", c.value, c.value)
	}
}

// The attempt is the header's count, the server's and one.
func TestAttempt(t *testing.T) {
	rejected := []any{amqp.Table{"queue": "other", "reason": "rejected", "count": int64(1)}}
	limited := []any{amqp.Table{"queue": "other", "reason": "delivery_limit", "count": int64(1)}}
	expired := []any{amqp.Table{"queue": "q.retry", "reason": "expired"}, rejected[0]}
	own := []any{amqp.Table{"queue": "q", "reason": "rejected"}}
	for name, c := range map[string]struct {
		headers amqp.Table
		quorum  bool
		again   bool // redelivered
		limit   int
		want    int
		odd     bool
	}{
		"no headers":               {nil, true, false, -1, 1, false},
		"no headers, again":        {nil, true, true, -1, 1, false},
		"other headers":            {amqp.Table{"a": "b"}, true, true, -1, 1, false},
		"a copy":                   {amqp.Table{CountHeader: int64(2)}, false, false, -1, 3, false},
		"a copy, again":            {amqp.Table{CountHeader: int64(2)}, false, true, -1, 3, false},
		"the server's":             {amqp.Table{deliveryCountHeader: int64(2)}, true, true, -1, 3, false},
		"both":                     {amqp.Table{CountHeader: int32(2), deliveryCountHeader: int64(3)}, true, true, -1, 6, false},
		"a text":                   {amqp.Table{CountHeader: "2", deliveryCountHeader: int64(3)}, true, true, -1, 4, true},
		"void":                     {amqp.Table{CountHeader: nil}, true, true, -1, 1, true},
		"negative":                 {amqp.Table{CountHeader: int64(-7)}, false, true, -1, 1, true},
		"too much":                 {amqp.Table{CountHeader: int64(math.MaxInt64), deliveryCountHeader: int64(math.MaxInt64)}, true, true, -1, 2*mostCount + 1, false},
		"published with a count":   {amqp.Table{deliveryCountHeader: int64(7)}, true, false, -1, 1, false},
		"a count on a classic":     {amqp.Table{deliveryCountHeader: int64(7)}, false, true, -1, 1, false},
		"over the limit":           {amqp.Table{deliveryCountHeader: int64(7)}, true, true, 2, 3, false},
		"another queue's count":    {amqp.Table{deliveryCountHeader: int64(5), deathHeader: limited}, true, true, 3, 4, false},
		"at the limit":             {amqp.Table{deliveryCountHeader: int64(2)}, true, true, 2, 3, false},
		"copied before its death":  {amqp.Table{CountHeader: int64(4), deathHeader: limited}, true, false, -1, 1, false},
		"rejected into this queue": {amqp.Table{CountHeader: int64(4), deathHeader: rejected}, false, false, -1, 1, false},
		"counted here":             {amqp.Table{CountHeader: int64(4), countQueueHeader: "q", deathHeader: rejected}, false, false, -1, 5, false},
		"counted elsewhere":        {amqp.Table{CountHeader: int64(4), countQueueHeader: "other", deathHeader: expired}, false, false, -1, 1, false},
		"waited":                   {amqp.Table{CountHeader: int64(4), deathHeader: expired}, false, false, -1, 5, false},
		"died here":                {amqp.Table{CountHeader: int64(4), deathHeader: own}, false, false, -1, 5, false},
		"x-death of another shape": {amqp.Table{CountHeader: int64(4), deathHeader: "?"}, false, false, -1, 5, false},
		"x-death with no table":    {amqp.Table{CountHeader: int64(4), deathHeader: []any{"?"}}, false, false, -1, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, odd := countsOf(&amqp.Delivery{Headers: c.headers, Redelivered: c.again}, "q", CountHeader, c.quorum, c.limit)
			assert.Equal(t, c.want, got.attempt())
			assert.Equal(t, c.odd, odd != nil)
		})
	}
}

// Whatever stands in the headers, the attempt is at least 1 and nothing panics.
func FuzzAttempt(f *testing.F) {
	f.Add(int64(3), "x", 1.5, uint8(0), true)
	f.Fuzz(func(t *testing.T, n int64, s string, x float64, pick uint8, again bool) {
		values := []any{
			n, s, x, again, nil, int8(n), uint8(n), int16(n), uint16(n), int32(n), uint32(n), uint64(n), int(n), float32(x),
			[]byte(s),
			[]any{n, s},
			amqp.Table{s: n},
			[]any{amqp.Table{"queue": s, "reason": s}},
			[]any{amqp.Table{"queue": n}},
		}
		value := values[int(pick)%len(values)]
		for _, header := range []string{CountHeader, deliveryCountHeader, deathHeader} {
			d := &amqp.Delivery{Headers: amqp.Table{header: value, "other": n}, Redelivered: again}
			got, _ := countsOf(d, "q", CountHeader, true, int(n))
			assert.GreaterOrEqual(t, got.attempt(), 1)
		}
	})
}
