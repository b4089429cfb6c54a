package rabbit

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// recorder keeps what is written to a connection.
type recorder struct {
	net.Conn
	mu  sync.Mutex // guards got
	got bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got.Write(p)
	return r.Conn.Write(p)
}

// headerFrame returns the size of the last content header that was written.
func (r *recorder) headerFrame(t *rapid.T) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := -1
	for b := r.got.Bytes()[8:]; len(b) > 7; { // after the protocol header
		n := int(binary.BigEndian.Uint32(b[3:]))
		if b[0] == 2 {
			size = n
		}
		b = b[7+n+1:]
	}
	if size < 0 {
		t.Fatal("no content header was written")
	}
	r.got.Reset()
	r.got.WriteString("AMQP\x00\x00\x09\x01")
	return size
}

// A message is measured to the byte, whatever is in it.
func TestFramesAreMeasured(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	wire := new(recorder)
	b, _ := testBroker(t, server, func(c *Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			wire.Conn = conn
			return wire, err
		}
	})
	text := rapid.StringN(0, 20, 60)
	scalar := rapid.OneOf(
		rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any](byte(1)), rapid.Just[any](int8(1)), rapid.Just[any](int16(1)), rapid.Just[any](uint16(1)),
		rapid.Just[any](int32(1)), rapid.Just[any](uint32(1)), rapid.Just[any](float32(1)), rapid.Just[any](int(1)), rapid.Just[any](int64(1)), rapid.Just[any](float64(1)),
		rapid.Just[any](time.Unix(1, 0)), rapid.Just[any](amqp.Decimal{Scale: 1, Value: 2}),
		rapid.Map(text, func(s string) any { return s }), rapid.Map(text, func(s string) any { return []byte(s) }),
	)
	list := rapid.Map(rapid.SliceOfN(scalar, 0, 3), func(v []any) any { return v })
	table := rapid.Map(rapid.MapOfN(text, rapid.OneOf(scalar, list), 0, 3), func(m map[string]any) any { return amqp.Table(m) })
	headers := rapid.MapOfN(text, rapid.OneOf(scalar, list, table), 0, 5)
	rapid.Check(t, func(t *rapid.T) {
		o := outgoing{key: "settle-test-nowhere", msg: amqp.Publishing{
			Headers: headers.Draw(t, "headers"), ContentType: text.Draw(t, "content type"), ContentEncoding: text.Draw(t, "encoding"),
			DeliveryMode: rapid.SampledFrom([]uint8{0, 1, 2}).Draw(t, "mode"), Priority: rapid.Uint8().Draw(t, "priority"), CorrelationId: text.Draw(t, "correlation"),
			ReplyTo: text.Draw(t, "reply-to"), MessageId: text.Draw(t, "id"), Type: text.Draw(t, "type"), AppId: text.Draw(t, "app"),
			Timestamp: rapid.SampledFrom([]time.Time{{}, time.Unix(1_700_000_000, 0)}).Draw(t, "time"),
		}}
		delete(o.msg.Headers, "CC")
		delete(o.msg.Headers, "BCC")
		if errs := b.publish(context.Background(), []outgoing{o}); errs != nil {
			t.Fatal(errs[0])
		}
		want := wire.headerFrame(t)
		if err := checkFrames(&o, want+frameOverhead); err != nil {
			t.Fatalf("%d bytes were written: %v", want, err)
		}
		if checkFrames(&o, want+frameOverhead-1) == nil {
			t.Fatalf("%d bytes were written, and one less would do", want)
		}
	})
}

func TestToTable(t *testing.T) {
	for _, c := range []struct {
		in, want any
	}{
		{int(math.MaxInt32) + 1, int64(math.MaxInt32) + 1},
		{-1, int64(-1)},
		{uint(7), int64(7)},
		{uint64(math.MaxInt64), int64(math.MaxInt64)},
		{int32(7), int32(7)},
		{uint8(7), uint8(7)},
		{"text", "text"},
		{[]string{"a"}, []any{"a"}},
		{[]any{1, []string{"b"}}, []any{int64(1), []any{"b"}}},
		{map[string]any{"n": 1}, amqp.Table{"n": int64(1)}},
		{settle.Headers{"n": 1}, amqp.Table{"n": int64(1)}},
		{amqp.Table{"n": amqp.Table{"m": uint(2)}}, amqp.Table{"n": amqp.Table{"m": int64(2)}}},
		{nil, nil},
	} {
		table, err := toTable(settle.Headers{"h": c.in}, "")
		require.NoError(t, err)
		assert.Equal(t, amqp.Table{"h": c.want}, table)
	}
	for _, bad := range []any{uint64(math.MaxUint64), []any{uint64(math.MaxUint64)}, map[string]any{"n": uint64(math.MaxUint64)}} {
		_, err := toTable(settle.Headers{"h": bad}, "")
		assert.ErrorContains(t, err, `header "h"`)
	}

	// What the caller changes afterwards is not what is sent.
	raw, nested := []byte("a"), map[string]any{"n": "a"}
	headers := settle.Headers{"bytes": raw, "nested": nested}
	table, err := toTable(headers, "key")
	require.NoError(t, err)
	raw[0], nested["n"], headers["more"] = 'b', "b", "b"
	assert.Equal(t, amqp.Table{"bytes": []byte("a"), "nested": amqp.Table{"n": "a"}, keyHeader: "key"}, table)
}

// An int that does not fit what the library writes of it is refused, not cut.
func TestIntThatWouldBeCut(t *testing.T) {
	_, err := fieldSize(math.MaxInt32 + 1)
	assert.ErrorContains(t, err, "32 bits")
	_, err = fieldSize(math.MinInt32)
	assert.NoError(t, err)
}
