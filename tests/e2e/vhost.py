#!/usr/bin/env python3
"""Runs unmodified RDMA programs between two virtual machines whose network cards are understudy's vhost-user ports.

    tests/e2e/vhost.py --understudy target/release/understudy

    guest a, virtio-net == shared memory == understudy == shared memory == virtio-net, guest b

No interface of the kernel is between them. Each program runs through an instance of its own, to which the running
machines connect again. Needs root.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import suite
from check import verdict
from lab import Lab
from programs import PROGRAMS, Program
from run import run_and_count

NAMES = ("write-rc-65536", "read-rc-65536", "compare-swap", "rping", "udaddy", "odd-verbs", "send-rc-vlan-ipv6")


def command_line(program: Path, folder: Path) -> list[str]:
    config = folder / "vhost.toml"
    ports = "".join(f'[[port]]\nname = "{name}"\nvhost = {{ socket = "{folder}/{name}.vhost" }}\n' for name in "ab")
    config.write_text(f'[runtime]\nidle = "sleep"\n{ports}[forward]\npairs = [["a", "b"]]\n')
    return [str(program), "run", str(config), "--json"]


def main() -> int:
    arguments = suite.parser(__doc__ or "").parse_args()
    program = arguments.understudy.resolve()
    # The emulator does not start a machine before the port of its card is open.
    first = ExitStack()

    def set_up(lab: Lab) -> None:
        lab.add_vhost_guest("a", lab.log_dir / "a.vhost", 1)
        lab.add_vhost_guest("b", lab.log_dir / "b.vhost", 2)
        first.enter_context(lab.forwarder(command_line(program, lab.log_dir), "boot"))

    def run_case(case: Program, lab: Lab, program: Path, folder: Path) -> tuple[list[str], str]:
        first.close()
        a, b = lab.guests
        if "vlan-ipv4" not in a.addresses:
            a.add_vlan(10)
            b.add_vlan(10)
        started = time.monotonic()
        with lab.forwarder(command_line(program, folder), f"vhost-{case.name}") as forwarder:
            for guest in (a, b):
                guest.wait_for(f"ping -c 1 -W 1 10.0.0.{3 - guest.host_number}", 30)
            output, problems, increases = run_and_count(case, a, b)
        outcome = verdict(case, forwarder.report, increases, (a, b), output, problems, time.monotonic() - started)
        return outcome.problems, f"{outcome.messages} messages, {outcome.packets} packets"

    cases = [case for case in PROGRAMS if case.name in NAMES]
    with first:
        return suite.run(arguments, suite.chosen(arguments, cases), set_up, run_case, "through vhost-user ports")


if __name__ == "__main__":
    sys.exit(main())
