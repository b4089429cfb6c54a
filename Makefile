# What can be done with this project: `make` or `make help` lists it.

# The servers that the gate (make test) starts, and those that only make test-all adds. scripts/services.sh list names
# every server there is; a test whose server is in neither list is skipped, and the list at the end says so.
GATE_SERVICES = rabbit rabbit-310 rabbit-fault postgres pgbouncer mysql mariadb pulsar
REST_SERVICES = rabbit-cluster postgres-15 postgres-fault mysql-fault mariadb-fault pulsar-30 pulsar-fault

# Which servers `make services` starts; SERVICES=... takes others.
SERVICES ?= $(GATE_SERVICES)

# Where go test looks, and for how long a package may run.
PKGS ?= ./...
TIMEOUT ?= 15m
FUZZTIME ?= 30s

# What make bench starts, and how many rounds it measures.
BENCH_SERVICES = rabbit postgres mysql mariadb pulsar
ROUNDS ?= 5

# Tools by version; go run takes them from the Go module proxy.
GOFUMPT = mvdan.cc/gofumpt@v0.12.0
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

TESTLIST = go run ./internal/cmd/testlist -count=1 -race

.DEFAULT_GOAL := help
.PHONY: help test test-all services stop clean lint format fuzz bench

help: ## List what can be done.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## The gate: start the servers that tests need (installed at the first run), run every test but the long ones, stop what was started.
	@SETTLE_REQUIRE_SERVICES="$(GATE_SERVICES)" bash scripts/services.sh with $(GATE_SERVICES) -- \
		$(TESTLIST) -p 2 -timeout $(TIMEOUT) $(PKGS)

test-all: ## Everything: all servers and versions, the faults, the kills, the long ones. About an hour.
	@SETTLE_TEST_ALL=1 SETTLE_REQUIRE_SERVICES="$(GATE_SERVICES) $(REST_SERVICES)" bash scripts/services.sh with $(GATE_SERVICES) $(REST_SERVICES) -- \
		$(TESTLIST) -p 1 -timeout 90m $(PKGS)

services: ## Start servers, leave them running and print the variables to set: eval "$(make services)". SERVICES="rabbit mysql" names others.
	@bash scripts/services.sh keep $(SERVICES)

stop: ## Stop every server that was started from here.
	@bash scripts/services.sh stop

clean: ## Stop the servers and delete all that was installed or stored for them.
	@bash scripts/services.sh clean

lint: ## Formatting, go vet, staticcheck: all of them, whatever the first finds.
	@failed=; \
	unformatted=$$(go run $(GOFUMPT) -l .) || failed=1; \
	if [ -n "$$unformatted" ]; then echo "not formatted (make format):"; echo "$$unformatted"; failed=1; fi; \
	echo "go vet ./..."; go vet ./... || failed=1; \
	echo "staticcheck ./..."; go run $(STATICCHECK) ./... || failed=1; \
	echo "go vet ./... in bench"; (cd bench && go vet ./...) || failed=1; \
	[ -z "$$failed" ]

format: ## Format every file.
	go run $(GOFUMPT) -w .

fuzz: ## Run each fuzz target for a while: FUZZTIME=30s each.
	@set -e; grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | while IFS=: read -r file target; do \
		echo "$$file $${target#func }"; \
		go test -run '^$$' -fuzz "^$${target#func }\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")"; \
	done

bench: ## Compare with the raw clients and other libraries and write bench/RESULTS.md, on a quiet machine. ONLY=rabbit,postgres measures parts of it again. About an hour.
	@bash scripts/services.sh with $(BENCH_SERVICES) -- \
		sh -c 'cd bench && go run . $(if $(ONLY),-only $(ONLY)) -rounds $(ROUNDS) -out RESULTS.md'
