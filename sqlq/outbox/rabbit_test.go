package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/rabbit"
	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/outbox"
)

// This file has the whole way on real servers: a database, a relay, RabbitMQ, a consumer that marks.

// line is an outbox and the queue that it leads to.
type line struct {
	store store
	db    *database
	box   *outbox.Box
	log   *events

	server string // the address of RabbitMQ
	queue  string
}

var queues atomic.Int64

// newLine makes the tables and the queue. What is handled is written to the table handled, and
// each mark, by a trigger, to the table marks.
func newLine(t *testing.T, s store) *line {
	t.Helper()
	l := &line{store: s, server: services.URL(t, services.Rabbit), queue: fmt.Sprintf("settle-outbox-%d-%d", os.Getpid(), queues.Add(1))}
	l.db, l.box, l.log = standard(t, s)
	l.db.exec(t, "CREATE TABLE handled (id varchar(64) NOT NULL)")
	l.db.exec(t, "CREATE TABLE marks (id varchar(64) NOT NULL)")
	const change = "AFTER UPDATE OF processed_at ON outbox FOR EACH ROW WHEN (new.processed_at IS NOT NULL)"
	switch s.kind {
	case inSQLite:
		l.db.exec(t, "CREATE TRIGGER marked "+change+" BEGIN INSERT INTO marks VALUES (new.id); END")
	case inPostgres:
		l.db.exec(t, "CREATE FUNCTION marked() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO marks VALUES (new.id); RETURN new; END'")
		l.db.exec(t, "CREATE TRIGGER marked "+change+" EXECUTE FUNCTION marked()")
	default:
		l.db.exec(t, "CREATE TRIGGER marked AFTER UPDATE ON outbox FOR EACH ROW INSERT INTO marks SELECT new.id FROM DUAL WHERE new.processed_at IS NOT NULL")
	}
	b := newBroker(t, l.server)
	require.NoError(t, b.Declare(context.Background(), rabbit.Topology{Queues: []rabbit.Queue{{Name: l.queue, Kind: rabbit.Classic, Expires: 10 * time.Minute}}}))
	return l
}

func newBroker(t testing.TB, server string) *rabbit.Broker {
	t.Helper()
	b, err := openBroker(server)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, b.Close(ctx))
	})
	return b
}

func openBroker(server string) (*rabbit.Broker, error) {
	return rabbit.New(rabbit.Config{URLs: []string{server}, Logger: slog.New(slog.DiscardHandler)})
}

// message is the n-th of a line.
func (l *line) message(n int) settle.Message {
	return settle.Message{To: l.queue, Key: fmt.Sprint(n % 7), Body: fmt.Append(nil, n)}
}

// record records messages, a few in each transaction.
func (l *line) record(t *testing.T, from, to int) {
	t.Helper()
	for from < to {
		var msgs []settle.Message
		for ; from < to && len(msgs) < 10; from++ {
			msgs = append(msgs, l.message(from))
		}
		l.db.record(t, l.box, msgs...)
	}
}

// relay starts a relay in this process.
func (l *line) relay(t *testing.T, b *rabbit.Broker) (stop func()) {
	t.Helper()
	return start(t, &outbox.Relay{Box: l.box, Publisher: &rabbit.Publisher{Broker: b}, Lease: time.Second})
}

// consume starts a consumer whose handler writes down what it got.
func (l *line) consume(t *testing.T, b *rabbit.Broker, workers int) (stop func() error) {
	t.Helper()
	return sqltest.Serve(t, func(rt *settle.Runtime) {
		rt.Handle(&rabbit.ClassicQueue{Broker: b, Queue: l.queue}, handle(l.db, nil), settle.Options{
			Workers: workers, Middleware: []settle.Middleware{l.box.Middleware()},
		})
	})
}

// handle writes the id of the record to the table handled, and then calls after, if there is one.
func handle(db *database, after func()) settle.Handler {
	insert := "INSERT INTO handled VALUES (" + db.Database().Dialect.Placeholder(1) + ")"
	return func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		step := sqlq.Step{SQL: insert, Args: []any{d.Headers.Get(outbox.DefaultHeader)}}
		if err := db.Database().Batch(ctx, db.Database().DB, func() []sqlq.Step { return []sqlq.Step{step} }); err != nil {
			return settle.Retry(err)
		}
		if after != nil {
			after()
		}
		return settle.Ack()
	}
}

// allMarked waits until every record is marked, and holds that each is exactly once.
func (l *line) allMarked(t *testing.T, n int) {
	t.Helper()
	count := func(sql string) int { return sqltest.One[int](t, l.db.Database(), sql) }
	marked := 0
	for since := time.Now(); marked < n; time.Sleep(20 * time.Millisecond) {
		if now := count("SELECT count(*) FROM outbox WHERE processed_at IS NOT NULL"); now > marked {
			marked, since = now, time.Now()
		}
		if time.Since(since) > sqltest.Deadline {
			require.FailNow(t, "nothing is marked any more", "%d of %d records are", marked, n)
		}
	}
	assert.Equal(t, n, count("SELECT count(*) FROM outbox"))
	assert.Equal(t, n, count("SELECT count(*) FROM marks"), "no record is marked twice")
	assert.Equal(t, n, count("SELECT count(DISTINCT id) FROM marks"))
	assert.Equal(t, n, count("SELECT count(DISTINCT id) FROM handled"), "every record was handled")
	awaitCounts(t, l.box, outbox.Counts{})
}

// Two relays and two consumers, while records are written and some transactions are rolled back: every record that was
// committed is marked once, and none is lost. In the long run it is 50,000.
func TestEveryRecordIsMarkedOnce(t *testing.T) {
	everyStore(t, func(t *testing.T, s store) {
		records := s.some(2000)
		if os.Getenv("SETTLE_TEST_ALL") == "1" {
			records = 50000
		}
		l := newLine(t, s)
		other := s.open(t)
		second := outbox.New(other, outbox.Standard("outbox"), l.log.options())
		for range 2 {
			l.consume(t, newBroker(t, l.server), 8)
		}
		l.relay(t, newBroker(t, l.server))
		start(t, &outbox.Relay{Box: second, Publisher: &rabbit.Publisher{Broker: newBroker(t, l.server)}})
		// SQLite gives its one lock to whoever asks next, not to who has waited longest: a
		// writer beside that many others tries again, as its user must.
		begin := func() (transaction, error) {
			for since := time.Now(); ; {
				tx, err := l.db.begin(context.Background())
				if err == nil || !strings.Contains(err.Error(), "SQLITE_BUSY") || time.Since(since) > sqltest.Deadline {
					return tx, err
				}
			}
		}
		const writers = 4
		var writing sync.WaitGroup
		for w := range writers {
			writing.Go(func() {
				for n := w * records / writers; n < (w+1)*records/writers; n += 50 {
					tx, err := begin()
					if !assert.NoError(t, err) {
						return
					}
					var msgs []settle.Message
					for i := n; i < n+50; i++ {
						msgs = append(msgs, l.message(i))
					}
					if n%300 == 0 && assert.NoError(t, l.box.Record(context.Background(), tx, l.message(-1))) {
						assert.NoError(t, tx.rollback())
						if tx, err = begin(); !assert.NoError(t, err) {
							return
						}
					}
					assert.NoError(t, l.box.Record(context.Background(), tx, msgs...))
					assert.NoError(t, tx.commit())
				}
			})
		}
		writing.Wait()
		l.allMarked(t, records)
		t.Logf("%d records, %d copies, %d of them skipped", records, len(l.log.of(outbox.EventSent)), len(l.log.of(outbox.EventSkipped)))
	})
}

// The broker is down for the whole of the first ten seconds: nothing is lost, nothing counted, nothing set aside.
func TestTheBrokerIsDownAtFirst(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s store) {
		records := s.some(300)
		l := newLine(t, s)
		proxy := faults.Proxy(t, l.server)
		proxy.Refuse()
		start(t, &outbox.Relay{Box: l.box, Publisher: &rabbit.Publisher{Broker: newBroker(t, proxy.URL())}, PublishTimeout: 2 * time.Second})
		l.consume(t, newBroker(t, l.server), 4)
		l.record(t, 0, records/2)
		time.Sleep(10 * time.Second) // the fault itself, not a wait for something
		assert.Zero(t, len(l.log.of(outbox.EventSent)))
		assert.NotEmpty(t, l.log.of(outbox.EventHeld))
		proxy.Restore()
		l.record(t, records/2, records)
		l.allMarked(t, records)
		for _, e := range l.log.of(outbox.EventSent) {
			assert.Equal(t, 1, e.Sends, "record %s", e.Record)
		}
		assert.NotContains(t, l.log.log(), url.UserPassword("guest", "guest").String(), "no password in a log")
	})
}

// The connection is cut again and again while the relay sends.
func TestTheConnectionIsCut(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		records := s.some(600)
		l := newLine(t, s)
		proxy := faults.Proxy(t, l.server)
		b := newBroker(t, proxy.URL())
		start(t, &outbox.Relay{Box: l.box, Publisher: &rabbit.Publisher{Broker: b}, Lease: 300 * time.Millisecond, Batch: 20})
		l.consume(t, newBroker(t, l.server), 4)
		for n := 0; n < records; n += records / 6 {
			l.record(t, n, n+records/6)
			proxy.Sever()
		}
		l.allMarked(t, records)
	})
}

// A message that no queue takes is set aside with the server's reason; a queue that is full holds up only its own keys.
func TestWhatTheServerRefuses(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		l := newLine(t, s)
		b := newBroker(t, l.server)
		full := l.queue + "-full"
		require.NoError(t, b.Declare(context.Background(), rabbit.Topology{Queues: []rabbit.Queue{{
			Name: full, Kind: rabbit.Classic, Expires: time.Minute, MaxLength: 1, Overflow: rabbit.RejectPublish,
		}}}))
		l.db.record(t, l.box,
			settle.Message{To: l.queue + "-nowhere", Key: "a", Body: []byte("lost")},
			settle.Message{To: full, Key: "b", Body: []byte("fits")},
			settle.Message{To: full, Key: "b", Body: []byte("does not")},
			settle.Message{To: full, Key: "b", Body: []byte("does not either")},
			settle.Message{To: l.queue, Key: "a", Body: []byte("goes")},
			settle.Message{To: l.queue, Body: []byte("goes too")},
		)
		l.relay(t, b)
		require.Eventually(t, func() bool { return len(l.log.of(outbox.EventParked)) > 0 && len(l.log.of(outbox.EventSent)) == 3 }, sqltest.Deadline, 5*time.Millisecond)
		l.consume(t, b, 1)
		awaitCounts(t, l.box, outbox.Counts{Waiting: 3, SetAside: 1})
		aside, err := l.box.SetAside(context.Background(), 10)
		require.NoError(t, err)
		assert.Contains(t, aside[0].Reason, "there is none")
	})
}
