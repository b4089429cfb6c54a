package rabbit

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

func with(t testing.TB, raw string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	change(u)
	return u.String()
}

// What the server refuses for good is final and named, soon, and no password is told.
func TestDialRefused(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		for _, c := range []struct {
			name   string
			url    string
			reason string
		}{
			{"wrong password", with(t, server, func(u *url.URL) { u.User = url.UserPassword("guest", "hunter2") }), `refuses user "guest"`},
			{"unknown user", with(t, server, func(u *url.URL) { u.User = url.UserPassword("nobody", "hunter2") }), `refuses user "nobody"`},
			{"unknown vhost", with(t, server, func(u *url.URL) { u.Path = "/no-such-vhost" }), `no vhost "no-such-vhost"`},
			{"mechanism not offered", server + "?auth_mechanism=external", "authentication mechanisms"},
		} {
			t.Run(c.name, func(t *testing.T) {
				b, log := testBroker(t, c.url, nil)
				_, err := b.consumeChannel(within(t))
				var config *settle.ConfigError
				require.ErrorAs(t, err, &config)
				assert.Contains(t, config.Reason, c.reason)
				assert.Contains(t, config.Source, "127.0.0.1:")

				// A publisher that waits for a server does not wait for this one.
				require.ErrorAs(t, (&Publisher{Broker: b}).Publish(within(t), settle.Message{To: "q"}), &config)
				assert.NotContains(t, err.Error()+log.String(), "hunter2")
			})
		}
	})
}

func TestDialNoPermission(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	services.Ctl(t, services.Rabbit, "add_user", "settle-stranger", "hunter2")
	t.Cleanup(func() { services.Ctl(t, services.Rabbit, "delete_user", "settle-stranger") })
	b, _ := testBroker(t, with(t, server, func(u *url.URL) { u.User = url.UserPassword("settle-stranger", "hunter2") }), nil)
	_, err := b.consumeChannel(within(t))
	var config *settle.ConfigError
	require.ErrorAs(t, err, &config)
	assert.Contains(t, config.Reason, `"settle-stranger" may not use vhost "/"`)
}

// A connection that breaks during the handshake is no wrong password, though
// the client library takes it for one.
func TestDialCutDuringLogin(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	b, _ := testBroker(t, server, func(c *Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &cutAtLogin{Conn: conn}, err
		}
	})
	_, err := b.consumeChannel(within(t))
	require.Error(t, err)
	var config *settle.ConfigError
	require.False(t, errors.As(err, &config), "%v", err)
	assert.Contains(t, err.Error(), "ended during the handshake")
}

// cutAtLogin hangs up instead of sending the login.
type cutAtLogin struct {
	net.Conn
}

func (c *cutAtLogin) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "PLAIN") {
		c.Conn.Close()
	}
	return c.Conn.Write(p)
}

func TestDialNobodyThere(t *testing.T) {
	addr := unused(t)
	b, log := testBroker(t, "amqp://user:hunter2@"+addr+"/", nil)
	_, err := b.consumeChannel(within(t))
	require.Error(t, err)
	var config *settle.ConfigError
	require.False(t, errors.As(err, &config), "a server that is down may come back")
	assert.Contains(t, err.Error(), addr)
	assert.NotContains(t, err.Error()+log.String(), "hunter2")
}

// A server that accepts and says nothing holds nobody past ctx, and the
// attempt ends with the last who waits.
func TestDialHonoursContext(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	var open atomic.Int32
	b, _ := testBroker(t, "amqp://"+silent.Addr().String(), func(c *Config) {
		c.DialTimeout = time.Hour
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			open.Add(1)
			return &closeTold{Conn: conn, told: func() { open.Add(-1) }}, err
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	var waiting sync.WaitGroup
	for range 8 {
		waiting.Go(func() {
			_, err := b.consumeChannel(ctx)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	waiting.Wait()
	eventually(t, func() bool { return open.Load() == 0 }, "the attempt is called off")
}

// closeTold tells of its first Close.
type closeTold struct {
	net.Conn
	once sync.Once
	told func()
}

func (c *closeTold) Close() error {
	c.once.Do(c.told)
	return c.Conn.Close()
}

func TestDialTimeout(t *testing.T) {
	line := faults.Proxy(t, services.URL(t, services.Rabbit))
	line.Blackhole()
	b, _ := testBroker(t, line.URL(), func(c *Config) { c.DialTimeout = 50 * time.Millisecond })
	_, err := b.consumeChannel(within(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestNextNodeIsTried(t *testing.T) {
	b, _ := testBroker(t, "amqp://"+unused(t)+"/", func(c *Config) {
		c.URLs = append(c.URLs, services.URL(t, services.Rabbit))
	})
	for range 4 { // the first is a random one
		ch, err := b.consumeChannel(within(t))
		require.NoError(t, err)
		require.NoError(t, ch.conn.CloseDeadline(time.Now().Add(patience)))
	}
}

// Those who come while a connection is dialled share it, and consuming and
// publishing have one each, named.
func TestConnectionsAreShared(t *testing.T) {
	eachServer(t, func(t *testing.T, server string) {
		var dials atomic.Int32
		b, _ := testBroker(t, server, func(c *Config) {
			c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				return new(net.Dialer).DialContext(ctx, network, address)
			}
		})
		assert.Zero(t, dials.Load(), "New does not dial")
		p := &Publisher{Broker: b, DropUnroutable: true}
		var using sync.WaitGroup
		for range 16 {
			using.Go(func() {
				ch, err := b.consumeChannel(within(t))
				if assert.NoError(t, err) {
					assert.True(t, ch.server.major >= 3, "%v", ch.server)
					assert.NoError(t, ch.close(within(t)))
				}
			})
			using.Go(func() { assert.NoError(t, p.Publish(within(t), settle.Message{To: "settle-test-nowhere"})) })
		}
		using.Wait()
		assert.EqualValues(t, 2, dials.Load())
	})
}

// Attempts that fail are spread out, and whoever waits shares them.
func TestRedialBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		b, err := New(Config{URLs: []string{"amqp://host"}, Logger: slog.New(slog.DiscardHandler), Dial: func(context.Context, string, string) (net.Conn, error) {
			at = append(at, time.Since(start))
			return nil, errors.New("down")
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var using sync.WaitGroup
		for range 4 {
			using.Go(func() {
				err := (&Publisher{Broker: b}).Publish(ctx, settle.Message{To: "q"})
				assert.ErrorContains(t, err, "cannot connect to host:5672: down", "it says what it waited for")
				assert.ErrorIs(t, err, context.DeadlineExceeded, "a publisher waits for the server as long as its caller does")
			})
		}
		using.Wait()
		require.NoError(t, b.Close(context.Background()))
		require.Greater(t, len(at), 10, "it goes on")
		assert.Less(t, len(at), 100, "but not in a tight loop")
		for i := 1; i < len(at); i++ {
			assert.GreaterOrEqual(t, at[i]-at[i-1], 50*time.Millisecond)
			assert.LessOrEqual(t, at[i]-at[i-1], 5*time.Second)
		}
	})
}

func TestConsumingComesBack(t *testing.T) {
	line := faults.Proxy(t, services.URL(t, services.Rabbit))
	b, log := testBroker(t, line.URL(), nil)
	ch, err := b.consumeChannel(within(t))
	require.NoError(t, err)
	require.NoError(t, ch.err())

	line.Sever()
	select {
	case <-ch.done:
	case <-within(t).Done():
		require.Fail(t, "a channel ends with its connection")
	}
	require.ErrorIs(t, ch.lost(), settle.ErrSessionLost)
	require.Error(t, ch.err())
	eventually(t, func() bool { return strings.Contains(log.String(), "connection lost") }, "it is logged")

	again, err := b.consumeChannel(within(t))
	require.NoError(t, err)
	assert.NotSame(t, ch.conn, again.conn)
	require.NoError(t, again.close(within(t)))
	require.NoError(t, again.err(), "a close of our own has no cause")
}

// A request that gets no answer holds its caller no longer than ctx.
func TestRequestHonoursContext(t *testing.T) {
	line := faults.Proxy(t, services.URL(t, services.Rabbit))
	b, _ := testBroker(t, line.URL(), func(c *Config) { c.Heartbeat = time.Second })
	ch, err := b.consumeChannel(within(t))
	require.NoError(t, err)
	line.Blackhole()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, ch.close(ctx), context.DeadlineExceeded)
	_, err = ch.conn.channel(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// The heartbeat finds out that the other side is gone.
	select {
	case <-ch.done:
	case <-within(t).Done():
		require.Fail(t, "the connection is taken for dead")
	}
}

// Close does not wait for a server that does not answer.
func TestCloseOfAPartedNetwork(t *testing.T) {
	line := faults.Proxy(t, services.URL(t, services.Rabbit))
	b, _ := testBroker(t, line.URL(), nil)
	_, err := b.consumeChannel(within(t))
	require.NoError(t, err)
	line.Blackhole()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = b.Close(ctx)
	eventually(t, func() bool { return b.Close(within(t)) == nil }, "and leaves nothing behind")
}

// TLS against the real server, by a proxy that speaks it: the servers of the
// tests listen without.
func TestTLS(t *testing.T) {
	certificate, roots := selfSigned(t)
	server, err := url.Parse(services.URL(t, services.Rabbit))
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	require.NoError(t, err)
	var proxying sync.WaitGroup
	t.Cleanup(proxying.Wait)
	t.Cleanup(func() { listener.Close() })
	proxying.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			proxying.Go(func() {
				defer client.Close()
				upstream, err := net.Dial("tcp", server.Host)
				if !assert.NoError(t, err) {
					return
				}
				proxying.Go(func() {
					_, _ = io.Copy(upstream, client)
					upstream.Close()
				})
				_, _ = io.Copy(client, upstream)
			})
		}
	})
	secure := with(t, server.String(), func(u *url.URL) { u.Scheme, u.Host = "amqps", listener.Addr().String() })

	b, _ := testBroker(t, secure, func(c *Config) { c.TLS = &tls.Config{RootCAs: roots} })
	require.ErrorIs(t, (&Publisher{Broker: b}).Publish(within(t), settle.Message{To: "settle-test-nowhere"}), settle.ErrUnroutable)

	b, _ = testBroker(t, secure, nil)
	_, err = b.consumeChannel(within(t))
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &unknown, "a certificate that nobody vouches for is refused")
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
