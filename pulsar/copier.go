package pulsar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

const (
	// copyPatience is how long a Settle call waits for copies to be confirmed.
	copyPatience = time.Second
	// copyGiveUp is how long a copy may go without an answer before it is sent again.
	copyGiveUp = 30 * time.Second
)

// copier sends the copies of one session: counted retries and dead letters.
//
// A copy that is not confirmed in time stays under way, and its delivery is put
// back with an error; asked again, the settler looks at the same copy, so that a
// slow topic gets no second one. While a topic cannot be written, one copy at a time is tried:
// the settlers are needed for what does not go there.
type copier struct {
	c *consumer

	mu    sync.Mutex // guards what follows
	stuck map[string]*obstacle
}

// obstacle is why a topic cannot be written.
type obstacle struct {
	err    error
	trying bool
}

func newCopier(c *consumer) *copier { return &copier{c: c, stuck: make(map[string]*obstacle)} }

var errUnconfirmed = errors.New("the copy is not confirmed yet")

// copy sends the copies of s and waits for them. What is safe is added to s.acks;
// the others get their error and are put back.
func (k *copier) copy(ctx context.Context, s *settling) {
	ctx, cancel := context.WithTimeout(ctx, copyPatience)
	defer cancel()
	byTopic := make(map[*sender][]int)
	for _, i := range s.copies {
		to := k.sender(s, i)
		byTopic[to] = append(byTopic[to], i)
	}
	for to, all := range byTopic {
		trying, err := k.enter(to)
		if err == nil && trying {
			err = k.attempt(ctx, s, to, all[:1])
			all = all[1:]
		}
		if err == nil {
			err = k.attempt(ctx, s, to, all)
			all = nil
		}
		for _, i := range all {
			k.putBack(s, i, err)
		}
		k.result(to, trying, err)
	}
	s.copies = s.copies[:0]
}

// sender is where the copy for a verdict goes.
func (k *copier) sender(s *settling, i int) *sender {
	if s.batch[i].Verdict.Action == settle.ActionDeadLetter {
		return k.c.broker.copies(k.c.set.deadLetter)
	}
	return k.c.broker.copies(wholeTopic(s.delivery(i).native.Topic()))
}

// enter asks whether a topic may be tried. While it is stuck one caller at a
// time may, with one copy; the others get the reason.
func (k *copier) enter(to *sender) (trying bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.stuck[to.topic()]
	switch {
	case o == nil:
		return false, nil
	case o.trying:
		return false, o.err
	}
	o.trying = true
	return true, nil
}

// result takes note of what became of the topic.
func (k *copier) result(to *sender, trying bool, err error) {
	k.mu.Lock()
	o := k.stuck[to.topic()]
	var notice settle.Notice
	switch {
	case err != nil && o == nil:
		k.stuck[to.topic()] = &obstacle{err: err}
		notice = settle.Notice{Kind: settle.NoticeBlocked, Err: err}
	case err != nil && trying:
		o.err, o.trying = err, false
	case err == nil && o != nil:
		delete(k.stuck, to.topic())
		notice = settle.Notice{Kind: settle.NoticeUnblocked}
	}
	k.mu.Unlock()
	if notice.Kind != 0 {
		k.c.notify(notice)
	}
}

// attempt sends copies to one topic and waits for their answers. It returns an
// error when the topic, and not a message, is to blame.
func (k *copier) attempt(ctx context.Context, s *settling, to *sender, all []int) error {
	var fresh []*client.ProducerMessage
	var of []*delivery
	for _, i := range all {
		d := s.delivery(i)
		if d.letter != nil && time.Since(d.letter.at) > copyGiveUp {
			to.discard(d.letter.by)
			d.letter = nil
		}
		if d.letter == nil {
			fresh, of = append(fresh, k.letter(d, s.batch[i].Verdict)), append(of, d)
		}
	}
	for j, d := range of {
		d.letter = to.send(ctx, fresh[j:j+1])
	}
	var blame error
	for _, i := range all {
		d := s.delivery(i)
		if !d.letter.wait(ctx) {
			blame = k.unconfirmed(to)
			k.putBack(s, i, blame)
			continue
		}
		_, err := d.letter.answer(0)
		d.letter = nil
		if err != nil {
			k.putBack(s, i, err)
			if !ofMessage(err) && !errors.Is(err, errCutOff) {
				blame = err
			}
			continue
		}
		s.ack(i)
	}
	return blame
}

// letter is the copy for a verdict about d.
func (k *copier) letter(d *delivery, v settle.Verdict) *client.ProducerMessage {
	if v.Action == settle.ActionDeadLetter {
		return deadCopy(d, k.c.set.Name(), v.Cause)
	}
	return retryCopy(d, k.c.set.SubscriptionName)
}

func (k *copier) unconfirmed(to *sender) error {
	if k.c.isLost() {
		return k.c.why
	}
	return fmt.Errorf("pulsar: topic %q: %w", to.topic(), errUnconfirmed)
}

// putBack ends the claim on a delivery whose copy is not safe.
func (k *copier) putBack(s *settling, i int, err error) {
	s.batch[i].Err = err
	k.c.work.mu.Lock()
	k.c.work.putBack(s.delivery(i))
	k.c.work.mu.Unlock()
}
