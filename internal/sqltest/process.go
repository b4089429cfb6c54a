package sqltest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// This file runs the test binary again as other processes, which tests kill.

// What tells the binary that it is such a process: its role, and a JSON list of arguments.
const (
	childRole = "SETTLE_TEST_CHILD"
	childArgs = "SETTLE_TEST_CHILD_ARGS"
)

// Main is TestMain: it runs the tests and looks for goroutines they left; in a process of
// [Spawn] it plays the role instead.
func Main(m *testing.M, roles map[string]func(args []string) error) {
	role := os.Getenv(childRole)
	if role == "" {
		goleak.VerifyTestMain(m)
		return
	}
	var args []string
	err := json.Unmarshal([]byte(os.Getenv(childArgs)), &args)
	if err == nil {
		err = roles[role](args)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Process is another process, in a role.
type Process struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

// Spawn starts a process, which is killed when the test ends.
func Spawn(t testing.TB, role string, args ...string) *Process {
	t.Helper()
	list, err := json.Marshal(args)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childArgs+"="+string(list))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &Process{cmd: cmd, out: bufio.NewScanner(out)}
	t.Cleanup(p.Kill)
	return p
}

// Kill is kill -9.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Wait waits for the process to end by itself.
func (p *Process) Wait() error { return p.cmd.Wait() }

// Lines reads up to n lines of what it prints, fewer where it ends or takes too long.
func (p *Process) Lines(n int) []string {
	defer time.AfterFunc(Deadline, func() { _ = p.cmd.Process.Kill() }).Stop()
	var all []string
	for len(all) < n && p.out.Scan() {
		all = append(all, p.out.Text())
	}
	return all
}

// Line reads the next line, and reports false where there is none.
func (p *Process) Line() bool { return p.out.Scan() }
