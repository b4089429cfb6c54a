package services

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience bounds one command on a service: the slowest is the start of a broker.
const patience = 3 * time.Minute

// Kill ends the server as a crash does (kill -9) and returns when its process is gone.
func Kill(t testing.TB, s Service) {
	t.Helper()
	control(t, "kill", s)
}

// Start starts the server, if it does not run, and returns when it is ready.
func Start(t testing.TB, s Service) {
	t.Helper()
	control(t, "start", s)
}

// Restart stops the server in good order, starts it, and returns when it is ready.
func Restart(t testing.TB, s Service) {
	t.Helper()
	control(t, "restart", s)
}

// Ctl runs the server's own command and returns what it printed: rabbitmqctl on RabbitMQ (add_vhost, set_vm_memory_high_watermark, ...).
func Ctl(t testing.TB, s Service, arguments ...string) string {
	t.Helper()
	return control(t, "ctl", s, arguments...)
}

// control runs scripts/services.sh. It works on servers that the script started; for one that a variable in the
// environment leads to elsewhere it fails the test, as the script says.
func control(t testing.TB, verb string, s Service, arguments ...string) string {
	t.Helper()
	// Not the test's context: cleanups put a server back in order after it has ended.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append([]string{script(t), verb, string(s)}, arguments...)...)
	var said strings.Builder
	cmd.Stderr = &said
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("services: %s %s %s: %v\n%s%s", verb, s, strings.Join(arguments, " "), err, printed, said.String())
	}
	return string(printed)
}

// script finds scripts/services.sh above the folder that the test runs in.
func script(t testing.TB) string {
	t.Helper()
	folder, err := os.Getwd()
	if err != nil {
		t.Fatalf("services: %v", err)
	}
	for at := folder; ; at = filepath.Dir(at) {
		path := filepath.Join(at, "scripts", "services.sh")
		if _, err := os.Stat(path); err == nil {
			return path
		}
		if at == filepath.Dir(at) {
			t.Fatalf("services: no scripts/services.sh above %s: Kill, Start, Restart and Ctl work in a checkout only", folder)
		}
	}
}
