// Package services leads tests to the real servers they run against. A server's address comes from an environment
// variable; scripts/services.sh starts servers and sets the variables (make test, make services). A test whose server
// is not there is skipped and says why, or fails where SETTLE_REQUIRE_SERVICES asks for it.
package services

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Service names a server as scripts/services.sh does.
type Service string

// The servers. A bare name is the newest version we know of; a number is an old one that is still supported. A test
// reads the version from the server where it matters, as the newest moves on.
const (
	Rabbit    Service = "rabbit"
	Rabbit310 Service = "rabbit-310"

	// RabbitFault is a second server of the newest version: for tests that stop, kill or block it. Such tests do not run
	// in parallel with others that use it.
	RabbitFault Service = "rabbit-fault"

	// RabbitCluster is three nodes, RabbitA, RabbitB and RabbitC: URLs gives their addresses in that order; the verbs
	// work on one node or on all.
	RabbitCluster Service = "rabbit-cluster"
	RabbitA       Service = "rabbit-a"
	RabbitB       Service = "rabbit-b"
	RabbitC       Service = "rabbit-c"

	Postgres   Service = "postgres"
	Postgres15 Service = "postgres-15"
	MySQL      Service = "mysql"
	MariaDB    Service = "mariadb"

	// These are to the others what RabbitFault is to Rabbit.
	PostgresFault Service = "postgres-fault"
	MySQLFault    Service = "mysql-fault"
	MariaDBFault  Service = "mariadb-fault"

	// PgBouncer pools transactions before a PostgreSQL server of its own, and sessions in its database "sessions".
	PgBouncer Service = "pgbouncer"

	Pulsar   Service = "pulsar" // asks for a token: see PulsarToken
	Pulsar30 Service = "pulsar-30"

	// PulsarFault is to Pulsar what RabbitFault is to Rabbit. It asks for no token.
	PulsarFault Service = "pulsar-fault"
)

// variables carry the addresses. The files in scripts/services name the same ones; a test holds them together.
var variables = map[Service]string{
	Rabbit:        "SETTLE_RABBIT_URL",
	Rabbit310:     "SETTLE_RABBIT_310_URL",
	RabbitFault:   "SETTLE_RABBIT_FAULT_URL",
	RabbitCluster: "SETTLE_RABBIT_CLUSTER",
	RabbitA:       "SETTLE_RABBIT_A_URL",
	RabbitB:       "SETTLE_RABBIT_B_URL",
	RabbitC:       "SETTLE_RABBIT_C_URL",
	Postgres:      "SETTLE_POSTGRES_DSN",
	Postgres15:    "SETTLE_POSTGRES15_DSN",
	MySQL:         "SETTLE_MYSQL_DSN",
	MariaDB:       "SETTLE_MARIADB_DSN",
	PostgresFault: "SETTLE_POSTGRES_FAULT_DSN",
	MySQLFault:    "SETTLE_MYSQL_FAULT_DSN",
	MariaDBFault:  "SETTLE_MARIADB_FAULT_DSN",
	PgBouncer:     "SETTLE_PGBOUNCER_DSN",
	Pulsar:        "SETTLE_PULSAR_URL",
	Pulsar30:      "SETTLE_PULSAR_30_URL",
	PulsarFault:   "SETTLE_PULSAR_FAULT_URL",
}

// missing begins the reason of every test that is skipped because its server is not there; the service's name and a
// colon follow.
const missing = "no service "

// required is the variable that says which services must be there: 1 for all, or names divided by spaces.
const required = "SETTLE_REQUIRE_SERVICES"

// Required reports whether SETTLE_REQUIRE_SERVICES asks for the service: a test must then not be skipped for want of it.
func Required(s Service) bool {
	asked := os.Getenv(required)
	return asked == "1" || slices.Contains(strings.Fields(asked), string(s))
}

// Wanted finds in the reason of a skipped test the service that was not there.
func Wanted(reason string) (Service, bool) {
	_, after, found := strings.Cut(reason, missing)
	name, _, colon := strings.Cut(after, ":")
	return Service(name), found && colon
}

// URL is the address of a server, in the form that its Go driver takes. Where there is none it ends the test: skipped
// with the reason, or failed if the service is Required.
func URL(t testing.TB, s Service) string {
	t.Helper()
	variable, known := variables[s]
	if !known {
		t.Fatalf("services: %q is not a service", s)
	}
	return lookup(t, s, variable)
}

// URLs are the addresses of the nodes of a cluster.
func URLs(t testing.TB, s Service) []string {
	t.Helper()
	return strings.Split(URL(t, s), ",")
}

// PulsarToken is the token of the role that may do everything on the Pulsar service.
func PulsarToken(t testing.TB) string {
	t.Helper()
	return lookup(t, Pulsar, "SETTLE_PULSAR_TOKEN")
}

// PulsarGuestToken is a valid token of a role with no rights on the Pulsar service.
func PulsarGuestToken(t testing.TB) string {
	t.Helper()
	return lookup(t, Pulsar, "SETTLE_PULSAR_GUEST_TOKEN")
}

// PulsarAdmin is the address of a Pulsar server's HTTP interface.
func PulsarAdmin(t testing.TB, s Service) string {
	t.Helper()
	return lookup(t, s, strings.Replace(variables[s], "_URL", "_ADMIN_URL", 1))
}

// PulsarProxy is the host:port that a Pulsar server tells those clients to take that ask for its listener "proxied".
// Nothing listens there: a test puts a proxy in that place (faults.ProxyAt).
func PulsarProxy(t testing.TB, s Service) string {
	t.Helper()
	return lookup(t, s, strings.Replace(variables[s], "_URL", "_PROXY_ADDR", 1))
}

// TestAll skips a test that only `make test-all` runs: a long one, or one of a version or a pair that the gate leaves out.
func TestAll(t testing.TB) {
	t.Helper()
	if os.Getenv("SETTLE_TEST_ALL") != "1" {
		t.Skip("runs in make test-all (SETTLE_TEST_ALL=1)")
	}
}

func lookup(t testing.TB, s Service, variable string) string {
	t.Helper()
	if value := os.Getenv(variable); value != "" {
		return value
	}
	switch {
	case Required(s):
		t.Fatalf("%s%s: %s is not set, and SETTLE_REQUIRE_SERVICES asks for it", missing, s, variable)
	case os.Getenv(required) != "":
		t.Skipf("%s%s: this run does without it; make test-all has it", missing, s)
	default:
		t.Skipf("%s%s: %s is not set; `make test` starts what it needs, `make services` leaves servers running and prints what to set", missing, s, variable)
	}
	return ""
}
