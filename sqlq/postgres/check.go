package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// leastVersion is the oldest server that has all that the SQL here asks for.
const leastVersion = 130000

// readOnly is the SQLSTATE of a server, or a session, that takes no writes.
const readOnly = "25006"

// code returns the SQLSTATE of an error, empty where the server did not answer.
func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// Down implements sqlq.Dialect. What is about one row is its data (22), a
// constraint (23), a view's check (44) or an exception of the user's own code
// (P0), see https://www.postgresql.org/docs/current/errcodes-appendix.html.
func (dialect) Down(err error) bool {
	c := code(err)
	if len(c) < 2 {
		return true
	}
	switch c[:2] {
	case "22", "23", "44", "P0":
		return false
	}
	return true
}

// Explain returns what is wrong with a database that answers with err, as a
// ConfigError where no second try can help.
func (dialect) Explain(source string, err error) error {
	refusal := func(setting, reason, fix string) error {
		return &settle.ConfigError{Source: source, Setting: setting, Reason: reason, Fix: fix, Err: err}
	}
	var config *settle.ConfigError
	var other *errNoTable
	switch {
	case errors.As(err, &config):
		if config.Source == "" {
			config.Source = source
		}
		return config
	case errors.As(err, &other):
		return &settle.ConfigError{Source: source, Setting: "Name", Reason: other.Error() + ", whose rows cannot be locked and deleted", Fix: "name the table below it"}
	}
	switch c := code(err); {
	case c == "42501":
		return refusal("database", "the user may not do this", "grant SELECT, INSERT, UPDATE and DELETE on the table, USAGE on its schema, and CREATE there for CreateTable")
	case c == readOnly:
		return fmt.Errorf("%s: the database takes no writes now; connect to the primary, or take back default_transaction_read_only: %w", source, err)
	case c == "3D000":
		return refusal("database", "there is no such database", "correct the name")
	case strings.HasPrefix(c, "28"):
		return refusal("database", "the server does not let the user in", "correct user and password, or pg_hba.conf")
	case c == "53300":
		return fmt.Errorf("%s: the server has no connection left; raise max_connections, or lower the pools': %w", source, err)
	default:
		return fmt.Errorf("%s: %w", source, err)
	}
}

// Check sees what the server and its settings keep of what is promised, and that
// an index serves the claims.
func (d dialect) Check(ctx context.Context, db sqlq.DB, l *sqlq.Layout, source string) ([]error, error) {
	p, ok := db.(*pool)
	if !ok {
		return nil, nil
	}
	c, err := p.p.Acquire(ctx)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	defer c.Release()
	weak, err := d.settings(ctx, c.Conn(), l, source)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	if err := privileges(ctx, c.Conn(), l, source); err != nil {
		return nil, d.Explain(source, err)
	}
	slow, err := d.slow(ctx, c.Conn(), l)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	for _, i := range slow {
		weak = append(weak, i.Missing(source, createIndex(&l.Table, &i, nulls(l))))
	}
	if _, advisory := l.Form.(sqlq.AdvisoryLock); advisory {
		if err := p.refuseSharing(ctx, c.Conn(), source); err != nil {
			return nil, err
		}
	}
	return weak, nil
}

// settings looks at what the server is and how it is set.
func (d dialect) settings(ctx context.Context, c *pgx.Conn, l *sqlq.Layout, source string) (weak []error, err error) {
	var version int
	var recovery, refuses bool
	var synchronous, idle string
	var offset time.Duration
	err = c.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool,
		current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout'),
		(statement_timestamp() AT TIME ZONE current_setting('TimeZone')) - (statement_timestamp() AT TIME ZONE 'UTC')`).
		Scan(&version, &recovery, &refuses, &synchronous, &idle, &offset)
	switch {
	case err != nil:
		return nil, err
	case version < leastVersion:
		return nil, &settle.ConfigError{Source: source, Setting: "database", Reason: fmt.Sprintf("the server's version is %d, and the least is %d", version/10000, leastVersion/10000), Fix: "use a newer server"}
	case recovery: // it may be the primary soon
		return nil, fmt.Errorf("%s: the server is a standby, which takes no writes; connect to the primary (target_session_attrs=read-write)", source)
	case refuses:
		return nil, &settle.ConfigError{Source: source, Setting: "default_transaction_read_only", Reason: "it is on, so that nothing can be claimed or settled", Fix: "take it back for this user and database"}
	}
	note := func(format string, args ...any) {
		weak = append(weak, fmt.Errorf("%s: "+format, append([]any{source}, args...)...))
	}
	if synchronous == "off" {
		note("synchronous_commit is off, so a crash of the server may undo the last settlements, and their messages come again; set it on")
	}
	_, lease := l.Form.(sqlq.Lease)
	if !lease && idle != "0" {
		note("idle_in_transaction_session_timeout is %s, and a handler that takes longer loses its row; set it to 0 for this user", idle)
	}
	for _, r := range []sqlq.Role{sqlq.RoleRetryAfter, sqlq.RoleLockedUntil, sqlq.RoleProcessedAt} {
		if l.Has(r) && !zoned(l.Column(r)) && offset != 0 {
			note("column %q is a timestamp without time zone, which this package reads and writes as UTC, and sessions have a TimeZone %v off: now() written there by others is wrong by that; use timestamptz", l.Columns()[r], offset)
			break
		}
	}
	if l.Has(sqlq.RolePriority) && l.Has(sqlq.RoleRetryAfter) && !l.Column(sqlq.RoleRetryAfter).NotNull {
		note("column %q may be NULL in a table with priorities, so claims walk over delayed rows; declare it NOT NULL", l.RetryAfter)
	}
	return weak, nil
}

// privileges refuses a table that the user cannot work on.
func privileges(ctx context.Context, c *pgx.Conn, l *sqlq.Layout, source string) error {
	dead, _ := l.Dead()
	var missing []string
	err := c.QueryRow(ctx, `SELECT coalesce(array_agg(p || ' on ' || t), '{}') FROM (VALUES ($1::text, 'SELECT'), ($1, 'UPDATE'), ($1, 'DELETE'), (nullif($2::text, ''), 'INSERT')) AS v(t, p)
		WHERE NOT has_table_privilege(t, p) AND NOT (p = 'UPDATE' AND has_any_column_privilege(t, p))`, l.Ref(), dead).Scan(&missing)
	if err == nil && len(missing) > 0 {
		return &settle.ConfigError{
			Source: source, Setting: "database", Reason: fmt.Sprintf("the user lacks %s", strings.Join(missing, ", ")), Fix: "grant it",
		}
	}
	return err
}

// refuseSharing refuses locks of sessions where something between this process
// and the server hands one of its connections to several of ours, as PgBouncer does
// in transaction mode.
func (p *pool) refuseSharing(ctx context.Context, c *pgx.Conn, source string) error {
	own, err := direct(ctx, c)
	if err != nil {
		return dialect{}.Explain(source, err)
	}
	if own {
		return nil
	}
	const backend = "SELECT pg_backend_pid()"
	var mine, others, now uint32
	if err := c.QueryRow(ctx, backend).Scan(&mine); err != nil {
		return dialect{}.Explain(source, err)
	}
	other, err := p.p.Acquire(ctx)
	if err != nil {
		return dialect{}.Explain(source, err)
	}
	defer other.Release()
	tx, err := other.Begin(ctx)
	if err != nil {
		return dialect{}.Explain(source, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	err = tx.QueryRow(ctx, backend).Scan(&others)
	if err == nil {
		err = c.QueryRow(ctx, backend).Scan(&now)
	}
	switch {
	case err != nil:
		return dialect{}.Explain(source, err)
	case others == mine || now != mine:
		return &settle.ConfigError{
			Source: source, Setting: "AdvisoryLock",
			Reason: "a pooler hands connections of the server from one client to another after each transaction, and the locks stay with them",
			Fix:    "connect to the server itself, or set pool_mode = session, or use Lease or RowLock",
		}
	}
	return nil
}
