package sqlq

import (
	"cmp"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/settlemq/settle"
)

// Row is what [settle.Delivery.As] finds in a delivery from a table.
type Row struct {
	ID         any // as the driver returned it: int64, uint64 beyond that, string or []byte
	Table      string
	Group      string    // GroupValue
	Priority   int64     // 0 where the table has none
	RetryAfter time.Time // when the row was due; zero where the table has no such column, or a NULL
}

// row is one delivery: one allocation, with the settle.Delivery inside it.
type row struct {
	settle.Delivery
	sess     *session
	id       any
	attempt  int64 // what the column holds while the row is in work
	token    any   // what LockedUntil holds
	first    any   // what it held when the row was claimed; renewals reckon from there, so that rounding does not add up
	due      int64
	priority int64
	lock     string // the name of its advisory lock, where this process holds that
	key      any    // its advisory lock, where the database holds that
	seat     *seat  // the connection it has to itself; nil: none
	asks     int    // how often the runtime was let ask again for its attempt to be counted

	// What follows is guarded by the mutex of the session's work.
	claimed    time.Duration // when token was true, since the session began
	firstAt    time.Duration // when first was
	next, prev *row          // in the order of renewal
	state      rowState
	unsure     bool // a settlement of it may have been committed
	proposed   any  // a token that a renewal may have written; nil: none
	expired    bool // its end was told
	wanted     bool // a settlement waits for its renewal to end, and comes next

	tx     *openTx // the handler's transaction; nil: none
	undone bool    // that did not commit
}

type rowState uint8

const (
	rowIdle     rowState = iota // in work
	rowRenewing                 // a renewal has it
	rowSettling                 // a settlement has it
	rowInTx                     // its handler's transaction is open
	rowLost                     // a renewal has found it to be another's
	rowDone                     // settled, or left alone for good
)

// As finds the row's own form.
func (r *row) As(target any) bool {
	t, ok := target.(*Row)
	if !ok {
		return false
	}
	table := &r.sess.layout.Table
	*t = Row{ID: r.id, Table: table.Name, Group: table.GroupValue, Priority: r.priority}
	if r.due > 0 {
		t.RetryAfter = time.UnixMicro(r.due)
	}
	return true
}

// scanner reads the rows of claims. One is used for all rows of a query.
type scanner struct {
	id, token any
	payload   []byte
	attempt   int64
	due       int64
	priority  sql.NullInt64
	headers   []byte
	key       sql.NullString
	mark      sql.NullString // of the transaction
	dest      []any
}

func newScanner(l *Layout) *scanner {
	s := &scanner{}
	into := [len(claimed)]any{&s.id, &s.payload, &s.attempt, &s.token, &s.due, &s.priority, &s.headers, &s.key}
	for i, r := range claimed {
		if l.Has(r) {
			s.dest = append(s.dest, into[i])
		}
	}
	if server, ok := l.d.(Server); ok && l.Locked() && server.Committed() != "" {
		s.dest = append(s.dest, &s.mark)
	}
	return s
}

// collect reads all rows of a claim, in no order.
func (s *session) collect(into []*row, rows Rows, scan *scanner) ([]*row, error) {
	for rows.Next() {
		*scan = scanner{dest: scan.dest}
		if err := rows.Scan(scan.dest...); err != nil {
			_ = rows.Close()
			return into, fmt.Errorf("reading a claimed row: %w", err)
		}
		into = append(into, s.newRow(scan))
	}
	err := rows.Err()
	if closed := rows.Close(); err == nil {
		err = closed
	}
	return into, err
}

func (s *session) newRow(scan *scanner) *row {
	r := &row{
		sess: s, id: scan.id, attempt: scan.attempt, token: scan.token, first: scan.token,
		due: scan.due, priority: scan.priority.Int64,
	}
	r.Native = r
	r.ID = idText(scan.id)
	r.Key = scan.key.String
	r.Body = scan.payload
	if s.layout.Has(RoleAttempt) {
		r.Attempt = int(scan.attempt)
		if !s.layout.Locked() {
			r.Attempt-- // the claim counted it
		}
	}
	if len(scan.headers) > 0 {
		h, err := decodeHeaders(scan.headers)
		if err != nil {
			s.reg.Logger.Warn("the headers of a row cannot be read; its handler gets none", "id", r.ID, "error", err)
		}
		r.Headers = h
		if id, ok := h[MessageIDHeader].(string); ok && id != "" {
			r.ID = id
		}
	}
	return r
}

// sortRows puts rows in the order of claims, which a database need not keep when it
// returns what it has updated.
func sortRows(rows []*row) {
	if len(rows) < 2 {
		return
	}
	slices.SortFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.due, b.due), compareIDs(a.id, b.id))
	})
}

func compareIDs(a, b any) int {
	switch x := a.(type) {
	case int64:
		switch y := b.(type) {
		case int64:
			return cmp.Compare(x, y)
		case uint64: // which is beyond an int64
			return -1
		}
	case uint64:
		switch y := b.(type) {
		case uint64:
			return cmp.Compare(x, y)
		case int64:
			return 1
		}
	case string:
		if y, ok := b.(string); ok {
			return cmp.Compare(x, y)
		}
	case []byte:
		if y, ok := b.([]byte); ok {
			return cmp.Compare(string(x), string(y))
		}
	}
	return 0
}

// idText is a row's id as text: bytes in hexadecimal.
func idText(id any) string {
	switch v := id.(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case string:
		return v
	case []byte:
		return hex.EncodeToString(v)
	default:
		return fmt.Sprint(v)
	}
}
