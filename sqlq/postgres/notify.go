package postgres

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/settlemq/settle/sqlq"
)

// bell is the wake-up over processes: it notifies those that listen of rows that were
// published here, and listens for those published elsewhere. It is for speed alone:
// consumers go on polling, so a notification that is lost costs half a second.
//
// Publishers only note that there is something to tell. One goroutine tells it, when a queue was
// not told of for a while; another listens, as long as a consumer is open.
type bell struct {
	pool   *pgxpool.Pool
	shared *sqlq.Shared
	every  time.Duration

	ctx     context.Context // ends with the database
	cancel  context.CancelFunc
	running sync.WaitGroup
	dirty   chan struct{} // a token when there is something to tell

	mu        sync.Mutex // guards what follows
	tell      map[note]struct{}
	telling   bool           // the goroutine that tells runs
	listeners map[string]int // consumers on a channel
	changed   chan struct{}  // closed when listeners changed; nil: nobody listens
}

// note is one thing to tell: a queue of a channel.
type note struct{ channel, group string }

func newBell(pool *pgxpool.Pool, shared *sqlq.Shared, every time.Duration) *bell {
	b := &bell{pool: pool, shared: shared, every: every, dirty: make(chan struct{}, 1), tell: make(map[note]struct{}), listeners: make(map[string]int)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

func (b *bell) close() {
	b.cancel()
	b.running.Wait()
}

// channel is a name that the server does not cut.
func channel(schema, table string) string {
	name := "settle:" + table
	if schema != "" {
		name = "settle:" + schema + "." + table
	}
	if len(name) <= mostName {
		return name
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	return fmt.Sprintf("settle:%016x", sum.Sum64())
}

// mostPayload is how long a payload we send may be; the server takes up to 8,000 bytes.
const mostPayload = 1000

// payload names a queue; all of them where the name is too long.
func payload(group string) string {
	if len(group) > mostPayload {
		return ""
	}
	return group
}

// Ring implements sqlq.Bell.
func (b *bell) Ring(schema, table, group string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return
	}
	b.tell[note{channel(schema, table), payload(group)}] = struct{}{}
	if !b.telling {
		b.telling = true
		b.running.Go(b.notify)
	}
	select {
	case b.dirty <- struct{}{}:
	default:
	}
}

// notify tells what there is to tell, at most once each b.every.
func (b *bell) notify() {
	for {
		select {
		case <-b.dirty:
		case <-b.ctx.Done():
			return
		}
		b.mu.Lock()
		notes := b.tell
		b.tell = make(map[note]struct{})
		b.mu.Unlock()
		var batch pgx.Batch
		for n := range notes {
			batch.Queue("SELECT pg_notify($1::text, $2::text)", n.channel, n.group)
		}
		ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
		_ = b.pool.SendBatch(ctx, &batch).Close() // what is not told is found by polling
		cancel()
		pause(b.ctx, b.every)
	}
}

// callTimeout bounds one call of the bell to the server.
const callTimeout = 10 * time.Second

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Listen implements sqlq.Bell.
func (b *bell) Listen(schema, table string) (stop func()) {
	name := channel(schema, table)
	b.change(name, 1)
	return sync.OnceFunc(func() { b.change(name, -1) })
}

func (b *bell) change(name string, by int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listeners[name] += by
	if b.listeners[name] <= 0 {
		delete(b.listeners, name)
	}
	switch {
	case b.changed != nil:
		close(b.changed)
		b.changed = make(chan struct{})
	case b.ctx.Err() == nil && len(b.listeners) > 0:
		b.changed = make(chan struct{})
		b.running.Go(b.listen)
	}
}

// channels returns those to listen on, and what is closed when they change. It ends
// listening where there are none.
func (b *bell) channels() (names []string, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.listeners {
		names = append(names, name)
	}
	if len(names) == 0 {
		b.changed = nil
		return nil, nil
	}
	return names, b.changed
}

const (
	leastReconnect = 100 * time.Millisecond
	mostReconnect  = 5 * time.Second
)

// listen keeps a connection that listens, until nobody needs it.
func (b *bell) listen() {
	for wait := leastReconnect; ; wait = min(2*wait, mostReconnect) {
		began := time.Now()
		if done := b.listenOnce(); done {
			return
		}
		if time.Since(began) > mostReconnect {
			wait = leastReconnect
		}
		pause(b.ctx, wait)
	}
}

// listenOnce listens over one connection. It reports whether nobody listens any more.
func (b *bell) listenOnce() (done bool) {
	if b.ctx.Err() != nil {
		return true
	}
	pool := b.pool.Config()
	config := pool.ConnConfig
	config.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler { // a wait that ends is no query to cancel
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()}
	}
	ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
	defer cancel()
	var err error
	if pool.BeforeConnect != nil { // which may know the password of the hour
		err = pool.BeforeConnect(ctx, config)
	}
	var c *pgx.Conn
	if err == nil {
		c, err = pgx.ConnectConfig(ctx, config)
	}
	cancel()
	if err != nil {
		names, _ := b.channels()
		return len(names) == 0
	}
	defer end(c)
	on := make(map[string]bool)
	for {
		names, changed := b.channels()
		if len(names) == 0 {
			return true
		}
		if err := b.subscribe(c, on, names); err != nil {
			return b.ctx.Err() != nil
		}
		if err := b.hear(c, changed); err != nil {
			return b.ctx.Err() != nil
		}
	}
}

// subscribe listens on the channels that are new, and wakes everybody on them: what
// was told before is not known.
func (b *bell) subscribe(c *pgx.Conn, on map[string]bool, names []string) error {
	ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
	defer cancel()
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
		if on[name] {
			continue
		}
		if _, err := c.Exec(ctx, "LISTEN "+quote(name)); err != nil {
			return err
		}
		on[name] = true
		b.wake(name, "")
	}
	for name := range on {
		if wanted[name] {
			continue
		}
		if _, err := c.Exec(ctx, "UNLISTEN "+quote(name)); err != nil {
			return err
		}
		delete(on, name)
	}
	return nil
}

// sign is how often the listening connection is asked for a sign of life.
const sign = 30 * time.Second

// hear waits for notifications until the channels change or the connection fails.
func (b *bell) hear(c *pgx.Conn, changed <-chan struct{}) error {
	listening, cancel := context.WithCancel(b.ctx)
	b.running.Go(func() {
		select {
		case <-changed:
			cancel()
		case <-listening.Done():
		}
	})
	defer cancel()
	for {
		wait, done := context.WithTimeout(listening, sign)
		n, err := c.WaitForNotification(wait)
		done()
		switch {
		case err == nil:
			b.wake(n.Channel, n.Payload)
			continue
		case b.ctx.Err() != nil || c.IsClosed():
			return err
		case listening.Err() != nil:
			return nil
		}
		ping, done := context.WithTimeout(b.ctx, callTimeout)
		err = c.Ping(ping)
		done()
		if err != nil {
			return err
		}
	}
}

// wake has the consumers of a queue look; of all queues on the channel for an empty group.
func (b *bell) wake(name, group string) {
	b.shared.WakeIf(func(schema, table, of string) bool {
		return channel(schema, table) == name && (group == "" || payload(of) == group)
	})
}

var _ sqlq.Bell = (*bell)(nil)
