package pulsar

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/internal/services"
)

// server is the test's own view of a real broker, past the code under test: its
// HTTP interface, and the client library by itself.
type server struct {
	t     testing.TB
	url   string
	admin string
	token string
	proxy string // where the listener "proxied" leads
	raw   client.Client
}

// serverOf is the broker of a service.
func serverOf(t testing.TB, s services.Service) *server {
	t.Helper()
	v := &server{t: t, url: services.URL(t, s), admin: services.PulsarAdmin(t, s), proxy: services.PulsarProxy(t, s)}
	if s == services.Pulsar {
		v.token = services.PulsarToken(t)
	}
	options := client.ClientOptions{
		URL: v.url, Logger: log.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(), OperationTimeout: 10 * time.Second,
	}
	if v.token != "" {
		options.Authentication = client.NewAuthenticationToken(v.token)
	}
	raw, err := client.NewClient(options)
	require.NoError(t, err)
	t.Cleanup(raw.Close)
	v.raw = raw
	return v
}

// quiet is a logger that says nothing.
var quiet = slog.New(slog.DiscardHandler)

// config is that of a broker value on the server.
func (v *server) config() Config {
	return Config{URL: v.url, Token: v.token, Logger: quiet}
}

// broker is a broker value that ends with the test.
func (v *server) broker(change ...func(*Config)) *Broker {
	v.t.Helper()
	config := v.config()
	for _, f := range change {
		f(&config)
	}
	b, err := New(config)
	require.NoError(v.t, err)
	v.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(v.t, b.Close(ctx))
	})
	return b
}

// call calls the HTTP interface.
func (v *server) call(method, path string, body any) ([]byte, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, v.admin+"/admin/v2/"+path, content)
	if err != nil {
		return nil, err
	}
	request.Close = true // no idle connection stays behind
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if v.token != "" {
		request.Header.Set("Authorization", "Bearer "+v.token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	return answer, err
}

// do is call where it must succeed.
func (v *server) do(method, path string, body any) []byte {
	v.t.Helper()
	answer, err := v.call(method, path, body)
	require.NoError(v.t, err)
	return answer
}

// path is a topic's in the HTTP interface.
func path(topic string) string {
	name, _ := fullName(topic)
	return strings.Replace(name, "://", "/", 1)
}

var names atomic.Int64

// newName is a topic's that no other test has.
func newName() string { return fmt.Sprintf("settle-test-%d-%d", time.Now().UnixNano(), names.Add(1)) }

// topic makes a topic with so many partitions, 0: not partitioned, and a
// subscription on it, where one is named. It goes with the test.
func (v *server) topic(partitions int, subscription string) string {
	v.t.Helper()
	name := newName()
	if partitions > 0 {
		v.do(http.MethodPut, path(name)+"/partitions", partitions)
	} else {
		v.do(http.MethodPut, path(name), nil)
	}
	if subscription != "" {
		v.do(http.MethodPut, path(name)+"/subscription/"+subscription, map[string]any{"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
	}
	v.t.Cleanup(func() { v.remove(name, partitions) })
	return name
}

// remove deletes a topic, whoever is connected.
func (v *server) remove(name string, partitions int) {
	suffix := "?force=true"
	if partitions > 0 {
		suffix = "/partitions?force=true"
	}
	_, _ = v.call(http.MethodDelete, path(name)+suffix, nil) // it may be gone already
}

// stats are the parts of a topic's statistics that tests look at.
type stats struct {
	Subscriptions map[string]struct {
		MsgBacklog      int
		UnackedMessages int
		Consumers       []struct{ ConsumerName string }
	}
	Publishers   []struct{ ProducerName string }
	MsgInCounter int
}

func (v *server) stats(name string, partitions int) (s stats, err error) {
	answer, err := v.call(http.MethodGet, path(name)+statsOf(partitions), nil)
	if err == nil {
		err = json.Unmarshal(answer, &s)
	}
	return s, err
}

func statsOf(partitions int) string {
	if partitions > 0 {
		return "/partitioned-stats"
	}
	return "/stats"
}

// statsText is all that the broker says of a topic, for a test that failed.
func (v *server) statsText(name string, partitions int) string {
	answer, err := v.call(http.MethodGet, path(name)+statsOf(partitions), nil)
	if err != nil {
		return err.Error()
	}
	return string(answer)
}

// unload has the broker put a topic down and take it up again.
func (v *server) unload(name string) {
	v.t.Helper()
	v.do(http.MethodPut, path(name)+"/unload", nil)
}

// await waits until a condition holds.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	awaitFor(t, 20*time.Second, what, cond)
}

func awaitFor(t testing.TB, most time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(most)
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			require.Fail(t, "waited in vain", "%s, for %v", what, most)
		}
		time.Sleep(pause)
	}
}

// all reads every message that a topic has, from its beginning.
func (v *server) all(topic string) ([]client.Message, error) {
	reader, err := v.raw.CreateReader(client.ReaderOptions{Topic: topic, StartMessageID: client.EarliestMessageID()})
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var all []client.Message
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		m, err := reader.Next(ctx)
		cancel()
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
	return all, nil
}
