package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// Numbers of errors, see https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
// and, from 1900 to 1999, https://mariadb.com/kb/en/mariadb-error-code-reference/.
const (
	erTooManyConns      = 1040
	erDatabaseDenied    = 1044
	erAccessDenied      = 1045
	erNoDatabase        = 1046
	erUnknownDatabase   = 1049
	erServerShutdown    = 1053
	erCommandDenied     = 1142
	erColumnDenied      = 1143
	erPacketTooLarge    = 1153
	erErrorDuringCommit = 1180
	erLockWaitTimeout   = 1205
	erDeadlock          = 1213
	erReadOnly          = 1290
	erNotText           = 1300
	erNoSavepoint       = 1305
	erQueryInterrupted  = 1317
	erNoDefault         = 1364
	erWrongValue        = 1366
	erStatementBinlog   = 1665
	erReadOnlyTx        = 1792
	erReadOnlyMode      = 1836
	erNoIndex           = 1176
	erConnectionKilled  = 1927
	erCheckViolated     = 3819
	erMariaCheck        = 4025
)

// number returns the server's number of an error, 0 where the server did not answer.
func number(err error) uint16 {
	var refused *mysqldriver.MySQLError
	if errors.As(err, &refused) {
		return refused.Number
	}
	return 0
}

// Stale implements sqlq.Reopener.
func (dialect) Stale(err error) bool { return number(err) == erNoIndex }

// Again implements sqlq.Repeater.
func (dialect) Again(err error) bool {
	return number(err) == erDeadlock
}

// Patient implements sqlq.Patient.
func (d dialect) Patient() bool { return d.patient }

// Waited implements sqlq.Patient.
func (dialect) Waited(err error) bool { return number(err) == erLockWaitTimeout }

// Down implements sqlq.Dialect. What is about one row is its data (SQLSTATE 22), a constraint (23), a
// view's check (44) or an exception of the user's own code (45), and some errors that have no state of their own.
func (dialect) Down(err error) bool {
	var refused *mysqldriver.MySQLError
	if !errors.As(err, &refused) {
		return !errors.Is(err, mysqldriver.ErrPktTooLarge)
	}
	switch string(refused.SQLState[:2]) {
	case "22", "23", "44", "45":
		return false
	}
	switch refused.Number {
	case erPacketTooLarge, erNotText, erNoDefault, erWrongValue, erCheckViolated, erMariaCheck:
		return false
	}
	return true
}

// Explain returns what is wrong with a database that answers with err, as a
// ConfigError where no second try can help.
func (dialect) Explain(source string, err error) error {
	var config *settle.ConfigError
	if errors.As(err, &config) {
		if config.Source == "" {
			config.Source = source
		}
		return config
	}
	refusal := func(setting, reason, fix string) error {
		return &settle.ConfigError{Source: source, Setting: setting, Reason: reason, Fix: fix, Err: err}
	}
	switch number(err) {
	case erDatabaseDenied, erCommandDenied, erColumnDenied:
		return refusal("database", "the user may not do this", "grant SELECT, INSERT, UPDATE and DELETE on the table, and CREATE for CreateTable")
	case erAccessDenied:
		return refusal("database", "the server does not let the user in", "correct user and password, or the host that the user may come from")
	case erUnknownDatabase:
		return refusal("database", "there is no such database", "correct the name in the DSN")
	case erNoDatabase:
		return noDatabase(source, err)
	case erReadOnlyTx:
		return refusal("transaction_read_only", "it is on, so that nothing can be claimed or settled", "take it back for this user")
	case erStatementBinlog:
		return refusal("binlog_format", "it is STATEMENT, which InnoDB refuses at READ COMMITTED", "set it to ROW or MIXED")
	case erLockWaitTimeout:
		return fmt.Errorf("%s: somebody else keeps a row or a gap between rows locked; end that transaction, or use READ COMMITTED in it: %w", source, err)
	case erReadOnly, erReadOnlyMode:
		return fmt.Errorf("%s: the server takes no writes now; connect to the primary, or take back read_only: %w", source, err)
	case erTooManyConns:
		return fmt.Errorf("%s: the server has no connection left; raise max_connections, or lower the pools': %w", source, err)
	default:
		return fmt.Errorf("%s: %w", source, err)
	}
}

// Check sees what the server and its settings keep of what is promised, and that
// an index serves the claims.
func (d dialect) Check(ctx context.Context, db sqlq.DB, l *sqlq.Layout, source string) ([]error, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, d.Explain(source, err)
	}
	weak, err := d.check(ctx, c, l, source)
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, d.Explain(source, err)
	}
	return weak, nil
}

func (d dialect) check(ctx context.Context, c sqlq.Conn, l *sqlq.Layout, source string) ([]error, error) {
	weak, err := settings(ctx, c, l, source)
	if err != nil {
		return nil, err
	}
	if err := writable(ctx, c, l, source); err != nil {
		return nil, err
	}
	if wrapped, ok := c.(*conn); ok && wrapped.link == nil && ownCounts(&l.Statements) {
		if err := foundRows(ctx, c, source); err != nil {
			return nil, err
		}
	}
	if l.Index == "" && l.Statements.Claim == "" {
		needed := sqlq.Index{What: "claims", Columns: []sqlq.Role{sqlq.RoleID}}
		if all := l.Indexes(); len(all) > 0 {
			needed = all[0]
		}
		weak = append(weak, needed.Missing(source, addIndex(d, &l.Table, &needed)))
	}
	return weak, nil
}

// server is what the server says of itself and of the session.
type server struct {
	version, mode, zone string
	client, results     string // character sets
	flush, idle         int64
	autocommit          bool
}

func (s *server) read(ctx context.Context, c sqlq.Execer) error {
	rows, err := c.Query(ctx, `SELECT VERSION(), @@session.sql_mode, @@session.time_zone, @@global.innodb_flush_log_at_trx_commit,
		@@session.wait_timeout, @@session.autocommit, @@session.character_set_client, COALESCE(@@session.character_set_results, '')`)
	if err != nil {
		return err
	}
	if rows.Next() {
		err = rows.Scan(&s.version, &s.mode, &s.zone, &s.flush, &s.idle, &s.autocommit, &s.client, &s.results)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

func (s *server) mariadb() bool { return strings.Contains(s.version, "MariaDB") }

// old reports whether the server lacks what the SQL here asks for: SKIP LOCKED, JSON_TABLE.
func (s *server) old() (least string, old bool) {
	var major, minor int
	_, _ = fmt.Sscanf(s.version, "%d.%d", &major, &minor)
	if s.mariadb() {
		return "MariaDB 10.8", major < 10 || major == 10 && minor < 8
	}
	return "MySQL 8.0", major < 8
}

// utf8mb4 is the character set that has everything.
const utf8mb4 = "utf8mb4"

// ownCounts reports whether there are statements of the user's whose rows are counted.
func ownCounts(s *sqlq.Statements) bool {
	return s.Renew != "" || len(s.Ack)+len(s.Drop)+len(s.Retry)+len(s.RetryAfter)+len(s.DeadLetter)+len(s.Release) > 0
}

// foundRows refuses a pool of the caller's that counts rows which an update has changed, and not those that it found: a
// statement that writes what is there already would look like a lost lease.
func foundRows(ctx context.Context, c sqlq.Conn, source string) error {
	const table = "settle_found_rows"
	for _, text := range []string{"CREATE TEMPORARY TABLE " + table + " (n INT)", "INSERT INTO " + table + " VALUES (1)"} {
		if _, err := c.Exec(ctx, text); err != nil {
			return err
		}
	}
	n, err := c.Exec(ctx, "UPDATE "+table+" SET n = 1")
	_, dropped := c.Exec(ctx, "DROP TEMPORARY TABLE "+table)
	if err := errors.Join(err, dropped); err != nil || n == 1 {
		return err
	}
	return &settle.ConfigError{
		Source: source, Setting: "clientFoundRows", Reason: "it is off, so that statements of your own (Table.Statements) which write what is there already look as if their row was lost",
		Fix: "add clientFoundRows=true to the DSN of the pool, or use Open",
	}
}

// leastIdle is the shortest wait_timeout, in seconds, that nothing is said about.
const leastIdle = 600

// settings looks at what the server is and how it and the session are set.
func settings(ctx context.Context, c sqlq.Execer, l *sqlq.Layout, source string) (weak []error, err error) {
	var s server
	if err := s.read(ctx, c); err != nil {
		return nil, err
	}
	refusal := func(setting, reason, fix string) error {
		return &settle.ConfigError{Source: source, Setting: setting, Reason: reason, Fix: fix}
	}
	least, old := s.old()
	switch {
	case old:
		return nil, refusal("database", fmt.Sprintf("the server's version is %s, and the least is %s", s.version, least), "use a newer server")
	case !strings.Contains(s.mode, "STRICT_"):
		return nil, refusal("sql_mode", "it is not strict, so that the server cuts off what is too long for a column and says nothing", "add STRICT_TRANS_TABLES to the sql_mode of the session")
	case s.client != utf8mb4 || s.results != utf8mb4:
		return nil, refusal("charset", fmt.Sprintf("the session reads %s and writes %q, so that text would arrive damaged", s.client, s.results), "leave charset and collation out of the DSN, or set charset=utf8mb4")
	case !s.autocommit:
		return nil, refusal("autocommit", "it is off, so that statements outside of a transaction are never committed", "take autocommit=0 out of the DSN")
	}
	note := func(format string, args ...any) {
		weak = append(weak, fmt.Errorf("%s: "+format, append([]any{source}, args...)...))
	}
	if s.flush != 1 {
		note("innodb_flush_log_at_trx_commit is %d, so a crash of the server may undo what was committed last: published messages are lost then, and settled ones come again; set it to 1", s.flush)
	}
	if _, lease := l.Form.(sqlq.Lease); !lease && s.idle < leastIdle {
		note("wait_timeout is %d s, and a handler that takes longer loses its row; raise it for this user", s.idle)
	}
	for _, r := range []sqlq.Role{sqlq.RoleRetryAfter, sqlq.RoleLockedUntil, sqlq.RoleProcessedAt} {
		switch c := l.Column(r); {
		case !l.Has(r):
		case isTimestamp(c) && !fixedZone(s.zone):
			note("column %q is a TIMESTAMP, and sessions have the time zone %q: in an hour that comes twice there its times are wrong by an hour; use DATETIME(6), or set time_zone='+00:00' in the DSN", c.Name, s.zone)
		}
	}
	_, leased := l.Form.(sqlq.Lease)
	if c := l.Column(sqlq.RoleLockedUntil); leased && !l.Has(sqlq.RoleAttempt) && c.Digits < 6 {
		note("column %q keeps %d digits of a second, and without an Attempt column two claims of one row in that time cannot be told apart; use DATETIME(6)", c.Name, c.Digits)
	}
	return weak, nil
}

// fixedZone reports whether a time zone of a session is a distance from UTC.
func fixedZone(zone string) bool {
	return strings.HasPrefix(zone, "+") || strings.HasPrefix(zone, "-") || zone == "UTC"
}

// writable refuses a table that the user cannot work on. The server looks at what a
// statement may do also where that touches no row.
func writable(ctx context.Context, c sqlq.Conn, l *sqlq.Layout, source string) error {
	id := l.Q(sqlq.RoleID)
	tries := []struct{ what, sql string }{
		{"SELECT on " + l.Ref(), fmt.Sprintf("SELECT 1 FROM %s WHERE 1 = 0", l.Ref())},
		{"UPDATE on " + l.Ref(), fmt.Sprintf("UPDATE %s SET %s = %s WHERE 1 = 0", l.Ref(), id, id)},
		{"DELETE on " + l.Ref(), fmt.Sprintf("DELETE FROM %s WHERE 1 = 0", l.Ref())},
	}
	if dead, columns := l.Dead(); dead != "" {
		names := make([]string, len(columns))
		for i, c := range columns {
			names[i] = quote(c.Name)
		}
		all := strings.Join(names, ", ")
		tries = append(tries, struct{ what, sql string }{"INSERT on " + dead, fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s WHERE 1 = 0", dead, all, all, l.Ref())})
	}
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	var missing []string
	var denied error
	for _, t := range tries {
		_, err := tx.Exec(ctx, t.sql)
		switch n := number(err); {
		case err == nil:
		case n == erCommandDenied || n == erColumnDenied:
			missing, denied = append(missing, t.what), err
		default:
			return errors.Join(err, tx.Rollback(ctx))
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		return err
	}
	if len(missing) > 0 {
		return &settle.ConfigError{Source: source, Setting: "database", Reason: fmt.Sprintf("the user lacks %s", strings.Join(missing, ", ")), Fix: "grant it", Err: denied}
	}
	return nil
}
