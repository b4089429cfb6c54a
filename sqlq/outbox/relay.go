package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// Done says when a record is done.
type Done uint8

const (
	// OnMark: when a consumer has marked it, see [Box.Middleware]. Until then it is sent again after a pause.
	OnMark Done = iota
	// OnConfirm: when the broker has confirmed it, for consumers that do not reach this database.
	OnConfirm
)

// Relay sends what is recorded. Several may run on one outbox, in one process or
// in many: each record is leased to one of them. Set its fields before Run; the zero value of
// each means the default that stands beside it.
type Relay struct {
	Box *Box
	// Publisher sends. It must return only when the broker has the messages, as the publishers of
	// this library do.
	Publisher settle.Publisher
	// Done says when a record is done. Default OnMark.
	Done Done

	// Pause is how long a record that was sent waits for its mark before it is sent again. It doubles each
	// time, up to MaxPause. Default 30 s.
	Pause time.Duration
	// MaxPause is the longest pause. Default 1 h.
	MaxPause time.Duration
	// MaxSends is the cap: a record that was sent as often and is still not marked when its
	// pause is over is set aside. Default 30: with the default pauses, after a day.
	MaxSends int

	// Batch is how many records are claimed, and sent, at a time. They are in memory, two batches at once. Default
	// 256, at most 512.
	Batch int
	// Lease is how long records stay with a relay that has died. Default 30 s; at least 100 ms.
	Lease time.Duration
	// PublishTimeout bounds the sending of a batch. Default 15 s.
	PublishTimeout time.Duration
	// MaxBackoff is the longest wait after the broker took nothing. Default 10 s.
	MaxBackoff time.Duration
	// Keep is how long records stay after they were marked, before the relay deletes them. It must be longer
	// than the broker may keep a copy: what is deleted is not known as done. Default 0: they stay for ever, or until [Box.Purge].
	Keep time.Duration
	// StartTimeout is how long Run tries to reach a database that is down. Default 30 s.
	StartTimeout time.Duration
}

const (
	defaultPause   = 30 * time.Second
	defaultMax     = time.Hour
	defaultSends   = 30
	defaultBatch   = 256
	mostBatch      = 512
	defaultLease   = 30 * time.Second
	defaultTimeout = 15 * time.Second
	defaultBackoff = 10 * time.Second
	defaultStart   = 30 * time.Second

	lanes       = 2 // batches at once: one on its way to the broker, one at the database
	leastWait   = 50 * time.Millisecond
	stopGrace   = 5 * time.Second // what is under way when Run ends may take so long
	mostPurging = time.Minute     // between two looks for records to purge
	seldom      = 30              // of so many failures in a row one is logged
)

// settings returns the relay with its defaults filled in, or what is refused.
func (r Relay) settings() (Relay, error) {
	name := "outbox: relay"
	if r.Box != nil {
		name = r.Box.name + ": relay"
	}
	refuse := func(setting, reason, fix string) (Relay, error) {
		return r, &settle.ConfigError{Source: name, Setting: setting, Reason: reason, Fix: fix}
	}
	switch {
	case r.Box == nil:
		return refuse("Box", "it is nil", "set it to what outbox.New returned")
	case r.Publisher == nil:
		return refuse("Publisher", "it is nil", "set it to a publisher of the broker")
	case r.Done > OnConfirm:
		return refuse("Done", fmt.Sprintf("%d is none of this package's", r.Done), "use OnMark or OnConfirm")
	case r.Batch > mostBatch:
		return refuse("Batch", fmt.Sprintf("%d is more than a claim takes", r.Batch), fmt.Sprintf("use %d at most", mostBatch))
	case r.Lease > 0 && r.Lease < 100*time.Millisecond:
		return refuse("Lease", fmt.Sprintf("%v is too short", r.Lease), "use at least 100ms")
	}
	if p, ours := r.Publisher.(publisher); ours && p.b.db == r.Box.db && p.b.table == r.Box.table {
		return refuse("Publisher", "it is the outbox's own, which records what it is given", "set it to a publisher of the broker")
	}
	for _, s := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"Pause", &r.Pause, defaultPause},
		{"MaxPause", &r.MaxPause, max(defaultMax, r.Pause)},
		{"Lease", &r.Lease, defaultLease},
		{"PublishTimeout", &r.PublishTimeout, defaultTimeout},
		{"MaxBackoff", &r.MaxBackoff, defaultBackoff},
		{"Keep", &r.Keep, 0},
		{"StartTimeout", &r.StartTimeout, defaultStart},
	} {
		switch {
		case *s.value < 0:
			return refuse(s.name, fmt.Sprintf("%v is negative", *s.value), "use zero for the default, or a positive value")
		case *s.value == 0:
			*s.value = s.or
		}
	}
	for _, s := range []struct {
		name  string
		value *int
		or    int
	}{{"MaxSends", &r.MaxSends, defaultSends}, {"Batch", &r.Batch, defaultBatch}} {
		switch {
		case *s.value < 0:
			return refuse(s.name, fmt.Sprintf("%d is negative", *s.value), "use zero for the default, or a positive value")
		case *s.value == 0:
			*s.value = s.or
		}
	}
	if r.MaxPause < r.Pause {
		return refuse("MaxPause", fmt.Sprintf("%v is shorter than the first pause of %v", r.MaxPause, r.Pause), "raise it, or lower Pause")
	}
	return r, r.Box.invalid
}

// pause returns how long a record waits that was sent so often.
func (r *Relay) pause(sends int) time.Duration {
	p := r.Pause
	for ; sends > 1 && p < r.MaxPause; sends-- {
		p *= 2
	}
	return min(p, r.MaxPause)
}

// Run sends until ctx ends, and returns nil then: what is under way ends first. It returns an error where
// it cannot begin: a [*settle.ConfigError] at once, any other after StartTimeout. A
// broker or a database that breaks meanwhile does not end it.
func (r *Relay) Run(ctx context.Context) error {
	own, err := r.settings()
	if err != nil {
		return err
	}
	began, started := time.Now(), false
	for try := 1; ; try++ {
		s, err := own.open(ctx)
		var config *settle.ConfigError
		switch {
		case err == nil:
			started, try = true, 0
			s.run(ctx)
		case ctx.Err() != nil:
		case errors.As(err, &config), !started && time.Since(began) >= own.StartTimeout:
			return err
		default:
			own.Box.o.Logger.Warn("outbox: the relay cannot begin; trying again", "outbox", own.Box.name, "error", err)
		}
		if !own.wait(ctx, try) {
			return nil
		}
	}
}

// wait waits out a backoff. It returns false when ctx has ended.
func (r *Relay) wait(ctx context.Context, try int) bool {
	timer := time.NewTimer(settle.Backoff{Base: 2 * leastWait, Max: r.MaxBackoff, Min: leastWait}.Delay(try))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sending is one session of a relay.
type sending struct {
	Relay
	t    *tables
	c    settle.Consumer
	sent sync.WaitGroup // the lanes, and the purge
	lost chan struct{}  // closed when the session is
	once sync.Once      // of lost
}

// open begins a session: a consumer of the side table.
func (r *Relay) open(ctx context.Context) (*sending, error) {
	ctx, cancel := context.WithTimeout(ctx, r.StartTimeout)
	defer cancel()
	b := r.Box
	t, err := b.open(ctx, b.db.DB)
	if err != nil {
		return nil, err
	}
	s := &sending{Relay: *r, t: t, lost: make(chan struct{})}
	table := b.sideTable("", r.Lease)
	table.Statements.Retry = []string{parking(t.side, b.db.Dialect)}
	s.c, err = sqlq.NewQueue(b.db, table).Open(ctx, settle.Registration{
		Workers: lanes, Batch: r.Batch, Prefetch: lanes * r.Batch, MaxAttempts: math.MaxInt32, DeadLetter: stateAside,
		Logger: b.o.Logger, Notify: s.notify,
	})
	return s, err
}

// parking keeps a record that the broker refused where it is, and its key with
// it, so that nothing of the key overtakes it: for a lease's time after the first try, and for that much longer after each
// other. The try counts, so that the cap ends that.
func parking(l *sqlq.Layout, d sqlq.Dialect) string {
	names := map[sqlq.Role]string{sqlq.RoleID: ":id", sqlq.RoleAttempt: ":attempt", sqlq.RoleLockedUntil: ":token"}
	var fence []string
	for _, role := range l.Fence() {
		fence = append(fence, l.Q(role)+" = "+l.In(role, names[role]))
	}
	number := func(param string) string { return l.In(sqlq.RoleAttempt, param) }
	return fmt.Sprintf("UPDATE %s SET %s = %s, %s = %s WHERE %s", l.Ref(),
		l.Q(sqlq.RoleLockedUntil), d.Later(l.Column(sqlq.RoleLockedUntil), fmt.Sprintf("%s * (%s - 1)", number(":lease"), number(":attempt"))),
		l.Q(sqlq.RoleCause), l.In(sqlq.RoleCause, ":cause"), strings.Join(fence, " AND "))
}

// notify takes what the session has to tell.
func (s *sending) notify(n settle.Notice) {
	switch n.Kind {
	case settle.NoticeWeakened:
		s.Box.o.Logger.Warn("outbox: the table keeps less than it should", "outbox", s.Box.name, "error", n.Err)
	case settle.NoticeLost:
		s.once.Do(func() { close(s.lost) })
	}
	// A lease that is lost is as a rule that of a record whose consumer was faster than its broker's confirm.
}

// run sends until ctx ends or the session is lost, and ends the session.
func (s *sending) run(ctx context.Context) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	for range max(1, min(lanes, s.c.Traits().Receivers)) {
		s.sent.Go(func() {
			s.lane(inner)
			cancel()
		})
	}
	if s.Keep > 0 {
		s.sent.Go(func() { s.purge(inner) })
	}
	select {
	case <-s.lost:
		cancel()
	case <-inner.Done():
	}
	s.sent.Wait()
	ending, done := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer done()
	if err := errors.Join(s.c.Stop(ending), s.c.Close(ending)); err != nil {
		s.Box.o.Logger.Warn("outbox: the relay's session did not end well", "outbox", s.Box.name, "error", err)
	}
}

// lane claims a batch, sends it, and goes on with the next.
func (s *sending) lane(ctx context.Context) {
	buf := make([]*settle.Delivery, s.Batch)
	claims, sends := 0, 0 // that failed one after the other
	for ctx.Err() == nil {
		n, err := s.c.Receive(ctx, buf)
		if n > 0 {
			moved, held := s.send(ctx, buf[:n])
			clear(buf[:n])
			if moved {
				sends = 0
			}
			if held != nil && ctx.Err() == nil {
				sends++
				s.Box.tell(Event{Kind: EventHeld, Records: n, Err: held})
				s.complain(held, sends)
				s.wait(ctx, sends)
			}
		}
		switch {
		case err == nil:
			claims = 0
		case ctx.Err() != nil || errors.Is(err, settle.ErrSessionLost):
			return
		default:
			claims++
			s.Box.o.Logger.Warn("outbox: no records can be claimed; trying again", "outbox", s.Box.name, "error", err)
			s.wait(ctx, claims)
		}
	}
}

// complain tells of what keeps a lane from sending, the first time in a row and then now and then.
func (s *sending) complain(held error, times int) {
	if times%seldom != 1 {
		return
	}
	var config *settle.ConfigError
	if errors.As(held, &config) {
		s.Box.o.Logger.Error("outbox: the publisher cannot send until this is put right; trying again", "outbox", s.Box.name, "error", held)
		return
	}
	s.Box.o.Logger.Warn("outbox: the broker is away; trying again", "outbox", s.Box.name, "error", held)
}

// purge deletes old marked records now and then.
func (s *sending) purge(ctx context.Context) {
	ticker := time.NewTicker(min(max(s.Keep/10, leastWait), mostPurging))
	defer ticker.Stop()
	for {
		if _, err := s.Box.Purge(ctx, s.Keep); err != nil && ctx.Err() == nil {
			s.Box.o.Logger.Warn("outbox: marked records cannot be purged; trying again", "outbox", s.Box.name, "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// settleAll makes verdicts true, and tries again what the database did not take.
func (s *sending) settleAll(ctx context.Context, batch []settle.Settlement) {
	for try := 1; len(batch) > 0; try++ {
		call, done := detached(ctx, defaultTimeout)
		s.c.Settle(call, batch)
		done()
		var failed error
		batch = slices.DeleteFunc(batch, func(one settle.Settlement) bool {
			if one.Err == nil || errors.Is(one.Err, settle.ErrLeaseLost) || errors.Is(one.Err, settle.ErrSessionLost) || settle.IsPermanent(one.Err) {
				return true
			}
			failed = one.Err
			return false
		})
		if failed == nil {
			return
		}
		s.Box.o.Logger.Warn("outbox: what became of records cannot be written; trying again", "outbox", s.Box.name, "records", len(batch), "error", failed)
		if !s.wait(ctx, try) {
			return // their leases end
		}
	}
}

// detached returns a context that ends after the given time, and soon after ctx has ended.
func detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(stopGrace)
		defer grace.Stop()
		select {
		case <-grace.C:
			cancel()
		case <-call.Done():
		}
	})
	return call, func() {
		stop()
		cancel()
	}
}
