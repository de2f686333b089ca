# fencegate's everyday commands. `make run` and `make test` work on a fresh Debian machine that has
# only rustup's cargo and make: each first runs scripts/setup, which installs what is missing.
# `make` alone lists the targets.

# Each checkout builds into its own target/: two that share one can run each other's binaries.
override export CARGO_TARGET_DIR := $(CURDIR)/target

# RocksDB is compiled by a build script, through ccache: once per machine, not once per checkout.
# Another compiler or other RUSTFLAGS in one target would build it all anew, so no target sets any.
override export CC := ccache gcc
override export CXX := ccache g++

# A shell that was open before rustup was installed does not have cargo in its PATH yet.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# scripts/setup has fetched every crate, so nothing after it needs the network.
LOCKED := --locked --offline

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-test build run reference test test-chart test-schema test-image test-kubernetes image test-fresh failpoints simulate chaos soak soak-controls fuzz check instructions bench barrier flame clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

setup: ## install what building needs, and fetch the crates
	@scripts/setup build

setup-test: ## the same, and what the tests need
	@scripts/setup build test chart schema

build: setup ## build target/debug/fencegate
	cargo build $(LOCKED)

run: build ## try it: a gate before a store in memory, with lines to copy
	exec target/debug/fencegate demo

reference: build ## write docs/reference/ anew, from the code
	@for page in codes api metrics settings command-line; do \
		target/debug/fencegate reference $$page > target/$$page.md && mv target/$$page.md docs/reference/$$page.md || exit 1; \
	done

# The gate and the simulation with failpoints are copied aside; `cargo test` puts the default ones back into place. So
# whatever is built with other features comes before it. One command builds both, so the crate is compiled once.
define build_failpoints
cargo build $(LOCKED) --features failpoints --bin fencegate --example simulate
mkdir -p target/failpoints
cp --remove-destination target/debug/fencegate target/debug/examples/simulate target/failpoints/
endef

failpoints: setup ## build target/failpoints/: the gate that tests make fail, and the simulation
	$(build_failpoints)

SEEDS ?= 20000

simulate: failpoints ## play the gate against an adversary, by seed (SEEDS=20000)
	target/failpoints/simulate --seeds $(SEEDS)
	target/failpoints/simulate --seeds $(SEEDS) --led

test: setup-test ## run every test
	$(build_failpoints)
	cargo test $(LOCKED) --features failpoints,shuttle --test shuttle
	cargo test $(LOCKED)
	@cat target/artifacts/adversarial.txt
	python3 -B bench/test_ratios.py
	python3 -B bench/test_results.py
	python3 -B bench/test_pace.py
	python3 -B chaos/test_linear.py
	python3 -B chaos/test_oracle.py
	python3 -B chaos/test_keyed.py
	python3 -B chaos/test_agents.py
	python3 -B soak/test_soak.py
	charts/test/run
	tests/schema/run
	tests/schema/run --controls
	chaos/run --controls
	chaos/run --short --seed 1
	soak/run --controls
	soak/run --short

test-chart: build ## render the Helm chart with helm 3 and 4, and validate what comes of it (part of test)
	@scripts/setup chart
	charts/test/run

test-schema: build ## schemathesis on the api's own description, with more examples than in test
	@scripts/setup schema
	tests/schema/run --long
	tests/schema/run --controls

image: ## an OCI image around a release build, by buildah: target/image/
	@scripts/setup build image
	cargo build $(LOCKED) --release --bin fencegate
	scripts/image build target/release/fencegate

test-image: build ## make an image of the debug build, and run it from its root (needs root)
	@scripts/setup image chart
	scripts/image build target/debug/fencegate
	IMAGE_ARCHIVE=target/image/fencegate.tar charts/test/run Image FromItsRoot

# What `make test` runs on a fake API server. Real ones are heavy, so two at a time.
test-kubernetes: build ## run the tests about Leases, and install the chart, on a real kube-apiserver, which it builds once (minutes)
	@scripts/setup build test kubernetes
	@scripts/kube-apiserver
	FENCEGATE_TEST_KUBE_APISERVER=$(CURDIR)/target/kubernetes \
		cargo test $(LOCKED) --test it kubernetes -- --test-threads 2
	@scripts/setup chart
	charts/test/run Install

DURATION ?= 600

chaos: failpoints ## faults of all kinds on a real gate under load, judged by an oracle (DURATION=600)
	@scripts/setup test
	chaos/run --duration $(DURATION)

soak: setup ## crowds, overload, slow connections, a flapping store, a stalling disk, on a release build (DURATION=600)
	@scripts/setup test
	cargo build $(LOCKED) --release --bin fencegate
	soak/run --duration $(DURATION)

soak-controls: failpoints ## gates with one fault each, in the phase of the soak that must catch it
	@scripts/setup test
	soak/run --controls

FUZZ_SECONDS ?= 60

fuzz: setup ## fuzz every decoder for a while (FUZZ_SECONDS=60 each)
	@scripts/fuzz $(FUZZ_SECONDS)

test-fresh: ## run `make test` in a new Debian system, then again without network (needs root)
	@scripts/setup fresh
	@scripts/test-fresh

# Of cargo deny: 0 leaves it out.
export DENY ?= 1

check: ## check format, lints, documentation, crates (DENY=0: not those), and what a write costs in instructions
	@scripts/setup build check
	@for part in fmt:rustfmt clippy:clippy; do \
		cargo "$${part%:*}" --version >/dev/null 2>&1 || { \
			echo "check: this toolchain has no $${part#*:}; run: rustup component add $${part#*:}" >&2; \
			exit 1; \
		}; \
	done
	cargo fmt --check
	cargo clippy $(LOCKED) --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc $(LOCKED) --no-deps
	$(if $(filter 0,$(DENY)),@echo "check: cargo deny is left out",scripts/deny)
	$(count_instructions)

define count_instructions
cargo build $(LOCKED) --release --example counted
bench/instructions
endef

instructions: ## count instructions anew, and take the counts for the baseline of `make check`
	@scripts/setup build check
	$(count_instructions) --write

# What the others leave in bench/out/ goes into bench/RESULTS.md, so `bench/run` comes last. QUICK=1 is for a look
# at the side-by-side figures, in under three minutes.
bench: ## the gate beside nginx, HAProxy, Envoy and more; writes bench/RESULTS.md (QUICK=1: shorter, to bench/out/)
	@scripts/setup build bench
ifneq ($(filter-out 0,$(QUICK)),)
	cargo build $(LOCKED) --release --bin fencegate --example bare --example counted --example fill
	QUICK=1 bench/run
else
	$(count_barrier)
	cargo build $(LOCKED) --release --bin fencegate --example bare --example counted --example fill
	bench/instructions
	cargo bench $(LOCKED)
	taskset -c 0 cargo bench $(LOCKED) --bench bls
	bench/gated
	bench/authority
	bench/failover
	bench/keyed
	bench/access
	QUICK= bench/run
endif

# A program of its own, since what `make bench` measures has no faults to ask for; so whatever is measured is built
# behind it.
define count_barrier
cargo build $(LOCKED) --release --features failpoints --bin fencegate
mkdir -p target/barrier
cp --remove-destination target/release/fencegate target/barrier/fencegate
bench/barrier
endef

barrier: ## count what the in-flight barrier costs per write, in instructions (part of bench)
	@scripts/setup build bench
	$(count_barrier)

flame: ## where a write's CPU goes: docs/flame.svg (perf)
	@scripts/setup build bench flame
	cargo build $(LOCKED) --release --bin fencegate
	bench/flame

clean: ## remove target/ (ccache keeps RocksDB)
	rm -rf target
