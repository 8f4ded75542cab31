#!/usr/bin/env python3
"""Runs all programs of this folder, some at the same time, and prints the output of each when it has ended.

    tests/e2e/all.py --understudy target/release/understudy

Each program has namespaces, interfaces, sockets and logs of its own. Exit code 1 if one of them failed. Needs root.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
# Longest first, so that none of them runs alone at the end
PROGRAMS = (
    "nics", "host", "swordbox", "run", "ports", "p4ce", "vhost", "onepipe", "tutorial", "pktgen", "wire", "steer", "detour",
)  # fmt: skip


@dataclass
class Runner:
    """Runs programs, and forwards SIGTERM to them."""

    understudy: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    has_ended: bool = False

    def run(self, program: str) -> tuple[int, float, str]:
        """Runs a program. Returns its exit code, its duration in seconds and what it printed."""
        started = time.monotonic()
        command = [str(HERE / f"{program}.py"), "--understudy", str(self.understudy)]
        with tempfile.TemporaryFile() as output:
            if self.has_ended:
                return 1, 0, "not run\n"
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT) as process:
                self.processes.append(process)
                code = process.wait()
            output.seek(0)
            return code, time.monotonic() - started, output.read().decode(errors="replace")

    def end(self, *_: object) -> None:
        """Starts no more programs, and ends those that run, which clean up."""
        self.has_ended = True
        for process in self.processes:
            if process.poll() is None:
                process.terminate()


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("--understudy", type=Path, default=REPOSITORY / "target/release/understudy", metavar="PATH")
    options.add_argument("--jobs", type=int, default=max(2, os.cpu_count() or 1), metavar="N",
                         help="programs that run at the same time (default: CPUs, at least 2)")  # fmt: skip
    arguments = options.parse_args()
    runner = Runner(arguments.understudy.resolve())
    # After Ctrl-C, the terminal has sent SIGINT to the programs, too.
    signal.signal(signal.SIGINT, runner.end)
    signal.signal(signal.SIGTERM, runner.end)
    started = time.monotonic()
    failed = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = {pool.submit(runner.run, program): program for program in PROGRAMS}
        for future in as_completed(running):
            program, (code, seconds, output) = running[future], future.result()
            if code != 0:
                failed.append(program)
            print(f"=== {program}.py: exit code {code} after {seconds:.0f} s\n{output}", end="", flush=True)
    print(f"{len(PROGRAMS) - len(failed)} of {len(PROGRAMS)} programs passed in {time.monotonic() - started:.0f} s")
    if failed:
        print(f"error: failed: {', '.join(f'tests/e2e/{program}.py' for program in failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
