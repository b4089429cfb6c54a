//go:build race

package sqlite

// raced says that the race detector is on, which makes SQLite, as Go code, some 30 times slower.
const raced = true
