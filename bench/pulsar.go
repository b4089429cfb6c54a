package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/pulsar"
)

var pulsarPart = part{name: "pulsar", about: aboutPulsar, comparisons: pulsarComparisons, extras: []extra{{"holds", pulsarHolds}}}

// pulsarPrefetch is the receiver queue of every contestant, and the client's default.
const pulsarPrefetch = 1000

// pulsarUnsettled is how many messages may wait for the answer to their acknowledgment here, beside that queue.
const pulsarUnsettled = 4000

func pulsarComparisons(context.Context) ([]comparison, error) {
	s, err := findPulsar()
	if err != nil {
		return nil, err
	}
	var all []comparison
	for _, batched := range []bool{false, true} {
		name, messages := "consume, unbatched producer", 100000
		if batched {
			name, messages = "consume, batched producer", 600000
		}
		all = append(all, comparison{
			part: "pulsar", name: name, messages: messages, base: "raw, grouped acks",
			work: fmt.Sprintf("Take 200 bytes from a Shared subscription, do nothing with them, acknowledge; receiver queue %d.", pulsarPrefetch),
			contestants: []contestant{
				{name: "settle", settings: fmt.Sprintf("1 worker, Prefetch %d", pulsarUnsettled), done: "the broker has answered the acknowledgment", prepare: s.consume(batched, s.settle(1))},
				{name: "settle, 8 workers", settings: fmt.Sprintf("Prefetch %d", pulsarUnsettled), done: "the broker has answered the acknowledgment", prepare: s.consume(batched, s.settle(8))},
				{name: "raw, grouped acks", settings: "one loop, the client's default: acks sent every 1,000 or 100 ms", done: "nothing is sent yet: a crash brings back up to 1,000", prepare: s.consume(batched, s.raw(false))},
				{name: "raw, AckWithResponse", settings: "one loop", done: "the broker has answered the acknowledgment", prepare: slower(s.consume(batched, s.raw(true)), 10)},
			},
			bars: []bar{{"settle", "raw, grouped acks", 0.97, true}, {"settle", "raw, grouped acks", 0.90, false}},
		})
	}
	return all, nil
}

// aboutPulsar asks the server's administration for its version.
func aboutPulsar(ctx context.Context) (string, error) {
	s, err := findPulsar()
	admin := os.Getenv("SETTLE_PULSAR_ADMIN_URL")
	if err != nil || admin == "" {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/admin/v2/brokers/version", nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return "Pulsar " + strings.TrimSpace(string(text)) + ", standalone, journalSyncData false", err
}

type pulsarServer struct{ url, token string }

func findPulsar() (pulsarServer, error) {
	s := pulsarServer{url: os.Getenv("SETTLE_PULSAR_URL"), token: os.Getenv("SETTLE_PULSAR_TOKEN")}
	if s.url == "" {
		return s, noServiceError{"SETTLE_PULSAR_URL names no server"}
	}
	return s, nil
}

var quietPulsar = log.NewLoggerWithSlog(slog.New(slog.DiscardHandler))

func (s pulsarServer) client() (client.Client, error) {
	return client.NewClient(client.ClientOptions{URL: s.url, Authentication: client.NewAuthenticationToken(s.token), Logger: quietPulsar})
}

const pulsarSubscription = "bench"

var pulsarTopics atomic.Int64

// topic makes a new topic with a subscription that has n messages.
func (s pulsarServer) topic(ctx context.Context, c client.Client, n int, batched bool) (string, error) {
	name := fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), pulsarTopics.Add(1))
	sub, err := c.Subscribe(client.ConsumerOptions{Topic: name, SubscriptionName: pulsarSubscription, Type: client.Shared})
	if err != nil {
		return "", err
	}
	sub.Close()
	producer, err := c.CreateProducer(client.ProducerOptions{Topic: name, DisableBatching: !batched, MaxPendingMessages: 10000, SendTimeout: -1})
	if err != nil {
		return "", err
	}
	defer producer.Close()
	var failed atomic.Pointer[error]
	for range n {
		producer.SendAsync(ctx, &client.ProducerMessage{Payload: payload}, func(_ client.MessageID, _ *client.ProducerMessage, err error) {
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	if err := producer.FlushWithCtx(ctx); err != nil {
		return "", err
	}
	if err := failed.Load(); err != nil {
		return "", *err
	}
	return name, nil
}

// consume prepares a full topic for a contestant that empties it.
func (s pulsarServer) consume(batched bool, contestant func(topic string, n int) (run, error)) func(context.Context, int) (run, error) {
	return func(ctx context.Context, n int) (run, error) {
		c, err := s.client()
		if err != nil {
			return run{}, err
		}
		defer c.Close()
		topic, err := s.topic(ctx, c, n, batched)
		if err != nil {
			return run{}, err
		}
		return contestant(topic, n)
	}
}

func (s pulsarServer) settle(workers int) func(string, int) (run, error) {
	return func(topic string, n int) (run, error) {
		broker, err := pulsar.New(pulsar.Config{URL: s.url, Token: s.token})
		if err != nil {
			return run{}, err
		}
		source := &pulsar.Subscription{Broker: broker, Topic: topic, SubscriptionName: pulsarSubscription}
		return plainRun(n, source, settle.Options{Workers: workers, Prefetch: pulsarUnsettled}, func() { broker.Close(context.Background()) }), nil
	}
}

func (s pulsarServer) raw(confirmed bool) func(string, int) (run, error) {
	return func(topic string, n int) (run, error) {
		c, err := s.client()
		if err != nil {
			return run{}, err
		}
		return run{
			do: func(ctx context.Context) error {
				consumer, err := c.Subscribe(client.ConsumerOptions{
					Topic: topic, SubscriptionName: pulsarSubscription, Type: client.Shared, AckWithResponse: confirmed, ReceiverQueueSize: pulsarPrefetch,
				})
				if err != nil {
					return err
				}
				defer consumer.Close()
				for range n {
					m, err := consumer.Receive(ctx)
					if err != nil {
						return err
					}
					if err := consumer.Ack(m); err != nil {
						return err
					}
				}
				return nil
			},
			end: c.Close,
		}, nil
	}
}

// pulsarHolds measures how late a delayed retry comes.
func pulsarHolds(ctx context.Context, w io.Writer, _ int) error {
	const hold, times = 3 * time.Second, 200
	fmt.Fprintf(w, "How much later than its %v a RetryAfter comes again, %d messages at once.\n\n", hold, times)
	s, err := findPulsar()
	if err != nil {
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	defer c.Close()
	topic, err := s.topic(ctx, c, times, false)
	if err != nil {
		return err
	}
	broker, err := pulsar.New(pulsar.Config{URL: s.url, Token: s.token})
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx))
	source := &pulsar.Subscription{Broker: broker, Topic: topic, SubscriptionName: pulsarSubscription}
	began := make(map[string]time.Time, times)
	var late []time.Duration
	err = handlerRun(times, source, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if d.Attempt == 1 {
			began[d.ID] = time.Now()
			return settle.RetryAfter(hold, nil)
		}
		late = append(late, time.Since(began[d.ID])-hold)
		return settle.Ack()
	}, settle.Options{Workers: 1}, nil).do(ctx) // one worker: the handler needs no lock
	if err != nil {
		return err
	}
	slices.Sort(late)
	table(w, [][]string{{"earliest", "median", "latest"}, {late[0].String(), late[len(late)/2].String(), late[len(late)-1].String()}})
	fmt.Fprintf(w, "Must be: never early. Aim: 100 ms.\n\n")
	return nil
}
