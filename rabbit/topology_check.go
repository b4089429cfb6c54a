package rabbit

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/settlemq/settle"
)

// This file refuses, before anything is sent, what the server would refuse with
// an error that ends the channel, and what it would take and then lose messages by.

// mostMillis is the server's bound on times, ten years, as measured on 4.3 and 3.10.
const mostMillis = 10 * 365 * 24 * 3600 * 1000

// refusals collects reasons why a thing cannot be declared as asked.
type refusals struct {
	source string
	errs   []error
}

func (r *refusals) add(setting, reason, fix string) {
	r.errs = append(r.errs, &settle.ConfigError{Source: r.source, Setting: setting, Reason: reason, Fix: fix})
}

func (r *refusals) name(setting, name string) {
	switch {
	case name == "":
		r.add(setting, "it is empty", "give it a name")
	case len(name) > shortMost:
		r.add(setting, fmt.Sprintf("it has %d bytes and the protocol carries %d at most", len(name), shortMost), "shorten it")
	}
}

func (r *refusals) millis(setting string, d time.Duration) {
	switch {
	case d < 0:
		r.add(setting, fmt.Sprintf("%v is negative", d), "use zero for none, or a positive time")
	case d%time.Millisecond != 0:
		r.add(setting, fmt.Sprintf("the server counts whole milliseconds, and %v is none", d), "round it")
	case d.Milliseconds() > mostMillis:
		r.add(setting, fmt.Sprintf("the server keeps %v at most", mostMillis*time.Millisecond), "lower it, or use zero for no limit")
	}
}

// check returns why the exchange cannot be declared, by itself.
func (e *Exchange) check() []error {
	r := refusals{source: fmt.Sprintf("rabbit: exchange %q", e.Name)}
	r.name("Name", e.Name)
	if e.Kind == "" {
		r.add("Kind", "it is empty", "use rabbit.Direct, Fanout, Topic or Headers, or a plugin's kind")
	}
	if e.Alternate != "" && e.Alternate == e.Name {
		r.add("Alternate", "it is the exchange itself, so what is unroutable would be dropped in silence", "name another exchange")
	}
	if _, both := e.Arguments["alternate-exchange"]; both {
		r.add("Arguments", "alternate-exchange has a field", "use Alternate")
	}
	r.arguments(e.Arguments)
	return r.errs
}

// queueFields are the arguments that have a field in Queue.
var queueFields = map[string]string{
	"x-queue-type":              "Kind",
	"x-message-ttl":             "TTL",
	"x-expires":                 "Expires",
	"x-max-length":              "MaxLength",
	"x-max-length-bytes":        "MaxBytes",
	"x-overflow":                "Overflow",
	"x-dead-letter-exchange":    "DeadLetter",
	"x-dead-letter-routing-key": "DeadLetter.Key",
	"x-dead-letter-strategy":    "DeadLetter.AtLeastOnce",
	"x-single-active-consumer":  "SingleActiveConsumer",
	"x-max-priority":            "MaxPriority",
	"x-delivery-limit":          "MaxDeliveries",
}

// check returns why the queue cannot be declared, by itself.
func (q *Queue) check() []error {
	r := refusals{source: fmt.Sprintf("rabbit: queue %q", q.Name)}
	r.name("Name", q.Name)
	r.millis("TTL", q.TTL)
	r.millis("Expires", q.Expires)
	for setting, n := range map[string]int64{"MaxLength": q.MaxLength, "MaxBytes": q.MaxBytes, "MaxDeliveries": int64(q.MaxDeliveries)} {
		if n < 0 {
			r.add(setting, fmt.Sprintf("%d is negative", n), "use zero for no limit, or a positive number")
		}
	}
	if q.Overflow > RejectPublishDLX {
		r.add("Overflow", fmt.Sprintf("there is no overflow %d", q.Overflow), "use DropHead, RejectPublish or RejectPublishDLX")
	}
	switch q.Kind {
	case Quorum:
		if q.MaxPriority != 0 {
			r.add("MaxPriority", "the server refuses priorities on a quorum queue", "use Kind: rabbit.Classic, or a queue for each priority")
		}
		if q.Overflow == RejectPublishDLX {
			r.add("Overflow", "a quorum queue takes RejectPublishDLX for DropHead and loses the oldest message", "use RejectPublish, or Kind: rabbit.Classic")
		}
		for _, name := range []string{"x-queue-mode", "x-queue-version"} {
			if _, ok := q.Arguments[name]; ok {
				r.add(name, "the server refuses it on a quorum queue", "leave it out, or use Kind: rabbit.Classic")
			}
		}
	case Classic:
		if q.MaxPriority < 0 || q.MaxPriority > math.MaxUint8 {
			r.add("MaxPriority", fmt.Sprintf("%d is not between 0 and 255", q.MaxPriority), "use 1 to 255; under 10 serves most")
		}
		if q.MaxDeliveries != 0 {
			r.add("MaxDeliveries", "a classic queue does not count deliveries", "use Kind: rabbit.Quorum, or settle.Options.MaxAttempts")
		}
	default:
		r.add("Kind", fmt.Sprintf("there is no %v", q.Kind), "use rabbit.Quorum or rabbit.Classic")
	}
	if dl := q.DeadLetter; dl != nil {
		q.checkDeadLetter(&r, dl)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Arguments)) {
		if field, ok := queueFields[name]; ok {
			r.add(name, "it has a field", "use "+field)
		}
	}
	r.arguments(q.Arguments)
	return r.errs
}

func (q *Queue) checkDeadLetter(r *refusals, dl *DeadLetterRoute) {
	if dl.Exchange == "" && dl.Key == "" {
		r.add("DeadLetter.Key", "the default exchange leads to the queue that the key names, and there is no key", "set Key to a queue's name")
	}
	if dl.Exchange == "" && dl.Key == q.Name && q.Name != "" {
		r.add("DeadLetter.Key", "it leads back to this queue: a rejected message would turn for ever, and one that expired would be dropped", "name another queue")
	}
	if len(dl.Key) > shortMost {
		r.add("DeadLetter.Key", fmt.Sprintf("it has %d bytes and the protocol carries %d at most", len(dl.Key), shortMost), "shorten it")
	}
	if !dl.AtLeastOnce {
		return
	}
	if q.Kind != Quorum {
		r.add("DeadLetter.AtLeastOnce", "only quorum queues keep a message until its dead letter is safe", "use Kind: rabbit.Quorum, or leave it out")
	} else if q.Overflow != RejectPublish {
		r.add("DeadLetter.AtLeastOnce", "without Overflow: rabbit.RejectPublish the server falls back to at-most-once in silence", "set Overflow: rabbit.RejectPublish")
	}
}

// check returns why the binding cannot be made, by itself.
func (b *Binding) check() []error {
	r := refusals{source: fmt.Sprintf("rabbit: binding %v", b)}
	if b.Exchange == "" {
		r.add("Exchange", "the default exchange has its bindings by itself and takes no others", "name the exchange the messages come from")
	}
	if (b.Queue == "") == (b.ToExchange == "") {
		r.add("Queue", "a binding leads to one thing", "set Queue or ToExchange, and not both")
	}
	for setting, name := range map[string]string{"Exchange": b.Exchange, "Queue": b.Queue, "ToExchange": b.ToExchange, "Key": b.Key} {
		if len(name) > shortMost {
			r.add(setting, fmt.Sprintf("it has %d bytes and the protocol carries %d at most", len(name), shortMost), "shorten it")
		}
	}
	r.arguments(b.Arguments)
	return r.errs
}

// arguments refuses values that the protocol has no type for.
func (r *refusals) arguments(args map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(args)) {
		value, err := toField(args[name])
		if err == nil {
			_, err = fieldSize(value)
		}
		if err != nil {
			r.add("Arguments", fmt.Sprintf("%s: %v", name, err), "use a text, a number, a bool or a list of them")
		}
	}
}

// check returns every reason why the topology cannot be declared, as far as
// it can be told without the server.
func (t *Topology) check() error {
	var errs []error
	for i := range t.Exchanges {
		errs = append(errs, t.Exchanges[i].check()...)
	}
	for i := range t.Queues {
		errs = append(errs, t.Queues[i].check()...)
	}
	for i := range t.Bindings {
		errs = append(errs, t.Bindings[i].check()...)
	}
	errs = append(errs, t.checkTwice()...)
	errs = append(errs, t.checkRoutes()...)
	return errors.Join(errs...)
}

// checkTwice refuses a name that is declared twice: one of the two would fail
// on the server, or hide the other.
func (t *Topology) checkTwice() (errs []error) {
	seen := make(map[string]bool)
	once := func(thing string) {
		if seen[thing] {
			errs = append(errs, &settle.ConfigError{Source: "rabbit: " + thing, Setting: "Name", Reason: "the topology has it twice", Fix: "leave one of the two"})
		}
		seen[thing] = true
	}
	for _, e := range t.Exchanges {
		once(fmt.Sprintf("exchange %q", e.Name))
	}
	for _, q := range t.Queues {
		once(fmt.Sprintf("queue %q", q.Name))
	}
	return errs
}

// checkRoutes refuses dead letters and unroutable messages that would be lost
// in silence: their exchange is in the topology, and no binding of it takes them.
func (t *Topology) checkRoutes() (errs []error) {
	for _, q := range t.Queues {
		if dl := q.DeadLetter; dl != nil && dl.Exchange != "" && t.leadsNowhere(dl.Exchange, dl.Key) {
			errs = append(errs, &settle.ConfigError{
				Source: fmt.Sprintf("rabbit: queue %q", q.Name), Setting: "DeadLetter",
				Reason: fmt.Sprintf("exchange %q has no binding that takes its dead letters, so the server would drop them in silence", dl.Exchange),
				Fix:    "add a Binding from that exchange to a queue",
			})
		}
	}
	for _, e := range t.Exchanges {
		if e.Alternate != "" && t.leadsNowhere(e.Alternate, "") {
			errs = append(errs, &settle.ConfigError{
				Source: fmt.Sprintf("rabbit: exchange %q", e.Name), Setting: "Alternate",
				Reason: fmt.Sprintf("exchange %q has no binding, so the server would drop unroutable messages in silence", e.Alternate),
				Fix:    "add a Binding from that exchange to a queue",
			})
		}
	}
	return errs
}

// leadsNowhere reports whether an exchange of this topology has no binding for
// the key; an empty key may be any. What is not in the topology may lead somewhere.
func (t *Topology) leadsNowhere(exchange, key string) bool {
	i := slices.IndexFunc(t.Exchanges, func(e Exchange) bool { return e.Name == exchange })
	if i < 0 {
		return false
	}
	e := &t.Exchanges[i]
	if e.Alternate != "" {
		return false
	}
	return !slices.ContainsFunc(t.Bindings, func(b Binding) bool {
		switch {
		case b.Exchange != exchange:
			return false
		case key == "":
			return true
		case e.Kind == Direct:
			return b.Key == key
		case e.Kind == Topic:
			return topicMatches(strings.Split(b.Key, "."), strings.Split(key, "."))
		default:
			return true
		}
	})
}

// topicMatches is the rule of topic exchanges: * is one word, # any number.
func topicMatches(pattern, words []string) bool {
	for i, p := range pattern {
		switch {
		case p == "#":
			for skip := 0; skip <= len(words)-i; skip++ {
				if topicMatches(pattern[i+1:], words[i+skip:]) {
					return true
				}
			}
			return false
		case i >= len(words) || p != "*" && p != words[i]:
			return false
		}
	}
	return len(pattern) == len(words)
}
