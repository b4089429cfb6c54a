package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// report writes what one comparison measured, as Markdown that also reads well
// in a terminal.
func (c *comparison) report(w io.Writer, samples map[string][]sample, rounds, scale int) {
	fmt.Fprintf(w, "### %s: %s\n\n%s\n\n", c.part, c.name, c.work)
	fmt.Fprintf(w, "%d messages a run, %d rounds, contestants alternating, medians (lowest to highest); ratios are against the median of both rows of the base.\n\n", max(1, c.messages/scale), rounds)
	speed := func(s sample) float64 { return s.perSecond }
	base, _, _ := of(against(samples, c.base), speed)

	rows := [][]string{{"contestant", "messages/s", "ratio", "CPU/message", "allocations", "bytes", "peak heap", "notes"}}
	names := make([]string, 0, len(samples))
	for _, one := range c.contestants {
		names = append(names, one.name)
		if one.name == c.base {
			names = append(names, one.name+again)
		}
	}
	for _, name := range names {
		s := samples[name]
		median, low, high := of(s, speed)
		cpu, _, _ := of(s, func(s sample) float64 { return float64(s.cpu) })
		allocs, _, _ := of(s, func(s sample) float64 { return s.allocs })
		bytes, _, _ := of(s, func(s sample) float64 { return s.bytes })
		peak, _, _ := of(s, func(s sample) float64 { return float64(s.peak) })
		rows = append(rows, []string{
			name,
			fmt.Sprintf("%.0f (%.0f–%.0f)", median, low, high),
			fmt.Sprintf("%.2f", median/base),
			time.Duration(cpu).Round(100 * time.Nanosecond).String(),
			fmt.Sprintf("%.1f", allocs),
			fmt.Sprintf("%.0f", bytes),
			fmt.Sprintf("%.1f MB", peak/(1<<20)),
			noteText(s),
		})
	}
	table(w, rows)
	missed := false
	for _, b := range c.bars {
		if len(samples[b.contestant]) == 0 || len(samples[b.against]) == 0 {
			continue
		}
		ours, _, _ := of(samples[b.contestant], speed)
		theirs, _, _ := of(against(samples, b.against), speed)
		ratio, word := ours/theirs, "must be"
		if b.aim {
			word = "aim"
		}
		verdict := "held"
		if ratio < b.ratio {
			verdict, missed = "MISSED", true
		}
		fmt.Fprintf(w, "- %s over %s: %.2f (%s %.2f): %s\n", b.contestant, b.against, ratio, word, b.ratio, verdict)
	}
	if missed && c.missed != "" {
		fmt.Fprintf(w, "\nWhat a profile says of that: %s\n", c.missed)
	}
	fmt.Fprintln(w)
	for _, one := range c.contestants {
		fmt.Fprintf(w, "- **%s**", one.name)
		if one.settings != "" {
			fmt.Fprintf(w, " (%s)", one.settings)
		}
		fmt.Fprintf(w, " reports done when %s.\n", one.done)
	}
	fmt.Fprintln(w)
}

// noteText is the median of each note.
func noteText(samples []sample) string {
	keys := make(map[string]bool)
	for _, s := range samples {
		for k := range s.notes {
			keys[k] = true
		}
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		v, _, _ := of(samples, func(s sample) float64 { return s.notes[k] })
		parts = append(parts, fmt.Sprintf("%s %.2f", k, v))
	}
	return strings.Join(parts, ", ")
}

// table writes rows as a Markdown table with aligned columns.
func table(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	line := func(cells []string) {
		for i, cell := range cells {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		fmt.Fprintln(w, "|")
	}
	line(rows[0])
	for _, width := range widths {
		fmt.Fprintf(w, "|%s", strings.Repeat("-", width+2))
	}
	fmt.Fprintln(w, "|")
	for _, r := range rows[1:] {
		line(r)
	}
	fmt.Fprintln(w)
}

// machine says what the figures of a part were measured on, and by which command.
func machine(w io.Writer, about string) {
	fmt.Fprintf(w, "Measured on %s, %s/%s, %d CPUs (%s), %s, by `go run . %s` in bench/.\n\n", time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), cpuName(), runtime.Version(), strings.Join(os.Args[1:], " "))
	if about != "" {
		fmt.Fprintf(w, "Server: %s.\n\n", about)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		var versions []string
		for _, d := range info.Deps {
			if peers[d.Path] {
				versions = append(versions, d.Path+" "+d.Version)
			}
		}
		fmt.Fprintf(w, "Versions: %s.\n\n", strings.Join(versions, ", "))
	}
	if commit, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		fmt.Fprintf(w, "Commit %s.\n\n", strings.TrimSpace(string(commit)))
	}
}

// peers are the modules whose versions a reader of the figures wants.
var peers = map[string]bool{
	"maragu.dev/goqite":                          true,
	"modernc.org/sqlite":                         true,
	"github.com/rabbitmq/amqp091-go":             true,
	"github.com/ThreeDotsLabs/watermill":         true,
	"github.com/jackc/pgx/v5":                    true,
	"github.com/riverqueue/river":                true,
	"github.com/go-sql-driver/mysql":             true,
	"github.com/apache/pulsar-client-go":         true,
	"github.com/ThreeDotsLabs/watermill-amqp/v3": true,
	"github.com/ThreeDotsLabs/watermill-sql/v4":  true,
}

func cpuName() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, " \t:\n")
		}
	}
	return "unknown"
}
