# Targets of understudy; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run build demo-p4ce demo-swordbox demo-onepipe test lint fresh e2e soak mutants bench report check-report instructions fuzz doctor clean

CARGO ?= cargo
# Where cargo builds
BUILT := $(or $(CARGO_TARGET_DIR),target)
PROGRAM := $(BUILT)/release/understudy
NEXTEST := $(shell $(CARGO) nextest --version 2>/dev/null)
AS_ROOT = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

run: build ## install what is missing, build, and play captured RoCEv2 traffic through DPDK
	$(PROGRAM) run configs/demo.toml

demo-p4ce: build ## consensus with and without the P4CE switch, and what it costs when something is killed; a minute (QUICK=1: half)
	@scripts/deps.sh demo
	scripts/demo-p4ce.py --understudy $(PROGRAM) $(if $(QUICK),--quick)

demo-swordbox: build ## contended locks with Swordbox and without, side by side (simulated); half a minute (QUICK=1: a few seconds)
	$(PROGRAM) demo swordbox $(if $(QUICK),--quick)

demo-onepipe: build ## 1Pipe on the paper's testbed, and what happens when a host, a link and a switch die (simulated); a few seconds
	$(PROGRAM) demo onepipe $(if $(QUICK),--quick)

build: ## build the program (target/release/understudy)
	@scripts/deps.sh build
	$(CARGO) build --release --locked --bin understudy

test: ## run every test that needs no privileges (by cargo-nextest if that is installed)
	@scripts/deps.sh build test
ifdef NEXTEST
	$(CARGO) nextest run --locked --workspace
	$(CARGO) test --locked --workspace --doc
else
	$(CARGO) test --locked --workspace --no-fail-fast -- --quiet --skip servers_agree_and_the_switch_saves_packets
	$(CARGO) test --locked --package understudy --test it -- --quiet servers_agree_and_the_switch_saves_packets
endif

lint: ## formatting, clippy, rustdoc and links of the docs, warnings denied; licences and sources of dependencies (deny.toml)
	@scripts/deps.sh build lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	scripts/check_links.py
	$(CARGO) deny --locked check licenses bans sources
	$(CARGO) deny --locked --manifest-path fuzz/libfuzzer/Cargo.toml --config $(CURDIR)/deny.toml check licenses bans sources

fresh: ## what a new machine sees: `make run` and `make test` in a minimal Debian 12 (root); 25 minutes (COMMANDS="'make run'": others)
	$(AS_ROOT) scripts/fresh.sh $(COMMANDS)

e2e: build ## real RDMA programs in virtual machines, joined by understudy, and against `understudy host`; 1Pipe's hosts at routers of Linux, and its detours through them (root)
	@scripts/deps.sh e2e
	$(AS_ROOT) tests/e2e/run.py --understudy $(PROGRAM)
	$(AS_ROOT) tests/e2e/host.py --understudy $(PROGRAM)
	$(AS_ROOT) tests/e2e/pktgen.py --understudy $(PROGRAM)
	$(AS_ROOT) tests/e2e/p4ce.py --understudy $(PROGRAM)
	$(AS_ROOT) tests/e2e/swordbox.py --understudy $(PROGRAM)
	$(AS_ROOT) tests/e2e/detour.py --understudy $(PROGRAM)
	$(AS_ROOT) tests/e2e/onepipe.py --understudy $(PROGRAM)

soak: build ## new seeds for every suite of the simulator, every scenario and fuzz target, for SECONDS=60 each or SEEDS=100000 FROM=1; what fails becomes a test. First consensus after every packet of three changes of leader, and every order of deliveries through Swordbox around a restart (some minutes each)
	DEPTH=3 $(CARGO) test --release --locked -p workloads --test it consensus::exhaustive::
	DEPTH=8 $(CARGO) test --release --locked -p workloads --test it swordbox::exhaustive::
	scripts/soak.py $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FROM),--from $(FROM))

bench: build ## forwarding and replicating against dpdk-testpmd; the costs of parsing, the ICRC, the NIC, the simulator
	@scripts/deps.sh bench
	$(PROGRAM) bench peers
	$(PROGRAM) bench pktgen
	$(PROGRAM) bench observe
	$(PROGRAM) bench p4ce
	$(PROGRAM) bench consensus
	$(PROGRAM) bench swordbox
	$(CARGO) bench --locked -p bench

report: build ## the four papers' figures and tables (simulated) and one page about them, results/report.html; some minutes (QUICK=1: half of that)
	$(PROGRAM) bench paper $(if $(QUICK),--quick)

check-report: build ## run the quick report, and compare the checks that do not hold with tests/report.txt; RENEW=1 writes that
	$(PROGRAM) bench paper --quick --fresh --results $(BUILT)/report
	scripts/check_report.py $(BUILT)/report/report.json $(if $(RENEW),--renew)

mutants: ## change the code in ways that tests have to notice (tests/mutants.toml), one at a time; half an hour (ONLY=rnic: some; FILE=p4ce/src/gather.rs: every change of a file)
	@scripts/deps.sh build test mutants $(if $(FILE),mutants-of-a-file)
	scripts/mutants.py $(if $(FILE),--file '$(FILE)',$(ONLY))

instructions: ## count the instructions of the hot paths and compare them with the baseline; RENEW=1 writes it
	@scripts/deps.sh build instructions
	$(CARGO) bench --locked -p bench --bench instructions -- $(if $(RENEW),--renew)

fuzz: ## fuzz with libFuzzer: make fuzz TARGET=classify SECONDS=600
	@scripts/deps.sh build
	fuzz/run.sh $(or $(TARGET),all) -max_total_time=$(or $(SECONDS),60)

doctor: build ## what this machine lacks for hardware ports
	$(PROGRAM) doctor

clean: ## remove everything that was built
	$(CARGO) clean
	rm -rf fuzz/libfuzzer/target
