package rabbit

import (
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// This file decides which frame makes a verdict true on a queue. It does no I/O.

// frame is what is written to the server for one delivery.
type frame uint8

const (
	frameNone    frame = iota // the verdict is unknown
	frameAck                  // basic.ack
	frameReject               // basic.reject: the queue's dead-letter exchange, else gone
	frameRequeue              // basic.reject with requeue: a failure, which a quorum queue counts
	frameRelease              // basic.nack with requeue: no failure; from 4.3 on not counted
	frameCopy                 // a copy, and basic.ack when that is safe
)

// policy is how the verdicts of one registration are made true on its queue.
type policy struct {
	copyMaker
	quorum     bool
	counted    bool   // a retry is a copy that carries the count
	limit      int    // the x-delivery-limit that was put on the queue; negative: none
	deadLetter string // the queue dead letters go to; empty: none
	delay      Delay  // nil: no copy ever waits
}

// frame returns the frame for a verdict about d.
func (p *policy) frame(v settle.Verdict, d *delivery) frame {
	switch v.Action {
	case settle.ActionAck:
		return frameAck
	case settle.ActionDrop:
		return frameReject
	case settle.ActionRelease:
		return frameRelease
	case settle.ActionRetry:
		if p.counted || v.Delay > 0 && p.delay != nil {
			return frameCopy
		}
		return frameRequeue
	case settle.ActionDeadLetter:
		switch {
		case p.deadLetter == "":
			return frameReject
		case p.limit >= 0 && d.counts.server >= p.limit:
			return frameRequeue // one more failure: the server moves it
		default:
			return frameCopy
		}
	}
	return frameNone
}

// copy returns the copy for a verdict whose frame is frameCopy.
func (p *policy) copy(v settle.Verdict, d *delivery) outgoing {
	if v.Action == settle.ActionDeadLetter {
		out := outgoing{key: p.deadLetter, mandatory: true, msg: p.dead(&d.native, d.Attempt, v.Cause)}
		if p.quorum {
			// A quorum queue keeps every message on disk; the queue the copy goes to may be a classic one.
			out.msg.DeliveryMode = amqp.Persistent
		}
		return out
	}
	out := outgoing{key: p.queue, mandatory: true, msg: p.again(&d.native, d.Attempt)}
	if v.Delay > 0 && p.delay != nil {
		p.delay.send(p.queue, &out, v.Delay)
	}
	return out
}

// leaner returns copies to try one after the other when the one that copy
// returned does not fit into a frame: with ever fewer headers of ours, and
// in the end without that for a return.
func (p *policy) leaner(v settle.Verdict, d *delivery) (out []outgoing) {
	full := p.copy(v, d)
	without := func(from outgoing, mandatory bool, names ...string) outgoing {
		headers := make(amqp.Table, len(from.msg.Headers))
		for name, value := range from.msg.Headers {
			if !slices.Contains(names, name) {
				headers[name] = value
			}
		}
		from.msg.Headers, from.mandatory = headers, mandatory
		return from
	}
	marks := []string{originExchangeHeader, originKeyHeader, countQueueHeader, settle.HeaderDeadCause}
	out = append(out, without(full, full.mandatory, marks...))
	marks = append(marks, settle.HeaderDeadSource, settle.HeaderDeadAttempt)
	if v.Action == settle.ActionDeadLetter {
		return append(out, without(full, false, marks...))
	}
	if full.key == p.queue {
		out = append(out, without(full, false, marks...)) // this queue is there: it is consumed
	}
	if p.counted && p.deadLetter != "" {
		dead := p.copy(settle.Verdict{Action: settle.ActionDeadLetter}, d)
		out = append(out, without(dead, false, marks...))
	}
	return out
}
