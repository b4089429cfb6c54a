// Command classic is compiled by a test: a classic queue has a RetryPublisher.
package main

import "github.com/settlemq/settle/rabbit"

func main() {
	_ = &rabbit.ClassicQueue{RetryPublisher: &rabbit.Publisher{}}
}
