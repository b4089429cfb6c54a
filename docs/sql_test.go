// Package docs holds what the pages say against the code.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/sqlq"
	"github.com/settlemq/settle/sqlq/mysql"
	"github.com/settlemq/settle/sqlq/postgres"
	"github.com/settlemq/settle/sqlq/sqlite"
)

// The schemas on the page of queue tables are those that CreateTable makes.
func TestSchemas(t *testing.T) {
	page, err := os.ReadFile("sql.md")
	require.NoError(t, err)
	text := plain(string(page))
	table := sqlq.Standard("jobs", "emails")

	pg, err := postgres.Open("postgres://localhost/app", postgres.Options{}) // none of them does any I/O
	require.NoError(t, err)
	defer pg.Close()
	my, err := mysql.Open("user:password@tcp(localhost)/app", mysql.Options{})
	require.NoError(t, err)
	defer my.Close()
	lite, err := sqlite.Open(filepath.Join(t.TempDir(), "app.db"), sqlite.Options{})
	require.NoError(t, err)
	defer lite.Close()
	for name, queue := range map[string]*sqlq.Queue{"postgres": pg.Queue(table).Queue, "mysql": my.Queue(table).Queue, "sqlite": lite.Queue(table).Queue} {
		assert.Contains(t, text, plain(queue.Schema()), name)
	}
}

// plain is SQL without its comments and empty lines.
func plain(sql string) string {
	sql = regexp.MustCompile(`(?m) +-- .*$`).ReplaceAllString(sql, "")
	return strings.TrimSpace(regexp.MustCompile(`\n+`).ReplaceAllString(sql, "\n"))
}
