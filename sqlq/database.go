package sqlq

import (
	"context"
	"sync"
	"time"
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
	// Poll is how long a session waits before it looks again at a table that
	// had nothing for it.
	Poll time.Duration
	// Shared returns what all who have this database open in this process share.
	// It may ask the database which it is.
	Shared func(ctx context.Context) (*Shared, error)
}

// Shared is what all who have one database open in this process share.
type Shared struct {
	// Gate is nil for a database with room for several writers.
	Gate *Gate
	// Exclude takes the right to hold advisory locks on a table in this process
	// alone, and returns what gives it back. Nil where the database holds the locks.
	Exclude func(schema, table string) (release func() error, err error)

	hub   hub
	locks locks
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
