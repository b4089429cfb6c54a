package main

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
)

// wire leads to a PostgreSQL server and counts what its clients send: statements,
// each of which is an Execute or a simple Query, and round trips, each of which ends with a Sync
// or is a simple Query. See "Message Formats" in the documentation of PostgreSQL.
type wire struct {
	statements, trips atomic.Int64
	listener          net.Listener
	all               sync.WaitGroup
}

// newWire returns a wire to the server of a DSN, and the DSN that leads through it.
func newWire(dsn string) (*wire, string, error) {
	to, err := url.Parse(dsn)
	if err != nil {
		return nil, "", err
	}
	w := &wire{}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, "", err
	}
	server := to.Host
	to.Host = w.listener.Addr().String()
	w.all.Go(func() {
		for {
			client, err := w.listener.Accept()
			if err != nil {
				return
			}
			w.all.Go(func() { w.lead(client, server) })
		}
	})
	return w, to.String(), nil
}

func (w *wire) close() {
	w.listener.Close()
	w.all.Wait()
}

// lead carries one connection until an end of it closes.
func (w *wire) lead(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	w.all.Go(func() {
		_, _ = io.Copy(client, server)
		client.Close()
	})
	defer server.Close()
	head := make([]byte, 5)
	if _, err := io.ReadFull(client, head[1:]); err != nil { // the first message has no type
		return
	}
	if _, err := server.Write(head[1:]); err != nil {
		return
	}
	for {
		if _, err := io.CopyN(server, client, int64(binary.BigEndian.Uint32(head[1:]))-4); err != nil {
			return
		}
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		switch head[0] {
		case 'E':
			w.statements.Add(1)
		case 'S':
			w.trips.Add(1)
		case 'Q':
			w.statements.Add(1)
			w.trips.Add(1)
		}
		if _, err := server.Write(head); err != nil {
			return
		}
	}
}
