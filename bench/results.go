package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// resultsHead begins the file of results.
const resultsHead = `# Results

Made by ` + "`make bench`" + `; ` + "`make bench ONLY=rabbit`" + ` measures a part again and leaves the others.
Each part says when, on what and by which command it was measured. A ratio carries over to other machines; the
absolute figures do not.

`

// writeSection puts the report of a part into the file, in the place of the
// part's last one.
func writeSection(path, name, report string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sections := make(map[string]string)
	for i, s := range strings.Split("\n"+string(text), "\n## ") {
		if i == 0 {
			continue
		}
		title, _, _ := strings.Cut(s, "\n")
		sections[title] = "## " + strings.TrimSpace(s) + "\n\n"
	}
	sections[name] = strings.TrimSpace(report) + "\n\n"
	var all strings.Builder
	all.WriteString(resultsHead)
	for _, p := range parts {
		all.WriteString(sections[p.name])
	}
	if err := os.WriteFile(path, []byte(strings.TrimSpace(all.String())+"\n"), 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}
