package sqlq

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// floorClaim is the text of a claim that takes notice of a floor.
func floorClaim(params ...param) *statement { return &statement{params: params} }

func rowAt(due int64) *row { return &row{due: due, id: due} }

// One look that was held up, by a lock or a pool that was used up, does not keep claims from
// looking below the floor for long.
func TestASlowLookIsNotTakenForACostlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f floor
		st := floorClaim(paramFloorID)
		look := f.look(st)
		time.Sleep(time.Minute)
		look.found([]*row{rowAt(10)})

		look = f.look(st)
		assert.NotEmpty(t, look.from)
		assert.False(t, look.again(), "it looked just now")
		assert.LessOrEqual(t, f.blind(), idleShare*mostCost, "whoever found nothing knows when to look again")
		time.Sleep(f.blind())
		look = f.look(st)
		assert.True(t, look.again())
		look.found(nil)
		assert.Zero(t, f.blind(), "a queue that is empty costs no more looks")
	})
}

// A claim that found nothing above the floor looks below at once where that is cheap.
func TestACheapLookIsNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f floor
		st := floorClaim(paramFloorID)
		look := f.look(st)
		look.found([]*row{rowAt(10)})
		look = f.look(st)
		assert.NotEmpty(t, look.from)
		assert.True(t, look.again())
		assert.Empty(t, look.from)
	})
}

// A row that is set free has claims begin at its place again.
func TestAFreedRowLowersTheFloor(t *testing.T) {
	var f floor
	st := floorClaim(paramFloorID)
	look := f.look(st)
	look.found([]*row{rowAt(10), rowAt(20)})
	f.lower(rowAt(15))
	look = f.look(st)
	var vs values
	look.bind(&vs)
	assert.EqualValues(t, 15, vs.floor)
	f.lower(rowAt(30))
	look = f.look(st)
	look.bind(&vs)
	assert.EqualValues(t, 15, vs.floor, "it is not raised by that")
}

// A claim that was under way when a row was set free does not raise the floor above that.
func TestAFreedRowIsNotPassedOverByAClaimUnderWay(t *testing.T) {
	var f floor
	st := floorClaim(paramFloorID)
	look := f.look(st)
	look.found([]*row{rowAt(10), rowAt(20)})
	underWay := f.look(st)
	f.lower(rowAt(15))
	underWay.found([]*row{rowAt(30)})
	look = f.look(st)
	var vs values
	look.bind(&vs)
	assert.EqualValues(t, 15, vs.floor)
	look.found([]*row{rowAt(16), rowAt(40)})
	look = f.look(st)
	look.bind(&vs)
	assert.EqualValues(t, 40, vs.floor, "one that began since has seen it")
}

// Floors are kept for a few priorities and not for a table that has a new one in each row.
func TestManyPrioritiesDoWithoutAFloor(t *testing.T) {
	var f floor
	st := floorClaim(paramFloors)
	for i := range int64(mostLevels) {
		look := f.look(st)
		look.found([]*row{{due: i, id: i, priority: i}})
	}
	look := f.look(st)
	assert.Len(t, look.from, mostLevels)
	look.found([]*row{{due: 1, id: int64(1), priority: 1000}})
	look = f.look(st)
	assert.Empty(t, look.from)
	look.found([]*row{{due: 1, id: int64(1), priority: 1}})
	assert.Empty(t, f.levels)
}
