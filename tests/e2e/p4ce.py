#!/usr/bin/env python3
"""Runs a leader and two replicas with understudy as the P4CE switch between them.

    tests/e2e/p4ce.py --understudy target/release/understudy

Boots three guests with Linux soft-RoCE and connects them by `understudy run` with [p4ce]. The
leader opens a group and writes with plain rdma_cm and ibverbs (p4ce_peer.c). Every replica has to
hold the written data, the switch has to have received each packet once, and invalid group requests
have to be refused with the reason. Needs root, for a network namespace of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import suite
from check import read_counters, settled_counters
from guest import Guest, Job
from lab import Lab, Forwarder

PORT = 7471
SWITCH = {"ipv4": "10.0.0.254", "ipv6": "fd00::fe"}
LISTENS = "rdma resource show cm_id | grep -q LISTEN"

# Rings that hold what the guests can have in flight, however long the switch's thread waits for a CPU
CONFIG = """
[runtime]
idle = "sleep"
workers = WORKERS

[[port]]
name = "leader"
mtu = 1500
descriptors = 4096
af_packet = { interface = "host-a" }

[[port]]
name = "first"
mtu = 1500
descriptors = 4096
af_packet = { interface = "host-b" }

[[port]]
name = "second"
mtu = 1500
descriptors = 4096
af_packet = { interface = "host-c" }

[p4ce]
mac = "02:00:00:00:00:fe"
addresses = ["10.0.0.254/24", "fd00::fe/64"]
setup_timeout_ms = 2000
"""


@dataclass(frozen=True)
class Case:
    """The writes of the leader, and the expected result."""

    name: str
    # Arguments of the leader after the list of replicas
    writes: str
    # Bytes of memory of each replica
    memory: int = 4 << 20
    quorum: int = 0
    network: str = "ipv4"
    # Whether the second replica is killed while the leader writes
    kills: bool = False
    # Expected reason in the leader's output if the group is refused: the second replica does not listen, or (`absent`) its
    # address is unused
    refused: str = ""
    absent: bool = False
    packets: int = 0
    # Workers of the switch. With two, the group's owner does not receive the first replica's packets
    workers: int = 1

    @property
    def command(self) -> str:
        return f"p4ce_peer leader {SWITCH[self.network]} {PORT} {self.quorum} REPLICAS {self.writes}"


def cases() -> list[Case]:
    sizes = "1 3 64 511 1000 1024 1025 4096 65536 1048576"
    # Packets of 1,024 bytes
    packets = sum(-(-int(size) // 1024) for size in sizes.split())
    return [
        Case("sizes", sizes, packets=packets),
        Case("sizes_all", sizes, quorum=2, packets=packets),
        Case("sizes_ipv6", sizes, network="ipv6", packets=packets, workers=2),
        Case("many", "-n 500 64", packets=500, workers=2),
        Case("killed", "-n 200 -w 10 5000", kills=True, workers=2),
        Case("rejected", "64", refused="a replica refused, 10.0.0.3, reason 8"),
        Case("absent", "64", refused="a replica did not respond, 10.0.0.77", absent=True),
        Case("quorum", "64", quorum=3, refused="the quorum is larger than the group"),
    ]


def replica(guest: Guest, case: Case) -> Job:
    job = guest.start(f"p4ce_peer replica {guest.addresses[case.network]} {PORT} {case.memory}")
    guest.wait_for(LISTENS)
    return job


def run_case(case: Case, lab: Lab, understudy: Path, folder: Path) -> tuple[list[str], str]:
    """Runs the case. Returns the problems, and the packets of the switch."""
    leader, first, second = lab.guests
    for guest in lab.guests:
        guest.run("ip neighbour flush all")
    config = folder / f"{case.name}.toml"
    config.write_text(CONFIG.replace("WORKERS", str(["any"] * case.workers).replace("'", '"')))
    listening = [first] if case.refused else [first, second]
    replicas = [first.addresses[case.network], "10.0.0.77" if case.absent else second.addresses[case.network]]
    problems: list[str] = []
    before = [read_counters(guest) for guest in lab.guests]
    with lab.forwarder([str(understudy), "run", str(config), "--json"], f"switch-{case.name}") as switch:
        jobs = [replica(guest, case) for guest in listening]
        command = case.command.replace("REPLICAS", ",".join(replicas))
        job = leader.start(command)
        if case.kills:
            leader.wait_for(f"grep -q connected {job.name}.out", timeout_s=60)
            second.run(f"kill -9 $(cat {jobs[1].name}.pid)")
        result = leader.finish(job, timeout_s=60)
        if case.refused:
            if result.code != 3 or case.refused not in result.output:
                problems.append(f"the leader did not report {case.refused!r}: exit code {result.code}, output {result.output}")
            first.finish(jobs[0], timeout_s=0.1)
        else:
            problems += check_writes(case, result.code, result.output, listening, jobs)
        after = settled_counters(lab.guests)
    retransmissions = sum((new - old).retransmissions for new, old in zip(after, before, strict=True))
    return problems + check_switch(case, switch, retransmissions), summary(switch, retransmissions)


def check_writes(case: Case, code: int | None, output: str, guests: list[Guest], jobs: list[Job]) -> list[str]:
    if code != 0:
        return [f"leader: exit code {code}\n{output.rstrip()}"]
    written = output.splitlines()[-1].split()[1]
    problems = []
    for number, (guest, job) in enumerate(zip(guests, jobs, strict=True)):
        if case.kills and number == 1:
            continue
        result = guest.finish(job, timeout_s=20)
        if result.code != 0 or result.output.split() != ["holds", written]:
            problems.append(f"the leader wrote {written} bytes; guest {guest.name}: exit code {result.code}, {result.output.rstrip()}")
    return problems


def check_switch(case: Case, switch: Forwarder, retransmissions: int) -> list[str]:
    """Returns what is wrong with the switch's counters; packets may exceed those of the writes only after retransmissions."""
    counters: dict[str, Any] = switch.report["p4ce"]
    opened = 0 if case.refused else 1
    expected = {"requested": 1, "opened": opened, "refused": 1 - opened, "fatal_naks": 0}
    problems = []
    # No packet is lost here, but a leader that is kept from its CPU retransmits.
    if case.packets and retransmissions == 0:
        expected |= {"requests": case.packets, "copies": 2 * case.packets, "naks": 0}
    elif counters["requests"] < case.packets or counters["copies"] < 2 * case.packets:
        problems.append(f"switch: {counters['requests']} requests and {counters['copies']} copies of {case.packets} packets")
    problems += [f"switch: {key} is {counters[key]}, not {value}" for key, value in expected.items() if counters[key] != value]
    dispatched = sum(worker["dispatched"] for worker in switch.report["workers"])
    if (dispatched > 0) != (case.workers > 1):
        problems.append(f"switch: {dispatched} packets were handed over between {case.workers} workers")
    if counters["groups"]:
        problems.append(f"the switch still has groups: {counters['groups']}")
    return problems


def summary(switch: Forwarder, retransmissions: int) -> str:
    counters = switch.report["p4ce"]
    retransmitted = f", {retransmissions} retransmission events" if retransmissions else ""
    return (
        f"{counters['requests']} packets and {counters['copies']} copies, {counters['responses']} responses and "
        f"{counters['acks']} acknowledgements{retransmitted}"
    )


def set_up(lab: Lab) -> None:
    lab.add_guest("a", tap="host-a", address=1)
    lab.add_guest("b", tap="host-b", address=2)
    lab.add_guest("c", tap="host-c", address=3)


def main() -> int:
    arguments = suite.parser(__doc__ or "").parse_args()
    return suite.run(arguments, suite.chosen(arguments, cases()), set_up, run_case, "through understudy's P4CE switch")


if __name__ == "__main__":
    sys.exit(main())
