package pulsar

import (
	"slices"
	"testing"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// sized is an id in a batch of that size.
type sized struct {
	client.MessageID
	size int32
}

func (id sized) BatchSize() int32 { return id.size }

// Whatever the size of a batch and the order in which its messages come and go,
// each is with the delivery that took it last, and nothing stays of those that left.
func TestOwners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOwners()
		want := make(map[place]*delivery)
		var all []*delivery
		origins := []*origin{{number: 0}, {number: 1}}
		size := []int32{0, 1, pageSize - 1, pageSize, 3*pageSize - 5} // of entries 0, 1 and so on
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(all) > 0 && rapid.Bool().Draw(t, "leave") {
				d := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
				o.leave(d)
				if at, _ := d.place(); want[at] == d {
					delete(want, at)
				}
				continue
			}
			entry := rapid.IntRange(0, len(size)-1).Draw(t, "entry")
			index := int32(-1)
			if size[entry] > 0 {
				index = rapid.Int32Range(0, size[entry]-1).Draw(t, "index")
			}
			id := sized{client.NewMessageID(1, int64(entry), index, 0), size[entry]}
			d := &delivery{native: &message{id: id}, from: rapid.SampledFrom(origins).Draw(t, "origin")}
			at, _ := d.place()
			if old := o.take(d); old != want[at] {
				t.Fatalf("%v was with another", at)
			}
			want[at] = d
			all = append(all, d)
		}
		var left []*delivery
		for _, d := range want {
			left = append(left, d)
		}
		assert.ElementsMatch(t, left, slices.Collect(o.all()))
		for _, d := range left {
			o.leave(d)
		}
		assert.Empty(t, o.alone)
		assert.Empty(t, o.pages)
	})
}

// Each time that the library gets a batch is told from the others.
func TestRuns(t *testing.T) {
	o := new(origin)
	run := func(entry int64, index int32) uint32 {
		return o.runOf(sized{client.NewMessageID(1, entry, index, 0), 8})
	}
	assert.Zero(t, run(5, 0))
	assert.Zero(t, run(5, 1))
	assert.Zero(t, run(6, 0), "the next batch")
	assert.EqualValues(t, 1, run(5, 1), "an earlier one again")
	assert.EqualValues(t, 1, run(5, 7))
	assert.EqualValues(t, 2, run(5, 7), "and at once once more")
	assert.Zero(t, run(7, 3))
	assert.EqualValues(t, 3, run(7, 0))
	assert.EqualValues(t, 0, o.runOf(sized{client.NewMessageID(1, 2, -1, 0), 1}), "alone it has no set")
}

// What the library got at different times goes in different calls: of two sets
// of one batch it would send the last.
func TestRunsAreAcknowledgedApart(t *testing.T) {
	id := func(index int32) client.MessageID { return sized{client.NewMessageID(1, 1, index, 0), 8} }
	all := acks{{id: id(0)}, {id: id(0), run: 1}, {id: id(5)}, {id: id(1), run: 1}}
	assert.Equal(t, []ackGroup{{ids: []client.MessageID{id(0), id(5)}}, {run: 1, ids: []client.MessageID{id(0), id(1)}}}, all.groups())
}
