package pulsar

import (
	"iter"

	client "github.com/apache/pulsar-client-go/pulsar"
)

// place is where a message is stored. It is small, as there is one for each
// message that waits here.
type place struct {
	entry  entryID
	index  int32 // in its batch
	origin int32 // its number
}

// entryID is where a batch is stored. Ledger ids are unique in a cluster.
type entryID struct{ ledger, entry int64 }

// place also reports whether the message is one of a batch that fills a page.
func (d *delivery) place() (at place, paged bool) {
	id := d.native.ID()
	return place{entry: entryOf(id), index: id.BatchIdx(), origin: d.from.number}, id.BatchSize() >= pageSize
}

func (e entryID) before(other entryID) bool {
	return e.ledger < other.ledger || e.ledger == other.ledger && e.entry < other.entry
}

func entryOf(id client.MessageID) entryID { return entryID{id.LedgerID(), id.EntryID()} }

// owners knows which delivery a message is with. Messages of a large batch come and go
// in its order, so it keeps them by pages and looks a page up once for a run of them.
type owners struct {
	alone map[place]*delivery
	pages map[place]*page // by the place of their first message
	last  *page           // that of the last call
	first place           // of last
}

const pageSize = 32

// page is pageSize neighbours of a batch.
type page struct {
	with [pageSize]*delivery
	n    int // how many of them are there
}

func newOwners() owners {
	return owners{alone: make(map[place]*delivery), pages: make(map[place]*page)}
}

// page returns the page of a place and its index there; nil if there is none.
func (o *owners) page(at place) (*page, int) {
	i := int(at.index) % pageSize
	at.index -= int32(i)
	if o.last == nil || at != o.first {
		o.first, o.last = at, o.pages[at]
	}
	return o.last, i
}

// take gives a message to d and returns who had it.
func (o *owners) take(d *delivery) (old *delivery) {
	at, paged := d.place()
	if !paged {
		old, o.alone[at] = o.alone[at], d
		return old
	}
	p, i := o.page(at)
	if p == nil {
		p = new(page)
		o.last, o.pages[o.first] = p, p
	}
	if old = p.with[i]; old == nil {
		p.n++
	}
	p.with[i] = d
	return old
}

// leave ends what take began, unless another has the message by now.
func (o *owners) leave(d *delivery) {
	at, paged := d.place()
	if !paged {
		if o.alone[at] == d {
			delete(o.alone, at)
		}
		return
	}
	p, i := o.page(at)
	if p == nil || p.with[i] != d {
		return
	}
	p.with[i] = nil
	if p.n--; p.n == 0 {
		delete(o.pages, o.first)
		o.last = nil
	}
}

// all are the deliveries that have a message.
func (o *owners) all() iter.Seq[*delivery] {
	return func(yield func(*delivery) bool) {
		for _, d := range o.alone {
			if !yield(d) {
				return
			}
		}
		for _, p := range o.pages {
			for _, d := range p.with {
				if d != nil && !yield(d) {
					return
				}
			}
		}
	}
}
