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
	unblocks bool // a settlement may set other rows free
	tried    bool // the last claim was for a row that was due, and got none

	stopOnce sync.Once
	stopped  chan struct{}          // closed when intake has ended
	release  func() error           // what the session holds on the database; nil: nothing
	begin    beginner               // opens the transactions of handlers; nil: none
	current  atomic.Pointer[openTx] // the last one that was opened
}

// form is how rows are claimed and held.
type form interface {
	// claim takes up to n rows and commits that. They are in the order of claims.
	claim(ctx context.Context, n int) ([]*row, error)
	// ours reports whether nobody else can have taken the row since its claim.
	ours(r *row) bool
	// freed comes once a row's settlement has committed, or the row is lost or left for good.
	freed(r *row)
	// close ends what the form runs by itself, before the rows that are left are given back.
	close()
}

// Traits implements settle.Consumer.
func (s *session) Traits() settle.Traits { return s.traits }

// Receive implements settle.Consumer.
func (s *session) Receive(ctx context.Context, buf []*settle.Delivery) (int, error) {
	for {
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
			return 0, fmt.Errorf("%s: claiming rows: %w", s.source, err)
		}
		if len(rows) > 0 {
			s.tried = false
			for i, r := range rows {
				buf[i] = &r.Delivery
			}
			return len(rows), nil
		}
		if err := s.idle(ctx); err != nil {
			return 0, err
		}
	}
}

// idle waits until a claim may find a row: until the next one is due, until
// somebody says that there is one, or until it is time to look again and one is there. While it
// waits it only reads, once a Poll.
func (s *session) idle(ctx context.Context) error {
	for {
		due, found, err := s.due(ctx)
		if err != nil {
			return fmt.Errorf("%s: looking for the next row: %w", s.source, err)
		}
		if found && due <= 0 && !s.tried {
			s.tried = true // if it cannot be had, the next look comes a Poll later
			return nil
		}
		wait, timely := s.queue.db.Poll, false
		if found && due > 0 && due < wait {
			wait, timely = due, true
		}
		told, err := s.sleeper.sleep(ctx, s.stopped, time.Now().Add(wait))
		if told || timely || err != nil {
			return err
		}
		s.tried = false
	}
}

// due returns when the next row can be claimed, and false where there is none.
func (s *session) due(ctx context.Context) (time.Duration, bool, error) {
	v := s.values()
	var us *int64
	found, err := queryOne(ctx, s.queue.db.DB, s.texts.due.sql, s.texts.due.args(&v), &us)
	if err != nil || !found || us == nil {
		return 0, false, err
	}
	return time.Duration(min(*us, int64(time.Hour/time.Microsecond))) * time.Microsecond, true, nil
}

// values returns what every statement of the session may name, as of now.
func (s *session) values() values {
	vs := s.base
	vs.now = time.Now().UnixMicro()
	return vs
}

// Settle implements settle.Consumer.
func (s *session) Settle(ctx context.Context, batch []settle.Settlement) {
	jobs := s.work.begin(ctx, s, batch)
	together := jobs
	if s.begin != nil {
		together = s.settleTxs(ctx, jobs)
	}
	s.settleTogether(ctx, together)
	s.work.end(jobs)
	for i := range jobs {
		if jobs[i].over {
			s.form.freed(jobs[i].row)
		}
	}
	s.wake(jobs)
}

// settleTogether settles rows in one transaction. A row whose own statement fails does not
// take the others with it: they are tried again without it.
func (s *session) settleTogether(ctx context.Context, jobs []job) {
	todo := make([]*job, len(jobs))
	for i := range jobs {
		todo[i] = &jobs[i]
	}
	for len(todo) > 0 {
		bad := -1
		err := s.run.run(ctx, func(ex Execer) error {
			bad = -1
			for i, j := range todo {
				var err error
				if j.touched, err = s.apply(ex, j.row, j.s.Verdict); err != nil {
					bad = i
					return fmt.Errorf("%s of row %s: %w", j.s.Verdict.Action, idText(j.row.id), err)
				}
			}
			return nil
		})
		if err == nil {
			break
		}
		err = fmt.Errorf("%s: %w", s.source, err)
		if bad >= 0 && len(todo) > 1 && !s.queue.db.Dialect.Down(err) {
			todo[bad].s.Err = err
			todo = append(todo[:bad:bad], todo[bad+1:]...)
			continue
		}
		for _, j := range todo {
			j.row.unsure = j.row.unsure || unknown(err)
			j.s.Err = err
		}
		return
	}
	for _, j := range todo {
		j.s.Err = nil
		if !j.touched && !(j.row.unsure && s.form.ours(j.row)) {
			j.s.Err = lostRow(s.source, j.row.id)
		}
	}
}

// apply makes a verdict true of a row. It returns false when the row is no
// longer the delivery's.
func (s *session) apply(ex Execer, r *row, v settle.Verdict) (bool, error) {
	vs := s.values()
	vs.id, vs.attempt, vs.token = r.id, r.attempt, r.token
	vs.delay = micros(v.Delay)
	if s.layout.Has(RoleCause) {
		vs.cause = causeText(v.Cause)
	}
	e := eventOf(v, s.reg.DeadLetter != "")
	touched, err := s.exec(ex, e, &vs)
	if err == nil && !touched && r.proposed != nil {
		vs.token = r.proposed
		touched, err = s.exec(ex, e, &vs)
	}
	return touched, err
}

// exec runs the statements of an event, the first of which is fenced.
func (s *session) exec(ex Execer, e event, vs *values) (bool, error) {
	for i, st := range s.texts.events[e] {
		n, err := st.exec(ex, vs)
		if err != nil {
			return false, err
		}
		if i == 0 && n == 0 {
			return false, nil
		}
	}
	return true, nil
}

// wake tells sleeping sessions of rows that settlements have set free.
func (s *session) wake(jobs []job) {
	const never = time.Duration(1<<63 - 1)
	free, dead := never, false
	for i := range jobs {
		if jobs[i].s.Err != nil {
			continue
		}
		switch v := jobs[i].s.Verdict; v.Action {
		case settle.ActionRetry, settle.ActionRelease:
			free = min(free, max(v.Delay, 0))
		case settle.ActionDeadLetter:
			dead = true
		}
		if s.unblocks {
			free = 0
		}
	}
	line := s.layout.line()
	if free != never {
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
	s.shared.hub.leave(s.layout.line(), s.sleeper)
	err = errors.Join(err, s.run.close())
	if s.release != nil {
		err = errors.Join(err, s.release())
	}
	return err
}

// giveBack frees the rows that were never settled: their handlers may have
// begun, so the attempt stays spent.
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
	err := s.run.run(ctx, func(ex Execer) error {
		for _, r := range left {
			vs := s.values()
			vs.id, vs.attempt, vs.token = r.id, r.attempt, r.token
			if _, err := s.exec(ex, eventFree, &vs); err != nil {
				return err
			}
		}
		return nil
	})
	for _, r := range left {
		s.form.freed(r)
	}
	if err != nil {
		return fmt.Errorf("%s: giving back %d rows: %w", s.source, len(left), err)
	}
	return nil
}
