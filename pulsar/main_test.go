package pulsar

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The client library keeps a goroutine for each message in chunks until Subscription.ChunkWait has passed,
		// whatever became of the message and of the consumer.
		goleak.IgnoreTopFunction("github.com/apache/pulsar-client-go/pulsar.(*chunkedMsgCtxMap).discardChunkIfExpire"),
	)
}
