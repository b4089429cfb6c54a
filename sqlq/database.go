package sqlq

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// Database is an opened database as a dialect's package hands it to [NewQueue].
type Database struct {
	Dialect Dialect
	// DB runs claims and settlements.
	DB DB
	// Durable runs what must be on the disk when it has committed: new messages.
	Durable DB
	// OneWriter says that the database has room for one writer at a time, so
	// that a session puts all it writes through one connection, in groups.
	OneWriter bool
	// Room returns how many connections DB can have, 0 for any number. Nil: 0.
	Room func() int
	// Lent says that DB is the user's own pool, whose connections handlers may use up.
	Lent bool
	// Poll is how long a session waits before it looks again at a table that
	// had nothing for it.
	Poll time.Duration
	// Shared returns what all who have this database open in this process share.
	// It may ask the database which it is.
	Shared func(ctx context.Context) (*Shared, error)

	seats struct {
		mu    sync.Mutex // guards taken
		taken int        // connections of the pool that sessions keep
	}
}

// bound is [session.bound] for calls that belong to no session.
func (db *Database) bound(ctx context.Context) context.Context {
	if db.OneWriter {
		return context.Background()
	}
	return ctx
}

// Shared is what all who have one database open in this process share.
type Shared struct {
	// Gate is nil for a database with room for several writers.
	Gate *Gate
	// Exclude takes the right to hold advisory locks on a table in this process
	// alone, and returns what gives it back. Nil where the database holds the locks.
	Exclude func(ctx context.Context, db DB, schema, table string) (release func() error, err error)

	// Bell carries wake-ups to other processes and from them; nil: there is none.
	Bell Bell

	hub   hub
	locks locks
	debts debts
}

// Bell tells the consumers of other processes that a queue has a row for them,
// and those here what others tell.
type Bell interface {
	// Ring says that a queue has a new row, due now or soon. It does not wait.
	Ring(schema, table, group string)
	// Listen has [Shared.WakeIf] called for what others ring about queues of the table, until stop.
	Listen(schema, table string) (stop func())
}

// WakeIf has consumers look for rows now: those of the queues that which reports true for.
func (s *Shared) WakeIf(which func(schema, table, group string) bool) {
	for _, l := range s.hub.lines() {
		if which(l.schema, l.table, l.group) {
			s.hub.wake(l, 0)
		}
	}
}

// soon is the delay from which on others are not told of a row: they look at the
// table in good time by themselves.
const soon = time.Second

// wake says here and to others that a row was put into a queue, due after the given time.
func (s *Shared) wake(l line, after time.Duration) {
	s.hub.wake(l, after)
	if s.Bell != nil && after < soon {
		s.Bell.Ring(l.schema, l.table, l.group)
	}
}

// join has sleepers of a queue woken, until leave.
func (s *Shared) join(l line, sleeper *sleeper) (leave func()) {
	s.hub.join(l, sleeper)
	if s.Bell == nil {
		return func() { s.hub.leave(l, sleeper) }
	}
	stop := s.Bell.Listen(l.schema, l.table)
	return func() {
		stop()
		s.hub.leave(l, sleeper)
	}
}

// spare is how many connections there must be beside those of deliveries: for looking at
// the table, and for a handler's own queries.
const spare = 2

// reserve refuses a session whose deliveries would take so many connections of a
// pool that handlers get none. It returns what gives them back.
func (s *Database) reserve(source, setting, what, fix string, n int) (release func() error, err error) {
	room := 0
	if s.Room != nil {
		room = s.Room()
	}
	s.seats.mu.Lock()
	defer s.seats.mu.Unlock()
	if need := s.seats.taken + n + spare; room > 0 && need > room {
		others := ""
		if s.seats.taken > 0 {
			others = fmt.Sprintf(" beside %d of other queues", s.seats.taken)
		}
		return nil, refuse(source, setting, fmt.Sprintf("%s%s, and the pool has room for %d", what, others, room),
			fmt.Sprintf("let the pool have %d connections or more%s", need, fix))
	}
	s.seats.taken += n
	return sync.OnceValue(func() error {
		s.seats.mu.Lock()
		defer s.seats.mu.Unlock()
		s.seats.taken -= n
		return nil
	}), nil
}

// starved is what is told of a session whose handlers may leave it no connection to
// renew leases with; nil where that cannot be.
func (s *Database) starved(source string, r settle.Registration) error {
	if !s.Lent || s.Room == nil {
		return nil
	}
	room, need := s.Room(), r.Workers+spare
	if room == 0 || room >= need {
		return nil
	}
	return fmt.Errorf("%s: the pool has room for %d connections: handlers that take one each leave none to renew leases with, and lose them; let it have %d or more", source, room, need)
}

// locks are the advisory locks that this process holds itself.
type locks struct {
	mu   sync.Mutex // guards held
	held map[lockName]struct{}
}

type lockName struct{ schema, table, name string }

// take takes a lock if it is free.
func (l *locks) take(name lockName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.held[name]; taken {
		return false
	}
	if l.held == nil {
		l.held = make(map[lockName]struct{})
	}
	l.held[name] = struct{}{}
	return true
}

func (l *locks) free(name lockName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, name)
}

// of returns the names of the locks that are held on a table.
func (l *locks) of(schema, table string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]string, 0, len(l.held))
	for n := range l.held {
		if n.schema == schema && n.table == table {
			all = append(all, n.name)
		}
	}
	return all
}
