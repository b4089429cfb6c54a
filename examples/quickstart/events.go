package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq/sqlite"
)

// eventHeader carries an event's identity, in the queue and over HTTP.
const eventHeader = "Webhook-Id"

// event is one webhook to deliver.
type event struct {
	id   string
	body []byte
}

// added counts what enqueue found.
type added struct{ fresh, known int }

// enqueue puts the events into the queue that are not known yet. That an event is known and
// that it is in the queue is written in one transaction, so a crash leaves both or neither.
func enqueue(ctx context.Context, db *sqlite.DB, queue *sqlite.Queue, path string, errs io.Writer) (n added, err error) {
	events, err := read(path, errs)
	if err != nil {
		return n, err
	}
	if len(events) == 0 {
		return n, fmt.Errorf("there is no event in %s", path)
	}
	if _, err := db.SQL().ExecContext(ctx, "CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY) WITHOUT ROWID"); err != nil {
		return n, err
	}
	tx, err := db.SQL().BeginTx(ctx, nil)
	if err != nil {
		return n, err
	}
	defer tx.Rollback()
	for _, e := range events {
		result, err := tx.ExecContext(ctx, "INSERT INTO events (id) VALUES (?) ON CONFLICT DO NOTHING", e.id)
		if err != nil {
			return n, err
		}
		if rows, err := result.RowsAffected(); err != nil {
			return n, err
		} else if rows == 0 {
			n.known++
			continue
		}
		n.fresh++
		m := settle.Message{Body: e.body, Headers: settle.Headers{eventHeader: e.id}}
		if err := queue.PublishTx(ctx, tx, m); err != nil {
			return n, err
		}
	}
	return n, tx.Commit()
}

// read returns the events of a file, or the sample. A line that is not JSON is
// reported and left out.
func read(path string, errs io.Writer) ([]event, error) {
	if path == "" {
		return sample(), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []event
	seen := make(map[string]int)
	lines := bufio.NewReader(f)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff")) // the mark that some editors put before UTF-8
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: line %d: %w", path, number, err)
		}
		if body := bytes.TrimSpace(line); len(body) > 0 {
			if reason := notJSON(body); reason != nil {
				fmt.Fprintf(errs, "%s: line %d is left out: %v\n", path, number, reason)
			} else {
				all = append(all, event{id: identity(body, seen), body: body})
			}
		}
		if err != nil {
			return all, nil
		}
	}
}

// notJSON says why a line is not one JSON value.
func notJSON(line []byte) error {
	var v json.RawMessage
	return json.Unmarshal(line, &v)
}

// identity names an event by its content. A body that stands in the file twice
// is two events.
func identity(body []byte, seen map[string]int) string {
	sum := sha256.Sum256(body)
	id := hex.EncodeToString(sum[:12])
	seen[id]++
	return fmt.Sprintf("%s-%d", id, seen[id])
}

// sample is what there is to deliver when nobody brings a file.
func sample() []event {
	kinds := []string{"order.created", "order.paid", "order.shipped", "order.returned"}
	var all []event
	seen := make(map[string]int)
	for i := range 120 {
		body := fmt.Appendf(nil, `{"event":%q,"order":%d,"amount":"%d.%02d"}`, kinds[i%len(kinds)], 1000+i/len(kinds), 5+i%90, i*37%100)
		all = append(all, event{id: identity(body, seen), body: body})
	}
	return all
}
