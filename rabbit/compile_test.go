package rabbit

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What only one kind of queue can do is a field that only that kind has: the
// compiler refuses a QuorumQueue with a RetryPublisher.
func TestRetryPublisherIsOfClassicQueues(t *testing.T) {
	compile := func(folder string) (string, error) {
		out, err := exec.Command("go", "vet", "./testdata/retrypublisher/"+folder).CombinedOutput()
		return string(out), err
	}
	out, err := compile("classic")
	require.NoError(t, err, out)
	out, err = compile("quorum")
	require.Error(t, err, "a QuorumQueue with a RetryPublisher compiles")
	assert.Contains(t, out, "unknown field RetryPublisher in struct literal of type rabbit.QuorumQueue")
}
