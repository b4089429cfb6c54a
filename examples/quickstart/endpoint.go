package main

import (
	"context"
	"errors"
	"hash/fnv"
	"net"
	"net/http"
	"sync"
	"time"
)

// flaky is an endpoint that behaves as endpoints do: most events it takes, some
// it refuses, some it fails once or twice, some it fails for ever, some it keeps waiting.
type flaky struct {
	url    string
	server *http.Server
	slow   time.Duration
	ended  chan struct{}

	mu    sync.Mutex // guards tries
	tries map[string]int
}

// startFlaky starts one on a free port of the loopback interface. It is slower
// than a client that waits for patience.
func startFlaky(patience time.Duration) (*flaky, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &flaky{
		url: "http://" + listener.Addr().String() + "/webhooks", slow: 2 * patience,
		ended: make(chan struct{}), tries: make(map[string]int),
	}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(f.ended)
		if err := f.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // a listener on the loopback interface does not break
		}
	}()
	return f, nil
}

// ServeHTTP answers by the event's identity, so that a run can be repeated.
func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(eventHeader)
	f.mu.Lock()
	f.tries[id]++
	try := f.tries[id]
	f.mu.Unlock()
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(id))
	wait := time.Duration(20+hash.Sum32()%60) * time.Millisecond
	status := http.StatusNoContent
	switch kind := hash.Sum32() % 100; {
	case kind < 5:
		status = http.StatusUnprocessableEntity
	case kind < 8:
		status = http.StatusInternalServerError
	case kind < 25 && try <= 1+int(kind)%2:
		status = http.StatusServiceUnavailable
	case kind < 30 && try == 1:
		wait = f.slow
	}
	select {
	case <-time.After(wait):
		w.WriteHeader(status)
	case <-r.Context().Done():
	}
}

// close ends the endpoint and what it has in work.
func (f *flaky) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if f.server.Shutdown(ctx) != nil {
		_ = f.server.Close()
	}
	<-f.ended
}
