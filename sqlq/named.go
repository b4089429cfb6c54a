package sqlq

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// param is a value that a statement may ask for by name.
type param uint8

const (
	paramID param = iota
	paramAttempt
	paramToken
	paramNextToken
	paramNow
	paramDelay
	paramLease
	paramLimit
	paramScan
	paramGroup
	paramDead
	paramCause
	paramHeld
	paramPayload
	paramPriority
	paramHeaders
	paramKey
	paramBefore
	paramFloor
	paramFloorID
	paramFloors
	paramLock
	paramTransaction
	paramIDs
	paramAttempts
	paramTokens
	paramNextTokens
	paramDelays
	paramCauses
	paramRows
	paramCount
)

var paramNames = [paramCount]string{
	"id", "attempt", "token", "next_token", "now", "delay", "lease", "limit", "scan", "group", "dead", "cause", "held",
	"payload", "priority", "headers", "key", "before",
	"floor", "floor_id", "floors", "lock", "transaction",
	"ids", "attempts", "tokens", "next_tokens", "delays", "causes", "rows",
}

// statement is SQL with its parameters in the order the driver takes them.
type statement struct {
	sql    string
	params []param
}

// values are what the parameters of a statement stand for. A statement takes
// those that it names. Times are microseconds of the clock of the process, durations microseconds.
type values struct {
	id                       any
	attempt                  int64
	token, nextToken         any
	now, delay, lease, limit int64
	scan, priority, before   int64
	group, dead              string
	cause, key, headers      any
	held, payload            any
	floor, floorID, floors   any // see floor.go
	lock, transaction        any
	lists                    *lists // nil: none
}

// lists are what is known of many rows, side by side.
type lists struct{ ids, attempts, tokens, nextTokens, delays, causes, rows any }

func (v *values) of(p param) any {
	switch p {
	case paramID:
		return v.id
	case paramAttempt:
		return v.attempt
	case paramToken:
		return v.token
	case paramNextToken:
		return v.nextToken
	case paramNow:
		return v.now
	case paramDelay:
		return v.delay
	case paramLease:
		return v.lease
	case paramLimit:
		return v.limit
	case paramScan:
		return v.scan
	case paramGroup:
		return v.group
	case paramDead:
		return v.dead
	case paramCause:
		return v.cause
	case paramHeld:
		return v.held
	case paramPayload:
		return v.payload
	case paramPriority:
		return v.priority
	case paramHeaders:
		return v.headers
	case paramKey:
		return v.key
	case paramBefore:
		return v.before
	case paramFloor:
		return v.floor
	case paramFloorID:
		return v.floorID
	case paramFloors:
		return v.floors
	case paramLock:
		return v.lock
	case paramTransaction:
		return v.transaction
	}
	if v.lists == nil {
		return nil
	}
	return v.lists.of(p)
}

func (l *lists) of(p param) any {
	switch p {
	case paramIDs:
		return l.ids
	case paramAttempts:
		return l.attempts
	case paramTokens:
		return l.tokens
	case paramNextTokens:
		return l.nextTokens
	case paramDelays:
		return l.delays
	case paramCauses:
		return l.causes
	case paramRows:
		return l.rows
	}
	return nil
}

// args returns the statement's arguments.
func (s *statement) args(v *values) []any {
	all := make([]any, len(s.params))
	for i, p := range s.params {
		all[i] = v.of(p)
	}
	return all
}

// exec runs the statement and returns how many rows it touched.
func (s *statement) exec(ctx context.Context, db Execer, v *values) (int64, error) {
	return db.Exec(ctx, s.sql, s.args(v)...)
}

// names reports whether the statement takes p.
func (s *statement) names(p param) bool { return slices.Contains(s.params, p) }

// compile turns the names in text, such as :id, into the dialect's
// placeholders. Names in quotes, in comments and after another colon are left alone.
func compile(d Dialect, text string) (*statement, error) {
	s := &statement{}
	numbered := d.Placeholder(1) != d.Placeholder(2)
	sql, err := replaceNames(text, func(name string) (string, error) {
		p := slices.Index(paramNames[:], name)
		if p < 0 {
			return "", fmt.Errorf("it names :%s, which is none of %s", name, strings.Join(prefixed(paramNames[:]), ", "))
		}
		at := slices.Index(s.params, param(p))
		if at < 0 || !numbered {
			s.params = append(s.params, param(p))
			at = len(s.params) - 1
		}
		return d.Placeholder(at + 1), nil
	})
	if err != nil {
		return nil, err
	}
	s.sql = sql
	return s, nil
}

// Compile turns the names in a dialect's text into placeholders and returns
// arguments of no meaning for them, to have the database explain it.
func Compile(d Dialect, text string) (string, []any, error) {
	s, err := compile(d, text)
	if err != nil {
		return "", nil, err
	}
	return s.sql, s.args(&values{}), nil
}

// CompileFor is Compile for a statement that is run: it gets the layout's group and the time.
func CompileFor(d Dialect, l *Layout, text string) (string, []any, error) {
	s, err := compile(d, text)
	if err != nil {
		return "", nil, err
	}
	return s.sql, s.args(&values{group: l.GroupValue, now: time.Now().UnixMicro()}), nil
}

func prefixed(names []string) []string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = ":" + n
	}
	return all
}

// literal returns how much of text comes before the next parameter.
func literal(text string) int {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\'' || c == '"' || c == '`':
			i += quoted(text[i:], c)
		case c == '[':
			i += until(text[i:], "]")
		case strings.HasPrefix(text[i:], "--"):
			i += until(text[i:], "\n")
		case strings.HasPrefix(text[i:], "/*"):
			i += until(text[i:], "*/")
		case c == '$':
			i += dollar(text[i:])
		case strings.HasPrefix(text[i:], "::"):
			i += 2
		case c == ':' && word(text[i+1:]) != "":
			return i
		case wordByte(c):
			for i < len(text) && wordByte(text[i]) {
				i++
			}
		default:
			i++
		}
	}
	return len(text)
}

// quoted returns the length of the quoted piece that text begins with. A
// doubled quote is two pieces side by side, which comes to the same.
func quoted(text string, quote byte) int {
	end := strings.IndexByte(text[1:], quote)
	if end < 0 {
		return len(text)
	}
	return end + 2
}

func until(text, end string) int {
	i := strings.Index(text, end)
	if i < 0 {
		return len(text)
	}
	return i + len(end)
}

// dollar returns the length of the dollar-quoted piece that text begins with, or 1.
func dollar(text string) int {
	tag := "$" + word(text[1:])
	if !strings.HasPrefix(text[len(tag):], "$") {
		return 1
	}
	tag += "$"
	end := strings.Index(text[len(tag):], tag)
	if end < 0 {
		return len(text)
	}
	return len(tag) + end + len(tag)
}

// word returns the name that text begins with.
func word(text string) string {
	n := 0
	for n < len(text) && wordByte(text[n]) {
		n++
	}
	if n > 0 && text[0] >= '0' && text[0] <= '9' {
		return ""
	}
	return text[:n]
}

func wordByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
