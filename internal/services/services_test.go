package services

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spy is a testing.TB that notes how a test was ended.
type spy struct {
	testing.TB
	ended string
}

func (s *spy) Helper() {}

func (s *spy) Fatalf(format string, args ...any) {
	s.ended = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (s *spy) Skipf(format string, args ...any) {
	s.ended = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// ended runs what a test would do and returns how it was ended: "" if it was not.
func ended(t *testing.T, test func(testing.TB)) string {
	s := &spy{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(s)
	}()
	<-done
	return s.ended
}

func TestAMissingServiceSkipsOrFails(t *testing.T) {
	t.Setenv("SETTLE_MYSQL_DSN", "")
	for asked, want := range map[string]string{
		"":               "skipped: ",
		"rabbit mariadb": "skipped: ",
		"rabbit mysql":   "failed: ",
		"1":              "failed: ",
	} {
		t.Setenv("SETTLE_REQUIRE_SERVICES", asked)
		got := ended(t, func(t testing.TB) { URL(t, MySQL) })
		require.True(t, strings.HasPrefix(got, want), "SETTLE_REQUIRE_SERVICES=%q: %q", asked, got)
		wanted, ok := Wanted(got)
		assert.True(t, ok && wanted == MySQL, "the reason does not say what is missing: %q", got)
	}
}

func TestAVariableIsTheAddress(t *testing.T) {
	t.Setenv("SETTLE_RABBIT_CLUSTER", "amqp://a,amqp://b,amqp://c")
	t.Setenv("SETTLE_PULSAR_30_ADMIN_URL", "http://admin")
	assert.Equal(t, []string{"amqp://a", "amqp://b", "amqp://c"}, URLs(t, RabbitCluster))
	assert.Equal(t, "http://admin", PulsarAdmin(t, Pulsar30))
}

func TestAnUnknownServiceFails(t *testing.T) {
	assert.Equal(t, `failed: services: "redis" is not a service`, ended(t, func(t testing.TB) { URL(t, "redis") }))
}

// The script and this package name the same services and variables.
func TestTheScriptNamesTheSameServices(t *testing.T) {
	listed, err := exec.CommandContext(t.Context(), "bash", script(t), "list").Output()
	require.NoError(t, err)
	got := map[Service]string{}
	for line := range strings.Lines(string(listed)) {
		name, variable, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[Service(name)] = variable
	}
	assert.Equal(t, variables, got)
}

// A server that somebody else runs is used, never stopped.
func TestAServerFromElsewhereIsNotTouched(t *testing.T) {
	t.Setenv("SETTLE_RABBIT_URL", "amqp://elsewhere.example/")
	for _, verb := range []func(testing.TB, Service){Kill, Restart, Start} {
		got := ended(t, func(t testing.TB) { verb(t, Rabbit) })
		assert.Contains(t, got, "rabbit is given by SETTLE_RABBIT_URL and was not started here")
	}
}
