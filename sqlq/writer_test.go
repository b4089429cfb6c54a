package sqlq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tape is a fake database: it keeps what was committed, transaction by
// transaction. Its statements are words. The writer is tested on it, because a real
// database cannot be made to fail at a given step.
type tape struct {
	begin  func() error // what Begin does first
	commit func() error

	mu     sync.Mutex // guards what follows
	groups [][]string
	conns  int // open now
}

func (d *tape) Conn(context.Context) (Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns++
	return &tapeConn{d: d}, nil
}

func (d *tape) committed() [][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.groups)
}

type tapeConn struct {
	Conn
	d *tape
}

func (c *tapeConn) Begin(context.Context, ...Step) (Tx, error) {
	if c.d.begin != nil {
		if err := c.d.begin(); err != nil {
			return nil, err
		}
	}
	return &tapeTx{d: c.d}, nil
}

func (c *tapeConn) Close() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.conns--
	return nil
}

type tapeTx struct {
	Tx
	d    *tape
	said []string
}

func (x *tapeTx) Exec(_ context.Context, sql string, _ ...any) (int64, error) {
	x.said = append(x.said, sql)
	return 1, nil
}

func (x *tapeTx) Commit(context.Context, []Step, []Step) error {
	if x.d.commit != nil {
		if err := x.d.commit(); err != nil {
			return Unsure(err)
		}
	}
	x.d.mu.Lock()
	defer x.d.mu.Unlock()
	x.d.groups = append(x.d.groups, x.said)
	return nil
}

func (x *tapeTx) Rollback(context.Context) error { return nil }

func (d *tape) Exec(context.Context, string, ...any) (int64, error) { panic("not used") }
func (d *tape) Query(context.Context, string, ...any) (Rows, error) { panic("not used") }
func (d *tape) Batch(context.Context, []Step) error                 { panic("not used") }

// say is a unit of work that says a word.
func say(word string) func(Execer) error {
	return func(ex Execer) error {
		_, err := ex.Exec(context.Background(), word)
		return err
	}
}

// What comes while a transaction is open joins it.
func TestUnitsThatMeetShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tape{}
		w := &writer{db: d, gate: NewGate()}
		inside, goOn := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			assert.NoError(t, w.run(t.Context(), func(ex Execer) error {
				close(inside)
				<-goOn
				return say("first")(ex)
			}))
		})
		<-inside
		for i := range 3 {
			all.Go(func() { assert.NoError(t, w.run(t.Context(), say(fmt.Sprint(i)))) })
		}
		synctest.Wait()
		close(goOn)
		all.Wait()
		groups := d.committed()
		require.Len(t, groups, 1)
		assert.Len(t, groups[0], 4)
		require.NoError(t, w.close())
		assert.Zero(t, d.conns)
	})
}

// A unit that fails is undone alone: the others of its transaction go through.
func TestAUnitThatFailsDoesNotTakeTheOthersWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tape{}
		w := &writer{db: d}
		inside, goOn := make(chan struct{}), make(chan struct{})
		boom := errors.New("boom")
		var all sync.WaitGroup
		var once sync.Once
		all.Go(func() {
			assert.NoError(t, w.run(t.Context(), func(ex Execer) error {
				once.Do(func() { close(inside); <-goOn })
				return say("first")(ex)
			}))
		})
		<-inside
		all.Go(func() { assert.ErrorIs(t, w.run(t.Context(), func(Execer) error { return boom }), boom) })
		synctest.Wait()
		all.Go(func() { assert.NoError(t, w.run(t.Context(), say("last"))) })
		synctest.Wait()
		close(goOn)
		all.Wait()
		assert.ElementsMatch(t, []string{"first", "last"}, slices.Concat(d.committed()...))
		require.NoError(t, w.close())
		assert.Zero(t, d.conns, "no connection is left behind")
	})
}

// A commit without an answer is unknown to all who shared it, and run again for none.
func TestACommitWithoutAnAnswerIsUnknownToAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("lost")
		d := &tape{commit: func() error { return lost }}
		w := &writer{db: d}
		inside, goOn := make(chan struct{}), make(chan struct{})
		runs := 0
		var all sync.WaitGroup
		all.Go(func() {
			err := w.run(t.Context(), func(Execer) error {
				runs++
				close(inside)
				<-goOn
				return nil
			})
			assert.True(t, unknown(err), "%v", err)
		})
		<-inside
		all.Go(func() {
			err := w.run(t.Context(), say("x"))
			assert.True(t, unknown(err), "%v", err)
			assert.ErrorIs(t, err, lost)
		})
		synctest.Wait()
		close(goOn)
		all.Wait()
		assert.Equal(t, 1, runs)
		require.NoError(t, w.close())
	})
}

// A transaction that cannot begin fails for all who wait for it: none waits once more.
func TestABeginThatFailsFailsForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begins := 0
		busy := errors.New("busy")
		d := &tape{begin: func() error {
			begins++
			time.Sleep(5 * time.Second) // as long as the database is patient
			return busy
		}}
		w := &writer{db: d}
		start := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { assert.ErrorIs(t, w.run(t.Context(), say("x")), busy) })
		}
		all.Wait()
		assert.Equal(t, 5*time.Second, time.Since(start))
		assert.Equal(t, 1, begins)
		require.NoError(t, w.close())
	})
}

// Who waits for the gate or for another's transaction stops waiting with its context.
func TestAUnitStopsWaitingWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := NewGate()
		d := &tape{}
		w := &writer{db: d, gate: gate}
		require.NoError(t, gate.lock(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		var all sync.WaitGroup
		for range 3 { // the first waits for the gate, the others for the first
			all.Go(func() { assert.ErrorIs(t, w.run(ctx, say("never")), context.DeadlineExceeded) })
		}
		all.Wait()
		assert.Equal(t, time.Second, time.Since(start))
		gate.unlock()
		require.NoError(t, w.run(t.Context(), say("after")))
		assert.Equal(t, [][]string{{"after"}}, d.committed())
		require.NoError(t, w.close())
	})
}

// Who waits for a transaction that does not end stops waiting with its context,
// and its work is not done.
func TestAUnitThatHasNotBegunIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tape{begin: func() error { time.Sleep(time.Minute); return nil }}
		w := &writer{db: d}
		var all sync.WaitGroup
		all.Go(func() { assert.NoError(t, w.run(t.Context(), say("first"))) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		assert.ErrorIs(t, w.run(ctx, say("never")), context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		all.Wait()
		assert.Equal(t, [][]string{{"first"}}, d.committed())
		require.NoError(t, w.close())
	})
}

// Many at once, with contexts that end at any time: each unit that succeeded is
// committed exactly once, no other is, and nobody waits for ever.
func TestTheWriterUnderLoad(t *testing.T) {
	d := &tape{}
	w := &writer{db: d, gate: NewGate()}
	var mu sync.Mutex
	want := map[string]int{}
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 200 {
				word := fmt.Sprintf("%d/%d", g, i)
				ctx, cancel := context.WithCancel(t.Context())
				if i%7 == 0 {
					go cancel()
				}
				err := w.run(ctx, func(ex Execer) error {
					if i%11 == 0 {
						return errors.New("boom")
					}
					return say(word)(ex)
				})
				cancel()
				if err == nil {
					mu.Lock()
					want[word]++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	got := map[string]int{}
	for _, word := range slices.Concat(d.committed()...) {
		got[word]++
	}
	assert.Equal(t, want, got)
	require.NoError(t, w.close())
	assert.Zero(t, d.conns)
}
