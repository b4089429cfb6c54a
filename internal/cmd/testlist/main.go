// Command testlist runs `go test` with the arguments it is given and says more plainly what happened: a line a package
// as go test prints it, the output of what failed, then every skipped test with its reason, then the counts. It fails
// when go test does, and when a test was skipped for want of a service that SETTLE_REQUIRE_SERVICES asks for.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
)

func main() {
	code, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlist:", err)
		code = 1
	}
	os.Exit(code)
}

func run(args []string, out io.Writer) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	// An interrupt reaches go test by itself; we stay for what it still says.
	signal.Ignore(os.Interrupt)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	r := report{out: out}
	if err := r.read(events); err != nil {
		_, _ = io.Copy(io.Discard, events)
		_ = cmd.Wait()
		return 1, fmt.Errorf("the output of go test: %w", err)
	}
	failed := cmd.Wait()
	ok := r.finish()
	switch {
	case failed != nil && cmd.ProcessState.ExitCode() > 0:
		return cmd.ProcessState.ExitCode(), nil
	case failed != nil:
		return 1, failed
	case !ok:
		return 1, nil
	}
	return 0, nil
}
