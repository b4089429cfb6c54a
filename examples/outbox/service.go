package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/rabbit"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/outbox"
	"github.com/settlemq/settle/sqlq/sqlite"
)

// work is what a service works on.
type work struct {
	db, queue string
	at        gap // where it dies
}

// service takes orders, sends their events and handles them. A real one would do
// these in different processes.
type service struct {
	work
	broker *rabbit.Broker
	out    io.Writer
	files  *sqlite.DB
	box    *outbox.Box
}

type order struct {
	ID   int64
	Item string
}

// open makes the tables and the queue.
func open(ctx context.Context, broker *rabbit.Broker, w work, out io.Writer) (*service, error) {
	files, err := sqlite.Open(w.db, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	s := &service{work: w, broker: broker, out: out, files: files, box: outbox.New(files, outbox.Standard("outbox"), outbox.Options{})}
	_, err = files.SQL().ExecContext(ctx, `
		CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL);
		CREATE TABLE IF NOT EXISTS shipments (order_id INTEGER NOT NULL, item TEXT NOT NULL)`)
	if err == nil {
		err = s.box.CreateTable(ctx)
	}
	if err == nil { // the queue is there before anything is sent to it; it goes a minute after the example has ended
		err = broker.Declare(ctx, rabbit.Topology{Queues: []rabbit.Queue{{Name: w.queue, Kind: rabbit.Classic, Expires: time.Minute}}})
	}
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return s, nil
}

func (s *service) close() error { return s.files.Close() }

// serve runs all there is of a service, orders the items, and ends when every event is marked.
func (s *service) serve(ctx context.Context, items ...string) (err error) {
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	relay := &outbox.Relay{
		Box:       s.box,
		Publisher: deadly{&rabbit.Publisher{Broker: s.broker}, s.at},
		Lease:     time.Second, // how long the records of a relay that died wait
	}
	go func() { ended <- relay.Run(running) }()
	rt := &settle.Runtime{}
	rt.Handle(&rabbit.ClassicQueue{Broker: s.broker, Queue: s.queue}, settle.JSON(s.ship), settle.Options{
		Middleware: []settle.Middleware{s.box.Middleware()},
	})
	go func() { ended <- rt.Run(running) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended, <-ended)
	}()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	endpoint := &http.Server{Handler: http.HandlerFunc(s.take), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = endpoint.Serve(listener) }()
	defer endpoint.Close()
	for _, item := range items {
		if err := place(ctx, "http://"+listener.Addr().String()+"/orders", item); err != nil {
			return err
		}
	}
	return s.wait(ctx)
}

// place is a customer.
func place(ctx context.Context, url, item string) error {
	body, err := json.Marshal(order{Item: item})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("the order was answered with %s", response.Status)
	}
	return nil
}

// take is the endpoint: it stores an order and its event, both or neither.
func (s *service) take(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&o); err != nil || o.Item == "" {
		http.Error(w, "this is no order", http.StatusBadRequest)
		return
	}
	if err := s.store(r.Context(), &o); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.box.Wake() // the transaction is committed: have the relay look at once
	w.WriteHeader(http.StatusCreated)
}

func (s *service) store(ctx context.Context, o *order) error {
	tx, err := s.files.SQL().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // of no effect after the commit
	result, err := tx.ExecContext(ctx, "INSERT INTO orders (item) VALUES (?)", o.Item)
	if err != nil {
		return err
	}
	if o.ID, err = result.LastInsertId(); err != nil {
		return err
	}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := s.box.Record(ctx, sqlq.SQLTx(tx), settle.Message{To: s.queue, Body: body}); err != nil {
		return err
	}
	return tx.Commit()
}

// ship is the consumer's handler. Its record is marked when it returns an Ack.
func (s *service) ship(ctx context.Context, o order, _ *settle.Delivery) settle.Outcome {
	if _, err := s.files.SQL().ExecContext(ctx, "INSERT INTO shipments (order_id, item) VALUES (?, ?)", o.ID, o.Item); err != nil {
		return settle.RetryAfter(100*time.Millisecond, err)
	}
	s.at.die(handled)
	return settle.Ack()
}

// wait waits until nothing is left to send or to mark.
func (s *service) wait(ctx context.Context) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		counts, err := s.box.Count(ctx)
		if err != nil || counts.Waiting == 0 {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// report says what became of the orders.
func (s *service) report(ctx context.Context, when string) error {
	var orders, shipped, twice, marked int
	err := s.files.SQL().QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM orders),
		(SELECT count(DISTINCT order_id) FROM shipments),
		(SELECT count(*) FROM (SELECT 1 FROM shipments GROUP BY order_id HAVING count(*) > 1)),
		(SELECT count(*) FROM outbox WHERE processed_at IS NOT NULL)`).Scan(&orders, &shipped, &twice, &marked)
	if err == nil {
		_, err = fmt.Fprintf(s.out, "%s: orders %d, shipped %d, of them twice %d, events marked %d\n", when, orders, shipped, twice, marked)
	}
	return err
}
