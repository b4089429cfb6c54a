package sqlq

import "sync"

// debts are the attempts that a column does not know of: a row lock was lost, and
// before its attempt was counted somebody had locked the row again. Whoever has it in this process, or
// has it next, counts them with his own, so that a handler that costs its connection every
// time comes to its end, however many workers there are.
type debts struct {
	mu   sync.Mutex // guards owed
	owed map[debt]int
}

// debt is what is owed for a row as long as it has the attempt.
type debt struct {
	line    line
	id      any
	attempt int64
}

// mostDebts bounds what is kept: others may have counted by now, and nobody asks again.
const mostDebts = 10_000

func debtOf(r *row) debt { return debt{r.sess.queue.line, comparable1(r.id), r.attempt} }

func (d *debts) add(r *row, n int) {
	if n == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owed == nil {
		d.owed = make(map[debt]int)
	}
	for old := range d.owed {
		if len(d.owed) < mostDebts {
			break
		}
		delete(d.owed, old)
	}
	d.owed[debtOf(r)] += n
}

// take returns what is owed for a row and forgets it.
func (d *debts) take(r *row) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.owed) == 0 {
		return 0
	}
	of := debtOf(r)
	n := d.owed[of]
	delete(d.owed, of)
	return n
}
