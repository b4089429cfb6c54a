package pulsar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
)

// This file is how acknowledgements go to the broker, and what its answers mean.

// acks are acknowledged together.
type acks []toAck

// toAck is one message to acknowledge.
type toAck struct {
	id    client.MessageID
	from  client.Consumer // the library's
	run   uint32          // see origin.runOf
	again bool            // it was tried before
}

// send has the library acknowledge them and waits for every answer. It is one
// round trip, whatever the number of topics and partitions.
func (a acks) send() error {
	groups := a.groups()
	if len(groups) == 1 {
		return a.whole(groups[0].send())
	}
	answers := make(chan error, len(groups))
	for _, g := range groups {
		go func() { answers <- g.send() }()
	}
	all := make(client.AckError)
	for range groups {
		err := <-answers
		var failed client.AckError
		if err != nil && !errors.As(err, &failed) {
			return err
		}
		maps.Copy(all, failed)
	}
	if len(all) == 0 {
		return nil
	}
	return a.whole(all)
}

// ackGroup goes to one of the library's consumers in one call. What the library got of a
// batch at one time and at another has two sets of what is left of it, and of those
// a call sends one alone: a run that is not 0 has a group of its own.
type ackGroup struct {
	to  client.Consumer
	run uint32
	ids []client.MessageID // one for all messages of a batch that follow each other
}

func (g ackGroup) send() error { return g.to.AckIDList(g.ids) }

// groups divides the ids by consumer. Of messages of one batch that follow each other, which the
// broker stores and acknowledges as one entry, the last stands for all: the library copies the set
// of what is left of the batch for each id that it is given.
func (a acks) groups() (groups []ackGroup) {
	at := 0
	for i, one := range a {
		if i == 0 || one.from != a[i-1].from || one.run != a[i-1].run {
			if at = slices.IndexFunc(groups, func(g ackGroup) bool { return g.to == one.from && g.run == one.run }); at < 0 {
				at = len(groups)
				groups = append(groups, ackGroup{to: one.from, run: one.run})
			}
		}
		g := &groups[at]
		if last := len(g.ids) - 1; last >= 0 && !one.again && sameBatch(g.ids[last], one.id) && strike(g.ids[last]) {
			g.ids[last] = one.id
			continue
		}
		g.ids = append(g.ids, one.id)
	}
	return groups
}

func sameBatch(a, b client.MessageID) bool {
	return a.BatchSize() > 1 && a.EntryID() == b.EntryID() && a.LedgerID() == b.LedgerID()
}

// strike takes a message off the set of what is left of its batch, which the library keeps. That
// sends something only if it was the last: another must be on the set, which one is that was never tried.
func strike(id client.MessageID) bool {
	one, ok := id.(interface{ Ack() error })
	return ok && one.Ack() == nil
}

// whole adds to the errors of the ids that were sent those of the ids they stand for.
func (a acks) whole(err error) error {
	var failed client.AckError
	if !errors.As(err, &failed) {
		return err
	}
	entries := make(map[entryID]error, len(failed))
	for id, err := range failed {
		entries[entryOf(id)] = err
	}
	for _, one := range a {
		if err := entries[entryOf(one.id)]; err != nil {
			failed[one.id] = err
		}
	}
	return failed
}

// ackErrors are the errors of one group: one for all, or those of single ids.
type ackErrors struct {
	all    error
	single map[client.MessageID]error
}

func (e ackErrors) of(id client.MessageID) error {
	if e.all != nil {
		return e.all
	}
	return e.single[id]
}

// answerGrace is how long an answer is waited for that may be on its way while
// the session ends.
const answerGrace = 200 * time.Millisecond

// ack has the broker acknowledge and waits for its answer, until ctx
// ends or the session is over. An answer that does not come is the end of the
// session: the broker delivers again what is not settled.
//
// One that was under way when the session ended counts as settled: the broker was told, as far as
// can be known. Where it did not hear, the message comes again.
func (c *consumer) ack(ctx context.Context, all acks) ackErrors {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ackErrors{all: c.why}
	}
	c.acking.Add(1)
	c.mu.Unlock()
	answer := make(chan error, 1)
	// The goroutine may outlive this call.
	all = slices.Clone(all)
	go func() {
		defer c.acking.Done()
		answer <- all.send()
	}()
	select {
	case err := <-answer:
		return c.ackErrors(err)
	case <-ctx.Done():
		c.lose(errNoAnswer)
		return ackErrors{all: c.why}
	case <-c.lost:
	}
	timer := time.NewTimer(answerGrace)
	defer timer.Stop()
	select {
	case err := <-answer:
		return c.ackErrors(err)
	case <-timer.C:
		return ackErrors{}
	}
}

// ackAside acknowledges what nobody waits for: other subscriptions' copies. One
// that fails comes again.
func (c *consumer) ackAside(all acks) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.acking.Go(func() {
		if err := all.send(); err != nil {
			c.logger.Debug("pulsar: another subscription's copy was not acknowledged and comes again", "error", err)
		}
	})
}

// ackErrors reads the library's answer to an acknowledgement.
func (c *consumer) ackErrors(err error) ackErrors {
	var failed client.AckError
	switch {
	case err == nil:
		return ackErrors{}
	case !errors.As(err, &failed):
		c.lose(err)
		return ackErrors{all: c.why}
	}
	for id, err := range failed {
		switch {
		case answered(err):
			failed[id] = fmt.Errorf("pulsar: the broker does not acknowledge now: %w", err)
			continue
		case cutOff(err):
			delete(failed, id)
			c.lose(errCutOff)
			continue
		}
		c.lose(fmt.Errorf("%w: %w", errNoAnswer, err))
		failed[id] = c.why
	}
	return ackErrors{single: failed}
}

// answered reports whether an acknowledgement's error is the broker's answer.
func answered(err error) bool { return strings.HasPrefix(err.Error(), "ack response error: ") }

// cutOff reports whether the connection broke before the answer came.
func cutOff(err error) bool { return err.Error() == "connection closed" }
