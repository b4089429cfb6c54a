package rabbit

import "context"

// Publisher publishes to one exchange.
type Publisher struct {
	Broker *Broker
	sender sender
}

func (p *Publisher) publish(ctx context.Context, out []outgoing) []error {
	return p.sender.publish(ctx, out)
}
