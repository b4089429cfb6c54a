package sqlq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// session is one open consumer of a queue. What is common to all forms stands
// here: waiting for rows, and the settlement of a batch. A form says how rows are claimed
// and held.
type session struct {
	queue  *Queue
	source string
	reg    settle.Registration
	layout *Layout
	texts  *texts
	shared *Shared
	form   form
	run    runner
	work   work
	base   values // what every statement of the session may name
	traits settle.Traits

	epoch    time.Time // times since the session began count from here
	sleeper  *sleeper
	leave    func() // has the sleeper told of nothing any more
	lull     lull
	floor    floor
	unblocks bool // a settlement may set other rows free

	stopOnce      sync.Once
	stopped       chan struct{}          // closed when intake has ended
	release       func() error           // what the session holds on the database; nil: nothing
	transactional bool                   // handlers have transactions
	begin         beginner               // opens them where there is one writer; nil: none
	current       atomic.Pointer[openTx] // the last one that was opened
}

// form is how rows are claimed and held.
type form interface {
	// claim takes up to n rows. They are in the order of claims.
	claim(ctx context.Context, n int) ([]*row, error)
	// settle makes verdicts true and sets their errors.
	settle(ctx context.Context, jobs []job)
	// ours reports whether nobody else can have taken the row since its claim.
	ours(r *row) bool
	// freed comes once a row's settlement has committed, or the row is lost or left for good.
	freed(r *row)
	// close ends what the form runs by itself, before the rows that are left are given back.
	close()
	// giveBack frees rows that were never settled: their handlers may have begun,
	// so the attempt stays spent.
	giveBack(ctx context.Context, left []*row) error
}

// Traits implements settle.Consumer.
func (s *session) Traits() settle.Traits { return s.traits }

// Receive implements settle.Consumer.
func (s *session) Receive(ctx context.Context, buf []*settle.Delivery) (int, error) {
	defer s.lull.pass() // where there was one row there may be another, and somebody has to look
	for tried := false; ; {
		select {
		case <-s.stopped:
			return 0, errStopped
		default:
		}
		s.sleeper.take()
		rows, err := s.form.claim(ctx, len(buf))
		if err == nil && s.begin != nil && len(rows) > 0 {
			err = s.beginTx(ctx, rows[0])
			if err != nil {
				rows = nil
			}
		}
		if err != nil {
			return 0, s.broken("claiming rows", err)
		}
		if len(rows) > 0 {
			for i, r := range rows {
				buf[i] = &r.Delivery
			}
			return len(rows), nil
		}
		if tried, err = s.idle(ctx, tried); err != nil {
			return 0, err
		}
	}
}

// broken is the error of a call by which Receive looks for rows. A session whose
// table has changed is over: the next one reads it anew.
func (s *session) broken(doing string, err error) error {
	err = fmt.Errorf("%s: %s: %w", s.source, doing, err)
	if d, ok := s.queue.db.Dialect.(Reopener); ok && d.Stale(err) {
		return errors.Join(settle.ErrSessionLost, err)
	}
	return err
}

// idle waits until a claim may find a row: until the next one is due, until
// somebody says that there is one, or until it is time to look again and one is there. While it
// waits it only reads, once a Poll. tried says that a claim for a row that seemed due got none.
func (s *session) idle(ctx context.Context, tried bool) (bool, error) {
	looks, err := s.lull.enter(ctx, s.stopped)
	if !looks || err != nil {
		return false, err
	}
	defer s.lull.leave()
	for {
		next, later, err := s.due(ctx)
		if err != nil {
			return false, s.broken("looking for the next row", err)
		}
		if next <= 0 && !tried {
			return true, nil // if it cannot be had, the next look comes a Poll later
		}
		wait, timely := s.queue.db.Poll, false
		if later < wait {
			wait, timely = later, true
		}
		if blind := s.floor.blind(); blind > 0 && blind < wait {
			wait, timely = blind, true
		}
		told, err := s.sleeper.sleep(ctx, s.stopped, time.Now().Add(wait))
		if told || timely || err != nil {
			return false, err
		}
		tried = false
	}
}

// far is a time that is never waited for.
const far = time.Duration(1<<63 - 1)

// due returns when the next row can be claimed, and when the next that cannot be
// yet; far where there is none.
func (s *session) due(ctx context.Context) (next, later time.Duration, err error) {
	v := s.values()
	look := s.floor.look(s.texts.due)
	look.bind(&v)
	var at [2]*int64
	ctx, cancel := s.patient(ctx)
	defer cancel()
	found, err := queryOne(ctx, s.queue.db.DB, s.texts.due.sql, s.texts.due.args(&v), &at[0], &at[1])
	if err != nil || !found {
		return far, far, err
	}
	after := func(us *int64) time.Duration {
		if us == nil {
			return far
		}
		return time.Duration(min(*us, int64(time.Hour/time.Microsecond))) * time.Microsecond
	}
	return after(at[0]), after(at[1]), nil
}

const (
	callTimeout = 30 * time.Second // of what a session asks the database for by itself
	callGrace   = 2 * time.Second  // for it to end once nobody waits for it any more
)

// patient returns the context of a call to the database under ctx: its end does
// not break off the call at once, which would cost the connection, and with it what
// the call has claimed already; but nor does the call go on for ever.
func (s *session) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.queue.db.OneWriter {
		return ctx, func() {}
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(callGrace, cancel) })
	return call, func() {
		stop()
		cancel()
	}
}

// values returns what every statement of the session may name, as of now.
func (s *session) values() values {
	vs := s.base
	vs.now = time.Now().UnixMicro()
	return vs
}

// Settle implements settle.Consumer.
func (s *session) Settle(ctx context.Context, batch []settle.Settlement) {
	jobs, lost := s.work.begin(ctx, s, batch)
	for _, r := range lost {
		s.form.freed(r)
	}
	together := jobs
	if s.begin != nil {
		together = s.settleTxs(ctx, jobs)
	}
	s.form.settle(ctx, together)
	s.work.end(jobs)
	for i := range jobs {
		if jobs[i].over {
			s.form.freed(jobs[i].row)
		}
	}
	s.wake(jobs)
}

// wake tells sleeping sessions of rows that settlements have set free.
func (s *session) wake(jobs []job) {
	free, dead := far, false
	for i := range jobs {
		if jobs[i].s.Err != nil {
			continue
		}
		switch v := jobs[i].s.Verdict; v.Action {
		case settle.ActionRetry, settle.ActionRelease:
			s.floor.lower(jobs[i].row)
			free = min(free, max(v.Delay, 0))
		case settle.ActionDeadLetter:
			dead = true
		}
		if s.unblocks { // the next of its line, which claims may have passed over
			s.floor.lower(jobs[i].row)
			free = 0
		}
	}
	line := s.queue.line
	if free != far {
		s.shared.hub.wake(line, free)
	}
	if dead && s.base.dead != "" && s.layout.dead == nil {
		line.group = s.base.dead
		s.shared.hub.wake(line, 0)
	}
}

// Stop implements settle.Consumer. Receive keeps no row back, so nothing has to be released.
func (s *session) Stop(context.Context) error {
	s.stopOnce.Do(func() { close(s.stopped) })
	return nil
}

// Close implements settle.Consumer.
func (s *session) Close(ctx context.Context) error {
	_ = s.Stop(ctx)
	s.form.close()
	err := s.giveBack(ctx)
	s.leave()
	err = errors.Join(err, s.run.close())
	if s.release != nil {
		err = errors.Join(err, s.release())
	}
	return err
}

// giveBack frees the rows that were never settled.
func (s *session) giveBack(ctx context.Context) error {
	left := s.work.left()
	if len(left) == 0 {
		return nil
	}
	for _, r := range left {
		if r.tx != nil {
			r.tx.abandon(ctx)
		}
	}
	err := s.form.giveBack(ctx, left)
	for _, r := range left {
		s.form.freed(r)
	}
	if err != nil {
		return fmt.Errorf("%s: giving back %d rows: %w", s.source, len(left), err)
	}
	return nil
}
