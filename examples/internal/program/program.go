// Package program is the main function that the example programs with a server have in common.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
)

// Main reads the flags, those that the caller has defined and -v, runs the example until it
// ends or is interrupted, and ends the process. Where no server answers it says in one line what to start: absent,
// a format that takes the address.
func Main(name, absent string, run func(ctx context.Context, out io.Writer) error) {
	verbose := flag.Bool("v", false, "log what happens to standard error")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	level := slog.LevelError
	if *verbose {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))

	err := run(ctx, os.Stdout)
	var unreachable *net.OpError
	switch {
	case errors.As(err, &unreachable):
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, fmt.Sprintf(absent, unreachable.Addr))
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
