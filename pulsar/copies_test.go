package pulsar

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/settlemq/settle"
)

const ordersTopic = "persistent://public/default/orders"

func orders() *message {
	return &message{
		topic: ordersTopic + "-partition-2", id: at(3, 7), payload: []byte("body"), key: "k", order: "o",
		properties: map[string]string{"tenant": "a"}, event: time.UnixMilli(1_600_000_000_000),
	}
}

func TestRetryCopyCarriesTheMessageOn(t *testing.T) {
	m := orders()
	p := retryCopy(deliveryOf(m, 3))
	assert.Equal(t, "body", string(p.Payload))
	assert.Equal(t, "k", p.Key)
	assert.Equal(t, "o", p.OrderingKey)
	assert.Equal(t, m.event, p.EventTime)
	assert.Equal(t, map[string]string{
		"tenant": "a", PropertyAttempts: "3", PropertyFor: "billing@" + ordersTopic,
		PropertyRealTopic: ordersTopic, PropertyOriginID: "3:7:0", PropertyPublished: "1700000000123",
	}, p.Properties)
	assert.True(t, p.DisableReplication, "the other cluster has the original")
	assert.Equal(t, map[string]string{"tenant": "a"}, m.properties, "the original is as it was")
}

// A copy of a copy tells of the first message, not of the copy.
func TestCopiesKeepTheirOrigin(t *testing.T) {
	m := orders()
	m.properties = retryCopy(deliveryOf(m, 1)).Properties
	m.id = at(9, 9)
	p := retryCopy(deliveryOf(m, 2))
	assert.Equal(t, "3:7:0", p.Properties[PropertyOriginID])
	assert.Equal(t, "2", p.Properties[PropertyAttempts])
}

func TestDeadCopyTellsWhyAndBeginsAnew(t *testing.T) {
	m := orders()
	m.properties = retryCopy(deliveryOf(m, 4)).Properties
	p := deadCopy(deliveryOf(m, 5), "pulsar: here", errors.New("no such account"))
	assert.Equal(t, map[string]string{
		"tenant": "a", PropertyRealTopic: ordersTopic, PropertyOriginID: "3:7:0", PropertyPublished: "1700000000123",
		settle.HeaderDeadSource: "pulsar: here", settle.HeaderDeadAttempt: "5", settle.HeaderDeadCause: "no such account",
	}, p.Properties, "without the count, so that it begins at the first attempt wherever it is sent back to")

	m.properties = p.Properties
	assert.NotContains(t, deadCopy(deliveryOf(m, 1), "pulsar: there", nil).Properties, settle.HeaderDeadCause, "an older cause is not this one's")
}

func TestCopyOfAnEmptyBodyCanBeReceived(t *testing.T) {
	m := orders()
	for _, empty := range [][]byte{nil, {}} {
		m.payload = empty
		assert.Nil(t, retryCopy(deliveryOf(m, 1)).Payload, "the library throws away what is empty and no null value")
	}
	m.event = time.UnixMilli(0)
	assert.True(t, retryCopy(deliveryOf(m, 1)).EventTime.IsZero())
}

func TestCauseText(t *testing.T) {
	long := strings.Repeat("ü", mostCause)
	got := causeText(errors.New(long))
	assert.LessOrEqual(t, len(got), mostCause)
	assert.True(t, utf8.ValidString(got))
	assert.Equal(t, "a\uFFFDb", causeText(errors.New("a\xffb")))
}

func TestCountOf(t *testing.T) {
	for text, want := range map[string]struct {
		attempts int
		odd      string
	}{
		"0": {0, ""}, "3": {3, ""}, "-1": {0, "-1"}, "": {0, ""}, "many": {0, "many"}, "99999999999": {0, "99999999999"},
	} {
		attempts, odd := countOf(map[string]string{PropertyAttempts: text})
		assert.Equal(t, want.attempts, attempts, text)
		assert.Equal(t, want.odd, odd, text)
	}
	attempts, odd := countOf(nil)
	assert.Zero(t, attempts)
	assert.Empty(t, odd)
}

// A counted copy is its subscription's on its topic, another subscription's there,
// and on any other topic a message like any other.
func TestWhoseACopyIs(t *testing.T) {
	mine := markOf("billing", ordersTopic+"-partition-2")
	for on, whose := range map[string]string{
		"": "anybody's", "billing": "anybody's", "billing@" + ordersTopic: "mine", "email@" + ordersTopic: "another's",
		"billing@" + ordersTopic + "-old": "anybody's", "billing@persistent://public/default/rders": "anybody's",
	} {
		properties := map[string]string{PropertyFor: on}
		assert.Equal(t, whose == "mine", mine.on(properties), on)
		assert.Equal(t, whose == "another's", mine.another(properties), on)
	}
	assert.False(t, mine.on(nil))
	assert.False(t, mine.another(nil))
}

// A copy that may tell no more than it must is no larger than the original, but
// for the count.
func TestBareCopy(t *testing.T) {
	m := orders()
	d := deliveryOf(m, 3)
	d.rare = &rare{bare: true}
	assert.Equal(t, m.properties, deadCopy(d, "pulsar: here", errors.New("no such account")).Properties)
	assert.Equal(t, map[string]string{"tenant": "a", PropertyAttempts: "3", PropertyFor: "billing@" + ordersTopic}, retryCopy(d).Properties)
}

func TestTopicNames(t *testing.T) {
	for given, want := range map[string]string{
		"orders":             ordersTopic,
		"shop/eu/orders":     "persistent://shop/eu/orders",
		ordersTopic:          ordersTopic,
		"orders-partition-3": ordersTopic + "-partition-3",
		"persistent://public/default/a-partition": "persistent://public/default/a-partition",
	} {
		name, reason := fullName(given)
		assert.Equal(t, want, name, given)
		assert.Empty(t, reason, given)
	}
	for _, given := range []string{
		"", "a/b", "non-persistent://public/default/x", "http://host/x", "persistent://public/default", "persistent://public//x", "shop//orders",
		"persistent://shop/cluster/eu/orders", "-partition-0", "orders-partition-", "orders-partition-x",
	} {
		name, reason := fullName(given)
		assert.Empty(t, name, given)
		assert.NotEmpty(t, reason, given)
	}
	assert.Equal(t, "a", wholeTopic("a-partition-12"))
	assert.Equal(t, "a-partition-x", wholeTopic("a-partition-x"))
	assert.Equal(t, "a-partition-1", wholeTopic("a-partition-1-partition-0"))
}
