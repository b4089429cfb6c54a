package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/settlemq/settle"
)

// deliverer posts events to an endpoint.
type deliverer struct {
	client  *http.Client
	url     string
	backoff settle.Backoff
}

// handle is the whole of what a service has to say: what an answer means.
func (p *deliverer) handle(ctx context.Context, d *settle.Delivery) settle.Outcome {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(d.Body))
	if err != nil {
		return settle.DeadLetter(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(eventHeader, d.Headers.Get(eventHeader)) // so that a receiver can tell a duplicate
	response, err := p.client.Do(request)
	if err != nil { // a timeout, or nobody there
		return settle.RetryAfter(p.backoff.Delay(d.Attempt), err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection is used again
	switch code := response.StatusCode; {
	case code < 300:
		return settle.Ack()
	case code < 500:
		return settle.DeadLetter(fmt.Errorf("the endpoint refuses it: %s", response.Status))
	default:
		return settle.RetryAfter(p.backoff.Delay(d.Attempt), fmt.Errorf("the endpoint fails: %s", response.Status))
	}
}
