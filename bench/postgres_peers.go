package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// This file has the libraries that PostgreSQL's queues are compared with.

// denied reports whether the user may not do what only makes runs more even.
func denied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

type riverArgs struct {
	Body []byte `json:"body"`
}

func (riverArgs) Kind() string { return "bench" }

// riverWorker does nothing, and tells when it has done that often enough.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	left atomic.Int64
	all  chan struct{}
}

func (w *riverWorker) Work(context.Context, *river.Job[riverArgs]) error {
	if w.left.Add(-1) == 0 {
		close(w.all)
	}
	return nil
}

func riverWorkers(workers int) contestant {
	return contestant{
		name:     "river",
		settings: fmt.Sprintf("%d workers, FetchCooldown 2 ms, FetchPollInterval 20 ms (as in its own benchmark), pool of %d", workers, postgresConns),
		done:     "its worker has returned; the row is marked completed, fenced on its state, in a later batch, which this measurement waits for at the end; the row stays",
		prepare:  func(ctx context.Context, n int) (run, error) { return riverRun(ctx, n, workers) },
	}
}

func riverRun(ctx context.Context, n, workers int) (run, error) {
	pool, count, err := postgresPool(ctx, postgresConns)
	if err != nil {
		return run{}, err
	}
	driver := riverpgxv5.New(pool)
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return run{}, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return run{}, err
	}
	if _, err := pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return run{}, err
	}
	w := &riverWorker{all: make(chan struct{})}
	w.left.Store(int64(n))
	registry := river.NewWorkers()
	river.AddWorker(registry, w)
	client, err := river.NewClient(driver, &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}, Workers: registry, Logger: quiet,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
	})
	if err != nil {
		return run{}, err
	}
	const batch = 2000
	for left := n; left > 0; left -= batch {
		jobs := make([]river.InsertManyParams, min(left, batch))
		for i := range jobs {
			jobs[i].Args = riverArgs{Body: payload[:150]} // base64 makes 200 bytes of it
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return run{}, err
		}
	}
	if _, err := pool.Exec(ctx, "VACUUM ANALYZE river_job"); err != nil {
		return run{}, err
	}
	if _, err := pool.Exec(ctx, "CHECKPOINT"); err != nil && !denied(err) {
		return run{}, err
	}
	count.reset()
	return run{
		do: func(ctx context.Context) error {
			if err := client.Start(ctx); err != nil {
				return err
			}
			select {
			case <-w.all:
			case <-ctx.Done():
			}
			return client.Stop(context.WithoutCancel(ctx)) // which completes what is not yet
		},
		end:   pool.Close,
		notes: func() map[string]float64 { return count.notes(n) },
	}, nil
}

const watermillLoops = 8

// watermillSQL is its queue schema, with so many rows a transaction.
func watermillSQL(batch, times int) contestant {
	done := "the DELETE of its row is committed"
	if batch > 1 {
		done = "its handler has acknowledged it; the DELETE of the whole batch follows, so that a crash repeats all of it, and a subscriber that is closed in the middle deletes what nobody handled"
	}
	schema := watermillsql.PostgreSQLQueueSchema{SubscribeBatchSize: batch}
	return contestant{
		name:     fmt.Sprintf("watermill-sql, batches of %d", batch),
		settings: fmt.Sprintf("PostgreSQLQueueSchema, DeleteOnAck, %d subscribers, pgx, pool of %d", watermillLoops, postgresConns), done: done,
		prepare: slower(func(ctx context.Context, n int) (run, error) {
			return watermillRun(ctx, n, watermillLoops, schema, watermillsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true})
		}, times),
	}
}

// watermillTopic is its default schema, where a consumer group has a position in a log.
func watermillTopic(times int) contestant {
	return contestant{
		name: "watermill-sql, log", settings: fmt.Sprintf("DefaultPostgreSQLSchema, one subscriber, as a group goes in order, pgx, pool of %d", postgresConns),
		done: "its handler has acknowledged it; the group's position is committed with its batch of 100",
		prepare: slower(func(ctx context.Context, n int) (run, error) {
			return watermillRun(ctx, n, 1, watermillsql.DefaultPostgreSQLSchema{}, watermillsql.DefaultPostgreSQLOffsetsAdapter{})
		}, times),
	}
}

func watermillRun(ctx context.Context, n, loops int, schema watermillsql.SchemaAdapter, offsets watermillsql.OffsetsAdapter) (run, error) {
	pool, count, err := postgresPool(ctx, postgresConns)
	if err != nil {
		return run{}, err
	}
	if _, err := pool.Exec(ctx, "DROP TABLE IF EXISTS watermill_bench, watermill_offsets_bench"); err != nil {
		return run{}, err
	}
	db, logger := watermillsql.BeginnerFromPgx(pool), watermill.NopLogger{}
	var subscribers []*watermillsql.Subscriber
	for range loops {
		s, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
			SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true, PollInterval: 20 * time.Millisecond,
		}, logger)
		if err != nil {
			return run{}, err
		}
		subscribers = append(subscribers, s)
	}
	if err := subscribers[0].SubscribeInitialize("bench"); err != nil {
		return run{}, err
	}
	publisher, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: schema}, logger)
	if err != nil {
		return run{}, err
	}
	for left := n; left > 0; left -= 1000 {
		messages := make([]*message.Message, min(left, 1000))
		for i := range messages {
			messages[i] = message.NewMessage(watermill.NewUUID(), payload)
		}
		if err := publisher.Publish("bench", messages...); err != nil {
			return run{}, err
		}
	}
	if _, err := pool.Exec(ctx, "VACUUM ANALYZE watermill_bench"); err != nil {
		return run{}, err
	}
	count.reset()
	return run{
		do: func(ctx context.Context) error {
			all, cancel := context.WithCancel(ctx)
			defer cancel()
			var left, next atomic.Int64
			left.Store(int64(n))
			err := loop(loops, func() (bool, error) {
				messages, err := subscribers[next.Add(1)-1].Subscribe(all, "bench")
				if err != nil {
					return false, err
				}
				for m := range messages {
					m.Ack()
					if left.Add(-1) == 0 {
						cancel()
					}
				}
				return false, ctx.Err()
			})
			for _, s := range subscribers {
				err = errors.Join(err, s.Close())
			}
			return err
		},
		end:   pool.Close,
		notes: func() map[string]float64 { return count.notes(n) },
	}, nil
}
