package main

import (
	"bytes"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"
)

// TestMain runs the command itself where a test started this binary for that.
func TestMain(m *testing.M) {
	if os.Getenv("QUICKSTART_RUN") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// command is the quickstart as a process of its own.
func command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "QUICKSTART_RUN=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// receiver is an endpoint that counts what it took, by event.
type receiver struct {
	*httptest.Server
	answer func(body string) int

	mu     sync.Mutex // guards what follows
	taken  map[string]int
	bodies map[string]int
}

func newReceiver(t *testing.T, answer func(body string) int) *receiver {
	r := &receiver{answer: answer, taken: make(map[string]int), bodies: make(map[string]int)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(req.Body)
		r.mu.Lock()
		r.taken[req.Header.Get(eventHeader)]++
		r.bodies[body.String()]++
		r.mu.Unlock()
		w.WriteHeader(r.answer(body.String()))
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) counts() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]int, len(r.taken))
	for id, n := range r.taken {
		all[id] = n
	}
	return all
}

func TestItEndsWithAnEmptyQueue(t *testing.T) {
	cmd, out := command()
	require.NoError(t, cmd.Run(), out.String())
	assert.Contains(t, out.String(), "120 webhooks enqueued")
	assert.Contains(t, out.String(), "the endpoint refuses it: 422")
	assert.Contains(t, out.String(), "still queued      0")
}

func TestEventsOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events.jsonl")
	long := `"` + strings.Repeat("x", 200_000) + `"`
	lines := []string{"\ufeff" + `{"a":1}`, ``, `not json`, `7`, `"text"`, `null`, `{"a":1}`, `{"cut":`, `[1] [2]`, long}
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600)) // the last line has no end
	to := newReceiver(t, func(body string) int {
		switch body {
		case "7":
			return http.StatusNotFound
		case "null":
			return http.StatusBadGateway
		}
		return http.StatusOK
	})
	cmd, out := command("-events", file, "-url", to.URL, "-attempts", "2")
	require.NoError(t, cmd.Run(), out.String())
	assert.Contains(t, out.String(), "6 webhooks enqueued")
	for _, line := range []string{"line 3", "line 8", "line 9"} {
		assert.Contains(t, out.String(), line, "a line that is not JSON is named")
	}
	assert.Equal(t, map[string]int{`{"a":1}`: 2, "7": 1, `"text"`: 1, "null": 2, long: 1}, to.bodies,
		"each line is an event, a refused one goes once, a failing one up to the cap")
	assert.Contains(t, out.String(), "the endpoint fails: 502")
	assert.Contains(t, out.String(), "the endpoint refuses it: 404")
}

// Killed in mid-work and run again: everything arrives, and what was
// acknowledged does not arrive a second time.
func TestKilledAndRunAgain(t *testing.T) {
	dir := t.TempDir()
	path, file := filepath.Join(dir, "webhooks.db"), filepath.Join(dir, "events.jsonl")
	var lines strings.Builder
	const total = 400
	for i := range total {
		fmt.Fprintf(&lines, "{\"event\":%d}\n", i)
	}
	require.NoError(t, os.WriteFile(file, []byte(lines.String()), 0o600))
	to := newReceiver(t, func(string) int {
		time.Sleep(5 * time.Millisecond) // an endpoint's work, so that there is a middle to be killed in
		return http.StatusOK
	})
	args := []string{"-db", path, "-events", file, "-url", to.URL}

	first, out := command(args...)
	require.NoError(t, first.Start())
	require.Eventually(t, func() bool { return len(to.counts()) > total/4 }, 30*time.Second, time.Millisecond, "%s", out)
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	before := to.counts()
	require.Less(t, len(before), total, "it was killed in mid-work")
	left := queued(t, path)

	second, out := command(args...)
	require.NoError(t, second.Run(), out.String())
	assert.Contains(t, out.String(), fmt.Sprintf("0 webhooks enqueued, %d were in the file before", total))
	after := to.counts()
	assert.Len(t, after, total, "nothing is lost")
	for id, n := range after {
		if !left[id] {
			assert.Equal(t, before[id], n, "%s was acknowledged and came again", id)
		}
	}
	assert.Empty(t, queued(t, path))
}

// queued returns the identities of the events that are in the queue.
func queued(t *testing.T, path string) map[string]bool {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	defer db.Close()
	rows, err := db.Query(`SELECT headers ->> ? FROM webhooks WHERE queue = 'webhooks'`, `$."`+eventHeader+`"`)
	require.NoError(t, err)
	defer rows.Close()
	all := make(map[string]bool)
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		all[id] = true
	}
	require.NoError(t, rows.Err())
	return all
}

// A redirect that is followed would deliver nothing and look like a success.
func TestARedirectIsNoDelivery(t *testing.T) {
	elsewhere := newReceiver(t, func(string) int { return http.StatusOK })
	redirecting := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer redirecting.Close()
	file := filepath.Join(t.TempDir(), "events.jsonl")
	require.NoError(t, os.WriteFile(file, []byte("1\n"), 0o600))
	cmd, out := command("-events", file, "-url", redirecting.URL)
	require.NoError(t, cmd.Run(), out.String())
	assert.Contains(t, out.String(), "the endpoint redirects: 302 Found to "+elsewhere.URL)
	assert.Empty(t, elsewhere.counts())
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-events", filepath.Join(dir, "absent.jsonl")}, "no such file"},
		{[]string{"-url", "localhost:80"}, "is not the address of an HTTP endpoint"},
		{[]string{"-workers", "-1"}, "-workers -1"},
		{[]string{"-attempts", "0"}, "-attempts 0"},
		{[]string{"-timeout", "0s"}, "-timeout"},
		{[]string{"-db", dir}, dir},
		{[]string{"surplus"}, "surplus"},
	} {
		cmd, out := command(c.args...)
		assert.Error(t, cmd.Run(), "%v", c.args)
		assert.Contains(t, out.String(), c.want)
		assert.NotContains(t, out.String(), "panic")
	}
}
