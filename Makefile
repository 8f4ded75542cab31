# Targets of understudy; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run build pgo library demo-p4ce demo-swordbox demo-onepipe install deb test-deb image test-image check-deploy test etcd lint fresh e2e soak mutants bench report check-report instructions fuzz doctor clean

CARGO ?= cargo
# Build directory of cargo
BUILT := $(or $(CARGO_TARGET_DIR),target)
PROGRAM := $(BUILT)/release/understudy
NEXTEST := $(shell $(CARGO) nextest --version 2>/dev/null)
# ETCD=1: `make lint` and `make test` include the controller's store in etcd (feature etcd), in one build with all others
FEATURES := $(if $(ETCD),--features understudy/etcd)
# Tool of `make pgo`, if it is there
PGO = $(shell scripts/pgo.sh --tool 2>/dev/null)
AS_ROOT = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

help: ## print this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

run: build ## install missing packages, build, and play captured RoCEv2 traffic through DPDK
	$(PROGRAM) run

demo-p4ce: build ## run consensus with and without the P4CE switch, and measure pauses when a process is killed; a minute (QUICK=1: half)
	@scripts/deps.sh demo
	scripts/demo-p4ce.py --understudy $(PROGRAM) $(if $(QUICK),--quick)

demo-swordbox: build ## compare contended locks with and without Swordbox (simulated); half a minute (QUICK=1: a few seconds)
	$(PROGRAM) demo swordbox $(if $(QUICK),--quick)

demo-onepipe: build ## run both services of 1Pipe on the paper's testbed while hosts, links, a switch and the controller fail (simulated); a few seconds
	$(PROGRAM) demo onepipe $(if $(QUICK),--quick)

build: ## build the program (target/release/understudy)
	@scripts/deps.sh build
	$(CARGO) build --release --locked --bin understudy

pgo: ## build the program with profile-guided optimisation, from benchmarks that it runs, and print its path; 15 minutes
	@scripts/deps.sh build
	@scripts/deps.sh bench pgo
	CARGO='$(CARGO)' scripts/pgo.sh $(BUILT)

library: build ## build the 1Pipe library for C as well, and list the licences of what is linked
	$(CARGO) build --release --locked --package onepipe-c
	scripts/notices.py > $(BUILT)/release/THIRD-PARTY

# `sudo make install` installs what `make library` has built before: root may have no cargo.
install: $(if $(SUDO_USER),,library) ## install the program, its manual pages and completions, the 1Pipe library for C, the service and examples (PREFIX=/usr/local, DESTDIR=)
	PREFIX='$(or $(PREFIX),/usr/local)' DESTDIR='$(DESTDIR)' packaging/install.sh $(BUILT)

deb: library ## build Debian packages (target/deb): understudy, libonepipe0, libonepipe-dev, and symbols for debuggers; as `make pgo` builds the program, where llvm-profdata is (PGO=: as `make build` does)
	@scripts/deps.sh deb $(if $(PGO),bench)
	$(if $(PGO),program=$$(CARGO='$(CARGO)' scripts/pgo.sh $(BUILT)) || echo 'warning: no profile-guided optimisation' >&2; )packaging/deb.sh $(BUILT) $${program:-}

test-deb: deb ## install, start, upgrade and purge the packages in a new Debian that systemd-nspawn boots, and inject faults (root); three minutes
	@scripts/deps.sh test-deb
	$(AS_ROOT) tests/packages/run.sh $(BUILT)/deb

image: deb ## build a container image of the packages in a minimal Debian (target/image), for podman, docker and containerd
	@scripts/deps.sh image
	packaging/image.sh $(BUILT)

test-image: image ## run the image with podman, with the least privileges that each port needs (root); 15 seconds
	@scripts/deps.sh test-image
	$(AS_ROOT) tests/packages/image.sh $(BUILT)/image/understudy-*.tar

check-deploy: build ## check the files in deploy/: manifests against the schemas of Kubernetes, configurations, units
	@scripts/deps.sh check-deploy
	scripts/check_deploy.sh $(BUILT)

test: ## run every test that needs no privileges (with cargo-nextest if it is installed; ETCD=1: also with servers of etcd)
	@scripts/deps.sh build test $(if $(ETCD),etcd)
ifdef NEXTEST
	$(CARGO) nextest run --locked --workspace $(FEATURES)
	$(CARGO) test --locked --workspace $(FEATURES) --doc
else
	$(CARGO) test --locked --workspace $(FEATURES) --no-fail-fast -- --quiet --skip servers_agree_and_the_switch_saves_packets
	$(CARGO) test --locked --workspace $(FEATURES) --test it -- --quiet servers_agree_and_the_switch_saves_packets
endif

etcd: ## lint and test the controller's store in etcd (feature etcd), with servers that are killed and paused; two minutes (SEEDS=20: more drawn faults)
	@scripts/deps.sh build etcd
	$(CARGO) clippy --locked -p controller -p understudy --features etcd --all-targets -- -D warnings
	$(if $(SEEDS),SEEDS=$(SEEDS)) $(CARGO) test --locked -p controller --features etcd --lib store::
	$(CARGO) test --locked -p understudy --features etcd --test it controller::

lint: ## check formatting, clippy, rustdoc and links of the docs, with warnings denied; licences and sources of dependencies (deny.toml)
	@scripts/deps.sh build lint $(if $(ETCD),etcd)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace $(FEATURES) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	scripts/check_links.py
	scripts/notices.py > /dev/null
	$(CARGO) deny --locked check licenses bans sources
	$(CARGO) deny --locked --manifest-path fuzz/libfuzzer/Cargo.toml --config $(CURDIR)/deny.toml check -A unused-wrapper licenses bans sources

fresh: ## run `make run` and `make test` in a new minimal Debian 12 (root); 25 minutes (COMMANDS="'make run'": other commands)
	$(AS_ROOT) scripts/fresh.sh $(COMMANDS)

e2e: library ## run real RDMA programs in virtual machines, through understudy on network cards, interfaces and shared memory, and against `understudy host`; 1Pipe's hosts and detours at Linux routers; wires between namespaces; counters and links of overloaded ports (root); 13 minutes on two CPUs (JOBS=1: one program at a time)
	@scripts/deps.sh e2e
	$(AS_ROOT) tests/e2e/all.py --understudy $(PROGRAM) $(if $(JOBS),--jobs $(JOBS))

soak: build ## run new seeds of every simulator suite, scenario and fuzz target, for SECONDS=60 each or SEEDS=100000 FROM=1; seeds that fail become tests. Before that, exhaustive tests: consensus interrupted after every packet of three leader changes, a controller after every fourth step of a decision, every order of deliveries through Swordbox around a restart, and 1Pipe's smallest worlds with a failure (some minutes each)
	DEPTH=3 $(CARGO) test --release --locked -p workloads --test it consensus::exhaustive::
	DEPTH=8 $(CARGO) test --release --locked -p workloads --test it swordbox::exhaustive::
	DEPTH=2 $(CARGO) test --release --locked -p controller --lib -- members::search:: a_leader_that_dies
	scripts/soak.py $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FROM),--from $(FROM))

bench: build ## compare forwarding and replication with dpdk-testpmd; measure parsing, the ICRC, the NIC and the simulator
	@scripts/deps.sh bench
	$(PROGRAM) bench peers
	$(PROGRAM) bench pktgen
	$(PROGRAM) bench observe
	$(PROGRAM) bench health
	$(PROGRAM) bench workers
	$(PROGRAM) bench p4ce
	$(PROGRAM) bench consensus
	$(PROGRAM) bench swordbox
	$(CARGO) bench --locked -p bench

report: build ## repeat the four papers' figures and tables (simulated) and write a page about them, results/report.html; some minutes (QUICK=1: half of that)
	$(PROGRAM) bench paper $(if $(QUICK),--quick)

check-report: build ## run the quick report, and compare its failed checks with tests/report.txt; RENEW=1 writes that file
	$(PROGRAM) bench paper --quick --fresh --results $(BUILT)/report
	scripts/check_report.py $(BUILT)/report/report.json $(if $(RENEW),--renew)

mutants: ## make changes to the code that tests have to detect (tests/mutants.toml), one at a time; half an hour (ONLY=rnic: those with this word; FILE=p4ce/src/gather.rs: every change of a file)
	@scripts/deps.sh build test mutants $(if $(FILE),mutants-of-a-file)
	scripts/mutants.py $(if $(FILE),--file '$(FILE)',$(ONLY))

instructions: ## count the instructions of the hot paths and compare them with the baseline; RENEW=1 writes the baseline
	@scripts/deps.sh build instructions
	$(CARGO) bench --locked -p bench --bench instructions -- $(if $(RENEW),--renew)

fuzz: ## fuzz with libFuzzer: make fuzz TARGET=classify SECONDS=600 (default: all targets, 60 s each)
	@scripts/deps.sh build
	fuzz/run.sh $(or $(TARGET),all) -max_total_time=$(or $(SECONDS),60)

doctor: build ## print what this machine lacks for hardware ports
	$(PROGRAM) doctor

clean: ## remove all build results
	$(CARGO) clean
	rm -rf fuzz/libfuzzer/target
