package mysql

import (
	"testing"

	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// goldens are the tables whose SQL is held fast. It is the same on both servers.
func goldens() []sqltest.Golden {
	standard := sqlq.Standard("jobs", "main")
	full := standard
	full.Priority, full.ProcessedAt = "priority", "processed_at"
	line := standard
	line.FIFO, line.Key = true, ""
	lines := standard
	lines.FIFO, lines.ProcessedAt = true, "processed_at"
	bare := sqlq.Table{Name: "jobs", ID: "id", Payload: "payload", LockedUntil: "locked_until"}
	own := sqlq.Table{
		Name: "own `jobs`", ID: "uuid", Payload: "body", RetryAfter: "due", LockedUntil: "lock", Attempt: "try", Priority: "level", Group: "kind", GroupValue: "it's", Cause: "why",
	}
	const ddl = "CREATE TABLE `own ``jobs``` (uuid varchar(36) CHARACTER SET latin1 PRIMARY KEY, kind varchar(9), body json, due timestamp(3) NULL, `lock` datetime NULL, try tinyint unsigned, level bigint unsigned, why varchar(80))"
	var all []sqltest.Golden
	for name, f := range map[string]sqlq.Form{"lease": sqlq.Lease{}, "row-lock": sqlq.RowLock{}, "advisory": sqlq.AdvisoryLock{}} {
		all = append(
			all,
			sqltest.Golden{Name: name, Table: sqltest.In(standard, f), Dead: "main.dead"},
			sqltest.Golden{Name: name + "-full", Table: sqltest.In(full, f), Dead: "table:jobs_dead"},
			sqltest.Golden{Name: name + "-bare", Table: sqltest.In(bare, f)},
			sqltest.Golden{Name: name + "-own", Table: sqltest.In(own, f), DDL: ddl, Dead: "old"},
		)
	}
	return append(
		all,
		sqltest.Golden{Name: "lease-line", Table: line, Dead: "main.dead"},
		sqltest.Golden{Name: "lease-lines", Table: lines, Dead: "main.dead"},
	)
}

// TestSQL holds the text of every statement against its golden file.
func TestSQL(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		for _, g := range goldens() {
			t.Run(g.Name, func(t *testing.T) { g.Compare(t, &fresh(t, s, Options{}).db) })
		}
	})
}
