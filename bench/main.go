// Command bench runs settle, the raw clients and its peers on the same work in
// one run and reports ratios.
//
//	go run . -only sqlite -rounds 5 -out RESULTS.md
//
// `make bench` runs it with all services. Each part needs its service; where none is named in the environment (the variables of
// scripts/services.sh, such as SETTLE_RABBIT_URL) the part is left out and said so.
// A ratio carries over to other machines; the absolute figures do not.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
)

// errNoService says that a part's service is not there.
type noServiceError struct{ what string }

func (e noServiceError) Error() string { return e.what }

// part is a set of comparisons and other measurements that share a service.
type part struct {
	name string
	// about says which server it is measured on, and how that is set up; nil: there is none. A
	// noServiceError of it or of comparisons leaves the part out.
	about func(ctx context.Context) (string, error)
	// comparisons returns what to compare; nil: nothing.
	comparisons func(ctx context.Context) ([]comparison, error)
	extras      []extra
}

// extra measures what is not a comparison of speeds.
type extra struct {
	name    string
	measure func(ctx context.Context, w io.Writer, scale int) error
}

func main() {
	log.SetFlags(0)
	only := flag.String("only", "", "the parts to run, with commas; empty: all")
	match := flag.String("match", "", "run only what has this text in its name")
	alone := flag.String("alone", "", "run only this contestant, for a profile")
	rounds := flag.Int("rounds", 5, "rounds that count; one more warms up")
	scale := flag.Int("scale", 1, "divide the number of messages by this, for a quick look")
	profile := flag.String("cpuprofile", "", "write a CPU profile of everything that ran to this file")
	out := flag.String("out", "", "write the report of each part that ran to this file, in the place of the part's last one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			log.Fatal(err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			log.Fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	if err := bench(ctx, *only, *match, *alone, *rounds, *scale, *out); err != nil {
		log.Fatal(err)
	}
}

func bench(ctx context.Context, only, match, alone string, rounds, scale int, out string) error {
	wanted := strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
	for _, name := range wanted {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	for _, p := range parts {
		if len(wanted) > 0 && !slices.Contains(wanted, p.name) {
			continue
		}
		var report bytes.Buffer
		err := p.run(ctx, io.MultiWriter(os.Stdout, &report), match, alone, rounds, scale)
		if none, ok := err.(noServiceError); ok {
			fmt.Printf("%s is left out: %v.\n\n", p.name, none)
			continue
		}
		if err != nil {
			return err
		}
		if out != "" {
			if err := writeSection(out, p.name, report.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// run measures a part and reports it.
func (p part) run(ctx context.Context, w io.Writer, match, alone string, rounds, scale int) error {
	var comparisons []comparison
	about, err := "", error(nil)
	if p.about != nil {
		about, err = p.about(ctx)
	}
	if err == nil && p.comparisons != nil {
		comparisons, err = p.comparisons(ctx)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "## %s\n\n", p.name)
	machine(w, about)
	for _, c := range comparisons {
		if !strings.Contains(c.name, match) {
			continue
		}
		if alone != "" {
			c.contestants = slices.DeleteFunc(c.contestants, func(one contestant) bool { return one.name != alone })
		}
		samples, err := c.measure(ctx, rounds, scale)
		if err != nil {
			return err
		}
		c.report(w, samples, rounds, scale)
	}
	for _, e := range p.extras {
		if alone != "" || !strings.Contains(e.name, match) {
			continue
		}
		fmt.Fprintf(w, "### %s: %s\n\n", p.name, e.name)
		if err := e.measure(ctx, w, scale); err != nil {
			return fmt.Errorf("%s: %s: %w", p.name, e.name, err)
		}
	}
	return nil
}
