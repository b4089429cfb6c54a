// Command outbox takes orders over HTTP and tells about each on RabbitMQ, so
// that no crash comes between the two: the order and its event are stored in one transaction, a
// relay sends the event, and a consumer marks it.
//
//	go run ./examples/outbox                  nothing goes wrong
//	go run ./examples/outbox -crash recorded  killed when an event is stored and not sent
//	go run ./examples/outbox -crash sent      killed when it is sent, and that is not written down
//	go run ./examples/outbox -crash handled   killed when it is handled and not marked
//
// With -crash a first process takes orders and kills itself (SIGKILL) in that gap.
// A second one then takes up what the first left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/server"
	"github.com/settlemq/settle/rabbit"
)

// A process that has this variable set is the first one; what it works on is in it.
const inherited = "SETTLE_EXAMPLE_OUTBOX"

var crash = flag.String("crash", "", "where a first process is killed: recorded, sent or handled; empty: nowhere")

func main() {
	if os.Getenv(inherited) != "" {
		server.Rabbit("outbox", first)
		return
	}
	server.Rabbit("outbox", func(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
		return run(ctx, broker, out, gap(*crash))
	})
}

// run has orders taken, their events sent and handled, and says what became of them.
func run(ctx context.Context, broker *rabbit.Broker, out io.Writer, at gap) (err error) {
	if err := at.check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := work{db: filepath.Join(dir, "orders.db"), queue: fmt.Sprintf("settle-example.outbox.%d.%s", os.Getpid(), at), at: at}

	if at != nowhere {
		if err := w.killed(ctx, out); err != nil {
			return err
		}
		w.at = nowhere
	}
	s, err := open(ctx, broker, w, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if at != nowhere {
		if err := s.report(ctx, "the first process left"); err != nil {
			return err
		}
	}
	if err := s.serve(ctx, "book", "lamp", "chair"); err != nil {
		return err
	}
	return s.report(ctx, "in the end")
}

// killed starts the first process and waits for its end.
func (w work) killed(ctx context.Context, out io.Writer) error {
	self := exec.CommandContext(ctx, os.Args[0], os.Args[1:]...)
	self.Env = append(os.Environ(), inherited+"="+strings.Join([]string{w.db, w.queue, string(w.at)}, "\n"))
	self.Stdout, self.Stderr = out, os.Stderr
	var exit *exec.ExitError
	switch err := self.Run(); {
	case errors.As(err, &exit) && !exit.Exited():
		fmt.Fprintf(out, "the first process was killed (%v) when %s\n", exit, w.at.meaning())
		return nil
	case err != nil:
		return fmt.Errorf("the first process: %w", err)
	default:
		return errors.New("the first process ended by itself")
	}
}

// first is the process that is killed.
func first(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
	parts := strings.Split(os.Getenv(inherited), "\n")
	if len(parts) != 3 {
		return fmt.Errorf("%s is not what the example sets", inherited)
	}
	s, err := open(ctx, broker, work{db: parts[0], queue: parts[1], at: gap(parts[2])}, out)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return errors.Join(s.serve(ctx, "table", "shelf"), s.close())
}

// gap is where the first process is killed.
type gap string

const (
	nowhere  gap = ""
	recorded gap = "recorded"
	sent     gap = "sent"
	handled  gap = "handled"
)

func (g gap) check() error {
	if g != nowhere && g.meaning() == "" {
		return fmt.Errorf("-crash %q: use recorded, sent or handled", string(g))
	}
	return nil
}

func (g gap) meaning() string {
	switch g {
	case recorded:
		return "an event was stored and not sent"
	case sent:
		return "an event was sent, and that was not written down"
	case handled:
		return "an event was handled and not marked"
	}
	return ""
}

// die kills this process if it is in the gap that it was told to die in.
func (g gap) die(here gap) {
	if g != here {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}

// deadly is a publisher that may die before it sends, or after.
type deadly struct {
	settle.Publisher
	at gap
}

func (p deadly) Publish(ctx context.Context, msgs ...settle.Message) error {
	p.at.die(recorded)
	err := p.Publisher.Publish(ctx, msgs...)
	p.at.die(sent)
	return err
}
