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

// add notes that an attempt of the row was lost.
func (d *debts) add(r *row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owed == nil {
		d.owed = make(map[debt]int)
	}
	of := debtOf(r)
	for old := range d.owed {
		if len(d.owed) < mostDebts {
			break
		}
		delete(d.owed, old)
	}
	d.owed[of]++
}

// of returns what is owed for a row.
func (d *debts) of(r *row) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.owed) == 0 {
		return 0
	}
	return d.owed[debtOf(r)]
}

// paid forgets a row that is counted, or gone.
func (d *debts) paid(of debt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.owed, of)
}
