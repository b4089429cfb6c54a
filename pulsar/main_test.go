package pulsar

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(known.options()...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// leakOfChunks is what the client library leaves behind and we cannot help: a
// goroutine for each message in chunks, until Subscription.ChunkWait has passed,
// whatever became of the message and of the consumer.
const leakOfChunks = "github.com/apache/pulsar-client-go/pulsar.(*chunkedMsgCtxMap).discardChunkIfExpire"

// leaks are those that a test has said it causes.
type leaks struct {
	mu  sync.Mutex // guards all
	all []goleak.Option
}

var known leaks

// expectLeak says that the test leaves goroutines with that function behind.
func expectLeak(top string) {
	known.mu.Lock()
	defer known.mu.Unlock()
	known.all = append(known.all, goleak.IgnoreTopFunction(top))
}

func (l *leaks) options() []goleak.Option {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
