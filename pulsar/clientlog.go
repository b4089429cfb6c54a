package pulsar

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar/log"
)

// This file takes what the client library says.
//
// Its lines go to our logger at debug level: what a person may have to act on we
// say ourselves, once and with what to do. Its own debug lines go nowhere, as
// they hold bodies.
//
// One thing the library tells in its log and nowhere else in time: that the
// broker has closed one consumer, as it does when a topic is unloaded, while the connection
// lives. The library notices by itself only when its consumer is idle, and a
// consumer that waits for the answer to an acknowledgement, which will not come any more,
// is busy for the whole operation timeout. Should the words change, that is how
// long the loss goes unnoticed, and nothing else is different.

// The other thing a person has to know of is a message that the library throws away, as
// it does with what it cannot read.

// discarded is what the library says of a message that it acknowledges unseen.
const discarded = "Discarding corrupted message"

// closedByBroker is what the library says then; the fields of the logger name the consumer.
const closedByBroker = "connection closed and send to connectClosedCh"

// consumerField is the field with the name of a consumer.
const consumerField = "name"

// clientLog implements the library's Logger and Entry.
type clientLog struct {
	to    *slog.Logger
	ears  *ears
	about *consumer // what the lines are about, where that is known
	// refused is told when the library says that the broker has refused a
	// message; nil: nobody is.
	refused func(word, sentence any)
}

// ears finds consumers by their names.
type ears struct {
	mu     sync.Mutex // guards byName
	byName map[string]*consumer
}

func newClientLog(to *slog.Logger) *clientLog {
	return &clientLog{to: to.With("by", "pulsar-client-go"), ears: &ears{byName: make(map[string]*consumer)}}
}

// listen has c told when the library says that c was closed. forget ends that.
func (l *clientLog) listen(c *consumer) {
	l.ears.mu.Lock()
	defer l.ears.mu.Unlock()
	l.ears.byName[c.name] = c
}

func (l *clientLog) forget(c *consumer) {
	l.ears.mu.Lock()
	defer l.ears.mu.Unlock()
	delete(l.ears.byName, c.name)
}

func (l *clientLog) with(fields map[string]any) *clientLog {
	made := *l
	args := make([]any, 0, 2*len(fields))
	for k, v := range fields {
		if k == "properties" {
			continue // the user's
		}
		args = append(args, k, fmt.Sprint(v))
	}
	made.to = l.to.With(args...)
	if name, ok := fields[consumerField].(string); ok {
		l.ears.mu.Lock()
		made.about = l.ears.byName[name]
		l.ears.mu.Unlock()
	}
	return &made
}

func (l *clientLog) SubLogger(fields log.Fields) log.Logger { return l.with(fields) }
func (l *clientLog) WithFields(fields log.Fields) log.Entry { return l.with(fields) }
func (l *clientLog) WithError(err error) log.Entry          { return l.with(map[string]any{"error": err}) }

func (l *clientLog) WithField(name string, value any) log.Entry {
	return l.with(map[string]any{name: value})
}

func (l *clientLog) say(level string, args []any) {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		l.to.Debug(fmt.Sprint(args...), "level", level)
	}
}

func (l *clientLog) sayf(level, format string, args []any) {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		l.to.Debug(fmt.Sprintf(format, args...), "level", level)
	}
}

// Debug implements the library's Logger. It is called for every message.
func (l *clientLog) Debug(args ...any) {
	if l.about == nil || len(args) != 1 {
		return
	}
	if text, ok := args[0].(string); ok && text == closedByBroker {
		l.about.lose(errCutOff)
	}
}

func (l *clientLog) Debugf(string, ...any) {}

func (l *clientLog) Info(args ...any) { l.say("info", args) }
func (l *clientLog) Warn(args ...any) { l.say("warn", args) }

func (l *clientLog) Warnf(format string, args ...any) {
	l.sayf("warn", format, args)
	if l.refused != nil && format == refusedSend && len(args) == 2 {
		l.refused(args[0], args[1])
	}
}

func (l *clientLog) Error(args ...any) {
	if len(args) == 1 && args[0] == discarded {
		l.to.Error("pulsar: the client library threw a message away that it cannot read")
		return
	}
	l.say("error", args)
}

func (l *clientLog) Infof(format string, args ...any)  { l.sayf("info", format, args) }
func (l *clientLog) Errorf(format string, args ...any) { l.sayf("error", format, args) }
