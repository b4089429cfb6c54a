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
// slow topic gets no second one. While a topic cannot be written, one copy at a time is tried, now and then:
// the settlers are needed for what does not go there.
type copier struct {
	c     *consumer
	large sync.Once // that a copy is too large was told

	mu    sync.Mutex // guards what follows
	stuck map[string]*obstacle
}

// obstacle is why a topic cannot be written.
type obstacle struct {
	err    error
	trying bool
	pause  time.Duration // between two tries
	next   time.Time     // of the next
}

const (
	leastPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// wait has the next try wait, longer each time.
func (o *obstacle) wait() {
	o.pause = min(max(2*o.pause, leastPause), mostPause)
	o.next = time.Now().Add(o.pause)
}

func newCopier(c *consumer) *copier { return &copier{c: c, stuck: make(map[string]*obstacle)} }

var errUnconfirmed = errors.New("the copy is not confirmed yet")

// sheaf is the copies of one Settle call that go to one topic.
type sheaf struct {
	to   *sender
	all  []int // into the batch
	safe []int // of all: confirmed
}

// copy sends the copies of s and waits for them, topic beside topic. What is
// safe is added to what s acknowledges; the others get their error and are put back.
func (k *copier) copy(ctx context.Context, s *settling) {
	ctx, cancel := context.WithTimeout(ctx, copyPatience)
	defer cancel()
	sheaves := make(map[*sender]*sheaf)
	for _, i := range s.copies {
		to := k.sender(s, i)
		if sheaves[to] == nil {
			sheaves[to] = &sheaf{to: to}
		}
		sheaves[to].all = append(sheaves[to].all, i)
	}
	var topics sync.WaitGroup
	for _, h := range sheaves {
		topics.Go(func() { k.send(ctx, s, h) })
	}
	topics.Wait()
	for _, h := range sheaves {
		for _, i := range h.safe {
			s.ack(i)
		}
	}
	s.copies = s.copies[:0]
}

// send sends one sheaf, by one copy first where the topic is stuck.
func (k *copier) send(ctx context.Context, s *settling, h *sheaf) {
	all := h.all
	trying, err := k.enter(h.to)
	if err == nil && trying {
		err = k.attempt(ctx, s, h, all[:1])
		all = all[1:]
	}
	if err == nil {
		err = k.attempt(ctx, s, h, all)
		all = nil
	}
	for _, i := range all {
		k.putBack(s, i, err)
	}
	k.result(h, trying, err)
}

// sender is where the copy for a verdict goes.
func (k *copier) sender(s *settling, i int) *sender {
	if s.batch[i].Verdict.Action == settle.ActionDeadLetter {
		return k.c.broker.copies(k.c.set.deadLetter)
	}
	return k.c.broker.copies(s.delivery(i).from.copies)
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
	case o.trying, time.Now().Before(o.next):
		return false, o.err
	}
	o.trying = true
	return true, nil
}

// result takes note of what became of a topic: it is stuck when it is to blame,
// and free again when it has confirmed something.
func (k *copier) result(h *sheaf, trying bool, blame error) {
	topic := h.to.topic()
	var notice settle.Notice
	k.mu.Lock()
	o := k.stuck[topic]
	switch {
	case blame != nil && o == nil:
		o = &obstacle{err: blame}
		o.wait()
		k.stuck[topic] = o
		notice = settle.Notice{Kind: settle.NoticeBlocked, Err: blame}
	case blame == nil && o != nil && len(h.safe) > 0:
		delete(k.stuck, topic)
		notice = settle.Notice{Kind: settle.NoticeUnblocked}
	case trying && o != nil:
		o.trying = false
		if blame != nil {
			o.err = blame
			o.wait()
		}
	}
	k.mu.Unlock()
	if notice.Kind != 0 {
		k.c.notify(notice)
	}
}

// attempt sends copies to one topic and waits for their answers. It returns an
// error when the topic, and not a message, is to blame.
func (k *copier) attempt(ctx context.Context, s *settling, h *sheaf, all []int) (blame error) {
	for _, i := range all {
		d := s.delivery(i)
		if d.rare == nil {
			d.rare = new(rare)
		}
		if d.rare.apart {
			continue
		}
		if letter := d.rare.letter; letter != nil && letter.silent(copyGiveUp) {
			h.to.discard(letter.by)
			d.rare.letter = nil
		}
		if d.rare.letter == nil {
			d.rare.letter = h.to.send(ctx, []*client.ProducerMessage{k.letter(d, s.batch[i].Verdict)})
		}
	}
	for _, i := range all {
		d := s.delivery(i)
		r := d.rare
		var err error
		switch {
		case r.apart:
			err = k.one(ctx, h.to, k.letter(d, s.batch[i].Verdict))
		case !r.letter.wait(ctx):
			blame = k.unconfirmed(h.to)
			k.putBack(s, i, blame)
			continue
		default:
			_, err = r.letter.answer(0)
		}
		if err == nil {
			h.safe = append(h.safe, i) // the letter is kept: should the acknowledgement fail, no second copy is sent
			continue
		}
		r.letter = nil
		switch {
		case ofMessage(err):
			k.tooLarge(s, i, err)
			continue
		case wasRefused(err):
			r.apart = true
		case r.apart && errors.Is(err, context.DeadlineExceeded): // its turn did not come
		case !errors.Is(err, errUnsent):
			blame = err
		}
		k.putBack(s, i, err)
	}
	return blame
}

// one sends a copy by itself. It waits for longer than for others, as what it does
// not wait for is sent again.
func (k *copier) one(ctx context.Context, to *sender, m *client.ProducerMessage) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*copyPatience)
	defer cancel()
	return to.one(ctx, m)
}

// tooLarge is for a copy that the topic does not take, mostly because of its size: the original was
// smaller by what a copy tells. The next one tells nothing but what it must. Where that is too large too, a
// retry goes without a copy, and a dead letter is left to the broker.
func (k *copier) tooLarge(s *settling, i int, err error) {
	d := s.delivery(i)
	switch {
	case !d.rare.bare:
		d.rare.bare = true
		k.putBack(s, i, err)
	case s.batch[i].Verdict.Action == settle.ActionDeadLetter:
		k.putBack(s, i, settle.Permanent(err))
	default:
		k.c.work.mu.Lock()
		k.c.work.leave(d)
		k.c.work.mu.Unlock()
		k.c.giveBack([]*delivery{d}, true)
		k.large.Do(func() {
			k.c.notify(settle.Notice{Kind: settle.NoticeWeakened, Delivery: &d.Delivery, Err: fmt.Errorf("a message is too large to be copied with its count, which does not outlive the session: %w", err)})
		})
	}
}

// letter is the copy for a verdict about d.
func (k *copier) letter(d *delivery, v settle.Verdict) *client.ProducerMessage {
	if v.Action == settle.ActionDeadLetter {
		return deadCopy(d, k.c.set.Name(), v.Cause)
	}
	return retryCopy(d)
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
