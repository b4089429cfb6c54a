package outbox_test

var roles = map[string]func(args []string) error{}
