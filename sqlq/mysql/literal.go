package mysql

import (
	"bytes"
	"database/sql/driver"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// This file writes the arguments of a statement into its text. Several statements
// can then go to the server as one, in one round trip, which a prepared statement cannot; and a
// list is as many values as it has. What is written reads the same in every sql_mode and character set.

// template is a text taken apart at its question marks, and at the semicolons that
// part statements.
type template struct {
	pieces []string // one more than there are arguments
	ends   []int    // of each statement: how many pieces begin in it or before it
}

var templates sync.Map // of the texts of the library, by text: there is a bounded number of them

func templateOf(text string) *template {
	if t, ok := templates.Load(text); ok {
		return t.(*template)
	}
	t := parse(text)
	templates.Store(text, t)
	return t
}

// parse takes a text apart. What stands in quotes and comments stays whole.
func parse(text string) *template {
	t := &template{}
	from := 0
	cut := func(at int) {
		t.pieces = append(t.pieces, text[from:at])
		from = at + 1
	}
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\'' || c == '"' || c == '`':
			i += quoted(text[i:], c)
		case strings.HasPrefix(text[i:], "/*"):
			i += until(text[i:], "*/")
		case strings.HasPrefix(text[i:], "-- "), c == '#':
			i += until(text[i:], "\n")
		case c == '?':
			cut(i)
			i++
		case c == ';':
			cut(i)
			t.ends = append(t.ends, len(t.pieces))
			i++
		default:
			i++
		}
	}
	cut(len(text))
	t.ends = append(t.ends, len(t.pieces))
	return t
}

// quoted returns the length of the quoted piece that text begins with. A
// doubled quote is two pieces side by side, which comes to the same.
func quoted(text string, quote byte) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote != '`':
			i++
		case text[i] == quote:
			return i + 1
		}
	}
	return len(text)
}

func until(text, end string) int {
	i := strings.Index(text, end)
	if i < 0 {
		return len(text)
	}
	return i + len(end)
}

// inline returns the statements of a text, with its arguments in the place of the question marks.
func inline(text string, args []any) ([]string, error) {
	t := templateOf(text)
	if want := len(t.pieces) - len(t.ends); want != len(args) {
		return nil, fmt.Errorf("mysql: the statement takes %d arguments, and there are %d", want, len(args))
	}
	all := make([]string, 0, len(t.ends))
	at, n := 0, 0
	var err error
	for _, end := range t.ends {
		out := make([]byte, 0, len(text)+32*len(args))
		for ; at < end; at++ {
			out = append(out, t.pieces[at]...)
			if at < end-1 {
				if out, err = appendLiteral(out, args[n]); err != nil {
					return nil, err
				}
				n++
			}
		}
		if len(bytes.TrimSpace(out)) > 0 {
			all = append(all, string(bytes.TrimSpace(out)))
		}
	}
	return all, nil
}

// list is an argument that is several values, as IN takes them.
type list []any

// hexBytes is how long a value may be that is written in hexadecimal; a longer
// one is in base64, which takes two thirds of the room.
const hexBytes = 1 << 10

// appendLiteral writes a value as a constant.
func appendLiteral(out []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(out, "NULL"...), nil
	case int64:
		return strconv.AppendInt(out, v, 10), nil
	case int:
		return strconv.AppendInt(out, int64(v), 10), nil
	case string:
		return appendText(out, v), nil
	case []byte:
		return appendBytes(out, v), nil
	case list:
		return appendList(out, v)
	case bool:
		if v {
			return append(out, '1'), nil
		}
		return append(out, '0'), nil
	case float64:
		return strconv.AppendFloat(out, v, 'g', -1, 64), nil
	case uint64:
		return strconv.AppendUint(out, v, 10), nil
	case time.Time:
		return v.UTC().AppendFormat(out, "'2006-01-02 15:04:05.999999'"), nil
	}
	plain, err := driver.DefaultParameterConverter.ConvertValue(v)
	if err != nil {
		return out, fmt.Errorf("mysql: an argument of the type %T: %w", v, err)
	}
	return appendLiteral(out, plain)
}

func appendList(out []byte, values list) ([]byte, error) {
	if len(values) == 0 {
		return append(out, "(NULL)"...), nil
	}
	var err error
	for i, v := range values {
		out = append(out, "(,"[min(i, 1)])
		if out, err = appendLiteral(out, v); err != nil {
			return out, err
		}
	}
	return append(out, ')'), nil
}

// plain reports whether a text can stand in quotes as it is, whatever the server takes for an escape.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '\'' || c == '\\' {
			return false
		}
	}
	return true
}

func appendText(out []byte, s string) []byte {
	switch {
	case plain(s):
		out = append(out, '\'')
		out = append(out, s...)
		return append(out, '\'')
	case len(s) <= hexBytes || !utf8.ValidString(s): // in hexadecimal the server refuses what is no text
		out = append(out, "_utf8mb4 X'"...)
		out = hex.AppendEncode(out, []byte(s))
		return append(out, '\'')
	default:
		out = append(out, "CONVERT(FROM_BASE64('"...)
		out = base64.StdEncoding.AppendEncode(out, []byte(s))
		return append(out, "') USING utf8mb4)"...)
	}
}

func appendBytes(out, b []byte) []byte {
	if len(b) <= hexBytes {
		out = append(out, "X'"...)
		out = hex.AppendEncode(out, b)
		return append(out, '\'')
	}
	out = append(out, "FROM_BASE64('"...)
	out = base64.StdEncoding.AppendEncode(out, b)
	return append(out, "')"...)
}

// literal is a text constant.
func literal(s string) string { return string(appendText(nil, s)) }

// List implements sqlq.Server.
func (dialect) List(values []any) any { return list(values) }

// Pack implements sqlq.Packer: a JSON list of lists, as [rowsOf] reads it.
func (dialect) Pack(rows [][]any) any {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(rows) // of numbers and text alone: it cannot fail
	return strings.TrimSuffix(out.String(), "\n")
}
