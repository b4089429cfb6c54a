package rabbit

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// socket records what is written to it.
type socket struct {
	net.Conn
	got    bytes.Buffer
	writes int
	err    error
	closed bool
}

func (s *socket) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	s.writes++
	return s.got.Write(p)
}

func (s *socket) Close() error {
	s.closed = true
	return nil
}

// Whatever is corked when, the bytes arrive once and in order, and none stay
// behind once it is uncorked.
func TestCorkKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := new(socket)
		c := &corkable{Conn: s}
		var want bytes.Buffer
		next := byte(0)
		corked := false
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				c.cork()
				corked = true
			case 1:
				c.uncork()
				corked = false
			default:
				p := make([]byte, rapid.SampledFrom([]int{1, 100, 5000, corkSize - 1, corkSize, 3 * corkSize}).Draw(t, "size"))
				for i := range p {
					p[i] = next
					next++
				}
				n, err := c.Write(p)
				if n != len(p) || err != nil {
					t.Fatalf("wrote %d of %d: %v", n, len(p), err)
				}
				want.Write(p)
			}
			if !bytes.HasPrefix(want.Bytes(), s.got.Bytes()) {
				t.Fatal("out of order")
			}
			if kept := want.Len() - s.got.Len(); kept > corkSize || !corked && kept > 0 {
				t.Fatalf("%d bytes are kept back", kept)
			}
		}
		c.uncork()
		if !bytes.Equal(want.Bytes(), s.got.Bytes()) {
			t.Fatal("bytes are missing")
		}
	})
}

func TestCorkSavesWrites(t *testing.T) {
	s := new(socket)
	c := &corkable{Conn: s}
	c.cork()
	for range 100 {
		_, err := c.Write(make([]byte, 100))
		require.NoError(t, err)
	}
	c.uncork()
	assert.Equal(t, 1, s.writes)
	_, _ = c.Write([]byte("x"))
	assert.Equal(t, 2, s.writes, "what is not corked goes out at once")
}

// What was kept back and cannot be written ends the connection: those who wait
// for an answer to it get one.
func TestCorkFails(t *testing.T) {
	s := new(socket)
	c := &corkable{Conn: s}
	c.cork()
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	s.err = errors.New("broken")
	c.uncork()
	assert.True(t, s.closed)

	c = &corkable{Conn: s}
	c.cork()
	_, err = c.Write(make([]byte, corkSize-1))
	require.NoError(t, err)
	_, err = c.Write(make([]byte, 2))
	require.ErrorIs(t, err, s.err)
}

// A channel that ends while its writer is at work leaves the connection
// uncorked: requests on it are answered.
func TestCorkIsPulledWhenAChannelEnds(t *testing.T) {
	server := services.URL(t, services.Rabbit)
	b, _ := testBroker(t, server, nil)
	p := &Publisher{Broker: b, Exchange: "settle-test-no-exchange", Window: 100_000}
	for range 5 {
		require.Error(t, p.Publish(within(t), make([]settle.Message, 3000)...))
		require.NoError(t, b.Declare(within(t), Topology{Queues: []Queue{{Name: unique(t, server, "q"), Kind: Classic}}}))
	}
}
