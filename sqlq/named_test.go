package sqlq

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// marks is a dialect of which only the placeholders are asked for.
type marks struct {
	Dialect
	mark func(n int) string
}

func (m marks) Placeholder(n int) string { return m.mark(n) }

var (
	numbered = marks{mark: func(n int) string { return "$" + strconv.Itoa(n) }}
	alike    = marks{mark: func(int) string { return "?" }}
)

func TestCompileFindsNamesAndNothingElse(t *testing.T) {
	for _, c := range []struct{ text, sql, alike string }{
		{"SELECT :id", "SELECT $1", "SELECT ?"},
		{"x = :id AND y = :token OR z = :id", "x = $1 AND y = $2 OR z = $1", "x = ? AND y = ? OR z = ?"},
		{":id:token", "$1$2", "??"},
		{"(:id)", "($1)", "(?)"},
		{"':id'", "':id'", "':id'"},
		{"'it''s :id' = :id", "'it''s :id' = $1", "'it''s :id' = ?"},
		{`":id" "a"":id"`, `":id" "a"":id"`, `":id" "a"":id"`},
		{"`:id` [:id]", "`:id` [:id]", "`:id` [:id]"},
		{"a -- :id\n:id", "a -- :id\n$1", "a -- :id\n?"},
		{"a /* :id */ :id", "a /* :id */ $1", "a /* :id */ ?"},
		{":id::text", "$1::text", "?::text"},
		{"$$ :id $$ $q$ :id $$ $q$ :id", "$$ :id $$ $q$ :id $$ $q$ $1", "$$ :id $$ $q$ :id $$ $q$ ?"},
		{"a$b :id", "a$b $1", "a$b ?"},
		{"a : b, c := d, 12:30", "a : b, c := d, 12:30", "a : b, c := d, 12:30"},
		{"'open :id", "'open :id", "'open :id"},
		{"/* open :id", "/* open :id", "/* open :id"},
		{"", "", ""},
	} {
		s, err := compile(numbered, c.text)
		require.NoError(t, err, c.text)
		assert.Equal(t, c.sql, s.sql)
		s, err = compile(alike, c.text)
		require.NoError(t, err, c.text)
		assert.Equal(t, c.alike, s.sql)
		assert.Len(t, s.params, strings.Count(s.sql, "?"), "an argument for each place: %s", c.text)
	}
	_, err := compile(numbered, "SELECT :nope")
	require.ErrorContains(t, err, ":nope")
	require.ErrorContains(t, err, ":attempt")
}

func TestArgumentsComeInTheOrderOfTheirPlaces(t *testing.T) {
	v := &values{id: "row", attempt: 3, group: "g", now: 7}
	s, err := compile(numbered, ":group :id :attempt :id :now")
	require.NoError(t, err)
	assert.Equal(t, []any{"g", "row", int64(3), int64(7)}, s.args(v))
	s, err = compile(alike, ":group :id :attempt :id :now")
	require.NoError(t, err)
	assert.Equal(t, []any{"g", "row", int64(3), "row", int64(7)}, s.args(v))
}

// Whatever text a user writes, compiling it ends, and changes nothing but names.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{"SELECT :id", "':id", `"`, "$$", "$a$ :id $a$", "-- ", "/*", "::", "[", ":", ":é", "x:id", "\x00:id"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := compile(marks{mark: func(n int) string { return "<" + strconv.Itoa(n) + ">" }}, text)
		if err != nil {
			return
		}
		back := s.sql
		if strings.ContainsAny(text, "<>") {
			return
		}
		for i, p := range s.params {
			back = strings.ReplaceAll(back, "<"+strconv.Itoa(i+1)+">", ":"+paramNames[p])
		}
		if back != text {
			t.Fatalf("%q became %q", text, s.sql)
		}
	})
}
