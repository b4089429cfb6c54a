package pulsar

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// This file asks a broker whether it takes us, on a connection of its own,
// before the client library is asked for anything. The library gives the same error,
// after its whole operation timeout, for a broker that is down, a name that does
// not resolve, a certificate that is not trusted and a token that is wrong; and it
// takes no context. The first frame of the protocol and its answer tell these
// apart at once.

const (
	plainPort  = "6650"
	securePort = "6651"
)

// parseURL returns the addresses in a service URL, and whether they speak TLS.
// reason says why it is none.
func parseURL(given string) (hosts []string, secure bool, reason string) {
	if given == "" {
		return nil, false, "it is empty"
	}
	scheme, rest, ok := strings.Cut(given, "://")
	port := plainPort
	switch strings.ToLower(scheme) {
	case "pulsar":
	case "pulsar+ssl":
		secure, port = true, securePort
	default:
		if !ok {
			return nil, false, "it has no scheme"
		}
		return nil, false, fmt.Sprintf("its scheme %q is not that of the Pulsar protocol", scheme)
	}
	rest = strings.TrimSuffix(rest, "/")
	if strings.Contains(rest, "@") {
		return nil, false, "it carries a user or a password, which the protocol has no place for" // not shown
	}
	for _, host := range strings.Split(rest, ",") {
		u, err := url.Parse("pulsar://" + host)
		if err != nil || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return nil, false, fmt.Sprintf("%q in it is not a host and port", host)
		}
		at := port
		if given := u.Port(); given != "" {
			if n, err := strconv.ParseUint(given, 10, 16); err != nil || n == 0 {
				return nil, false, fmt.Sprintf("%q in it is not a port", given)
			}
			at = given
		}
		hosts = append(hosts, net.JoinHostPort(u.Hostname(), at))
	}
	return hosts, secure, ""
}

// refusal is a broker's answer to a handshake that it does not accept: the
// connection works, and we may not have it.
type refusal struct {
	code     uint64 // of the protocol's ServerError
	message  string
	nameless bool // we did not say who we are
}

func (r *refusal) Error() string { return "the broker refuses the connection: " + r.message }

// credentials reports whether what says who we are was refused.
func (r *refusal) credentials() bool {
	return r.code == authenticationError || r.code == authorizationError
}

// reach returns nil when one of the hosts accepts us, else why none does. It
// returns when ctx ends. All are asked side by side, so that a mute one holds up nobody.
func (b *Broker) reach(ctx context.Context) error {
	if b.ctx.Err() != nil {
		return closedError()
	}
	ctx, cancel := context.WithTimeout(ctx, b.config.ConnectTimeout)
	defer cancel()
	answers := make(chan error, len(b.hosts))
	for _, host := range b.hosts {
		started := b.start(func() {
			err := b.greet(ctx, host)
			if err != nil {
				err = fmt.Errorf("%s: %w", host, err)
			}
			answers <- err
		})
		if !started {
			return closedError()
		}
	}
	var errs []error
	for range b.hosts {
		var err error
		select {
		case err = <-answers:
		case <-ctx.Done(): // the user's TokenSource may know of no context
			select {
			case err = <-answers:
			case <-time.After(reachGrace):
				return errors.Join(append(errs, fmt.Errorf("no answer in time: %w", context.Cause(ctx)))...)
			}
		}
		var refused *refusal
		if err == nil || errors.As(err, &refused) && refused.credentials() {
			return err // who is taken by one is taken by all, and so is who is not known
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// reachGrace is how long reach waits for what tells why, once its time is over.
const reachGrace = 100 * time.Millisecond

// greet makes the handshake with one host.
func (b *Broker) greet(ctx context.Context, host string) (err error) {
	conn, err := b.dial(ctx, host)
	if err != nil {
		return err
	}
	defer conn.Close()
	end := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer end()
	hello, err := b.hello()
	if err != nil {
		return err
	}
	if _, err := conn.Write(hello); err != nil {
		return cutShort(ctx, err)
	}
	answer, err := readFrame(conn)
	if err != nil {
		return cutShort(ctx, fmt.Errorf("no answer to the handshake: %w", err))
	}
	limit, err := accepted(answer)
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		refused.nameless = b.provider.Name() == ""
	}
	if err == nil && limit > 0 {
		b.mostMessage.Store(int64(limit))
	}
	return err
}

// cutShort prefers the end of ctx to the error that it caused.
func cutShort(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer to the handshake: %w", context.Cause(ctx))
	}
	return err
}

func (b *Broker) dial(ctx context.Context, host string) (net.Conn, error) {
	if !strings.HasPrefix(strings.ToLower(b.config.URL), "pulsar+ssl:") {
		return new(net.Dialer).DialContext(ctx, "tcp", host)
	}
	config := b.config.TLS
	if config == nil {
		config = new(tls.Config)
		if cert, err := b.provider.GetTLSCertificate(); err != nil {
			return nil, err
		} else if cert != nil {
			config.Certificates = []tls.Certificate{*cert}
		}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	if config = config.Clone(); config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(host)
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		var untrusted *tls.CertificateVerificationError
		if errors.As(err, &untrusted) || ctx.Err() != nil {
			return nil, fmt.Errorf("the TLS handshake failed: %w", err)
		}
		return nil, fmt.Errorf("the TLS handshake failed: %w; is this the port for TLS (6651)? pulsar:// is without", err)
	}
	return secure, nil
}

// Numbers of the protocol's BaseCommand, CommandConnect, CommandError and ServerError.
const (
	commandType      = 1
	commandConnect   = 2
	commandConnected = 3
	commandError     = 14
	commandChallenge = 36 // more is asked for: we were not refused

	connectClient   = 1
	connectAuthData = 3
	connectVersion  = 4
	connectAuthName = 5

	connectedLimit = 3

	errorCode    = 2
	errorMessage = 3

	authenticationError = 3
	authorizationError  = 4

	protocolVersion = 18
	mostAnswer      = 64 << 10 // bytes; an answer to the handshake is far smaller
)

// hello is the frame that begins a connection.
func (b *Broker) hello() ([]byte, error) {
	data, err := b.provider.GetData()
	if err != nil {
		return nil, fmt.Errorf("the credentials cannot be had: %w", err)
	}
	var connect []byte
	connect = protowire.AppendTag(connect, connectClient, protowire.BytesType)
	connect = protowire.AppendString(connect, "settle")
	if name := b.provider.Name(); name != "" {
		connect = protowire.AppendTag(connect, connectAuthName, protowire.BytesType)
		connect = protowire.AppendString(connect, name)
		connect = protowire.AppendTag(connect, connectAuthData, protowire.BytesType)
		connect = protowire.AppendBytes(connect, data)
	}
	connect = protowire.AppendTag(connect, connectVersion, protowire.VarintType)
	connect = protowire.AppendVarint(connect, protocolVersion)

	var command []byte
	command = protowire.AppendTag(command, commandType, protowire.VarintType)
	command = protowire.AppendVarint(command, commandConnect)
	command = protowire.AppendTag(command, commandConnect, protowire.BytesType)
	command = protowire.AppendBytes(command, connect)

	frame := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(command)))
	return append(frame, command...), nil
}

// readFrame reads one frame and returns its command.
func readFrame(r io.Reader) ([]byte, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return nil, err
	}
	frame, command := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	if command > mostAnswer || frame < 4 || frame-4 < command {
		return nil, errors.New("what answers does not speak the Pulsar protocol")
	}
	buf := make([]byte, command)
	_, err := io.ReadFull(r, buf)
	return buf, err
}

// accepted reads the answer to a hello, and in it how large a message may be; 0: it does not say.
func accepted(command []byte) (limit uint64, err error) {
	var kind uint64
	var body []byte
	err = fields(command, func(n protowire.Number, v uint64, b []byte) {
		switch n {
		case commandType:
			kind = v
		case commandError, commandConnected:
			body = b
		}
	})
	switch {
	case err != nil:
		return 0, err
	case kind == commandConnected:
		err = fields(body, func(n protowire.Number, v uint64, _ []byte) {
			if n == connectedLimit {
				limit = v & math.MaxInt32
			}
		})
		return limit, err
	case kind == commandChallenge:
		return 0, nil
	case kind != commandError:
		return 0, fmt.Errorf("the broker answered the handshake with command %d", kind)
	}
	refused := new(refusal)
	err = fields(body, func(n protowire.Number, v uint64, b []byte) {
		switch n {
		case errorCode:
			refused.code = v
		case errorMessage:
			refused.message = string(b)
		}
	})
	if err != nil {
		return 0, err
	}
	return 0, refused
}

// fields calls f for each varint and each length-delimited field of a message.
func fields(message []byte, f func(n protowire.Number, v uint64, b []byte)) error {
	bad := func(n int) error {
		return fmt.Errorf("what answers does not speak the Pulsar protocol: %w", protowire.ParseError(n))
	}
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return bad(n)
		}
		message = message[n:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return bad(n)
		}
		f(number, v, b)
		message = message[n:]
	}
	return nil
}
