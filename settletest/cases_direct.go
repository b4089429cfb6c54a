package settletest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/settlemq/settle"
)

// The cases that drive a session without the runtime, and hold it to what the
// contract says of each method.

func caseOpenEnds(c *trial) {
	c.open(Spec{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan settle.Consumer, 1)
	go func() {
		consumer, err := c.queue.Source.Open(ctx, c.registration())
		if err != nil {
			consumer = nil
		}
		done <- consumer
	}()
	timer := time.NewTimer(c.fixture.Deadline)
	defer timer.Stop()
	select {
	case <-timer.C:
		c.halt("Open has not returned %v after its context ended", c.fixture.Deadline)
	case consumer := <-done:
		if consumer != nil { // it was quicker than its context
			(&session{c: c, Consumer: consumer}).close()
		}
	}
}

func caseReceiveEnds(c *trial) {
	c.open(c.counted())
	s := c.session()
	ctx, cancel := context.WithCancel(context.Background())
	result := s.receiveAside(ctx, 4)
	cancel()
	if got := s.returned(result, "its context ended"); len(got) > 0 {
		c.fail("Receive brought %q from an empty queue", nameOf(got[0].Body))
	}
	// The end of a context and a message at the same time: either this Receive
	// has it, or a later one.
	var arrived []string
	take := func(got []*settle.Delivery) {
		for _, d := range got {
			arrived = append(arrived, nameOf(d.Body))
			if !c.fixture.gap(RuleReleaseFree) && !s.traits.AttemptUnknown && d.Attempt != 1 {
				c.fail("message %q has attempt %d, and no handler had it", arrived[len(arrived)-1], d.Attempt)
			}
			s.settle(verdict(d, settle.ActionAck))
		}
	}
	all := names(20)
	for _, name := range all {
		ctx, cancel := context.WithCancel(context.Background())
		result := s.receiveAside(ctx, 4)
		c.publish(name)
		cancel()
		take(s.returned(result, "its context ended"))
	}
	take(s.receive(len(all) - len(arrived)))
	slices.Sort(arrived)
	if !slices.Equal(arrived, all) {
		c.fail("%q arrived, and %q were published", arrived, all)
	}
	s.end()
	c.remains(0)
}

func caseReceiveRoom(c *trial) {
	c.open(Spec{})
	all := names(8)
	c.publish(all...)
	s := c.session()
	var arrived []string
	for _, room := range []int{1, 3, 1, 3, 1, 3, 1, 3} {
		ctx, cancel := c.soon()
		buf := s.buffer(min(room, len(all)-len(arrived)))
		n, err := s.Receive(ctx, buf)
		cancel()
		if n <= 0 && err == nil {
			c.halt("Receive brought nothing and no error; %d of %d messages have arrived", len(arrived), len(all))
		}
		for _, d := range checkReceived(c, s.traits, buf, n) {
			arrived = append(arrived, nameOf(d.Body))
		}
		if len(arrived) == len(all) {
			break
		}
	}
	slices.Sort(arrived)
	if unique := slices.Compact(slices.Clone(arrived)); len(unique) != len(arrived) {
		c.fail("a message came twice while it was unsettled: %q", arrived)
	}
	s.end()
	c.remains(len(all))
}

// errUnset is what a settlement's error is before Settle, to see that it is set.
var errUnset = errors.New("settletest: Settle did not set this error")

func caseSettleEach(c *trial) {
	c.open(c.counted())
	all := names(6)
	c.publish(all...)
	s := c.session()
	actions := map[string]settle.Action{
		"m00": settle.ActionAck, "m01": settle.ActionRetry, "m02": settle.ActionRelease,
		"m03": settle.ActionAck, "m04": settle.ActionRetry, "m05": settle.ActionAck,
	}
	if c.spec.DeadLetter {
		actions["m05"] = settle.ActionDeadLetter
	}
	first := make(map[string]int)
	var batch []settle.Settlement
	for _, d := range s.receive(len(all)) {
		first[nameOf(d.Body)] = d.Attempt
		v := verdict(d, actions[nameOf(d.Body)])
		v.Err = errUnset
		batch = append(batch, v)
	}
	if most := s.traits.MaxSettle; most > 0 && most < len(batch) {
		for part := range slices.Chunk(batch, most) {
			s.settle(part...)
		}
	} else {
		s.settle(batch...)
	}
	var again []string
	for _, d := range s.receive(3) {
		name := nameOf(d.Body)
		again = append(again, name)
		cost := map[settle.Action]int{settle.ActionRetry: 1}[actions[name]]
		free := actions[name] == settle.ActionRelease && c.fixture.gap(RuleReleaseFree)
		if want := first[name] + cost; !free && !c.fixture.gap(RuleAttempt) && d.Attempt != want {
			c.fail("after a %v message %q has attempt %d, and should have %d", actions[name], name, d.Attempt, want)
		}
		s.settle(verdict(d, settle.ActionAck))
	}
	slices.Sort(again)
	if want := []string{"m01", "m02", "m04"}; !slices.Equal(again, want) {
		c.fail("%q came again, and %q should have", again, want)
	}
	s.end()
	if c.spec.DeadLetter {
		c.deadLetters("m05")
	}
	c.remains(0)
}

func caseSettleAgain(c *trial) {
	for _, action := range []settle.Action{settle.ActionAck, settle.ActionRetry, settle.ActionRelease} {
		c.open(c.counted())
		c.publish(names(3)...)
		s := c.session()
		got := s.receive(3)
		s.settle(verdict(got[1], settle.ActionAck))
		if err := s.outcome(got[1], action); !isLost(err) {
			c.fail("a %v after an ack returned %v", action, err)
		}
		// The others are settled by their own, and only once.
		s.settle(verdict(got[0], settle.ActionAck))
		s.settle(verdict(got[2], settle.ActionRetry))
		again := s.receive(1)[0]
		if err := s.outcome(got[2], settle.ActionAck); !isLost(err) {
			c.fail("an ack after a retry returned %v", err)
		}
		s.settle(verdict(again, settle.ActionRelease))
		s.end()
		c.remains(1)
	}
}

func caseSettleClosed(c *trial) {
	c.open(c.counted())
	c.publish("m00", "m01")
	s := c.session()
	got := s.receive(2)
	s.close()
	for i, action := range []settle.Action{settle.ActionAck, settle.ActionRetry} {
		if err := s.outcome(got[i], action); !isLost(err) {
			c.fail("a %v after Close returned %v", action, err)
		}
	}
	c.remains(2)
	s = c.session()
	for _, d := range s.receive(2) {
		s.settle(verdict(d, settle.ActionAck))
	}
	s.end()
	c.remains(0)
}

func caseSettleForeign(c *trial) {
	c.open(c.counted())
	c.publish("m00", "m01")
	s := c.session()
	old := s.receive(2)
	s.close()
	s = c.session()
	now := s.receive(2)
	for i, action := range []settle.Action{settle.ActionAck, settle.ActionRelease} {
		if err := s.outcome(old[i], action); !isLost(err) {
			c.fail("a %v of another session's delivery returned %v", action, err)
		}
	}
	s.settle(verdict(now[0], settle.ActionRetry), verdict(now[1], settle.ActionRetry))
	for _, d := range s.receive(2) {
		s.settle(verdict(d, settle.ActionAck))
	}
	s.end()
	c.remains(0)
}

func caseRelease(c *trial) {
	c.open(c.counted())
	c.publish("m00")
	s := c.session()
	for range 3 {
		s.settle(verdict(s.receive(1)[0], settle.ActionRelease))
	}
	s.settle(verdict(s.receive(1)[0], settle.ActionAck))
	s.end()
	c.remains(0)
}

func caseStop(c *trial) {
	c.open(c.counted())
	s := c.session()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := s.receiveAside(ctx, 1)
	s.stop()
	if got := s.returned(result, "Stop"); len(got) > 0 {
		c.fail("Receive brought %q from an empty queue", nameOf(got[0].Body))
	}
	s.close()

	all := names(5)
	c.publish(all...)
	s = c.session()
	d := s.receive(1)[0]
	s.stop()
	if got := s.returned(s.receiveAside(ctx, 4), "it was called after Stop"); len(got) > 0 {
		c.fail("Receive brought %q after Stop", nameOf(got[0].Body))
	}
	if err := s.outcome(d, settle.ActionAck); err != nil {
		c.fail("a delivery in work did not settle after Stop: %v", err)
	}
	s.close()
	c.remains(len(all) - 1)
	s = c.session()
	for _, d := range s.receive(len(all) - 1) {
		if !c.fixture.gap(RuleReleaseFree) && !s.traits.AttemptUnknown && d.Attempt != 1 {
			c.fail("message %q has attempt %d, and was never received before Stop", nameOf(d.Body), d.Attempt)
		}
		s.settle(verdict(d, settle.ActionAck))
	}
	s.end()
	c.remains(0)
}

func caseClose(c *trial) {
	c.open(c.counted())
	all := names(4)
	c.publish(all...)
	s := c.session()
	got := s.receive(3)
	s.settle(verdict(got[0], settle.ActionAck))
	s.close()
	c.remains(len(all) - 1)
	s = c.session()
	var arrived []string
	for _, d := range s.receive(len(all) - 1) {
		arrived = append(arrived, nameOf(d.Body))
		s.settle(verdict(d, settle.ActionAck))
	}
	if slices.Contains(arrived, nameOf(got[0].Body)) {
		c.fail("%q was acknowledged before Close and came again", nameOf(got[0].Body))
	}
	s.end()
	c.remains(0)
}
