package rabbit

import (
	"net"
	"sync"
)

// corkSize is how many bytes are kept back at most to go out in one write.
const corkSize = 16 << 10

// corkable is a network connection whose small writes can be kept back for a
// moment, to go out together: the client library makes a system call for each
// message, which is much of what a message costs. Whoever corks it pulls the cork before
// he waits for anything.
type corkable struct {
	net.Conn

	mu     sync.Mutex // guards what follows, and is held while writing: Conn has one writer at a time anyhow
	corked bool
	kept   []byte
	err    error // of the first write of what was kept back that failed
}

// Write takes p. What it keeps back and cannot write later ends the
// connection, like any other write that fails.
func (c *corkable) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked && len(c.kept) == 0 && c.err == nil {
		return c.Conn.Write(p)
	}
	if len(c.kept)+len(p) > corkSize {
		c.flush()
	}
	if c.err != nil {
		return 0, c.err
	}
	if len(p) >= corkSize || !c.corked {
		return c.Conn.Write(p)
	}
	c.kept = append(c.kept, p...)
	return len(p), nil
}

func (c *corkable) cork() {
	c.mu.Lock()
	c.corked = true
	c.mu.Unlock()
}

// uncork writes what was kept back, whoever it is from. Its error is that of
// this or an earlier such write: the writes that were kept back were told nothing. A failed
// write closes the connection, so that the client library learns of it.
func (c *corkable) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	c.flush()
	return c.err
}

// flush is called with mu held.
func (c *corkable) flush() {
	if len(c.kept) == 0 || c.err != nil {
		return
	}
	_, c.err = c.Conn.Write(c.kept)
	c.kept = c.kept[:0]
	if c.err != nil {
		c.Conn.Close()
	}
}
