package rabbit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// This file makes one network connection into an open AMQP connection and
// tells final errors from those that may pass.

// node is one parsed URL.
type node struct {
	url  string // holds the password: never printed
	addr string // host:port, for logs and errors
	uri  amqp.URI
}

// parseNode parses a URL. The reason it returns for a bad one repeats no part
// of it: any part may be a piece of the password.
func parseNode(url string) (n node, reason string) {
	uri, err := amqp.ParseURI(url)
	switch {
	case err != nil && !strings.HasPrefix(url, "amqp://") && !strings.HasPrefix(url, "amqps://"):
		return node{}, `it does not begin with "amqp://" or "amqps://"`
	case err != nil:
		return node{}, "it is not a valid URL"
	case uri.Port < 1 || uri.Port > 65535:
		return node{}, "its port is not between 1 and 65535"
	}
	for _, mechanism := range uri.AuthMechanism {
		if newCredentials(mechanism, uri, nil) == nil {
			return node{}, "its auth_mechanism is none of plain, amqplain and external"
		}
	}
	return node{url: url, addr: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri: uri}, ""
}

// credentials are a SASL mechanism that also tells the server to answer a
// refusal. The client library does not announce that it understands the
// answer; without it the server hangs up in silence after some seconds, which cannot be
// told from a broken network.
type credentials struct {
	amqp.Authentication
	properties amqp.Table // what the client says of itself
}

// Response is called after the library has filled in the capabilities and
// before it sends them.
func (c *credentials) Response() string {
	if capabilities, ok := c.properties["capabilities"].(amqp.Table); ok {
		capabilities["authentication_failure_close"] = true
	}
	return c.Authentication.Response()
}

// newCredentials returns nil for a mechanism that does not exist.
func newCredentials(mechanism string, uri amqp.URI, properties amqp.Table) amqp.Authentication {
	var auth amqp.Authentication
	switch strings.ToUpper(mechanism) {
	case "PLAIN":
		auth = uri.PlainAuth()
	case "AMQPLAIN":
		auth = uri.AMQPlainAuth()
	case "EXTERNAL":
		auth = &amqp.ExternalAuth{}
	default:
		return nil
	}
	return &credentials{Authentication: auth, properties: properties}
}

// dialNode opens a connection to one node. It returns by ctx's end or the dial
// timeout, and leaves nothing behind when it fails.
func (b *Broker) dialNode(ctx context.Context, n node, name string) (*amqp.Connection, *corkable, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.DialTimeout)
	defer cancel()
	properties := maps.Clone(clientProperties)
	properties.SetClientConnectionName(name)
	mechanisms := n.uri.AuthMechanism
	if len(mechanisms) == 0 {
		mechanisms = []string{"PLAIN"}
	}
	config := amqp.Config{
		Heartbeat:  b.config.Heartbeat,
		Properties: properties,
	}
	for _, mechanism := range mechanisms {
		config.SASL = append(config.SASL, newCredentials(mechanism, n.uri, properties))
	}
	if b.config.TLS != nil {
		config.TLSClientConfig = b.config.TLS.Clone() // the library writes the server's name into it
	}

	var raw *corkable
	stop := func() bool { return true }
	config.Dial = func(network, addr string) (net.Conn, error) {
		socket, err := b.config.Dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		raw = &corkable{Conn: socket}
		// The handshakes know no context: closing what they read from ends them.
		stop = context.AfterFunc(ctx, func() { raw.Close() })
		return raw, nil
	}
	conn, err := amqp.DialConfig(n.url, config)
	if !stop() || err != nil {
		if raw != nil {
			raw.Close()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, b.dialError(n, err)
	}
	return conn, raw, nil
}

var clientProperties = amqp.Table{
	"product":  "settle",
	"platform": "golang",
}

// dialError names the node and makes final what the server says will not pass.
func (b *Broker) dialError(n node, err error) error {
	final := func(reason, fix string) error {
		return &settle.ConfigError{Source: "rabbit: " + n.addr, Setting: "URLs", Reason: reason, Fix: fix, Err: err}
	}
	var reply *amqp.Error
	switch {
	case !errors.As(err, &reply):
	case reply.Server && reply.Code == amqp.AccessRefused:
		return final(fmt.Sprintf("the server refuses user %q", n.uri.Username), "check the user and the password in the URL")
	case reply.Server && reply.Code == amqp.NotAllowed && strings.Contains(reply.Reason, "not found"):
		return final(fmt.Sprintf("the server has no vhost %q", n.uri.Vhost), "check the path of the URL, or create the vhost")
	case reply.Server && reply.Code == amqp.NotAllowed && strings.Contains(reply.Reason, "refused"):
		return final(fmt.Sprintf("user %q may not use vhost %q", n.uri.Username, n.uri.Vhost), "give the user permissions on the vhost")
	case reply == amqp.ErrSASL:
		return final("the server offers none of the URL's authentication mechanisms", "change auth_mechanism in the URL, or the server's")
	case !reply.Server:
		// The library's own guess at why the other side hung up. With
		// credentials that ask for an answer it is only ever the network.
		err = errors.New("the connection ended during the handshake")
	}
	return fmt.Errorf("rabbit: cannot connect to %s: %w", n.addr, err)
}

// version is the server's.
type version struct{ major, minor, patch int }

// parseVersion reads "4.3.6" and the like; what it cannot read is 0.
func parseVersion(v any) (parsed version) {
	text, _ := v.(string)
	parts := strings.SplitN(text, ".", 3)
	for i, to := range []*int{&parsed.major, &parsed.minor, &parsed.patch} {
		if i < len(parts) {
			digits := parts[i]
			if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
				digits = digits[:end]
			}
			*to, _ = strconv.Atoi(digits)
		}
	}
	return parsed
}

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch) }

// pause is the wait before the attempt that follows the given number of failures.
func pause(failures int) time.Duration {
	return settle.Backoff{Base: 100 * time.Millisecond, Max: 5 * time.Second, Min: 50 * time.Millisecond}.Delay(failures)
}
