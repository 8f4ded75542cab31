#!/usr/bin/env python3
"""Runs unmodified RDMA programs between two virtual machines, through understudy.

    tests/e2e/run.py --understudy target/release/understudy

Boots two guests with Linux soft-RoCE, connects them by understudy on DPDK's af_packet
ports, and runs the programs of programs.py. Each has to succeed on both sides, and the
counters in understudy's final report have to agree with the guests' counters and with the
packets that the program had to send. Needs root, for a network namespace of its own.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from check import Counters, Outcome, read_counters, settled_counters, verdict
from guest import CommandFailed, Guest, LabError
from lab import Lab
from programs import PROGRAMS, Program

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "captures"))
from frames import read_pcap, write_pcap

VLAN_ID = 10
CLIENT_TIMEOUT_S = 60
SERVER_TIMEOUT_S = 15


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--understudy", type=Path, default=REPOSITORY / "target/release/understudy", metavar="PATH")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/bump-in-the-wire.toml", metavar="PATH")
    parser.add_argument(
        "--wire", choices=["understudy", "bridge"], default="understudy",
        help="bridge: a plain forwarder in place of understudy, to check the test itself",
    )  # fmt: skip
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="run only the programs that match this pattern (repeatable)"
    )
    parser.add_argument("--list", action="store_true", help="print the names and commands of the programs")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of lines")
    parser.add_argument("--pcap", type=Path, metavar="DIR", help="record each program's traffic to DIR/NAME.pcap")
    parser.add_argument("--keep-logs", action="store_true", help="also keep the logs if all programs pass")
    parser.add_argument("--guest-dir", type=Path, default=REPOSITORY / "target/e2e", metavar="DIR")
    parser.add_argument("--accel", default="tcg", help="accelerator of qemu (default: tcg, which is emulation)")
    return parser.parse_args()


def chosen(patterns: list[str] | None) -> list[Program]:
    if not patterns:
        return PROGRAMS
    programs = [p for p in PROGRAMS if any(fnmatch.fnmatchcase(p.name, pattern) for pattern in patterns)]
    if not programs:
        raise LabError(f"no program matches {' or '.join(patterns)}; `--list` prints all names")
    return programs


def config_for_busy_machines(config: Path, log_dir: Path) -> Path:
    """Returns a copy of a configuration that leaves the CPU to the guests when idle, with a socket of its own."""
    text = config.read_text()
    for line, new in (("[runtime]", '[runtime]\nidle = "sleep"'), ('socket = "/run/', f'socket = "{log_dir}/')):
        if line not in text:
            raise LabError(f"{config} has no line with {line}: write one, as in configs/bump-in-the-wire.toml")
        text = text.replace(line, new, 1)
    copy = log_dir / config.name
    copy.write_text(text)
    return copy


def forwarder_command(arguments: argparse.Namespace, log_dir: Path) -> list[str]:
    if arguments.wire == "bridge":
        return [sys.executable, str(HERE / "bridge.py"), "host-a", "host-b"]
    for file in (arguments.understudy, arguments.config):
        if not file.is_file():
            raise LabError(f"{file} is missing: run `make build`, or set the paths with --understudy and --config")
    config = config_for_busy_machines(arguments.config, log_dir)
    return [str(arguments.understudy.resolve()), "run", str(config), "--json"]


def run_program(program: Program, server: Guest, client: Guest) -> str:
    """Runs both sides until they exit. Returns the output of the server."""

    def filled(command: str, guest: Guest) -> str:
        address = server.addresses[program.network]
        own = guest.gid_index(guest.addresses[program.network])
        return command.format(address=address, ipv4=server.addresses["ipv4"], gid=own)

    for guest in (server, client):
        # Address resolution has to pass the forwarder, too.
        guest.run("ip neighbour flush all")
    job = server.start(filled(program.server, server))
    try:
        server.wait_for(program.listening)
        command = filled(program.client, client)
        # rping is a function of the guest's shell, which knows what rping's exit codes mean.
        limit = f"RPING_LIMIT_S={CLIENT_TIMEOUT_S}" if command.startswith("rping ") else f"timeout -s KILL {CLIENT_TIMEOUT_S}"
        limited = f"{limit} {command}"
        client.run(limited, timeout_s=2 * CLIENT_TIMEOUT_S)
    except CommandFailed as error:
        result = server.finish(job, timeout_s=1)
        raise CommandFailed(f"{error}\nserver ({result.code}): {result.output.rstrip()}") from None
    result = server.finish(job, SERVER_TIMEOUT_S)
    if result.code != 0:
        ending = "did not exit" if result.code is None else f"exit code {result.code}"
        raise CommandFailed(f"guest {server.name}: {ending}: {job.command}\n{result.output.rstrip()}")
    return result.output


def run_and_count(program: Program, a: Guest, b: Guest) -> tuple[str, list[str], list[Counters]]:
    """Runs a program. Returns the server's output, the problems, and the increases of both guests' counters."""
    before = [read_counters(guest) for guest in (a, b)]
    output, problems = "", []
    try:
        output = run_program(program, server=a, client=b)
    except CommandFailed as error:
        problems.append(str(error))
    after = settled_counters([a, b])
    return output, problems, [new - old for new, old in zip(after, before)]


def run_and_check(program: Program, lab: Lab, command: list[str], pcap_dir: Path | None) -> Outcome:
    a, b = lab.guests
    started = time.monotonic()
    with ExitStack() as recording:
        parts = []
        if pcap_dir is not None:
            parts = [lab.log_dir / f"{guest.tap}.pcap" for guest in lab.guests]
            for guest, part in zip(lab.guests, parts):
                recording.enter_context(lab.recorded(guest.tap, part))
        with lab.forwarder(command, f"wire-{program.name}") as forwarder:
            output, problems, increases = run_and_count(program, a, b)
    if pcap_dir is not None:
        records = sorted(record for part in parts for record in read_pcap(part))
        write_pcap(pcap_dir / f"{program.name}.pcap", records)
    return verdict(program, forwarder.report, increases, (a, b), output, problems, time.monotonic() - started)


def run_all(arguments: argparse.Namespace, log_dir: Path, outcomes: list[Outcome]) -> None:
    """Appends to `outcomes` as programs end, so that outcomes before a failure of the lab are not lost."""
    programs = chosen(arguments.only)
    command = forwarder_command(arguments, log_dir)
    subprocess.run([HERE / "build-guest.sh", arguments.guest_dir], check=True)
    started = time.monotonic()
    with Lab(arguments.guest_dir, log_dir, accel=arguments.accel) as lab:
        lab.add_guest("a", tap="host-a", address=1)
        lab.add_guest("b", tap="host-b", address=2)
        lab.boot()
        for guest in lab.guests:
            guest.add_vlan(VLAN_ID)
        if not arguments.json:
            print(f"two guests booted in {time.monotonic() - started:.1f} s", flush=True)
        for program in programs:
            outcome = run_and_check(program, lab, command, arguments.pcap)
            outcomes.append(outcome)
            if not arguments.json:
                print(outcome.line(), flush=True)


def interrupt(*_: object) -> None:
    """Ends the run with its clean-up, which further signals do not interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        for program in PROGRAMS:
            print(f"{program.name:18} {program.network:9} {program.client}")
        return 0
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    if arguments.pcap is not None:
        arguments.pcap.mkdir(parents=True, exist_ok=True)
    log_dir = Path(tempfile.mkdtemp(prefix="understudy-e2e-"))
    started = time.monotonic()
    keep = True
    outcomes: list[Outcome] = []
    error = ""
    try:
        run_all(arguments, log_dir, outcomes)
        keep = arguments.keep_logs or not all(outcome.passed for outcome in outcomes)
    except (LabError, CommandFailed, subprocess.CalledProcessError) as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error, keep = "interrupted", arguments.keep_logs
    finally:
        if not keep:
            shutil.rmtree(log_dir)
    passed = sum(outcome.passed for outcome in outcomes)
    seconds = time.monotonic() - started
    succeeded = not error and passed == len(outcomes)
    if arguments.json:
        summary: dict[str, Any] = {
            "wire": arguments.wire, "passed": succeeded, "seconds": round(seconds, 1), "error": error or None,
            "logs": str(log_dir) if keep else None, "programs": [outcome.as_dict() for outcome in outcomes],
        }  # fmt: skip
        print(json.dumps(summary, indent=2))
    else:
        print(f"{passed} of {len(outcomes)} programs passed through {arguments.wire} in {seconds:.0f} s")
        if error:
            print(f"error: {error}", file=sys.stderr)
        if keep:
            print(f"logs: {log_dir}", file=sys.stderr)
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
