package faults

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, l *Line) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c
}

func say(t *testing.T, c net.Conn, words string) {
	t.Helper()
	_, err := c.Write([]byte(words))
	require.NoError(t, err)
}

func hear(t *testing.T, c net.Conn, words string) {
	t.Helper()
	got := make([]byte, len(words))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, words, string(got))
}

func TestGoodNetworkCarriesEveryByte(t *testing.T) {
	c := dial(t, Proxy(t, echo(t)))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB: many chunks
	go func() {
		c.Write(sent)
		c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(sent, got), "sent %d bytes, got %d back", len(sent), len(got))
}

func TestSeverCutsWhatIsOpenAndAcceptsWhatComes(t *testing.T) {
	l := Proxy(t, echo(t))
	old := dial(t, l)
	say(t, old, "a")
	hear(t, old, "a")

	assert.Equal(t, 1, l.Sever())
	_, err := old.Read(make([]byte, 1))
	require.Error(t, err)
	assert.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the connection was not cut")

	fresh := dial(t, l)
	say(t, fresh, "b")
	hear(t, fresh, "b")
}

// Under load a cut meets goroutines at every line of code; none may stay behind (goleak), none may hang.
func TestSeverUnderLoadLeavesNothingBehind(t *testing.T) {
	l := Proxy(t, echo(t))
	for range 50 {
		c := dial(t, l)
		written := make(chan struct{})
		go func() {
			defer close(written)
			block := make([]byte, 64<<10)
			for {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		}()
		_, err := io.ReadFull(c, make([]byte, 256<<10))
		require.NoError(t, err)
		require.Positive(t, l.Sever())
		_, err = io.Copy(io.Discard, c)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the connection was not cut")
		<-written
	}
}

func TestBlackholeHoldsUntilRestore(t *testing.T) {
	l := Proxy(t, echo(t))
	c := dial(t, l)
	l.Blackhole()
	say(t, c, "held")
	require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a byte came through a black hole, or the connection broke")

	l.Restore()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	hear(t, c, "held")
}

func TestDelayIsAtLeastThatLong(t *testing.T) {
	l := Proxy(t, echo(t))
	c := dial(t, l)
	l.Delay(50 * time.Millisecond)
	start := time.Now()
	say(t, c, "x")
	hear(t, c, "x")
	assert.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond, "there and back")
}

func TestRefuseResetsNewConnectionsOnly(t *testing.T) {
	l := Proxy(t, echo(t))
	open := dial(t, l)
	say(t, open, "a")
	hear(t, open, "a")

	l.Refuse()
	// The reset may come while the dial is under way or after it.
	refused, err := net.Dial("tcp", l.Addr())
	if err == nil {
		require.NoError(t, refused.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = refused.Read(make([]byte, 1))
		refused.Close()
	}
	require.Error(t, err)
	assert.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the connection was taken")
	say(t, open, "b")
	hear(t, open, "b")

	l.Restore()
	c := dial(t, l)
	say(t, c, "c")
	hear(t, c, "c")
}

func TestURLLeadsThroughTheLine(t *testing.T) {
	for given, server := range map[string]string{
		"127.0.0.1:5672":                        "127.0.0.1:5672",
		"amqp://guest:guest@127.0.0.1:5672/":    "127.0.0.1:5672",
		"amqp://guest:1234@localhost:5672/v":    "localhost:5672",
		"postgres://u:1@h:5432/db?sslmode=none": "h:5432",
		"root:77@tcp(127.0.0.1:3306)/db":        "127.0.0.1:3306",
		"pulsar://127.0.0.1:6650":               "127.0.0.1:6650",
	} {
		l := Proxy(t, given)
		assert.Equal(t, server, l.upstream, given)
		assert.Contains(t, l.URL(), l.Addr(), given)
		assert.NotContains(t, l.URL(), server, given)
	}
}
