package faults

import (
	"net"
	"sync"
	"time"
)

// link is one connection through a line: the client's half and the server's.
type link struct {
	client, server net.Conn // server is nil until it is dialled
	once           sync.Once
	done           chan struct{} // closed when the link ends
}

// chunk is what one read returned, and when.
type chunk struct {
	bytes []byte
	at    time.Time
}

// onTheWay bounds how many chunks one direction keeps while they are delayed or held up.
const onTheWay = 1024

// reset ends the link as a broken network does: both halves get a reset and what was on its way is gone.
func (k *link) reset() {
	k.once.Do(func() {
		close(k.done)
		for _, half := range []net.Conn{k.client, k.server} {
			if tcp, ok := half.(*net.TCPConn); ok {
				tcp.SetLinger(0) // on error the close is only more polite
				tcp.Close()
			}
		}
	})
}

// end closes both halves in good order.
func (k *link) end() {
	k.once.Do(func() {
		close(k.done)
		k.client.Close()
		k.server.Close()
	})
}

// carry takes bytes from one half to the other, through the weather. It returns when the source has no more and all
// of it was delivered, or when the link has ended.
func (l *Line) carry(k *link, from, to net.Conn) {
	way := make(chan chunk, onTheWay)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(way)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				select {
				case way <- chunk{buffer[:n], time.Now()}:
				case <-k.done:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range way {
		if !l.pass(k, c.at) {
			break
		}
		if _, err := to.Write(c.bytes); err != nil {
			k.reset()
			break
		}
	}
	// The other direction may go on: only the writing half is done.
	if tcp, ok := to.(*net.TCPConn); ok {
		tcp.CloseWrite() // fails only on a half that is gone already
	}
	reader.Wait()
}

// pass waits until a chunk that was read at that time may go on; false: the link has ended.
func (l *Line) pass(k *link, at time.Time) bool {
	for {
		w, changed := l.now()
		wait := time.Until(at.Add(w.delay))
		if !w.hole && wait <= 0 {
			return true
		}
		var due <-chan time.Time
		if !w.hole {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-changed:
		case <-k.done:
			return false
		}
	}
}
