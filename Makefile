# Targets for developers. As root, each target installs the packages that it needs; otherwise it prints the
# command that does.

CARGO ?= cargo

# Where rustup may not install the compiler of rust-toolchain.toml, the default one is used.
ifneq ($(shell $(CARGO) --version > /dev/null 2>&1 && echo installed),installed)
export RUSTUP_TOOLCHAIN := $(shell rustup default 2> /dev/null | cut -d ' ' -f 1)
endif

# Seconds of fuzzing per target. One target runs on each core.
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?= aead parse rewrite translate segment overlay coalesce message table session uapi handover
.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Two clusters with the same pod CIDR talk through two gateways
	@.ci/setup demo
	$(CARGO) build --profile demo --bin strait
	target/demo/strait demo

# Checks the interleavings of the work ring by loom. Its own target folder keeps other builds valid.
MODEL = CARGO_TARGET_DIR=target/loom CARGO_PROFILE_RELEASE_LTO=off RUSTFLAGS="--cfg loom" $(CARGO)

.PHONY: test
test: test-workspace test-models ## Every test that CI runs; the long ones are make soak and make fuzz

.PHONY: test-workspace
test-workspace: export PATH := $(PATH):$(CURDIR)/target/tools
test-workspace:
	@.ci/setup test
	.ci/test --workspace

# Builds of their own: with a virtual clock, and with the memory model of loom.
.PHONY: test-models
test-models: export PATH := $(PATH):$(CURDIR)/target/tools
test-models:
	@.ci/setup test
	.ci/test -p strait-engine --features virtual-clock --test pair
	$(MODEL) test -p strait-work-ring --release --test it

.PHONY: soak
soak: export PATH := $(PATH):$(CURDIR)/target/tools
soak: ## Floods, rekeys, many peers, recovery, replicas and figures with every case, one test at a time
	@.ci/setup test
	STRAIT_SLOW=1 .ci/test --profile soak --workspace

.PHONY: e2e
e2e: ## Two clusters of real Kubernetes programs install, join, fail and recover, fifteen minutes
	@.ci/setup e2e
	$(MAKE) --no-print-directory static
	deploy/e2e/run --binary "$$($(MAKE) --silent --no-print-directory static-path)"

.PHONY: e2e-liqo
e2e-liqo: ## The same clusters with genuine Liqo, whose gateways run Strait, fifteen minutes
	@.ci/setup e2e
	$(MAKE) --no-print-directory static
	deploy/e2e/run --liqo --binary "$$($(MAKE) --silent --no-print-directory static-path)"

.PHONY: e2e-outages
e2e-outages: ## How long pods do not reach each other when something dies, ten times each
	@.ci/setup e2e
	$(MAKE) --no-print-directory static
	deploy/e2e/run --outages 10 --binary "$$($(MAKE) --silent --no-print-directory static-path)"

.PHONY: e2e-results
e2e-results: ## Keep the tables of the last make e2e, e2e-liqo and e2e-outages in deploy/e2e
	@test -f target/e2e/results.md || test -f target/e2e-liqo/results.md || test -f target/e2e/outages.md || \
	    { echo "there is no table: run make e2e, e2e-liqo or e2e-outages" >&2; exit 1; }
	@! test -f target/e2e/outages.md || { cp -v target/e2e/outages.md deploy/e2e/OUTAGES.md; cp -v target/e2e/outages.json deploy/e2e/; }
	@! test -f target/e2e/results.md || cp -v target/e2e/results.md deploy/e2e/RESULTS.md
	@! test -f target/e2e-liqo/results.md || cp -v target/e2e-liqo/results.md deploy/e2e/RESULTS-liqo.md

.PHONY: bench-quick
bench-quick: ## A part of the comparison with other implementations, three minutes
	@.ci/setup bench
	$(CARGO) build --release --bin strait
	$(CARGO) run --release -p strait-benches --bin throughput -- --quick

.PHONY: bench
bench: ## The full comparison with other implementations, twenty minutes
	@.ci/setup bench
	$(CARGO) build --release --bin strait
	$(CARGO) run --release -p strait-benches --bin throughput

.PHONY: bench-results
bench-results: ## Keep the last full comparison in benches/RESULTS.md
	@grep -q 'short connections' target/bench/throughput.md || { echo "the last comparison was none, or a quick one: run make bench" >&2; exit 1; }
	mkdir -p benches/results
	cp $(foreach name,cost latency scaling tcp udp,target/bench/$(name).svg) benches/results/
	sed 's#](\([a-z]*\.svg\))#](results/\1)#' target/bench/throughput.md > benches/RESULTS.md

.PHONY: bench-peers
bench-peers: ## Throughput with 1,000 configured peers compared with one, five minutes
	@.ci/setup bench
	$(CARGO) build --release --bin strait
	$(CARGO) run --release -p strait-benches --bin throughput -- --pairs 120

.PHONY: bench-cluster
bench-cluster: ## Delay and cost of changes of objects, and cost of the operator, fifteen minutes
	@.ci/setup test
	STRAIT_FIGURES=1 $(CARGO) test --release -p strait-daemon --test it -- --nocapture many_peers
	STRAIT_FIGURES=1 $(CARGO) test --release -p strait-gateway --test it -- --nocapture --test-threads=1 kube::figures kube::replicas kube::standalone
	STRAIT_FIGURES=1 $(CARGO) test --release -p strait-gateway --test it -- --nocapture two_hundred

.PHONY: bench-micro
bench-micro: ## Cost of each stage of the packet path
	$(CARGO) bench --workspace

.PHONY: profile
profile: export PATH := $(PATH):$(CURDIR)/target/tools
profile: ## A flame graph of each gateway under load, and its busiest functions
	@.ci/setup profile
	$(CARGO) build --profile profiling --bin strait
	$(CARGO) run --release -p strait-benches --bin throughput -- --profile --binary target/profiling/strait

.PHONY: crds
crds: ## Write the definitions of the API to deploy/crds
	$(CARGO) run --bin strait -- crds --output deploy/crds
	@$(MAKE) --no-print-directory chart

CHART = deploy/helm/strait

.PHONY: chart
chart: ## Copy the shared files of deploy into the Helm chart
	rm -rf $(CHART)/crds $(CHART)/files
	mkdir -p $(CHART)/crds $(CHART)/files/rbac
	cp deploy/crds/*.liqo.io_*.yaml $(CHART)/crds
	cp deploy/rbac/*role.yaml $(CHART)/files/rbac
	cp $(addprefix deploy/standalone/,client.yaml node.yaml server.yaml) $(CHART)/files
	cp deploy/alerts/strait.yaml $(CHART)/files/alerts.yaml
	cp deploy/grafana/strait.json $(CHART)/files/dashboard.json

.PHONY: fuzz
fuzz: ## Coverage-guided fuzzing, ten minutes a target; FUZZ_SECONDS and FUZZ_TARGETS change that
	@.ci/setup fuzz
	fuzz/run $(FUZZ_SECONDS) $(FUZZ_TARGETS)

.PHONY: fuzz-quick
fuzz-quick: ## For a change of a target: a minute of parse, rewrite, translate, session and uapi, a quarter of that for the other targets
	@.ci/setup fuzz
	fuzz/run 60 parse rewrite translate session uapi
	fuzz/run 15 aead segment overlay coalesce message table

.PHONY: lint
lint: export PATH := $(PATH):$(CURDIR)/target/tools
lint: ## Formatting, clippy, documentation, its links and words, purity of the engine, shell scripts, licences and use of dependencies
	@.ci/setup lint
	.ci/deny
	@if command -v cargo-shear > /dev/null; then $(CARGO) shear; else echo "SKIPPED: unused dependencies are not looked for: cargo install --locked cargo-shear" >&2; test "$$CI" != true; fi
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p strait-engine --features virtual-clock --test pair -- -D warnings
	$(CARGO) clippy -p strait-fuzz --features engine --bins -- -D warnings
	$(MODEL) clippy -p strait-work-ring --release --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items
	@if command -v python3 > /dev/null; then .ci/links && .ci/words; else echo "SKIPPED: links of the documents and words are not checked: python3 is missing" >&2; test "$$CI" != true; fi
	shellcheck .ci/arm64 .ci/deny .ci/image .ci/run .ci/setup .ci/test deploy/e2e/lab/node-init deploy/kind/run fuzz/run

.PHONY: arm64
arm64: ## Clippy for arm64, and unit tests of the packet path under qemu
	@.ci/setup arm64
	CARGO="$(CARGO)" .ci/arm64

.PHONY: book
book: ## Build the manual to target/book
	@.ci/setup book
	target/tools/mdbook build gateway/manual

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

# The target of the image's binary: musl if Rust has it, otherwise the C library of this machine.
STATIC_TARGET ?= $(shell arch=$$(uname -m); \
	test -d "$$(rustc --print sysroot)/lib/rustlib/$$arch-unknown-linux-musl" && echo $$arch-unknown-linux-musl || echo $$arch-unknown-linux-gnu)
STATIC_RUSTFLAGS ?=
# Static, and without paths of this machine.
IMAGE_RUSTFLAGS = -C target-feature=+crt-static --remap-path-prefix=$(CURDIR)=/src --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=/cargo $(STATIC_RUSTFLAGS)

.PHONY: static
static: ## Build the binary of the image: static, without paths of this machine
	CARGO_PROFILE_RELEASE_STRIP=symbols RUSTFLAGS="$(IMAGE_RUSTFLAGS)" $(CARGO) build --release --locked --bin strait --target $(STATIC_TARGET)

.PHONY: static-path
static-path:
	@echo target/$(STATIC_TARGET)/release/strait

.PHONY: image-rustflags
image-rustflags:
	@echo "$(IMAGE_RUSTFLAGS)"

.PHONY: image
image: ## Build the container image strait:dev
	docker build --tag strait:dev --build-arg REVISION=$$(git rev-parse HEAD) .

.PHONY: image-check
image-check: ## Build and check the image, or only its binary without a container engine
	@.ci/setup image
	binary=$${STRAIT_IMAGE_BINARY:-$$(.ci/image)} && STRAIT_IMAGE_BINARY=$$binary $(CARGO) test --workspace --test it -- --ignored deploy::

.PHONY: clean
clean: ## Remove everything that was built
	$(CARGO) clean
