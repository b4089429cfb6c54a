package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/settlemq/settle/internal/services"
)

// event is one line of go test -json, as `go doc test2json` describes it.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// test names one test of one package.
type test struct{ pkg, name string }

// report collects what a run of go test says.
type report struct {
	out io.Writer

	printed                 map[test]*strings.Builder   // output of tests that have not ended
	packages                map[string]*strings.Builder // what is to be said of packages that have not ended: they run side by side
	skips                   []skip
	passed, failed, skipped int
	missing                 []skip // those that a service should have been there for
}

type skip struct {
	test
	reason string
}

// read takes every event and prints, package by package, its own lines and the output of failed tests. Only top-level
// tests are counted; every skip is listed.
func (r *report) read(events io.Reader) error {
	r.printed = make(map[test]*strings.Builder)
	r.packages = make(map[string]*strings.Builder)
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		fmt.Fprint(r.out, line) // not an event: a message of the go command
		return
	}
	t := test{e.Package, e.Test}
	top := e.Test != "" && !strings.Contains(e.Test, "/")
	if e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
		r.endPackage(e.Package)
		return
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if e.Test == "" {
			r.packageLine(e.Package, e.Output)
			return
		}
		builder(r.printed, t).WriteString(e.Output)
	case "pass":
		if top {
			r.passed++
		}
		delete(r.printed, t)
	case "fail":
		if top {
			r.failed++
		}
		r.flush(t)
	case "skip":
		if top {
			r.skipped++
		}
		r.skip(t)
		delete(r.printed, t)
	}
}

// packageLine keeps what a package says itself: its result, a panic, a leak; not that it passed before its result.
func (r *report) packageLine(pkg, output string) {
	if output == "PASS\n" || strings.Contains(output, "[no test files]") {
		return
	}
	builder(r.packages, pkg).WriteString(output)
}

// flush hands a test's output on to its package.
func (r *report) flush(t test) {
	if b := r.printed[t]; b != nil {
		builder(r.packages, t.pkg).WriteString(b.String())
		delete(r.printed, t)
	}
}

// endPackage prints what is to be said of a package. A test that never ended (a crash, a time-out) has its story told here.
func (r *report) endPackage(pkg string) {
	for t := range r.printed {
		if t.pkg == pkg {
			r.flush(t)
		}
	}
	if b := r.packages[pkg]; b != nil {
		fmt.Fprint(r.out, b.String())
		delete(r.packages, pkg)
	}
}

// builder is the text under this key, begun if need be.
func builder[K comparable](all map[K]*strings.Builder, key K) *strings.Builder {
	if all[key] == nil {
		all[key] = new(strings.Builder)
	}
	return all[key]
}

// announcements are the lines that go test itself writes around a test's output.
var announcements = regexp.MustCompile(`^\s*(=== |--- )`)

// skip keeps the reason a test gave. Output before it is not told apart from it: the last line is the reason.
func (r *report) skip(t test) {
	s := skip{test: t, reason: "no reason given"}
	if b := r.printed[t]; b != nil {
		for line := range strings.Lines(b.String()) {
			if !announcements.MatchString(line) && strings.TrimSpace(line) != "" {
				s.reason = strings.TrimSpace(line)
			}
		}
	}
	r.skips = append(r.skips, s)
	if wanted, ok := services.Wanted(s.reason); ok && services.Required(wanted) {
		r.missing = append(r.missing, s)
	}
}

// finish prints the list of skipped tests and the counts, and reports whether the run may pass.
func (r *report) finish() bool {
	// Where go test itself was ended, packages have not.
	for t := range r.printed {
		r.flush(t)
	}
	for pkg := range r.packages {
		r.endPackage(pkg)
	}
	for _, s := range r.skips {
		fmt.Fprintf(r.out, "skipped: %s %s: %s\n", s.pkg, s.name, s.reason)
	}
	for _, s := range r.missing {
		fmt.Fprintf(r.out, "FAIL: %s %s was skipped for a service that SETTLE_REQUIRE_SERVICES asks for\n", s.pkg, s.name)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return len(r.missing) == 0
}
