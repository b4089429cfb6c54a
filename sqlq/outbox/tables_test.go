package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq/outbox"
)

// roundTrip has a record of the box sent, marked and purged.
func roundTrip(t *testing.T, db *database, box *outbox.Box, log *events) {
	t.Helper()
	sent := settle.Message{ID: "own", To: "orders", Key: "k", Body: []byte("body"), Headers: settle.Headers{"a": "b"}, Priority: 3}
	db.record(t, box, sent, text("second"))
	p := &script{}
	stop := start(t, &outbox.Relay{Box: box, Publisher: p})
	got := p.await(t, 2)
	stop()
	sent.Headers = settle.Headers{"a": "b", outbox.DefaultHeader: got[0].id}
	assert.Equal(t, sent, got[0].Message)
	awaitCounts(t, box, outbox.Counts{Waiting: 2})
	for _, c := range got {
		o := box.Middleware()(func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() })(
			context.Background(), &settle.Delivery{Headers: c.Headers})
		assert.Equal(t, settle.Ack(), o)
	}
	assert.Empty(t, log.log())
	assert.Len(t, log.of(outbox.EventMarked), 2)
	awaitCounts(t, box, outbox.Counts{})
	var purged int64
	require.Eventually(t, func() bool { // at once, unless the column rounds the time up
		n, err := box.Purge(context.Background(), 0)
		purged += n
		return err == nil && purged == 2
	}, sqltest.Deadline, 10*time.Millisecond)
}

// The user's own table serves, whatever its ids are and however little it has.
func TestTablesOfTheUsersOwn(t *testing.T) {
	bare := outbox.Table{Name: "my events", ID: "nr", To: "topic", Payload: "data", Side: "my side"}
	full := bare
	full.Headers, full.Key, full.ProcessedAt = "meta", "customer", "done at"
	for name, c := range map[string]struct {
		kind, create string
		table        outbox.Table
	}{
		"sqlite, integers":   {inSQLite, `CREATE TABLE "my events" (nr INTEGER PRIMARY KEY, topic TEXT NOT NULL, data BLOB, created INTEGER DEFAULT 7)`, bare},
		"sqlite, text":       {inSQLite, `CREATE TABLE "my events" (nr TEXT PRIMARY KEY NOT NULL, topic TEXT, data TEXT, meta TEXT, customer TEXT, "done at" INTEGER)`, full},
		"sqlite, bytes":      {inSQLite, `CREATE TABLE "my events" (nr BLOB PRIMARY KEY NOT NULL, topic TEXT, data TEXT, customer TEXT)`, bare},
		"postgres, integers": {inPostgres, `CREATE TABLE "my events" (nr serial PRIMARY KEY, topic varchar(40) NOT NULL, data text NOT NULL, created timestamptz NOT NULL DEFAULT now())`, bare},
		"postgres, uuid":     {inPostgres, `CREATE TABLE "my events" (nr uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text, data bytea, meta json, customer text, "done at" timestamp(0))`, full},
		"postgres, text":     {inPostgres, `CREATE TABLE "my events" (nr text PRIMARY KEY, topic text, data text, meta jsonb, customer text, "done at" timestamptz)`, full},
		"mysql, integers":    {inMySQL, "CREATE TABLE `my events` (nr int unsigned AUTO_INCREMENT PRIMARY KEY, topic varchar(40) NOT NULL, data text NOT NULL, created datetime NOT NULL DEFAULT now())", bare},
		"mysql, bytes":       {inMySQL, "CREATE TABLE `my events` (nr binary(16) PRIMARY KEY, topic varchar(40), data blob, meta json, customer varchar(40), `done at` datetime)", full},
		"mysql, text":        {inMySQL, "CREATE TABLE `my events` (nr char(36) PRIMARY KEY, topic varchar(40), data text)", bare},
		"mariadb, integers":  {inMariaDB, "CREATE TABLE `my events` (nr bigint AUTO_INCREMENT PRIMARY KEY, topic varchar(40) NOT NULL, data text NOT NULL)", bare},
		"mariadb, uuid":      {inMariaDB, "CREATE TABLE `my events` (nr uuid PRIMARY KEY, topic varchar(40), data mediumblob, meta json, customer varchar(40), `done at` datetime(6))", full},
	} {
		t.Run(name, func(t *testing.T) {
			db, log := newStore(t, c.kind).open(t), new(events)
			db.exec(t, c.create)
			box := newBox(t, db, c.table, log)
			roundTrip(t, db, box, log)
			require.NoError(t, box.CreateTable(context.Background()), "twice is harmless")
		})
	}
}

// Records whose ids are text keep the order they were recorded in.
func TestTextIDsKeepTheOrder(t *testing.T) {
	everyStore(t, func(t *testing.T, s store) {
		db, log := s.open(t), new(events)
		db.exec(t, `CREATE TABLE events (id varchar(64) PRIMARY KEY NOT NULL, name text, payload text)`)
		box := newBox(t, db, outbox.Table{Name: "events", ID: "id", To: "name", Payload: "payload"}, log)
		msgs := texts(300, "m")
		db.record(t, box, msgs...)
		p := &script{}
		start(t, &outbox.Relay{Box: box, Publisher: p, Batch: 512})
		var want []string
		for _, m := range msgs {
			want = append(want, string(m.Body))
		}
		assert.Equal(t, want, bodies(p.await(t, len(msgs))))
	})
}

// What the tables cannot keep is refused, with what to do about it, by whatever is called first.
func TestTablesThatAreRefused(t *testing.T) {
	with := func(change func(*outbox.Table)) outbox.Table {
		table := outbox.Standard("outbox")
		change(&table)
		return table
	}
	const columns = "id varchar(64) PRIMARY KEY NOT NULL, name text, payload text, headers text, msg_key text"
	for name, c := range map[string]struct {
		create  string // empty: no table
		table   outbox.Table
		setting string
		reason  string
	}{
		"no name":          {"", with(func(t *outbox.Table) { t.Name = "" }), "Name", "empty"},
		"no id":            {"", with(func(t *outbox.Table) { t.ID = "" }), "ID", "empty"},
		"no destination":   {"", with(func(t *outbox.Table) { t.To = "" }), "To", "empty"},
		"no payload":       {"", with(func(t *outbox.Table) { t.Payload = "" }), "Payload", "empty"},
		"one column twice": {"", with(func(t *outbox.Table) { t.Key = "name" }), "Key", "has the role To already"},
		"a NUL byte":       {"", with(func(t *outbox.Table) { t.To = "a\x00" }), "To", "NUL"},
		"one table twice":  {"", with(func(t *outbox.Table) { t.Side = "OUTBOX" }), "Side", "itself"},
		"no table":         {"", outbox.Standard("outbox"), "Name", "no such table"},
		"no column":        {columns, outbox.Standard("outbox"), "ProcessedAt", `no column "processed_at"`},
		"not unique":       {"id text, name text, payload text", outbox.Table{Name: "outbox", ID: "id", To: "name", Payload: "payload"}, "ID", "not unique"},
		"no text":          {"id varchar(64) PRIMARY KEY NOT NULL, name integer, payload text", outbox.Table{Name: "outbox", ID: "id", To: "name", Payload: "payload"}, "To", "takes text"},
		"a mark always":    {columns + ", processed_at bigint NOT NULL DEFAULT 0", outbox.Standard("outbox"), "ProcessedAt", ""},
		"a column to fill": {columns + ", tenant text NOT NULL", outbox.Table{Name: "outbox", ID: "id", To: "name", Payload: "payload"}, "Name", `"tenant" is NOT NULL`},
		"a key always":     {"id varchar(64) PRIMARY KEY NOT NULL, name text, payload text, msg_key text NOT NULL", outbox.Table{Name: "outbox", ID: "id", To: "name", Payload: "payload", Key: "msg_key"}, "Key", "NOT NULL"},
		"ids by nobody":    {"id bigint PRIMARY KEY NOT NULL, name text, payload text", outbox.Table{Name: "outbox", ID: "id", To: "name", Payload: "payload"}, "ID", "does not count up"},
		"no side table":    {columns, outbox.Table{Name: "outbox", ID: "id", To: "name", Payload: "payload"}, "Side", `"outbox_relay": there is no such table`},
	} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, s store) {
				db := s.open(t)
				if c.create != "" {
					db.exec(t, "CREATE TABLE outbox ("+c.create+")")
				}
				box := outbox.New(db, c.table, new(events).options())
				err := (&outbox.Relay{Box: box, Publisher: &script{}}).Run(context.Background())
				var config *settle.ConfigError
				require.ErrorAs(t, err, &config)
				assert.Equal(t, c.setting, config.Setting, err)
				assert.Contains(t, config.Reason, c.reason)
				assert.NotEmpty(t, config.Fix)
				assert.ErrorAs(t, box.Publisher().Publish(context.Background(), text("m")), &config)
				assert.ErrorAs(t, box.Record(context.Background(), db.Database().DB, text("m")), &config)
				_, err = box.Count(context.Background())
				assert.ErrorAs(t, err, &config)
			})
		})
	}
}

// A side table whose ids are of another kind than the records' is refused.
func TestASideTableOfOtherIDsIsRefused(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		db, _, log := standard(t, s)
		db.exec(t, `CREATE TABLE events (id varchar(64) PRIMARY KEY NOT NULL, name text, payload text)`)
		box := outbox.New(db, outbox.Table{Name: "events", ID: "id", To: "name", Payload: "payload", Headers: "", ProcessedAt: "", Side: "outbox_relay"}, log.options())
		var config *settle.ConfigError
		require.ErrorAs(t, box.CreateTable(context.Background()), &config)
		assert.Equal(t, "Side", config.Setting)
	})
}

// A relay that cannot be what it is asked to be says so.
func TestRelaysThatAreRefused(t *testing.T) {
	_, box, _ := standard(t, newStore(t, inSQLite))
	for setting, r := range map[string]*outbox.Relay{
		"Box":            {Publisher: &script{}},
		"Publisher":      {Box: box},
		"Done":           {Box: box, Publisher: &script{}, Done: 9},
		"Batch":          {Box: box, Publisher: &script{}, Batch: 513},
		"Lease":          {Box: box, Publisher: &script{}, Lease: time.Millisecond},
		"Pause":          {Box: box, Publisher: &script{}, Pause: -1},
		"MaxPause":       {Box: box, Publisher: &script{}, Pause: time.Hour, MaxPause: time.Minute},
		"MaxSends":       {Box: box, Publisher: &script{}, MaxSends: -1},
		"Keep":           {Box: box, Publisher: &script{}, Keep: -1},
		"PublishTimeout": {Box: box, Publisher: &script{}, PublishTimeout: -1},
	} {
		var config *settle.ConfigError
		require.ErrorAs(t, r.Run(context.Background()), &config, setting)
		assert.Equal(t, setting, config.Setting)
	}
	var config *settle.ConfigError
	require.ErrorAs(t, (&outbox.Relay{Box: box, Publisher: box.Publisher()}).Run(context.Background()), &config, "it would feed itself")
	require.ErrorAs(t, outbox.New(nil, outbox.Standard("outbox"), outbox.Options{}).CreateTable(context.Background()), &config)
}

// What no message may hold is refused before anything is written, and leaves the caller's transaction as it was.
func TestBadMessagesAreRefusedWhole(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		db, box, _ := standard(t, s)
		tx, err := db.begin(context.Background())
		require.NoError(t, err)
		for name, m := range map[string]settle.Message{
			"JSON":     {To: "orders", Headers: settle.Headers{"f": func() {}}},
			"not text": {To: "orders", Headers: settle.Headers{"b": []byte{0xff}}},
			"NUL byte": {To: "or\x00ders"},
		} {
			err := box.Record(context.Background(), tx, text("good"), m)
			require.ErrorContains(t, err, "message 1", name)
			assert.ErrorContains(t, err, name)
			assert.True(t, settle.IsPermanent(err), name)
		}
		assert.ErrorContains(t, box.Record(context.Background(), nil, text("m")), "needs the transaction")
		require.NoError(t, box.Record(context.Background(), tx))
		require.NoError(t, box.Record(context.Background(), tx, text("good")))
		require.NoError(t, tx.commit())
		awaitCounts(t, box, outbox.Counts{Waiting: 1})
	})
}

// Schema is what CreateTable runs.
func TestSchemaMakesTheTables(t *testing.T) {
	everyStore(t, func(t *testing.T, s store) {
		db, log := s.open(t), new(events)
		box := outbox.New(db, outbox.Standard("outbox"), log.options())
		schema, err := box.Schema(context.Background())
		require.NoError(t, err)
		for _, statement := range strings.Split(schema, ";\n") {
			if strings.TrimSpace(statement) != "" {
				db.exec(t, statement)
			}
		}
		roundTrip(t, db, box, log)
	})
}
