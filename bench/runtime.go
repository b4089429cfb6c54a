package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

var runtimePart = part{name: "runtime", extras: []extra{{"a message in memory", runtimeBenchmarks}}}

// runtimeBenchmarks runs the benchmarks of the root package: what the runtime itself costs
// a message, beside the two channels that any design with workers has.
func runtimeBenchmarks(ctx context.Context, w io.Writer, _ int) error {
	const rounds = 5
	fmt.Fprintf(w, "A message from receive to settle on the broker in memory, without Timeout and Observer; BenchmarkChannels is a pipeline of two channels and the workers between them. Medians of %d.\n\n", rounds)
	text, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "Runtime|Channels", "-benchmem", "-count", fmt.Sprint(rounds), "..").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	rows := [][]string{{"benchmark", "ns a message", "bytes", "allocations"}}
	var order []string
	figures := make(map[string][3][]float64)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 8 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		all, known := figures[f[0]]
		if !known {
			order = append(order, f[0])
		}
		for i := range all {
			v, err := strconv.ParseFloat(f[2+2*i], 64)
			if err != nil {
				return err
			}
			all[i] = append(all[i], v)
		}
		figures[f[0]] = all
	}
	for _, name := range order {
		row := []string{name}
		for _, all := range figures[name] {
			slices.Sort(all)
			row = append(row, fmt.Sprintf("%.0f", all[len(all)/2]))
		}
		rows = append(rows, row)
	}
	table(w, rows)
	return nil
}
