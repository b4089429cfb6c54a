package sqlite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// drainAll receives and acknowledges everything, n at a time, and returns it in order.
func drainAll(t testing.TB, db *DB, c settle.Consumer, n int, left string) []string {
	t.Helper()
	var got []string
	for sqltest.One[int](t, &db.db, left) > 0 {
		ds := sqltest.Receive(t, c, n)
		got = append(got, sqltest.Bodies(ds)...)
		for _, d := range ds {
			require.NoError(t, sqltest.Settle(c, d, ack))
		}
	}
	return got
}

func TestPriorityGoesBeforeAge(t *testing.T) {
	table := leased(time.Minute)
	table.Priority = "priority"
	db := openFile(t, Options{})
	q := newQueue(t, db, table)
	for i, p := range []int{0, 5, 0, -3, 5, 9} {
		require.NoError(t, q.Publish(t.Context(), settle.Message{Body: fmt.Appendf(nil, "%d/%d", p, i), Priority: p}))
	}
	c := sqltest.Open(t, q, settle.Registration{Workers: 4})
	assert.Equal(t, []string{"9/5", "5/1", "5/4", "0/0", "0/2", "-3/3"}, drainAll(t, db, c, 4, "SELECT count(*) FROM jobs"))
}

// A table of the user's, whose RetryAfter and Priority may be NULL: the first is
// due since ever, the second is the lowest.
func TestNullsAreDueAndLast(t *testing.T) {
	for _, priority := range []string{"", "p"} {
		t.Run("priority="+priority, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, "CREATE TABLE own (id INTEGER PRIMARY KEY, body TEXT, due INTEGER, lock INTEGER, p INTEGER)")
			future := time.Now().Add(time.Hour).UnixMicro()
			for _, r := range []struct {
				body   string
				due, p any
			}{
				{"late", 7, 1}, {"never", future, 1}, {"null", nil, 1}, {"early", 5, 1}, {"null2", nil, 1}, {"low", nil, nil}, {"high", 9, 2},
			} {
				sqltest.Exec(t, &db.db, "INSERT INTO own (body, due, p) VALUES (?, ?, ?)", r.body, r.due, r.p)
			}
			q := db.Queue(sqlq.Table{Name: "own", ID: "id", Payload: "body", RetryAfter: "due", LockedUntil: "lock", Priority: priority})
			c := sqltest.Open(t, q, settle.Registration{Workers: 8})
			want := "null null2 low early late high"
			if priority != "" {
				want = "high null null2 early late low"
			}
			assert.Equal(t, want, strings.Join(drainAll(t, db, c, 2, "SELECT count(*) - 1 FROM own"), " "))
			sqltest.Nothing(t, c, "what is left is not due")
		})
	}
}

// A million rows of a high priority that are not due must not hide the one that is.
func TestDelayedRowsOfAHighPriorityDoNotHideOthers(t *testing.T) {
	table := leased(time.Minute)
	table.Priority = "priority"
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, table)
	for i := range 20 {
		require.NoError(t, q.Publish(t.Context(), settle.Message{Priority: 20 - i, Delay: time.Hour}, settle.Message{Priority: 20 - i, Delay: 2 * time.Hour}))
	}
	require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("now")}, settle.Message{Body: []byte("soon"), Delay: 100 * time.Millisecond}))
	c := sqltest.Open(t, q, settle.Registration{})
	assert.Equal(t, "now", string(sqltest.Receive(t, c, 1)[0].Body))
	assert.Equal(t, "soon", string(sqltest.Receive(t, c, 1)[0].Body), "the next due row of any priority wakes the consumer")
}

func fifo(key bool) sqlq.Table {
	table := leased(time.Minute)
	table.FIFO = true
	if !key {
		table.Key = ""
	}
	return table
}

func publishKeyed(t testing.TB, q *Queue, messages ...string) {
	t.Helper()
	for _, m := range messages {
		key, _, _ := strings.Cut(m, "-")
		require.NoError(t, q.Publish(t.Context(), settle.Message{Key: key, Body: []byte(m)}))
	}
}

func TestFIFOHasOneRowOfAKeyInWork(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, fifo(true))
	publishKeyed(t, q, "a-1", "a-2", "b-1", "a-3", "b-2", "-1", "-2")
	c, other := sqltest.Open(t, q, settle.Registration{Workers: 9}), sqltest.Open(t, q, settle.Registration{Workers: 9})
	first := sqltest.Receive(t, c, 9)
	assert.Equal(t, []string{"a-1", "b-1", "-1", "-2"}, sqltest.Bodies(first), "the head of each key, and what has none")
	sqltest.Nothing(t, other, "every key has one in work")

	require.NoError(t, sqltest.Settle(c, first[1], ack))
	second := sqltest.Receive(t, other, 9)
	assert.Equal(t, []string{"b-2"}, sqltest.Bodies(second))
	require.NoError(t, sqltest.Settle(c, first[0], retry))
	again := sqltest.Receive(t, other, 9)
	assert.Equal(t, []string{"a-1"}, sqltest.Bodies(again), "one that is retried stays the head")
	require.NoError(t, sqltest.Settle(other, again[0], settle.Verdict{Action: settle.ActionRetry, Delay: time.Hour}))
	assert.Equal(t, []string{"a-2"}, sqltest.Bodies(sqltest.Receive(t, c, 9)), "one that is delayed goes behind what is due before it")
}

func TestFIFOWithoutKeysIsOneLine(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, fifo(false))
	sqltest.Publish(t, q, "1", "2", "3")
	c, other := sqltest.Open(t, q, settle.Registration{Workers: 9}), sqltest.Open(t, q, settle.Registration{Workers: 9})
	first := sqltest.Receive(t, c, 9)
	require.Equal(t, []string{"1"}, sqltest.Bodies(first))
	sqltest.Nothing(t, other, "one is in work")
	require.NoError(t, sqltest.Settle(c, first[0], retry))
	first = sqltest.Receive(t, other, 9)
	require.Equal(t, []string{"1"}, sqltest.Bodies(first))
	require.NoError(t, sqltest.Settle(other, first[0], ack))
	assert.Equal(t, []string{"2"}, sqltest.Bodies(sqltest.Receive(t, c, 9)))
}

// A key with more rows than a claim looks at must not hide the others.
func TestAFIFOKeyWithALongLineDoesNotHideOthers(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, fifo(true))
	long := make([]settle.Message, 500)
	for i := range long {
		long[i] = settle.Message{Key: "long", Body: fmt.Appendf(nil, "%d", i)}
	}
	require.NoError(t, q.Publish(t.Context(), long...))
	publishKeyed(t, q, "z-1", "z-2", "y-1")
	c := sqltest.Open(t, q, settle.Registration{Workers: 9})
	assert.Equal(t, []string{"0"}, sqltest.Bodies(sqltest.Receive(t, c, 9)))
	assert.Equal(t, []string{"z-1", "y-1"}, sqltest.Bodies(sqltest.Receive(t, c, 9)), "in the order of their age")
	sqltest.Nothing(t, c, "every key has one in work")
}

// An ended lease in a FIFO line: its row comes again, and only then the next.
func TestFIFOWaitsForTheEndOfALease(t *testing.T) {
	db := openFile(t, Options{Poll: 20 * time.Millisecond})
	q := newQueue(t, db, fifo(true))
	publishKeyed(t, q, "a-1", "a-2")
	sqltest.Exec(t, &db.db, "UPDATE jobs SET attempt = 2, locked_until = ? WHERE id = 1", time.Now().Add(200*time.Millisecond).UnixMicro())
	c := sqltest.Open(t, q, settle.Registration{Workers: 9})
	assert.Equal(t, []string{"a-1"}, sqltest.Bodies(sqltest.Receive(t, c, 9)))
}

// Whatever is published, settled and claimed by two consumers, a key's rows are
// handled in order: no row is handed out while one before it is there.
func TestFIFOKeepsItsOrder(t *testing.T) {
	db := openFile(t, Options{})
	newQueue(t, db, fifo(true))
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		table := fifo(true)
		table.GroupValue = fmt.Sprint(runs)
		q := db.Queue(table)
		var c [2]settle.Consumer
		for i := range c {
			var err error
			c[i], err = q.Open(t.Context(), sqltest.Registration(settle.Registration{Workers: 9}))
			require.NoError(t, err)
			defer func() { require.NoError(t, c[i].Close(context.Background())) }()
		}
		type held struct {
			c settle.Consumer
			d *settle.Delivery
		}
		work := map[string]held{}      // by key
		lines := map[string][]string{} // what each key has, in order
		next := 0
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(rt *rapid.T) {
				key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "key")
				m := fmt.Sprintf("%s-%d", key, next)
				next++
				publishKeyed(t, q, m)
				lines[key] = append(lines[key], m)
			},
			"receive": func(rt *rapid.T) {
				ready := 0
				for key, line := range lines {
					if _, busy := work[key]; !busy && len(line) > 0 {
						ready++
					}
				}
				if ready == 0 {
					rt.Skip()
				}
				from := c[rapid.IntRange(0, 1).Draw(rt, "consumer")]
				n := rapid.IntRange(1, 5).Draw(rt, "n")
				ds := sqltest.Receive(t, from, n)
				if len(ds) != min(n, ready) {
					rt.Fatalf("%d rows came of %d that are ready, where %d were asked for", len(ds), ready, n)
				}
				for _, d := range ds {
					if _, busy := work[d.Key]; busy || lines[d.Key][0] != string(d.Body) {
						rt.Fatalf("%s came out of order: the line is %v, in work %v", d.Body, lines[d.Key], busy)
					}
					work[d.Key] = held{from, d}
				}
			},
			"settle": func(rt *rapid.T) {
				if len(work) == 0 {
					rt.Skip()
				}
				var keys []string
				for _, key := range []string{"a", "b", "c"} {
					if _, ok := work[key]; ok {
						keys = append(keys, key)
					}
				}
				key := rapid.SampledFrom(keys).Draw(rt, "key")
				v := rapid.SampledFrom([]settle.Verdict{ack, drop, retry, release}).Draw(rt, "verdict")
				if err := sqltest.Settle(work[key].c, work[key].d, v); err != nil {
					rt.Fatal(err)
				}
				delete(work, key)
				if v == ack || v == drop {
					lines[key] = lines[key][1:]
				}
			},
		})
	})
}
