package services

import (
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answers reports whether the broker at this URL sends its first frame to a client that says hello.
func answers(t *testing.T, address string) bool {
	t.Helper()
	parsed, err := url.Parse(address)
	require.NoError(t, err)
	c, err := net.DialTimeout("tcp", parsed.Host, 5*time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	if _, err := c.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return false
	}
	var frame [1]byte
	n, _ := c.Read(frame[:])
	return n == 1 && frame[0] == 1
}

// Kill returns when the server is gone, Start and Restart when it answers: no test needs to wait after them.
func TestAServerIsKilledAndComesBack(t *testing.T) {
	TestAll(t)
	address := URL(t, RabbitFault)
	t.Cleanup(func() { Start(t, RabbitFault) })

	Kill(t, RabbitFault)
	assert.False(t, answers(t, address), "it answers after Kill")
	Start(t, RabbitFault)
	assert.True(t, answers(t, address), "it does not answer after Start")
	Restart(t, RabbitFault)
	assert.True(t, answers(t, address), "it does not answer after Restart")
	assert.Contains(t, Ctl(t, RabbitFault, "status"), "RabbitMQ version")
}

func TestANodeOfTheClusterIsKilledAndComesBack(t *testing.T) {
	TestAll(t)
	nodes := URLs(t, RabbitCluster)
	require.Len(t, nodes, 3)
	t.Cleanup(func() { Start(t, RabbitB) })

	Kill(t, RabbitB)
	assert.True(t, answers(t, nodes[0]) && answers(t, nodes[2]), "another node went with it")
	assert.False(t, answers(t, nodes[1]), "it answers after Kill")
	Start(t, RabbitB)
	assert.True(t, answers(t, nodes[1]), "it does not answer after Start")
	Ctl(t, RabbitCluster, "await_online_nodes", "3", "--timeout", "60")
}
