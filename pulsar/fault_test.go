package pulsar

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// The tests here let a service work on many messages while something breaks,
// and count by message: none is lost. They run in make test-all.

const many = 20_000

// workload is many messages and a service that works on them.
type workload struct {
	*server
	topic   string
	names   []string
	journal *journal
}

// newWorkload publishes the messages.
func newWorkload(t testing.TB, s services.Service, n, partitions, batch int) *workload {
	t.Helper()
	v := serverOf(t, s)
	w := &workload{server: v, topic: v.topic(partitions, subscriptionName), names: numbered(n), journal: newJournal()}
	publish(t, inBatches(v.broker(), w.topic, batch), w.names...)
	return w
}

func (w *workload) source(b *Broker) *Subscription {
	return &Subscription{Broker: b, Topic: w.topic, SubscriptionName: subscriptionName}
}

// serve runs a service of eight workers.
func (w *workload) serve(s *Subscription) *running {
	return run(w.t, w.journal, s, ack, settle.Options{Workers: 8, Prefetch: 256})
}

// done is how many of the messages are acknowledged.
func (w *workload) done() int { return w.journal.ackedOf(w.names) }

// finish waits until every message is acknowledged and tells what came more than once.
func (w *workload) finish() {
	w.t.Helper()
	awaitFor(w.t, 3*time.Minute, "messages are lost", func() bool { return w.done() == len(w.names) })
	again := 0
	for _, name := range w.names {
		again += len(w.journal.attemptsOf(name)) - 1
	}
	w.t.Logf("%d messages, lost 0, handled again %d, sessions lost %d", len(w.names), again, w.journal.noticed(settle.NoticeLost))
}

func eachServer(t *testing.T, test func(t *testing.T, s services.Service)) {
	services.TestAll(t)
	for _, s := range []services.Service{services.Pulsar, services.Pulsar30} {
		t.Run(string(s), func(t *testing.T) { test(t, s) })
	}
}

func TestSevered(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		for name, batch := range map[string]int{"alone": 0, "batches": 50} {
			t.Run(name, func(t *testing.T) {
				w := newWorkload(t, s, many, 0, batch)
				b, line := w.proxied()
				r := w.serve(w.source(b))
				for cut := range 20 {
					awaitFor(t, time.Minute, "no progress", func() bool { return w.done() >= (cut+1)*len(w.names)/25 })
					line.Sever()
				}
				w.finish()
				r.stop()
				w.settledAll(w.topic)
			})
		}
	})
}

// The broker is killed and started again; what it had confirmed and not yet
// written down comes again.
func TestBrokerKilled(t *testing.T) {
	services.TestAll(t)
	s := services.PulsarFault
	services.Start(t, s)
	for name, batch := range map[string]int{"alone": 0, "batches": 50} {
		t.Run(name, func(t *testing.T) {
			// In good order: after a kill the storage node's registration comes and goes until then (seen on 4.0.7).
			t.Cleanup(func() { services.Restart(t, s) })
			w := newWorkload(t, s, many, 0, batch)
			r := w.serve(w.source(w.broker()))
			awaitFor(t, time.Minute, "no progress", func() bool { return w.done() >= len(w.names)/4 })
			services.Kill(t, s)
			services.Start(t, s)
			up := time.Now()
			at := w.done()
			awaitFor(t, time.Minute, "no progress after the restart", func() bool { return w.done() > at })
			t.Logf("at work again %v after the broker was up", time.Since(up).Round(time.Millisecond))
			w.finish()
			r.stop()
		})
	}
}

// Another consumer joins and leaves, time after time: what it had in work comes
// back at once, and nobody else's is disturbed.
func TestAnotherConsumerComesAndGoes(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		for _, kind := range []Type{Shared, KeyShared, Failover} {
			t.Run(kind.String(), func(t *testing.T) {
				w := newWorkload(t, s, many, 2, 0)
				sub := func(name string) *Subscription {
					return &Subscription{Broker: w.broker(), Topic: w.topic, SubscriptionName: subscriptionName, Type: kind, ConsumerName: name}
				}
				r := w.serve(sub("b"))
				for round := range 10 {
					awaitFor(t, time.Minute, "no progress", func() bool { return w.done() >= round*len(w.names)/12 })
					other := w.serve(sub([]string{"a", "c"}[round%2]))
					awaitFor(t, time.Minute, "no progress", func() bool { return w.done() >= (2*round+1)*len(w.names)/24 })
					other.stop()
				}
				w.finish()
				r.stop()
			})
		}
	})
}

func TestUnloaded(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		w := newWorkload(t, s, many, 0, 0)
		r := w.serve(w.source(w.broker()))
		for round := range 10 {
			awaitFor(t, 2*time.Minute, "no progress", func() bool { return w.done() >= (round+1)*len(w.names)/12 })
			w.unload(w.topic)
		}
		w.finish()
		r.stop()
		w.settledAll(w.topic)
	})
}

// A worker that is killed had acknowledged what it said it had: none of that
// comes back. What it had in work does.
func TestWorkerKilled(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		w := newWorkload(t, s, many, 0, 0)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		worker := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestHelperWorker$")
		worker.Env = append(os.Environ(), "SETTLE_TEST_WORKER="+w.topic, "SETTLE_TEST_URL="+w.url, "SETTLE_TEST_TOKEN="+w.token)
		out, err := worker.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, worker.Start())
		settled := make(map[string]bool)
		lines := bufio.NewScanner(out)
		for len(settled) < many/2 && lines.Scan() {
			if name, ok := strings.CutPrefix(lines.Text(), "acked "); ok {
				settled[name] = true
			}
		}
		require.NoError(t, worker.Process.Kill())
		for lines.Scan() { // what it had said before
			if name, ok := strings.CutPrefix(lines.Text(), "acked "); ok && len(name) == len("m00000") {
				settled[name] = true
			}
		}
		_ = worker.Wait() // it was killed
		require.GreaterOrEqual(t, len(settled), many/2)

		var rest []string
		for _, name := range w.names {
			if !settled[name] {
				rest = append(rest, name)
			}
		}
		r := w.serve(w.source(w.broker()))
		w.settledAll(w.topic)
		r.stop()
		for name := range settled {
			assert.Empty(t, w.journal.attemptsOf(name), "%s was acknowledged before the kill and came back", name)
		}
		missing := 0
		for _, name := range rest {
			if len(w.journal.attemptsOf(name)) == 0 {
				missing++ // its acknowledgement was confirmed, and the worker was killed before it could say so
			}
		}
		t.Logf("%d were acknowledged when the worker was killed, none came back; %d came, %d were acknowledged unsaid", len(settled), len(rest)-missing, missing)
		assert.LessOrEqual(t, missing, 512, "more than one group of acknowledgements was unsaid")
	})
}

// TestHelperWorker is no test: it is the worker that TestWorkerKilled kills.
func TestHelperWorker(t *testing.T) {
	topic := os.Getenv("SETTLE_TEST_WORKER")
	if topic == "" {
		t.Skip("it is the worker of TestWorkerKilled, which runs it in a process of its own")
	}
	b, err := New(Config{URL: os.Getenv("SETTLE_TEST_URL"), Token: os.Getenv("SETTLE_TEST_TOKEN"), Logger: quiet})
	require.NoError(t, err)
	var mu sync.Mutex // guards the output: a line is whole
	rt := &settle.Runtime{Logger: quiet, Observer: observer{settled: func(s settle.Settled) {
		if s.Err == nil {
			mu.Lock()
			defer mu.Unlock()
			fmt.Printf("acked %s\n", s.Delivery.Body)
		}
	}}}
	rt.Handle(&Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, ack, settle.Options{Workers: 8, Prefetch: 256})
	require.NoError(t, rt.Run(context.Background()))
}

// A dead-letter topic that cannot be written any more holds up nothing else:
// the others flow, the dead ones wait and are tried again, and the log says why once.
func TestDeadLetterTopicBreaks(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		v := serverOf(t, s)
		topic := v.topic(0, subscriptionName)
		dead := v.topic(0, subscriptionName)
		var good, bad []string
		for i, name := range numbered(2000) {
			if i%20 == 0 {
				bad = append(bad, "bad-"+name)
			} else {
				good = append(good, name)
			}
		}
		b := v.broker()
		j := newJournal()
		logged := new(logLines)
		r := run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if strings.HasPrefix(string(d.Body), "bad") {
				return settle.DeadLetter(errFault)
			}
			return settle.Ack()
		}, settle.Options{Workers: 8, MaxAttempts: 3, DeadLetter: dead}, func(rt *settle.Runtime) { rt.Logger = slog.New(slog.NewTextHandler(logged, nil)) })
		publish(t, &Publisher{Broker: v.broker(), Topic: topic}, bad[0])
		await(t, "the first dead letter was not written", func() bool { return j.settlements(bad[0]) == 1 })

		v.do(http.MethodPost, path(dead)+"/terminate", nil)
		publish(t, &Publisher{Broker: v.broker(), Topic: topic}, append(bad[1:], good...)...)
		await(t, "the others do not flow", func() bool { return j.ackedOf(good) == len(good) })
		await(t, "nobody was told", func() bool {
			return j.noticed(settle.NoticeBlocked) > 0 && j.noticed(settle.NoticeSettleFailed) > len(bad)-2
		})
		for _, name := range bad[1:] {
			assert.Zero(t, j.settlements(name), name)
			assert.Equal(t, []int{1}, j.attemptsOf(name), "it waits, and no handler sees it again")
		}
		assert.Equal(t, 1, logged.count("msg=blocked"), "the log says it once")
		assert.Equal(t, 1, logged.count(`msg="settle failed"`), "and so for the settlements")

		// The topic comes back.
		v.remove(dead, 0)
		awaitFor(t, time.Minute, "the dead letters were not written in the end", func() bool {
			for _, name := range bad {
				if j.settlements(name) != 1 {
					return false
				}
			}
			return true
		})
		r.stop()
		letters, err := v.deadLetters(dead)
		require.NoError(t, err)
		seen := make(map[string]int)
		for _, letter := range letters {
			seen[string(letter.Body)]++
		}
		for _, name := range bad[1:] {
			assert.GreaterOrEqual(t, seen[name], 1, name)
		}
		assert.Positive(t, j.noticed(settle.NoticeUnblocked))
		v.settledAll(topic)
	})
}

// logLines counts what is in a log.
type logLines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// Key_Shared with messages that wait for their delay does not stall.
func TestKeySharedWithDelays(t *testing.T) {
	v := serverOf(t, services.Pulsar)
	topic := v.topic(0, subscriptionName)
	b := v.broker()
	p := &Publisher{Broker: b, Topic: topic}
	var msgs []settle.Message
	all := numbered(300)
	for i, name := range all {
		m := settle.Message{Body: []byte(name), Key: fmt.Sprint(i % 7)}
		if i%3 == 0 {
			m.Delay = time.Duration(i%5) * 300 * time.Millisecond // kept by the broker
		}
		msgs = append(msgs, m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, p.Publish(ctx, msgs...))
	j := newJournal()
	serve := func(b *Broker) *running {
		return run(t, j, &Subscription{Broker: b, Topic: topic, SubscriptionName: subscriptionName, Type: KeyShared}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 && d.Body[len(d.Body)-1] == '4' {
				return settle.RetryAfter(200*time.Millisecond, errFault)
			}
			return settle.Ack()
		}, settle.Options{Workers: 4})
	}
	one, two := serve(b), serve(v.broker())
	awaitFor(t, time.Minute, "it stalls", func() bool { return j.ackedOf(all) == len(all) })
	one.stop()
	two.stop()
}

// A raw consumer's view of the fact that a subscription of ours keeps nothing
// acknowledged: what is confirmed is gone for everybody.
func TestConfirmedIsGone(t *testing.T) {
	w := newWorkload(t, services.Pulsar, 500, 0, 0)
	r := w.serve(w.source(w.broker()))
	w.finish()
	r.stop()
	reader, err := w.raw.Subscribe(client.ConsumerOptions{Topic: w.topic, SubscriptionName: subscriptionName, Type: client.Shared})
	require.NoError(t, err)
	defer reader.Close()
	publish(t, &Publisher{Broker: w.broker(), Topic: w.topic}, "last")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m, err := reader.Receive(ctx)
	require.NoError(t, err)
	assert.Equal(t, "last", string(m.Payload()))
}
