package rabbit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

func TestNewRefuses(t *testing.T) {
	good := []string{"amqp://u:p@host:5672/v"}
	for _, c := range []struct {
		name    string
		config  Config
		setting string
		reason  string
	}{
		{"no URL", Config{}, "URLs", "there is none"},
		{"another scheme", Config{URLs: []string{"http://host"}}, "URLs[0]", `begin with "amqp://"`},
		{"no scheme", Config{URLs: []string{"host:5672"}}, "URLs[0]", `begin with "amqp://"`},
		{"the second is bad", Config{URLs: []string{good[0], "amqp://host:port"}}, "URLs[1]", "not a valid URL"},
		{"port 0", Config{URLs: []string{"amqp://host:0"}}, "URLs[0]", "port"},
		{"port too high", Config{URLs: []string{"amqp://host:70000"}}, "URLs[0]", "port"},
		{"a space", Config{URLs: []string{"amqp://host /"}}, "URLs[0]", "not a valid URL"},
		{"a mechanism that does not exist", Config{URLs: []string{"amqp://host/?auth_mechanism=magic"}}, "URLs[0]", "auth_mechanism"},
		{"a heartbeat that is no number", Config{URLs: []string{"amqp://host/?heartbeat=x"}}, "URLs[0]", "not a valid URL"},
		{"short heartbeat", Config{URLs: good, Heartbeat: time.Millisecond}, "Heartbeat", "cannot carry 1ms"},
		{"half seconds", Config{URLs: good, Heartbeat: 1500 * time.Millisecond}, "Heartbeat", "cannot carry"},
		{"long heartbeat", Config{URLs: good, Heartbeat: 20 * time.Hour}, "Heartbeat", "cannot carry"},
		{"negative timeout", Config{URLs: good, DialTimeout: -1}, "DialTimeout", "negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.config)
			var config *settle.ConfigError
			require.ErrorAs(t, err, &config)
			assert.Equal(t, "rabbit: broker", config.Source)
			assert.Equal(t, c.setting, config.Setting)
			assert.Contains(t, config.Reason, c.reason)
			assert.NotEmpty(t, config.Fix)
		})
	}
}

// A password with a character that breaks the URL is in the very piece that a
// parser complains about.
func TestNewKeepsThePassword(t *testing.T) {
	for _, url := range []string{
		"amqp://user:hunter2@host:port/", "amqp://user:hunter2 @host", "amqp://user:hunter2%zz@host/", "user:hunter2@host:5672",
		"amqp://user:hunter2/x@host:5672/", "amqp://user:hunter2#@host:5672", "amqp://user:hunter2@host:99999/", "amqps//user:hunter2@host",
		"hunter2://host", "amqp://user:hunter2?@host", "amqp://[hunter2", "amqp://user:hunter2@host/?heartbeat=hunter2",
	} {
		if _, err := New(Config{URLs: []string{url}}); err != nil {
			assert.NotContains(t, err.Error(), "hunter2", url)
		}
	}
}

func FuzzNewKeepsThePassword(f *testing.F) {
	for _, s := range []string{"", "@", ":", "/", "%zz", "%", " ", "#", "?x=", "[", "\x00"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		const secret = "s3cr3tpassw0rd"
		if _, err := New(Config{URLs: []string{"amqp://user:" + before + secret + after + "@host:5672/"}}); err != nil {
			assert.NotContains(t, err.Error(), secret)
		}
	})
}

func TestClosedBroker(t *testing.T) {
	b, err := New(Config{URLs: []string{"amqp://host"}})
	require.NoError(t, err)
	require.NoError(t, b.Close(context.Background()))
	require.NoError(t, b.Close(context.Background()), "a second Close is harmless")

	var config *settle.ConfigError
	require.ErrorAs(t, (&Publisher{Broker: b}).Publish(context.Background(), settle.Message{To: "q"}), &config)
	assert.Contains(t, config.Error(), "used after Close")
	_, err = b.consumeChannel(context.Background())
	require.ErrorAs(t, err, &config)
	require.ErrorAs(t, b.Declare(context.Background(), Topology{Queues: []Queue{{Name: "q"}}}), &config)
}

func TestVersion(t *testing.T) {
	for _, c := range []struct {
		text any
		want version
	}{
		{"4.3.6", version{4, 3, 6}},
		{"3.10.8", version{3, 10, 8}},
		{"4.1.0-rc.2", version{4, 1, 0}},
		{"4.2.0+5.gabc", version{4, 2, 0}},
		{"4.2", version{4, 2, 0}},
		{"", version{}},
		{nil, version{}},
		{7, version{}},
		{"x.y.z", version{}},
	} {
		assert.Equal(t, c.want, parseVersion(c.text), "%v", c.text)
	}
	assert.True(t, version{4, 0, 0}.atLeast(4, 0))
	assert.True(t, version{4, 0, 0}.atLeast(3, 13))
	assert.False(t, version{3, 13, 9}.atLeast(4, 0))
	assert.False(t, version{4, 2, 9}.atLeast(4, 3))
}
