package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/settlemq/settle"
)

// deliverer posts events to an endpoint.
type deliverer struct {
	client  *http.Client
	url     string
	backoff settle.Backoff
}

// newClient makes a client that takes an answer as it is: a redirect followed
// would deliver nothing and look like a success.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
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
		return settle.RetryAfter(p.backoff.Delay(d.Attempt), reason(err))
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection is used again
	switch code := response.StatusCode; {
	case code < 300:
		return settle.Ack()
	case code < 400:
		return settle.DeadLetter(fmt.Errorf("the endpoint redirects: %s to %s", response.Status, response.Header.Get("Location")))
	case code < 500:
		return settle.DeadLetter(fmt.Errorf("the endpoint refuses it: %s", response.Status))
	default:
		return settle.RetryAfter(p.backoff.Delay(d.Attempt), fmt.Errorf("the endpoint fails: %s", response.Status))
	}
}

// reason says in short why there was no answer: the address is the same for all.
func reason(err error) error {
	var u *url.Error
	if !errors.As(err, &u) {
		return err
	}
	if u.Timeout() {
		return errors.New("no answer in time")
	}
	return u.Err
}
