package pulsar

import (
	"errors"
	"fmt"
	"strings"

	"github.com/settlemq/settle"
)

// This file reads the broker's errors, which reach us as text. Only the broker's own
// words count: names of topics stand in the same text and may look like them.

// answers are what the broker said in an error: its word for what is wrong, and
// its sentence about it.
func answers(err error) (all []answer) {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			all = append(all, answers(part)...)
		}
		return all
	case interface{ Unwrap() error }:
		if part := e.Unwrap(); part != nil {
			return answers(part)
		}
	}
	text := err.Error()
	if _, said, ok := strings.Cut(text, "server error: "); ok {
		text = said
	}
	word, sentence, _ := strings.Cut(text, ": ")
	return []answer{{word, sentence}}
}

type answer struct{ word, sentence string }

// said reports whether the broker's answers have one of that word whose sentence has the part.
func said(err error, word, part string) bool {
	for _, a := range answers(err) {
		if strings.HasPrefix(a.word, word) && strings.Contains(a.sentence, part) {
			return true
		}
	}
	return false
}

// The rights that a role may need on a topic.
const (
	toConsume = "consume"
	toProduce = "produce"
)

// final returns why the broker's answer will not change, and what to do about
// it; an empty reason where it may. right is what was asked for.
func final(err error, right string) (reason, fix string) {
	var refused *refusal
	switch {
	case errors.As(err, &refused) && refused.credentials() && refused.nameless:
		return "the broker wants to know who we are", "set Config.Token, which is empty, or TokenSource or Authentication"
	case errors.As(err, &refused) && refused.credentials():
		return "the broker does not accept who we say we are", "look at Config.Token, or at what TokenSource or Authentication gives"
	case said(err, "AuthorizationError", ""), said(err, "NotAllowedError", "permission"):
		return "the broker does not allow it", fmt.Sprintf("grant the role %q on the topic", right)
	case otherType(err):
		return "consumers of another type are on the subscription", "use their type, or another SubscriptionName"
	case said(err, "TopicNotFound", ""):
		return "the topic, its namespace or its tenant does not exist", "make it, or look at its name"
	case said(err, "InvalidTopicName", ""):
		return "the broker does not accept the name of the topic", "look at what it says"
	case said(err, "TopicTerminated", ""):
		return "the topic is terminated: nothing can be written to it any more", "name another topic"
	case said(err, "IncompatibleSchema", ""):
		return "the topic has a schema that bytes do not fit", "let the topic accept messages without a schema"
	case said(err, "", "is already a non-partitioned topic"), said(err, "", "is a partitioned topic"):
		return "the topic is not of the kind that its name says", "look at its name"
	}
	return "", ""
}

// otherType reports whether consumers of another type are on the subscription.
func otherType(err error) bool { return said(err, "ConsumerBusy", "Subscription is of different type") }

// busy reports whether a subscription is there and cannot be joined.
func busy(err error) bool { return said(err, "ConsumerBusy", "") }

// blockedOr tells a topic whose backlog quota is used up, which may pass.
func blockedOr(err error) error {
	if said(err, "ProducerBlockedQuotaExceeded", "") {
		return fmt.Errorf("%w: %w", settle.ErrBlocked, err)
	}
	return err
}
