// Command quorum must not compile, and a test sees to that: the server counts
// the retries of a quorum queue, so that nothing publishes them.
package main

import "github.com/settlemq/settle/rabbit"

func main() {
	_ = &rabbit.QuorumQueue{RetryPublisher: &rabbit.Publisher{}}
}
