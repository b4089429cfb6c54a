package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/rabbit"
	"github.com/settlemq/settle/sqlq/outbox"
	"github.com/settlemq/settle/sqlq/postgres"
)

var outboxPart = part{name: "outbox", about: aboutOutbox, comparisons: outboxComparisons}

func aboutOutbox(ctx context.Context) (string, error) {
	database, err := aboutPostgres(ctx)
	if err != nil {
		return "", err
	}
	broker, err := aboutRabbit(ctx)
	return database + "; " + broker, err
}

func outboxComparisons(context.Context) ([]comparison, error) {
	s, err := findRabbit()
	if err != nil {
		return nil, err
	}
	const hand = "a relay by hand"
	return []comparison{{
		part: "outbox", name: "relay to RabbitMQ", messages: 30000, base: hand,
		work: "Send records of 200 bytes from a table in PostgreSQL to a classic queue of RabbitMQ, each confirmed, and note that in the table; one relay.",
		contestants: []contestant{
			{
				name: "settle, done on confirm", settings: "Relay with its defaults and OnConfirm",
				done: "the broker has confirmed it and that is committed", prepare: s.relay(outbox.OnConfirm),
			},
			{
				name: "settle, done on mark", settings: "Relay with its defaults; no consumer",
				done: "the broker has confirmed it; when it is to be sent again is committed soon after", prepare: s.relay(outbox.OnMark),
			},
			{
				name: hand, settings: "SELECT .. LIMIT 256 FOR UPDATE SKIP LOCKED, deferred confirmations, UPDATE processed_at .. = ANY, COMMIT",
				done: "the broker has confirmed it and that is committed", prepare: s.relayByHand,
			},
			{
				name: "raw publisher", settings: "amqp091-go, deferred confirmations, 512 at once, no table",
				done: "the broker has confirmed it", prepare: s.publish(rawPipelined),
			},
		},
	}}, nil
}

// records makes the tables of an outbox anew and fills them.
func records(ctx context.Context, n int, to string) (db *postgres.DB, box *outbox.Box, sent *tally, err error) {
	dsn, err := postgresDSN()
	if err != nil {
		return nil, nil, nil, err
	}
	if db, err = postgres.Open(dsn, postgres.Options{MaxConns: postgresConns}); err != nil {
		return nil, nil, nil, err
	}
	sent = &tally{all: make(chan struct{})}
	sent.left.Store(int64(n))
	box = outbox.New(db, outbox.Standard("bench_outbox"), outbox.Options{Observe: sent.observe, Logger: slog.New(slog.DiscardHandler)})
	if _, err = db.Pool().Exec(ctx, "DROP TABLE IF EXISTS bench_outbox, bench_outbox_relay"); err == nil {
		err = box.CreateTable(ctx)
	}
	for left := n; left > 0 && err == nil; left -= 1000 {
		batch := make([]settle.Message, min(left, 1000))
		for i := range batch {
			batch[i] = settle.Message{To: to, Body: payload}
		}
		err = box.Publisher().Publish(ctx, batch...)
	}
	if err == nil {
		_, err = db.Pool().Exec(ctx, "VACUUM ANALYZE bench_outbox, bench_outbox_relay")
	}
	return db, box, sent, err
}

// tally counts the records that were sent.
type tally struct {
	left atomic.Int64
	all  chan struct{}
}

func (t *tally) observe(e outbox.Event) {
	if e.Kind == outbox.EventSent && t.left.Add(-1) == 0 {
		close(t.all)
	}
}

func (s rabbitServer) relay(done outbox.Done) func(context.Context, int) (run, error) {
	return func(ctx context.Context, n int) (run, error) {
		queue, _, end, err := s.declare("classic")
		if err != nil {
			return run{}, err
		}
		db, box, sent, err := records(ctx, n, queue)
		if err != nil {
			end()
			return run{}, err
		}
		broker, err := rabbit.New(rabbit.Config{URLs: []string{s.url}})
		if err != nil {
			return run{}, err
		}
		return run{
			do: func(ctx context.Context) error {
				running, cancel := context.WithCancel(ctx)
				defer cancel()
				relay := &outbox.Relay{Box: box, Publisher: &rabbit.Publisher{Broker: broker}, Done: done}
				ended := make(chan error, 1)
				go func() { ended <- relay.Run(running) }()
				select {
				case <-sent.all:
					cancel()
					return <-ended
				case err := <-ended:
					return fmt.Errorf("%d records were not sent: %w", sent.left.Load(), err)
				}
			},
			end: func() {
				broker.Close(context.Background())
				db.Close()
				end()
			},
		}, nil
	}
}

// relayByHand is the loop that one writes oneself, on the same table: in the order of ids, one batch a transaction.
func (s rabbitServer) relayByHand(ctx context.Context, n int) (run, error) {
	queue, ch, end, err := s.declare("classic")
	if err != nil {
		return run{}, err
	}
	db, _, _, err := records(ctx, n, queue)
	if err != nil {
		end()
		return run{}, err
	}
	if _, err := db.Pool().Exec(ctx, "CREATE INDEX ON bench_outbox (id) WHERE processed_at IS NULL"); err != nil {
		return run{}, err
	}
	if err := ch.Confirm(false); err != nil {
		return run{}, err
	}
	return run{
		do: func(ctx context.Context) error {
			for {
				sent, err := relayBatch(ctx, db.Pool(), ch)
				if err != nil || sent == 0 {
					return err
				}
			}
		},
		end: func() {
			db.Close()
			end()
		},
	}, nil
}

func relayBatch(ctx context.Context, pool *pgxpool.Pool, ch *amqp.Channel) (sent int, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(ctx)
	rows, err := tx.Query(ctx, "SELECT id, name, payload, headers FROM bench_outbox WHERE processed_at IS NULL ORDER BY id LIMIT 256 FOR UPDATE SKIP LOCKED")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var ids []string
	var confirms []*amqp.DeferredConfirmation
	for rows.Next() {
		var id, name string
		var body []byte
		var headers []byte
		if err := rows.Scan(&id, &name, &body, &headers); err != nil {
			return 0, err
		}
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body, Headers: amqp.Table{outbox.DefaultHeader: id}}
		if headers != nil {
			if err := json.Unmarshal(headers, &message.Headers); err != nil {
				return 0, err
			}
		}
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", name, true, false, message)
		if err != nil {
			return 0, err
		}
		ids, confirms = append(ids, id), append(confirms, c)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, c := range confirms {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return 0, fmt.Errorf("a record was not confirmed: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, "UPDATE bench_outbox SET processed_at = now() WHERE id = ANY($1)", ids); err != nil {
		return 0, err
	}
	return len(ids), tx.Commit(ctx)
}
