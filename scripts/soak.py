#!/usr/bin/env python3
"""Runs every suite of the simulator with new seeds, then every scenario and every fuzz target.

    scripts/soak.py [--seconds N] [--from SEED] [--seeds N] [--only NAME]...

Adds each seed that fails to workloads/tests/seeds.txt, whose seeds `make test` runs. Exits with 0 if nothing failed, with 1
otherwise.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
SEEDS = ROOT / "workloads/tests/seeds.txt"
WORKLOADS = ["-p", "workloads", "--test", "it"]
CONTROLLER = ["-p", "controller", "--lib"]
ONEPIPE = ["-p", "onepipe", "--lib"]
KV = ["-p", "kv", "--bin", "kv"]
# By suite: the test program, the module of its tests, filters of those that take seeds, and the number of seeds of a step,
# at least as many as `make test` ran before it had a limit of time. A step of most suites takes about ten seconds on two CPUs.
SUITES = {
    "verbs": (WORKLOADS, "verbs", ["verbs_", "memory_is_not", "connections_fail"], 200),
    "words": (WORKLOADS, "words", ["lossy_links", "crashes"], 500),
    "swordbox": (WORKLOADS, "swordbox", ["lossy_links_leave", "crashes_leave", "every_verb_completes"], 600),
    "swordbox_workers": (WORKLOADS, "swordbox::workers", ["several_workers"], 200),
    "steering": (WORKLOADS, "steering", ["lossy_links", "crashes"], 200),
    "steering_workers": (WORKLOADS, "steering", ["several_workers"], 200),
    "groups": (WORKLOADS, "groups", ["lossy_links", "crashes_and", "replicas_far"], 3000),
    "groups_workers": (WORKLOADS, "groups", ["several_workers_stop", "several_workers_lose"], 300),
    "consensus": (WORKLOADS, "consensus", ["seeds::logs"], 80),
    "consensus_workers": (WORKLOADS, "consensus", ["seeds::several_workers"], 50),
    "rdmc": (WORKLOADS, "rdmc", ["seeds::", "deliveries::"], 2000),
    "onepipe": (WORKLOADS, "onepipe", ["seeds::"], 5000),
    "onepipe_trials": (WORKLOADS, "onepipe", ["crashes::no_", "restarts::restarted", "clocks::wrong", "beacon_clocks::clocks"], 200),
    "onepipe_workers": (WORKLOADS, "onepipe::workers", ["several_workers", "no_barrier"], 200),
    "onepipe_commit": (WORKLOADS, "onepipe", ["commit::commit_barriers"], 200),
    "onepipe_mixed": (WORKLOADS, "onepipe", ["mixed::incarnations"], 500),
    "onepipe-standby": (WORKLOADS, "onepipe", ["standby::one_of_two"], 200),
    "onepipe_reliable": (WORKLOADS, "onepipe::reliable", ["every_scattering"], 100),
    "onepipe_reliable_clocks": (WORKLOADS, "onepipe::reliable::clocks", ["scatterings_are_atomic"], 50),
    "onepipe_reliable_seats": (WORKLOADS, "onepipe::reliable::seats", ["two_representatives", "no_process_fails"], 50),
    "onepipe_process": (ONEPIPE, "process::reliable::tests::seeds", ["every_scattering"], 500),
    "controller": (CONTROLLER, "machine::tests", ["drawn_", "a_", "no_barrier", "what_a_dead", "one_of_two", "switches_are"], 250),
    "controller_members": (CONTROLLER, "machine::tests::members", ["every_scattering"], 60),
    "controller_decisions": (CONTROLLER, "decide::tests", ["times_are"], 4000),
    "kv": (KV, "replica::tests", ["a_retried_command"], 30),
}
# Names of suites in seeds.txt, where they are others
RECORDED_AS = {"onepipe_trials": "onepipe"}


def run(command, **environment):
    """Runs a command in the repository. Returns its exit code and its output."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


class Soak:
    def __init__(self, options):
        self.options = options
        self.failed = []

    def chunks(self, size):
        """Yields the first seed of each chunk and its size, until the seeds or the time are used up."""
        end = time.monotonic() + self.options.seconds
        first, last = self.options.first, self.options.first + (self.options.seeds or sys.maxsize)
        while first < last and (self.options.seeds or time.monotonic() < end):
            yield first, min(size, last - first)
            first += size

    def record_failure(self, name, seed, output):
        """Adds a failed seed to the file of seeds that `make test` runs, if its tests read that."""
        line = f"{RECORDED_AS.get(name, name)} {seed}\n"
        known = SEEDS.read_text()
        # Tests of other packages than `workloads` do not read this file.
        if line not in known and (name not in SUITES or SUITES[name][0] is WORKLOADS):
            SEEDS.write_text(known + line)
        self.failed.append(f"{name} {seed}")
        found = re.search(rf"^.*seed {seed}.*$", output, re.M)
        print(f"  FAILED: {found.group() if found else output[-2000:]}", flush=True)

    def suite(self, name):
        program, module, filters, size = SUITES[name]
        test = ["cargo", "test", "--quiet", "--release", "--locked", *program]
        filters = [f"{module}::{filter}" for filter in filters]
        code, output = run([*test, "--no-run"])
        if code != 0:
            sys.exit(output)
        start, count = time.monotonic(), 0
        for first, chunk in self.chunks(size):
            end = first + chunk
            # The seeds after a failing one are run, too.
            while first < end:
                code, output = run([*test, "--", *filters], FROM=str(first), SEEDS=str(end - first))
                seeds = sorted({int(seed) for seed in re.findall(r"seed (\d+)", output) if first <= int(seed) < end})
                running = re.search(r"^running (\d+) test", output, re.M)
                if running and int(running.group(1)) < len(filters):
                    sys.exit(f"a filter of {name} matches no test: {', '.join(filters)}")
                if code != 0 and not seeds:
                    self.failed.append(f"{name} from {first}")
                    print(f"  FAILED from {first}:\n{output[-4000:]}", flush=True)
                for seed in seeds:
                    self.record_failure(name, seed, output)
                first = seeds[0] + 1 if seeds else end
            count += chunk
        self.print_row(name, count, start)

    def scenario(self, path):
        name = path.name
        program = [BUILT / "release/understudy", "sim", path, "--from", str(self.options.first)]
        limit = ["--seeds", str(self.options.seeds)] if self.options.seeds else ["--for", str(self.options.seconds)]
        start = time.monotonic()
        code, output = run([*program, *limit])
        found = re.search(r"wrong with seed (\d+)", output)
        if code != 0:
            print(output)
        if found:
            self.record_failure(name, int(found.group(1)), output)
        elif code != 0:
            self.failed.append(name)
        count = re.search(r"^(\d+) seeds", output, re.M)
        self.print_row(name, int(count.group(1)) if count else 0, start)

    def fuzz(self):
        """Fuzzes each target. Keeps corpora in fuzz/corpus, and inputs that crash in fuzz/libfuzzer/target."""
        start = time.monotonic()
        code, output = run(["fuzz/run.sh", "all", f"-max_total_time={self.options.seconds}"])
        print(output if code == 0 else output[-4000:])
        if code != 0:
            self.failed.append("fuzz")
        self.print_row("fuzz", 0, start)

    @staticmethod
    def print_row(name, count, start):
        seeds = f"{count:>9,} seeds" if count else " " * 15
        print(f"{name:<12}{seeds} {time.monotonic() - start:6.0f} s", flush=True)


def main():
    scenarios = {path.name: path for path in sorted((ROOT / "configs/sim").glob("*.toml"))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="time of each suite, scenario and fuzz target (default: 60)")
    first = int(time.time()) * 1_000_000
    parser.add_argument("--from", dest="first", type=int, default=first, help="first seed (default: a new one, by the clock)")
    parser.add_argument("--seeds", type=int, help="number of seeds of each, instead of a time; no fuzzing")
    names = [*SUITES, *scenarios, "fuzz"]
    parser.add_argument("--only", action="append", choices=names, help="run only this suite, scenario or `fuzz`; repeatable")
    soak = Soak(parser.parse_args())
    only = soak.options.only or [*SUITES, *scenarios, *([] if soak.options.seeds else ["fuzz"])]
    print(f"first seed: {soak.options.first}", flush=True)
    for name in only:
        if name in SUITES:
            soak.suite(name)
        elif name in scenarios:
            soak.scenario(scenarios[name])
        else:
            soak.fuzz()
    if soak.failed:
        sys.exit(f"failed: {', '.join(soak.failed)}; seeds that failed are in {SEEDS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
