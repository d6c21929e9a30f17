# conmonrs. "make help" lists the targets.
#
# Variables: RUNTIME_PATH=/path/to/runc or crun  test with this OCI runtime only
#            RUN=REGEXP                          run the tests that match only
#            CONMONRS_TEST_SCALE=N               N times as much in the tests that scale (1)
#            BENCH_ARGS="-short -run REGEXP"     for make bench
#            FUZZTIME=10s                        for each fuzz target
#            DESTDIR, PREFIX, LIBEXECDIR         where install puts things

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

GO ?= go
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBEXECDIR ?= $(PREFIX)/libexec
FUZZTIME ?= 10s
RUN ?=
CONMONRS_TEST_SCALE ?= 1
export CONMONRS_TEST_SCALE RUN RUNTIME_PATH

MODULE := github.com/conmonrs/conmonrs
VERSION_PKG := $(MODULE)/cmd/internal/version
TAG := $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
# The date of the commit, not of the build: the same sources give the same binary.
BUILD_DATE := $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
LDFLAGS := -s -w -X $(VERSION_PKG).tag=$(TAG) -X $(VERSION_PKG).commit=$(COMMIT) -X $(VERSION_PKG).buildDate=$(BUILD_DATE)
# Not position independent: relocations would dirty 0.35 MiB in every pod's monitor. Functions close together, and the
# RPC library without inlined copies: 0.1 MiB fewer pages touched (docs/performance.md).
BUILD_FLAGS := -trimpath -buildvcs=false -buildmode=exe -ldflags "$(LDFLAGS) -funcalign=1" -gcflags=capnproto.org/go/capnp/v3/...=-l

# The executables that there are, each built on its own (-buildmode=exe takes one), and the programs that tests run inside
# containers.
COMMANDS := $(patsubst %/,./%,$(sort $(dir $(wildcard cmd/conmonrs*/*.go))))
TEST_COMMANDS := ./test/cmd/loggen ./test/cmd/notifier ./test/cmd/orphans
UNIT_PACKAGES = $$($(GO) list ./... | grep -vE '/test/(integration|bench|conformance)(/|$$)')

RESULTS := .cache/results
REPORT := bin/test/testreport -dir $(RESULTS) -allow-skips test/env/allowed-skips.txt
GOLANGCI := bin/tools/golangci-lint
STATICCHECK := bin/tools/staticcheck

##@ Building

.PHONY: build
build: ## Build the executables into bin/
	@mkdir -p bin
	@for command in $(COMMANDS); do CGO_ENABLED=0 $(GO) build $(BUILD_FLAGS) -o bin/ $$command; done
	@echo "built $(notdir $(COMMANDS)) in bin/"

.PHONY: build-race
build-race: ## Build them with the race detector into bin/race/ (needs a C compiler)
	@mkdir -p bin/race
	@CGO_ENABLED=1 $(GO) build -race -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o bin/race/ $(COMMANDS)

.PHONY: build-all
build-all: ## Build for amd64 and arm64 into bin/linux-ARCH/
	@for arch in amd64 arm64; do \
		mkdir -p bin/linux-$$arch; \
		for command in $(COMMANDS); do \
			CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build $(BUILD_FLAGS) -o bin/linux-$$arch/ $$command; \
		done; \
	done

.PHONY: generate
generate: ## Generate rpc/internal/wire from the schema
	rpc/generate.sh

.PHONY: install
install: build ## Install into $(DESTDIR)$(PREFIX)
	install -D -m 755 bin/conmonrs $(DESTDIR)$(BINDIR)/conmonrs
	@for name in conmonrs-helper conmonrs-pause; do \
		[ ! -e bin/$$name ] || install -D -m 755 -v bin/$$name $(DESTDIR)$(LIBEXECDIR)/conmonrs/$$name; \
	done

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin .cache

##@ Trying it

.PHONY: demo
demo: ## Show a pod's life on this machine (root; installs an OCI runtime and busybox if missing)
	@test/env/setup demo
	@$(MAKE) build
	@test/demo/demo

.PHONY: bench
bench: ## Measure memory, log throughput and latency beside what is installed (root)
	@test/env/setup bench
	@$(MAKE) build test-tools
	@CONMONRS_BINARY=$(CURDIR)/bin/conmonrs CONMONRS_TEST_TOOLS=$(CURDIR)/bin/test $(GO) run ./test/bench $(BENCH_ARGS)

##@ Testing

.PHONY: test
test: ## Everything that must pass: lint, generated code, unit, integration, compat (root)
	@test/env/setup test lint
	@$(MAKE) bin/test/testreport
	@test/env/run-steps test lint generate-check unit integration integration-vm compat

.PHONY: test-long
test-long: export CONMONRS_TEST_SCALE = 100
test-long: ## The same with a hundred times the load where it counts (hours)
	@$(MAKE) test

.PHONY: unit
unit: bin/test/testreport ## Unit tests of all packages, with the race detector
	@CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 10m -json -run '$(RUN)' -skip '^TestVM' $(UNIT_PACKAGES) | $(REPORT) -name unit

.PHONY: integration
integration: test-tools ## The monitor with real runtimes, here and under systemd in namespaces (root)
	@$(MAKE) build build-race
	@test/env/run-integration

.PHONY: integration-vm
integration-vm: test-tools ## Tests that need a machine of their own, in a virtual one (root)
	@$(MAKE) build
	@test/env/run-integration vm

.PHONY: compat
compat: bin/test/testreport ## The published client library against our monitor (root)
	@$(MAKE) build
	@cd test/compat && CONMONRS_BINARY=$(CURDIR)/bin/conmonrs CONMONRS_TEST_TOOLS=$(CURDIR)/bin/test \
		CONMONRS_RUNTIMES=$${RUNTIME_PATH:-$$($(CURDIR)/test/env/run-integration runtimes)} \
		$(GO) test -count=1 -timeout 15m -json -run '$(RUN)' ./... | (cd $(CURDIR) && $(REPORT) -name compat)

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZTIME
	@test/env/run-fuzz $(FUZZTIME)

.PHONY: test-tools
test-tools: bin/test/testreport # Programs and test binaries that run inside containers and environments
	@mkdir -p bin/test
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o bin/test/ $(TEST_COMMANDS)
	@[ ! -d test/integration ] || { \
		CGO_ENABLED=0 $(GO) test -c -buildvcs=false -o bin/test/integration.test ./test/integration; \
		CGO_ENABLED=1 $(GO) test -race -c -buildvcs=false -o bin/test/integration-race.test ./test/integration; }
	@for package in journald systemdunit cmd/conmonrs/internal/helper; do \
		CGO_ENABLED=0 $(GO) test -c -buildvcs=false -o bin/test/$${package##*/}.test ./$$package; done
	@cd test/compat && CGO_ENABLED=0 $(GO) test -c -buildvcs=false -o $(CURDIR)/bin/test/compat.test .

.PHONY: bin/test/testreport
bin/test/testreport:
	@CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./test/cmd/testreport

##@ Checking

.PHONY: lint
lint: lint-format lint-shell $(GOLANGCI) ## gofmt, shellcheck, golangci-lint (vet and staticcheck are in it)
	@GOLANGCI_LINT_CACHE=$(CURDIR)/.cache/golangci-lint $(GOLANGCI) run --allow-parallel-runners ./...

.PHONY: lint-fast
lint-fast: lint-format $(STATICCHECK) ## gofmt, vet, staticcheck
	@$(GO) vet ./...
	@$(STATICCHECK) ./...

.PHONY: lint-format
lint-format:
	@files=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	[ -z "$$files" ] || { echo "not formatted (gofmt -w): $$files"; exit 1; }

.PHONY: lint-shell
lint-shell:
	@test/env/setup lint
	@shellcheck $$(git grep -lI --untracked --exclude-standard -E '^#!/bin/(ba)?sh|^# shellcheck shell=' -- . ':!*.go' ':!*.md' ':!Makefile')

.PHONY: generate-check
generate-check: ## Fail if the generated code is not what the schema gives
	@before=$$(mktemp -d); trap 'rm -rf "$$before"' EXIT; \
	cp -r rpc/internal/wire/. "$$before"; \
	rpc/generate.sh; \
	if ! diff -ru "$$before" rpc/internal/wire | head -n 40; then \
		cp -r "$$before/." rpc/internal/wire; \
		echo "rpc/internal/wire is not what rpc/generate.sh makes of the schema: run make generate and commit"; exit 1; \
	fi

bin/tools/golangci-lint: TOOL := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
bin/tools/staticcheck: TOOL := honnef.co/go/tools/cmd/staticcheck
bin/tools/%: test/tools/go.mod test/tools/go.sum
	@echo "building $* (a minute, once)"
	@mkdir -p bin/tools
	@cd test/tools && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $(CURDIR)/$@ $(TOOL) 2> >(grep -v '^go: downloading' >&2)

##@ Help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { sub(/:.*/, "", $$1); printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
