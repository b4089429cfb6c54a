package sqlite

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"sync"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// files are the databases that this process has opened, by the full path that
// SQLite has for them. An entry is small and stays for the life of the process.
var files = struct {
	mu     sync.Mutex // guards byPath
	byPath map[string]*sqlq.Shared
}{byPath: make(map[string]*sqlq.Shared)}

// share returns what all who have this file open in this process share.
func (d *DB) share(ctx context.Context) (*sqlq.Shared, error) {
	d.mu.Lock()
	known := d.shared
	d.mu.Unlock()
	if known != nil {
		return known, nil
	}
	var path string
	err := d.pool.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path)
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, &settle.ConfigError{Source: "sqlite", Setting: "database", Reason: "it is in memory, where each connection may have a database of its own", Fix: "use a file in a temporary directory, or package settlemem in tests"}
	}
	files.mu.Lock()
	shared := files.byPath[path]
	if shared == nil {
		x := &exclusion{held: make(map[string]*hold)}
		shared = &sqlq.Shared{Gate: sqlq.NewGate(), Exclude: x.take}
		files.byPath[path] = shared
	}
	files.mu.Unlock()
	d.mu.Lock()
	d.shared = shared
	d.mu.Unlock()
	return shared, nil
}

// exclusion keeps tables of one file to this process: a lock on a file beside
// the database for each, as long as a session needs it. The operating system drops it with the process.
type exclusion struct {
	mu   sync.Mutex // guards held
	held map[string]*hold
}

// hold is one lock file and how many sessions need it.
type hold struct {
	file     *os.File
	sessions int
}

// errLocked says that another process has the lock.
var errLocked = errors.New("another process has it locked")

// take locks the table, known by its one name, for this process. The lock is
// beside the file that the table is in, which may be an attached one.
func (x *exclusion) take(ctx context.Context, db sqlq.DB, schema, table string) (func() error, error) {
	rows, err := db.Query(ctx, "SELECT file FROM pragma_database_list WHERE lower(name) = ?1", schema)
	if err != nil {
		return nil, err
	}
	var path string
	if rows.Next() {
		err = rows.Scan(&path)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(table))
	name := fmt.Sprintf("%s-settle-%016x.lock", path, sum.Sum64())
	x.mu.Lock()
	defer x.mu.Unlock()
	h := x.held[name]
	if h == nil {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lockFile(file); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", name, err), file.Close())
		}
		h = &hold{file: file}
		x.held[name] = h
	}
	h.sessions++
	return sync.OnceValue(func() error { return x.release(name, h) }), nil
}

func (x *exclusion) release(name string, h *hold) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.sessions--; h.sessions > 0 {
		return nil
	}
	delete(x.held, name)
	// The file stays: to remove it would let two processes lock two files of one name.
	return h.file.Close()
}

// durable makes a wrapped database wait for the disk: each connection it hands
// out has synchronous=FULL until it is given back.
type durable struct{ sqlq.DB }

func (d durable) Conn(ctx context.Context) (sqlq.Conn, error) {
	conn, err := d.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	was, err := text(ctx, conn, "PRAGMA synchronous")
	if err == nil && (was == "0" || was == "1") {
		_, err = conn.Exec(ctx, "PRAGMA synchronous = FULL")
	} else {
		was = ""
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return durableConn{conn, was}, nil
}

type durableConn struct {
	sqlq.Conn
	was string // what synchronous was; empty: it need not be put back
}

func (c durableConn) Close() error {
	if c.was == "" {
		return c.Conn.Close()
	}
	_, err := c.Exec(context.Background(), "PRAGMA synchronous = "+c.was)
	return errors.Join(err, c.Conn.Close())
}
