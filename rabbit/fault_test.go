package rabbit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

// Twenty thousand messages and eight workers while something goes wrong, counted in
// and out by their IDs. A message has arrived when it is settled after its handler, or is a dead
// letter. Duplicates are told; a message that has not arrived is a failure.

const (
	campaignMessages = 20_000
	campaignPatience = 5 * time.Minute
)

// campaign is one run of it.
type campaign struct {
	t         *testing.T
	urls      []string // of the server, past all faults
	queue     string
	quorum    bool
	source    *captured
	service   *service
	publisher *Publisher
	ctx       context.Context // ends with the test
	cancel    context.CancelFunc
	gate      sync.RWMutex // handlers pass it; a test may close it

	mu       sync.Mutex     // guards what follows
	in       int            // messages that are safe at the server
	arrived  map[string]int // how often, by ID
	settled  int
	deadEnds int
}

// eachQueueKind runs a fault on a classic and on a quorum queue. Both have a
// cap, so that retries are counted copies on the one and rejects on the other.
func eachQueueKind(t *testing.T, fault func(t *testing.T, quorum bool)) {
	services.TestAll(t)
	for _, quorum := range []bool{false, true} {
		name := map[bool]string{false: "classic", true: "quorum"}[quorum]
		t.Run(name, func(t *testing.T) { fault(t, quorum) })
	}
}

// newCampaign starts consuming from a server by way of the given addresses.
func newCampaign(t *testing.T, quorum bool, through, urls []string) *campaign {
	t.Helper()
	c := &campaign{t: t, urls: urls, quorum: quorum, queue: unique(t, urls[0], "q"), arrived: make(map[string]int)}
	c.ctx, c.cancel = context.WithTimeout(context.Background(), campaignPatience)
	t.Cleanup(c.cancel)
	dead := c.queue + ".dead"
	t.Cleanup(func() {
		_ = c.raw(func(ch *amqp.Channel) error {
			_, _ = ch.QueueDelete(c.queue, false, false, false)
			_, err := ch.QueueDelete(dead, false, false, false)
			return err
		})
	})
	b := newBroker(t, through...)
	c.source = &captured{Source: profile{quorum: quorum}.source(b, c.queue)}
	c.publisher = &Publisher{Broker: newBroker(t, urls...), RoutingKey: c.queue}
	c.service = &service{t: t, log: new(logged), done: make(chan struct{})}
	c.service.start(c.source, settle.Options{Workers: 8, MaxAttempts: 10, DeadLetter: dead}, c.handle, c)
	c.service.opened(1)
	return c
}

// handle gives each message its fate by its number: most are acknowledged, some
// fail once, some wait, some are dead-lettered at once and some at the cap.
func (c *campaign) handle(_ context.Context, d *settle.Delivery) settle.Outcome {
	c.gate.RLock()
	defer c.gate.RUnlock()
	n, _ := strconv.Atoi(d.ID)
	switch {
	case n%100 == 2:
		return settle.DeadLetter(errFault)
	case n%100 == 3:
		return settle.Retry(errFault)
	case n%10 == 4 && d.Attempt == 1:
		return settle.Retry(errFault)
	case n%10 == 5 && d.Attempt == 1:
		return settle.RetryAfter(20*time.Millisecond, errFault)
	default:
		return settle.Ack()
	}
}

// Settled counts what has arrived.
func (c *campaign) Settled(_ context.Context, s settle.Settled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Err == nil && s.Verdict.Action == settle.ActionAck {
		c.arrived[s.Delivery.ID]++
		c.settled++
	}
}

func (c *campaign) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }

func (c *campaign) Noticed(n settle.Notice) { c.service.Noticed(n) }

// raw runs f on a channel of its own on any node that answers.
func (c *campaign) raw(f func(*amqp.Channel) error) (err error) {
	for _, url := range c.urls {
		var conn *amqp.Connection
		if conn, err = amqp.Dial(url); err != nil {
			continue
		}
		defer conn.Close()
		var ch *amqp.Channel
		if ch, err = conn.Channel(); err != nil {
			continue
		}
		return f(ch)
	}
	return err
}

// publish puts in the messages from first to last, whatever happens meanwhile:
// what is not known to be safe is sent again.
func (c *campaign) publish(first, last int) {
	for first < last {
		msgs := make([]settle.Message, 0, 100)
		for n := first; n < min(first+100, last); n++ {
			msgs = append(msgs, settle.Message{ID: strconv.Itoa(n), Body: []byte(`{"n":` + strconv.Itoa(n) + `}`)})
		}
		first += len(msgs)
		for len(msgs) > 0 {
			attempt, done := context.WithTimeout(c.ctx, 10*time.Second)
			errs := settle.PublishErrors(c.publisher.Publish(attempt, msgs...), len(msgs))
			done()
			var again []settle.Message
			for i, err := range errs {
				if err != nil {
					again = append(again, msgs[i])
				}
			}
			c.mu.Lock()
			c.in += len(msgs) - len(again)
			c.mu.Unlock()
			if msgs = again; len(msgs) > 0 {
				if c.ctx.Err() != nil {
					return // what is missing is told in the end
				}
				time.Sleep(10 * time.Millisecond) // between two tries
			}
		}
	}
}

// publishing publishes all messages beside the test; the result waits for it.
func (c *campaign) publishing() (wait func()) {
	var w sync.WaitGroup
	w.Go(func() { c.publish(0, campaignMessages) })
	c.t.Cleanup(func() {
		c.cancel()
		w.Wait()
	})
	return w.Wait
}

// progress is how many settlements there were.
func (c *campaign) progress() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settled
}

// reach waits until so many messages were acknowledged.
func (c *campaign) reach(n int) {
	c.t.Helper()
	c.await(func() bool { return c.progress() >= n }, fmt.Sprintf("%d acknowledgements", n))
}

func (c *campaign) await(condition func() bool, what string) {
	c.t.Helper()
	require.Eventually(c.t, condition, campaignPatience, 10*time.Millisecond, what)
}

// deadLetters takes the dead letters out and counts them as arrived.
func (c *campaign) deadLetters() {
	_ = c.raw(func(ch *amqp.Channel) error {
		for {
			d, ok, err := ch.Get(c.queue+".dead", false)
			if err != nil || !ok {
				return err
			}
			c.mu.Lock()
			c.arrived[d.MessageId]++
			c.deadEnds++
			c.mu.Unlock()
			if err := d.Ack(false); err != nil {
				return err
			}
		}
	})
}

// finish waits until everything up to total has arrived, and tells what came twice.
func (c *campaign) finish(total int) {
	c.t.Helper()
	missing := func() (ids []string) {
		c.deadLetters()
		c.mu.Lock()
		defer c.mu.Unlock()
		for n := range total {
			if id := strconv.Itoa(n); c.arrived[id] == 0 {
				ids = append(ids, id)
			}
		}
		return ids
	}
	deadline := time.Now().Add(campaignPatience)
	var left []string
	for left = missing(); len(left) > 0 && time.Now().Before(deadline); left = missing() {
		time.Sleep(50 * time.Millisecond) // between two looks
	}
	c.service.stop()
	c.mu.Lock()
	twice := 0
	for _, n := range c.arrived {
		twice += n - 1
	}
	c.t.Logf("%d in, %d arrived, %d of them as dead letters, %d arrived again; %d sessions, %d settlements failed for a while",
		total, len(c.arrived), c.deadEnds, twice, c.service.noticed(settle.NoticeOpened), c.service.noticed(settle.NoticeSettleFailed))
	c.mu.Unlock()
	require.Empty(c.t, left[:min(len(left), 20)], "lost: %d messages", len(left))
	c.await(func() bool {
		n := -1
		_ = c.raw(func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(c.queue, true, false, false, false, nil)
			n = q.Messages
			return err
		})
		return n == 0
	}, "the queue is empty")
}

// The connections are cut twenty times at random.
func TestFaultSevered(t *testing.T) {
	eachQueueKind(t, func(t *testing.T, quorum bool) {
		url := services.URL(t, services.Rabbit)
		line := faults.Proxy(t, url)
		c := newCampaign(t, quorum, []string{line.URL()}, []string{url})
		wait := c.publishing()
		var cuts []int
		for range 20 {
			cuts = append(cuts, rand.IntN(campaignMessages*8/10))
		}
		slices.Sort(cuts)
		for _, at := range cuts {
			c.reach(at)
			c.await(func() bool { return line.Sever() > 0 }, "there is a connection to cut")
		}
		wait()
		c.finish(campaignMessages)
	})
}

// The channel is killed by an ack of a tag that does not exist.
func TestFaultBadTag(t *testing.T) {
	eachQueueKind(t, func(t *testing.T, quorum bool) {
		url := services.URL(t, services.Rabbit)
		c := newCampaign(t, quorum, []string{url}, []string{url})
		wait := c.publishing()
		for n := range 10 {
			c.reach(n * campaignMessages / 15)
			session := c.source.last.Load()
			_ = session.ch.Ack(1<<40, false)
			<-session.ch.done
		}
		wait()
		c.finish(campaignMessages)
	})
}

// The node is restarted.
func TestFaultRestart(t *testing.T) {
	eachQueueKind(t, func(t *testing.T, quorum bool) {
		url := services.URL(t, services.RabbitFault)
		c := newCampaign(t, quorum, []string{url}, []string{url})
		wait := c.publishing()
		c.reach(campaignMessages / 4)
		services.Restart(t, services.RabbitFault)
		wait()
		c.finish(campaignMessages)
	})
}

// The node is killed.
func TestFaultKilled(t *testing.T) {
	eachQueueKind(t, func(t *testing.T, quorum bool) {
		url := services.URL(t, services.RabbitFault)
		c := newCampaign(t, quorum, []string{url}, []string{url})
		t.Cleanup(func() { services.Start(t, services.RabbitFault) })
		wait := c.publishing()
		c.reach(campaignMessages / 4)
		services.Kill(t, services.RabbitFault)
		services.Start(t, services.RabbitFault)
		wait()
		c.finish(campaignMessages)
	})
}

// The memory alarm is raised and cleared, again and again: copies cannot be
// made meanwhile, and what is to be acknowledged goes on.
func TestFaultAlarm(t *testing.T) {
	eachQueueKind(t, func(t *testing.T, quorum bool) {
		url := services.URL(t, services.RabbitFault)
		c := newCampaign(t, quorum, []string{url}, []string{url})
		t.Cleanup(func() { alarm(t, false) })
		c.gate.Lock()
		c.publish(0, campaignMessages)
		for n := range 3 {
			before := c.progress()
			alarm(t, true)
			c.gate.Unlock()
			c.await(func() bool { return c.service.noticed(settle.NoticeBlocked) > n }, "the source says that it is blocked")
			c.reach(before + 100)
			c.gate.Lock()
			alarm(t, false)
		}
		c.gate.Unlock()
		c.finish(campaignMessages)
		assert.NotZero(t, c.service.noticed(settle.NoticeUnblocked))
	})
}

// The queue is deleted, when it is empty, and declared again.
func TestFaultDeleted(t *testing.T) {
	eachQueueKind(t, func(t *testing.T, quorum bool) {
		url := services.URL(t, services.Rabbit)
		c := newCampaign(t, quorum, []string{url}, []string{url})
		const rounds = 10
		for n := 1; n <= rounds; n++ {
			last := n * campaignMessages / rounds
			c.publish(last-campaignMessages/rounds, last)
			c.await(func() bool {
				c.deadLetters()
				c.mu.Lock()
				defer c.mu.Unlock()
				return len(c.arrived) == last
			}, "the messages of this round have arrived")
			require.NoError(t, c.raw(func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete(c.queue, false, false, false)
				return err
			}))
			c.service.opened(n + 1)
		}
		c.finish(campaignMessages)
	})
}

// The node that leads the queue is killed, in a cluster of three.
func TestFaultLeaderKilled(t *testing.T) {
	eachQueueKind(t, func(t *testing.T, quorum bool) {
		urls := services.URLs(t, services.RabbitCluster)
		nodes := []services.Service{services.RabbitA, services.RabbitB, services.RabbitC}
		t.Cleanup(func() {
			for _, node := range nodes {
				services.Start(t, node)
			}
		})
		c := newCampaign(t, quorum, urls, urls)
		wait := c.publishing()
		c.reach(campaignMessages / 4)
		leader := leaderOf(t, nodes, c.queue)
		services.Kill(t, leader)
		if quorum {
			before := c.progress()
			c.reach(before + 100) // the two others go on without it
		}
		services.Start(t, leader)
		wait()
		c.finish(campaignMessages)
	})
}

// leaderOf finds the node that a queue lives on, or is led by.
func leaderOf(t *testing.T, nodes []services.Service, queue string) services.Service {
	t.Helper()
	for line := range strings.Lines(services.Ctl(t, nodes[0], "list_queues", "--quiet", "name", "leader", "pid")) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != queue {
			continue
		}
		for _, node := range nodes {
			name := strings.ReplaceAll(string(node), "-", "_")
			if strings.Contains(fields[1], string(node)) || strings.Contains(fields[1], name) {
				return node
			}
		}
		require.Failf(t, "no such node", "%s", line)
	}
	require.Fail(t, "the queue has no leader")
	return ""
}
