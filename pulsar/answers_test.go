package pulsar

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle"
)

// What will not change is told by the broker's word, wherever it stands in the
// error, and not by what a topic is called.
func TestWhichErrorsAreFinal(t *testing.T) {
	for text, want := range map[string]bool{
		"server error: TopicNotFound: Namespace not found": true,
		"TopicNotFound": true,
		"server error: AuthorizationError: Client is not authorized to Subscribe":                         true,
		"server error: TopicTerminatedError: Topic was already terminated":                                true,
		"server error: ConsumerBusy: Subscription is of different type":                                   true,
		"server error: ConsumerBusy: Exclusive consumer is already connected":                             false,
		"server error: ServiceNotReady: topic persistent://public/default/TopicNotFound is not served":    false,
		"server error: ServiceNotReady: bundle of public/default/AuthorizationError: x is not owned here": false,
		"connection error":  false,
		"request timed out": false,
	} {
		err := errors.Join(errors.New("another"), fmt.Errorf("pulsar: topic %q: no producer: %w", "audit-TopicTerminated: AuthorizationError", errors.New(text)))
		reason, fix := final(err, toConsume)
		assert.Equal(t, want, reason != "", text)
		assert.Equal(t, want, fix != "", text)
	}
	blocked := blockedOr(errors.Join(errors.New("producer blocked"), errors.New("server error: ProducerBlockedQuotaExceededException: Cannot create producer on topic with backlog quota exceeded")))
	assert.ErrorIs(t, blocked, settle.ErrBlocked)
	assert.NotErrorIs(t, blockedOr(errors.New("connection error")), settle.ErrBlocked)
}
