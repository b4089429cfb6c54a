package sqlq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/settlemq/settle"
)

// MessageIDHeader is the header that carries Message.ID where the table makes
// ids of its own. A delivery that has it has it as its ID.
const MessageIDHeader = "message-id"

// encodeHeaders makes the JSON object that the Headers column takes; nil where
// there is nothing to keep.
func encodeHeaders(h settle.Headers, id string) (any, error) {
	if id != "" {
		h = h.Clone()
		if h == nil {
			h = make(settle.Headers, 1)
		}
		h[MessageIDHeader] = id
	}
	if len(h) == 0 {
		return nil, nil
	}
	plain := make(map[string]any, len(h))
	for name, v := range h {
		switch t := v.(type) {
		case []byte:
			v = string(t)
			if !utf8.Valid(t) {
				return nil, fmt.Errorf("header %q holds bytes that are not text, which JSON cannot carry", name)
			}
		case string:
			if !utf8.ValidString(t) {
				return nil, fmt.Errorf("header %q is not valid UTF-8, which JSON cannot carry", name)
			}
		}
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("the header name %q is not valid UTF-8, which JSON cannot carry", name)
		}
		plain[name] = v
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(plain); err != nil {
		return nil, fmt.Errorf("the headers cannot be written as JSON: %w", err)
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// decodeHeaders reads a JSON object: whole numbers become int64, others float64.
func decodeHeaders(text []byte) (settle.Headers, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var h settle.Headers
	if err := dec.Decode(&h); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one JSON value")
	}
	for name, v := range h {
		h[name] = number(v)
	}
	if len(h) == 0 {
		return nil, nil
	}
	return h, nil
}

// number turns the numbers in v into Go's.
func number(v any) any {
	switch t := v.(type) {
	case json.Number:
		if i, err := t.Int64(); err == nil {
			return i
		}
		if f, err := t.Float64(); err == nil && !math.IsInf(f, 0) {
			return f
		}
		return t.String()
	case map[string]any:
		for k, e := range t {
			t[k] = number(e)
		}
	case []any:
		for i, e := range t {
			t[i] = number(e)
		}
	}
	return v
}
