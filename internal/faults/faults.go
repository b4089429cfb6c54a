// Package faults puts a faulty network between a test and a server: a proxy in the process that cuts, holds up, delays
// and refuses connections on demand. It is our own because the one proxy we know as a library leaves goroutines behind
// each time it cuts a connection under load, which every test here would then report.
package faults

import (
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Line is a proxy in front of one server. It starts as a good network. Its methods may be called at any time, from any
// goroutine, and work on the connections that are open as well as on those to come.
type Line struct {
	given    string // as the caller gave it: an address or a URL that holds one
	upstream string // host:port
	listener net.Listener
	running  sync.WaitGroup // every goroutine of the line

	mu      sync.Mutex // guards what follows
	weather weather
	changed chan struct{} // closed and replaced when the weather changes
	links   map[*link]struct{}
	closed  bool
}

// weather is what a line does to the bytes that pass.
type weather struct {
	hole   bool
	refuse bool
	delay  time.Duration
}

// Proxy opens a line to upstream, which is host:port or a URL or DSN that holds it. The line ends with the test, all of
// its goroutines with it.
func Proxy(t testing.TB, upstream string) *Line {
	t.Helper()
	return ProxyAt(t, "127.0.0.1:0", upstream)
}

// ProxyAt is Proxy on an address of the caller's choice, for a server that tells its clients which address to take.
func ProxyAt(t testing.TB, listen, upstream string) *Line {
	t.Helper()
	server, ok := address(upstream)
	if !ok {
		t.Fatal("faults: there is no host:port in the upstream that was given") // not printed: it may hold a password
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatalf("faults: %v", err)
	}
	l := &Line{
		given: upstream, upstream: server, listener: listener,
		changed: make(chan struct{}), links: make(map[*link]struct{}),
	}
	l.running.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// Addr is the host:port that the line listens on.
func (l *Line) Addr() string { return l.listener.Addr().String() }

// URL is what was given to Proxy with the line's address in place of the server's.
func (l *Line) URL() string { return strings.Replace(l.given, l.upstream, l.Addr(), 1) }

// Sever resets every connection that is open and returns how many those were. New ones are accepted.
func (l *Line) Sever() int {
	l.mu.Lock()
	cut := make([]*link, 0, len(l.links))
	for k := range l.links {
		cut = append(cut, k)
	}
	l.mu.Unlock()
	for _, k := range cut {
		k.reset()
	}
	return len(cut)
}

// Refuse resets new connections as they come; those that are open go on.
func (l *Line) Refuse() { l.change(func(w *weather) { w.refuse = true }) }

// Blackhole lets nothing through while connections stay open and new ones are accepted: a network that is parted. The
// bytes are kept, within bounds, and go on their way after Restore, as TCP would send them again.
func (l *Line) Blackhole() { l.change(func(w *weather) { w.hole = true }) }

// Delay makes every byte arrive d later, in each direction. It does not bound how much is on its way.
func (l *Line) Delay(d time.Duration) { l.change(func(w *weather) { w.delay = d }) }

// Restore makes it a good network again.
func (l *Line) Restore() { l.change(func(w *weather) { *w = weather{} }) }

// Connections is the number of connections that are open through the line.
func (l *Line) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.links)
}

func (l *Line) change(to func(*weather)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to(&l.weather)
	close(l.changed)
	l.changed = make(chan struct{})
}

// now is the weather and a channel that closes when it changes.
func (l *Line) now() (weather, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.weather, l.changed
}

func (l *Line) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.running.Go(func() { l.connect(client) })
	}
}

// connect opens the way to the server for a new client and carries bytes until either side is done.
func (l *Line) connect(client net.Conn) {
	k := &link{client: client, done: make(chan struct{})}
	if w, _ := l.now(); w.refuse {
		k.reset()
		return
	}
	server, err := net.DialTimeout("tcp", l.upstream, 10*time.Second)
	if err != nil {
		k.reset()
		return
	}
	k.server = server
	if !l.add(k) {
		k.reset()
		return
	}
	defer l.remove(k)
	var directions sync.WaitGroup
	directions.Go(func() { l.carry(k, client, server) })
	directions.Go(func() { l.carry(k, server, client) })
	directions.Wait()
	k.end()
}

func (l *Line) add(k *link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.links[k] = struct{}{}
	return true
}

func (l *Line) remove(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.links, k)
}

func (l *Line) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.listener.Close()
	l.Sever()
	l.running.Wait()
}

// hosts finds what may be the address in a URL or a DSN: host:port after "//", "@" or "(", or at the start.
var hosts = regexp.MustCompile(`(?:^|//|@|\()([^@/()\s]+:\d+)(?:[/)?,]|$)`)

func address(given string) (string, bool) {
	found := hosts.FindAllStringSubmatch(given, -1)
	if found == nil {
		return "", false
	}
	return found[len(found)-1][1], true
}
