package rabbit

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// The server's words for what it refuses, as measured on 3.10 and 4.3.
var (
	saysInequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for (\w+) '.*' in vhost '.*?': (.*)`)
	saysInvalid      = regexp.MustCompile(`invalid (?:arg|property) '([^']*)' for (\w+) '.*' in vhost '[^']*'(?:: | )?(.*)`)
	saysMissing      = regexp.MustCompile(`no (queue|exchange) '(.*)' in vhost '(.*)'`)
)

// declareError makes of the server's answer to a declaration or check an error that names what is
// wrong: a *settle.ConfigError where the same declaration fails again, else
// err with the thing's name. nil stays nil. source is who needs the thing, such as
// `rabbit: queue "orders"`; thing is what was declared, such as `queue "orders.retry"`.
func declareError(source, thing string, err error) error {
	var reply *amqp.Error
	var config *settle.ConfigError
	switch {
	case err == nil || errors.As(err, &config):
		return err
	case !errors.As(err, &reply) || !reply.Server:
		return fmt.Errorf("%s: %s: %w", source, thing, err)
	}
	final := func(setting, reason, fix string) error {
		return &settle.ConfigError{Source: source, Setting: setting, Reason: reason, Fix: fix, Err: err}
	}
	if arg, how, ok := inequivalent(err); ok {
		return final(arg, fmt.Sprintf("the server has %s with another %s (%s)", thing, arg, how),
			"ask for what the server has; or, for a queue once it is empty, delete it there and declare it anew; or use another name")
	}
	if m := saysInvalid.FindStringSubmatch(reply.Reason); m != nil {
		return final(m[1], fmt.Sprintf("the server refuses this %s for %s (%s)", m[1], thing, m[3]), "change it, or leave it out")
	}
	if m := saysMissing.FindStringSubmatch(reply.Reason); m != nil && reply.Code == amqp.NotFound {
		return final("", fmt.Sprintf("the server has no %s %q in vhost %q", m[1], m[2], m[3]), "declare it first, or check the name")
	}
	switch {
	case strings.Contains(reply.Reason, "unknown exchange type"):
		return final("Kind", fmt.Sprintf("the server does not know the kind of %s", thing), "enable the plugin that brings it, or use another kind")
	case reply.Code == amqp.AccessRefused && !strings.HasSuffix(reply.Reason, "in exclusive use"):
		return final("", fmt.Sprintf("the server does not allow %s to this user", thing), "grant the permission, or use another name")
	case reply.Code == amqp.PreconditionFailed:
		return final("", fmt.Sprintf("the server refuses %s", thing), "see the server's reason")
	}
	return fmt.Errorf("%s: %s: %w", source, thing, err)
}

// inequivalent returns the argument that the server has otherwise, and the
// server's words on how, where err is about that.
func inequivalent(err error) (arg, how string, ok bool) {
	var reply *amqp.Error
	if !errors.As(err, &reply) || reply.Code != amqp.PreconditionFailed {
		return "", "", false
	}
	m := saysInequivalent.FindStringSubmatch(reply.Reason)
	if m == nil {
		return "", "", false
	}
	return m[1], m[3], true
}

// undeclaredLimit reports whether the server refuses a delivery limit because
// it has the queue without one.
func undeclaredLimit(err error) bool {
	arg, how, ok := inequivalent(err)
	return ok && arg == "x-delivery-limit" && strings.HasSuffix(how, "current is none")
}

// isCode reports whether err is the server's with the given code.
func isCode(err error, code int) bool {
	var reply *amqp.Error
	return errors.As(err, &reply) && reply.Server && reply.Code == code
}
