package pulsar

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/settlemq/settle"
)

func TestParseURL(t *testing.T) {
	for given, want := range map[string][]string{
		"pulsar://host":                            {"host:6650"},
		"pulsar://host:6651/":                      {"host:6651"},
		"pulsar://127.0.0.1:1":                     {"127.0.0.1:1"},
		"pulsar://[::1]:6650":                      {"[::1]:6650"},
		"pulsar+ssl://host":                        {"host:6651"},
		"pulsar+ssl://one:1,two,three:3":           {"one:1", "two:6651", "three:3"},
		"PULSAR://host":                            {"host:6650"},
		"pulsar://a.example.com:1,b.example.com:2": {"a.example.com:1", "b.example.com:2"},
	} {
		hosts, secure, reason := parseURL(given)
		assert.Empty(t, reason, given)
		assert.Equal(t, want, hosts, given)
		assert.Equal(t, given[6] == '+', secure, given)
	}
	for _, given := range []string{
		"", "host:6650", "http://host:8080", "amqp://host", "pulsar://", "pulsar://:6650", "pulsar://host:port", "pulsar://host:0", "pulsar://host:70000",
		"pulsar://one,,two", "pulsar://host/topic", "pulsar://host?x=y", "pulsar://user:password@host", "pulsar://one, two:1", "pulsar://\x00",
	} {
		_, _, reason := parseURL(given)
		assert.NotEmpty(t, reason, given)
		assert.NotContains(t, reason, "password@", "a password is not shown")
	}
}

// field appends one field of a message.
func field(to []byte, n protowire.Number, value any) []byte {
	switch v := value.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), uint64(v))
	case string:
		return protowire.AppendString(protowire.AppendTag(to, n, protowire.BytesType), v)
	case []byte:
		return protowire.AppendBytes(protowire.AppendTag(to, n, protowire.BytesType), v)
	}
	panic("no such field")
}

func framed(command []byte) []byte {
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(command)))
	return append(frame, command...)
}

var (
	connected = framed(field(field(nil, commandType, commandConnected), commandConnected, field(nil, 1, "Pulsar Server4.0.7")))
	refusing  = framed(field(field(nil, commandType, commandError), commandError,
		field(field(field(nil, 1, 0), errorCode, authenticationError), errorMessage, "Failed to authentication token")))
)

// mockServer answers each connection with the same bytes; nil: it never does. It stands in for brokers
// that a real one cannot be made to be.
func mockServer(t *testing.T, answer []byte) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := readFrame(conn); err == nil && answer != nil {
				_, _ = conn.Write(answer)
			}
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func brokerAt(t *testing.T, change func(*Config), hosts string) *Broker {
	t.Helper()
	config := Config{URL: "pulsar://" + hosts}
	if change != nil {
		change(&config)
	}
	b, err := New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

func TestReach(t *testing.T) {
	ctx := context.Background()
	good, bad, none := mockServer(t, connected), mockServer(t, refusing), unused(t)
	assert.NoError(t, brokerAt(t, nil, good).reach(ctx))
	assert.NoError(t, brokerAt(t, nil, none+","+good).reach(ctx), "the next host is tried")

	err := brokerAt(t, func(c *Config) { c.Token = "wrong" }, bad+","+mockServer(t, nil)).reach(ctx)
	var refused *refusal
	require.ErrorAs(t, err, &refused, "who is refused by one is refused by all: the mute one is not waited for")
	assert.True(t, refused.credentials())
	assert.ErrorContains(t, err, "Failed to authentication token")
	assert.NotContains(t, err.Error(), "wrong")

	assert.ErrorContains(t, brokerAt(t, nil, none).reach(ctx), "refused")
	assert.ErrorContains(t, brokerAt(t, nil, mockServer(t, []byte("HTTP/1.1 400 Bad Request\r\n"))).reach(ctx), "does not speak the Pulsar protocol")
	assert.ErrorContains(t, brokerAt(t, nil, mockServer(t, framed(field(nil, commandType, 18)))).reach(ctx), "command 18")

	b := brokerAt(t, nil, good)
	require.NoError(t, b.Close(ctx))
	var config *settle.ConfigError
	assert.ErrorAs(t, b.reach(ctx), &config)
}

// A peer that takes the connection and says nothing holds nobody up past his
// deadline.
func TestReachEndsWithItsContext(t *testing.T) {
	mute := brokerAt(t, nil, mockServer(t, nil))
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- mute.reach(ctx) }()
	cancel()
	assert.ErrorIs(t, receive(t, result), context.Canceled)

	mute = brokerAt(t, func(c *Config) { c.ConnectTimeout = 50 * time.Millisecond }, mockServer(t, nil))
	go func() { result <- mute.reach(context.Background()) }()
	assert.ErrorIs(t, receive(t, result), context.DeadlineExceeded)
}

// receive waits for what must come.
func receive[T any](t testing.TB, from <-chan T) (v T) {
	t.Helper()
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case v = <-from:
	case <-timer.C:
		require.Fail(t, "nothing came")
	}
	return v
}

// unused is an address where nobody listens.
func unused(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// The token source is asked each time, and what it fails with is said.
func TestReachAsksForTheToken(t *testing.T) {
	asked := 0
	b := brokerAt(t, func(c *Config) {
		c.TokenSource = func() (string, error) {
			if asked++; asked > 3 { // the client library asks once for each of its two clients
				return "", errors.New("the vault is sealed")
			}
			return "token", nil
		}
	}, mockServer(t, connected))
	assert.NoError(t, b.reach(context.Background()))
	assert.ErrorContains(t, b.reach(context.Background()), "the vault is sealed")
}

func FuzzAccepted(f *testing.F) {
	f.Add(connected[8:])
	f.Add(refusing[8:])
	f.Add([]byte{0x08})
	f.Fuzz(func(t *testing.T, command []byte) { _, _ = accepted(command) })
}

// A certificate that is not trusted is told from a broker that is down.
func TestReachByTLS(t *testing.T) {
	cert, roots := certificate(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := readFrame(conn); err == nil {
				_, _ = conn.Write(connected)
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	secure := func(config *tls.Config) *Broker {
		b, err := New(Config{URL: "pulsar+ssl://" + listener.Addr().String(), TLS: config})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
		return b
	}
	assert.NoError(t, secure(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}).reach(context.Background()))
	assert.ErrorContains(t, secure(nil).reach(context.Background()), "certificate")

	closing, err := net.Listen("tcp", "127.0.0.1:0") // as a broker's port without TLS does
	require.NoError(t, err)
	defer closing.Close()
	go func() {
		if conn, err := closing.Accept(); err == nil {
			_, _ = conn.Read(make([]byte, 1))
			conn.Close()
		}
	}()
	plain := brokerAt(t, func(c *Config) { c.URL = "pulsar+ssl://" + closing.Addr().String() }, "")
	assert.ErrorContains(t, plain.reach(context.Background()), "is this the port for TLS")
}

// certificate makes one for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

func tlsConfig() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} }
