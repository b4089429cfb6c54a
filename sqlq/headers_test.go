package sqlq

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/settlemq/settle"
)

// Text and whole numbers come back from the table as they went in.
func TestHeadersComeBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.OneOf(
			rapid.String().AsAny(), rapid.Int64().AsAny(), rapid.Bool().AsAny(),
			rapid.Just[any](nil), rapid.SliceOf(rapid.String()).AsAny(),
		)
		h := settle.Headers(rapid.MapOf(rapid.String(), value).Draw(rt, "headers"))
		id := rapid.String().Draw(rt, "id")
		was := maps.Clone(h)
		text, err := encodeHeaders(h, id)
		if err != nil {
			rt.Fatal(err)
		}
		assert.Equal(rt, was, h, "the publisher's map is left alone")
		want := settle.Headers{}
		for name, v := range h {
			if list, ok := v.([]string); ok {
				all := make([]any, len(list))
				for i, s := range list {
					all[i] = s
				}
				v = all
			}
			want[name] = v
		}
		if id != "" {
			want[MessageIDHeader] = id
		}
		if len(want) == 0 {
			assert.Nil(rt, text)
			return
		}
		got, err := decodeHeaders([]byte(text.(string)))
		require.NoError(rt, err)
		assert.Equal(rt, want, got)
	})
}

func TestNumbersInHeaders(t *testing.T) {
	h, err := decodeHeaders([]byte(`{"i":9223372036854775807,"f":1.5,"big":123456789012345678901234567890,"huge":1e999,"in":{"n":[1]}}`))
	require.NoError(t, err)
	assert.Equal(t, settle.Headers{
		"i": int64(9223372036854775807), "f": 1.5, "big": 123456789012345678901234567890.0, "huge": "1e999",
		"in": map[string]any{"n": []any{int64(1)}},
	}, h)
}

// Whatever stands in the column, reading it ends with headers or an error.
func FuzzDecodeHeaders(f *testing.F) {
	for _, s := range []string{"", "{}", "null", "[]", `{"a":1}`, `{"a":1}{}`, "{", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := decodeHeaders(text)
		if err == nil && h != nil {
			if _, err := encodeHeaders(h, ""); err != nil {
				t.Fatalf("%q was read and cannot be written: %v", text, err)
			}
		}
	})
}
