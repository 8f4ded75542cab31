#!/usr/bin/env python3
"""Real hosts: two clients of one memory server at once, and understudy as Swordbox between them.

    tests/e2e/swordbox.py --understudy target/release/understudy

Boots three guests with Linux' soft-RoCE and joins them with `understudy run` and a function
[swordbox]. Unmodified perftest clients in two guests use the third at once; and locks in its
memory (lock_peer.c) are taken by many clients: what they guard has to be counted up once a
round, and the server must have been asked for WRITEs, not for atomics. Needs root, for a
network namespace of its own.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import suite
from check import Counters, settled_counters
from guest import Guest, Job
from lab import Lab, Wire
from programs import ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD, READ_REQUEST, RESPONSES, WRITE_ONLY, perftest

CONFIG = """
[[port]]
name = "a"
mtu = 1500
af_packet = {{ interface = "{interfaces[a]}" }}

[[port]]
name = "b"
mtu = 1500
af_packet = {{ interface = "{interfaces[b]}" }}

[[port]]
name = "c"
mtu = 1500
af_packet = {{ interface = "{interfaces[c]}" }}

[swordbox]
mac_table = {{}}
layers = {layers}
journal = "{journal}"
# Emulated hosts take milliseconds, and now and then tens of them, to answer.
settle_us = 100000
replay_after_us = 100000
dead_after_ms = 20000
# perftest has as many atomics outstanding as soft-RoCE takes.
rd_atomic = 128
connections = 4096
{options}

[[swordbox.server]]
host = "10.0.0.3"
detect = {detect}
{server}
"""

# What makes the way to a guest bad: both ways, by chance, from a seed.
BAD_WIRE = """
[[port]]
name = "guest"
mtu = 1500
af_packet = {{ interface = "host-{guest}" }}

[[port]]
name = "switch"
mtu = 1500
af_packet = {{ interface = "far" }}

[impair]
pairs = [["guest", "switch"]]
seed = 7

[[impair.rule]]
action = "drop"
share = 0.01
"""

# Where lock_peer's locks lie, so that they are known before the first of them is taken
TABLE = """
[[swordbox.server.table]]
va = 0x200000000000
bytes = 32768
stride = 64
writable = true
"""

# Lanes of the switch's own
ADDRESS = 'addresses = ["10.0.0.254/24"]\nmac = "02:00:00:00:00:fe"'
CONNECT = "connect = { port = 18600, lanes = 2 }"

ON = '["remap", "cas_to_write"]'
TIMEOUT_S = 120
LISTENS = "grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"
CM_LISTENS = "rdma resource show cm_id | grep LISTEN | grep -q ':{port} '"


@dataclass(frozen=True)
class Pair:
    """What one client does, and its server: commands with `{gid}` and `{server}`."""

    server: str
    client: str
    listening: str
    # Requests that the client sends, by opcode
    requests: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What the clients of guests a and b do at once."""

    name: str
    pairs: tuple[Pair, ...]
    layers: str = ON
    detect: int = 4
    # Further lines of [swordbox], and of its server
    options: str = ""
    server: str = ""
    # Locks: rounds of each client, and clients of each guest
    rounds: int = 0
    clients: int = 0
    locks: int = 1
    # Layers that it is told to have while clients run, one after the other
    changes: tuple[str, ...] = ()
    # At least this share of the clients' atomics has to be decided. How many are depends on when clients come: those that
    # come before a word is known, or while its line is silent, go to the server.
    decided: float = 0.0
    # One in a hundred packets from and to this guest gets lost.
    bad: str = ""
    # The switch ends and begins again while locks are taken.
    restarts: bool = False
    # Those who take locks are connected by rdma_cm.
    by_cm: bool = False
    # The clients of guest a do half of the rounds, and exit without a word while the others go on.
    leaves: bool = False
    # The switch connects lanes of its own: so many.
    own_lanes: int = 0

    @property
    def command(self) -> str:
        if self.rounds:
            return f"lock_peer: 2 x {self.clients} clients, {self.rounds} rounds each, {self.locks} locks"
        return "; ".join(pair.client for pair in self.pairs)


def perf(tool: str, port: int, count: int, size: int = 4096, **options: Any) -> Pair:
    program = perftest("", tool, size=size, count=count, options=f"-p {port}", **options)
    requests = {opcode: frames for opcode, frames in (program.expected or {}).items() if opcode not in RESPONSES}
    client = program.client.replace("{ipv4}", "{server}")
    return Pair(program.server, client, LISTENS.format(port=port), requests)


CAS, ADD = "CMP_AND_SWAP", "FETCH_AND_ADD"


def cases() -> list[Case]:
    def both(tool: str, count: int, **options: Any) -> tuple[Pair, ...]:
        return perf(tool, 18515, count, **options), perf(tool, 18516, count, **options)

    locks = {"pairs": (), "rounds": 30, "clients": 4}
    return [
        Case("compare_swap", both("ib_atomic_bw", 400, atomic=CAS)),
        Case("fetch_add", both("ib_atomic_bw", 400, atomic=ADD)),
        Case("atomics_4qp", both("ib_atomic_bw", 200, atomic=CAS, queue_pairs=4)),
        Case("write", both("ib_write_bw", 50, size=20000)),
        Case("read", both("ib_read_bw", 50, size=20000)),
        Case("mixed", (perf("ib_atomic_bw", 18515, 400, atomic=ADD), perf("ib_write_bw", 18516, 100, size=20000))),
        Case("passing", both("ib_atomic_bw", 200, atomic=CAS), layers="[]"),
        Case("locks", locks=1, **locks, decided=0.3),
        Case("locks_table", locks=1, **locks, detect=0, server=TABLE, decided=0.3),
        Case("locks_several", locks=3, **locks, decided=0.1),
        Case("locks_answered", locks=1, **locks, options='failed_cas = "answer"', decided=0.3),
        Case("locks_passing", locks=1, **locks, layers="[]"),
        Case("locks_changing", locks=2, **locks, changes=("[]", ON, '["remap"]', ON, "[]", ON)),
        Case("locks_bad_server", locks=1, **locks, bad="c", decided=0.1),
        Case("locks_bad_client", locks=1, **locks, bad="a", decided=0.1),
        Case("locks_restarted", locks=1, **locks, detect=0, server=TABLE, restarts=True),
        Case("locks_connected", locks=1, **locks, by_cm=True, decided=0.3),
        Case("locks_left", locks=1, **locks, by_cm=True, leaves=True, decided=0.2),
        Case("locks_own_lanes", locks=1, **locks, by_cm=True, leaves=True, own_lanes=2, decided=0.2,
             options=ADDRESS, server=CONNECT),
        Case("rping", tuple(
            Pair(f"rping -s -a {{server}} -p {port} -C 10 -V", f"rping -c -a {{server}} -p {port} -C 10 -V",
                 CM_LISTENS.format(port=port))
            for port in (7174, 7175)
        )),
    ]  # fmt: skip


def run_case(case: Case, lab: Lab, understudy: Path, folder: Path) -> tuple[list[str], str]:
    """Runs the case; what is wrong, and what the switch did."""
    for guest in lab.guests:
        guest.run("ip neighbour flush all")
    config = folder / f"{case.name}.toml"
    write_config(config, case, case.layers)
    command = [str(understudy), "run", str(config), "--json"]
    trace = folder / f"{case.name}-server.pcap"
    before = settled_counters(lab.guests)
    # Its clients do not wait for long: nothing may come between this and what follows.
    problems = interrupted(case, lab, command, config.with_suffix(".journal")) if case.restarts else []
    with ExitStack() as stack:
        if case.bad:
            bad = folder / f"{case.name}-wire.toml"
            bad.write_text(BAD_WIRE.format(guest=case.bad))
            stack.enter_context(lab.wire([str(understudy), "run", str(bad), "--json"], f"wire-{case.name}"))
        stack.enter_context(lab.recorded("host-c", trace, "udp dst port 4791"))
        switch = stack.enter_context(lab.wire(command, f"switch-{case.name}"))
        if case.restarts:
            problems += refused(lab)
        failed, asked = locks(case, lab, changing(case, config, switch)) if case.rounds else perftests(case, lab)
        problems += failed
        after = settled_counters(lab.guests)
    grown = [now - then for now, then in zip(after, before, strict=True)]
    answers = decoded(understudy, trace)
    problems += check(case, switch, grown, asked, answers)
    if not problems:
        trace.unlink()
    return problems, words(switch, answers)


def interrupted(case: Case, lab: Lab, command: list[str], journal: Path) -> list[str]:
    """Takes locks through a switch that ends in the middle of it."""
    with lab.wire(command, f"switch-{case.name}-before") as switch:
        # More than they can be done with before
        start_locks(replace(case, rounds=case.rounds * 100), lab)
        deadline = time.monotonic() + TIMEOUT_S
        while "\n+" not in journal.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        # They share from now on, and have learnt what the words hold long before this is over.
        time.sleep(2)
    told = switch.report["swordbox"]
    return [] if told["decided"] and told["diverged"] else [f"nothing was shared before the restart: {told}"]


def refused(lab: Lab) -> list[str]:
    """What was shared before the restart must not go on: its clients are told by their own NICs, after a while."""
    problems = []
    for guest in lab.guests[:-1]:
        guest.wait_for("! pidof lock_peer", timeout_s=60)
        output = guest.run("cat /tmp/job*.out; rm -f /tmp/job*").output
        if "transport retry counter exceeded" not in output:
            problems.append(f"the clients in {guest.name} were not refused after the restart: {output.rstrip()}")
    lab.guests[-1].wait_for("! pidof lock_peer")
    return problems


def write_config(config: Path, case: Case, layers: str) -> None:
    journal = config.with_suffix(".journal")
    interfaces = {guest: "near" if guest == case.bad else f"host-{guest}" for guest in "abc"}
    fields = {"layers": layers, "options": case.options, "detect": case.detect, "server": case.server}
    config.write_text(CONFIG.format(journal=journal, interfaces=interfaces, **fields))


def changing(case: Case, config: Path, switch: Wire) -> Callable[[], None]:
    """Gives the switch its next layers, as a user does, when it is called."""
    left = list(case.changes)

    def change() -> None:
        if left:
            write_config(config, case, left.pop(0))
            switch.process.send_signal(signal.SIGHUP)

    return change


def filled(command: str, guest: Guest, server: Guest) -> str:
    gid = guest.gid_index(guest.addresses["ipv4"])
    return command.format(gid=gid, server=server.addresses["ipv4"])


def ended(who: str, guest: Guest, job: Job, timeout_s: float = TIMEOUT_S) -> tuple[list[str], str]:
    result = guest.finish(job, timeout_s)
    problems = [] if result.code == 0 else [f"{who}: exit code {result.code}\n{result.output.rstrip()}"]
    return problems, result.output


def perftests(case: Case, lab: Lab) -> tuple[list[str], dict[int, int]]:
    """Runs both clients at once, each with a server of its own; what is wrong, and what was asked for."""
    *clients, server = lab.guests
    asked: dict[int, int] = {}
    jobs: list[tuple[str, Guest, Job]] = []
    for pair in case.pairs:
        jobs.append(("a server", server, server.start(filled(pair.server, server, server))))
        server.wait_for(pair.listening)
        for opcode, count in pair.requests.items():
            asked[opcode] = asked.get(opcode, 0) + count
    for guest, pair in zip(clients, case.pairs, strict=True):
        jobs.append((f"the client in {guest.name}", guest, guest.start(filled(pair.client, guest, server))))
    # The clients first: a server that waits in vain for one says nothing of why.
    problems: list[str] = []
    for who, guest, job in reversed(jobs):
        problems += ended(who, guest, job, 1 if problems and guest is server else TIMEOUT_S)[0]
    return problems, asked


def start_locks(case: Case, lab: Lab) -> tuple[list[tuple[Guest, Job]], Job]:
    """Starts the clients that take locks, and the server of these: the jobs of both."""
    *clients, server = lab.guests
    count = case.clients * len(clients)
    how = "cm" if case.by_cm else "{gid}"
    job = server.start(filled(f"lock_peer server {how} {count} {case.locks}", server, server))
    server.wait_for(LISTENS.format(port=18600))
    if case.own_lanes:
        server.wait_for(f"test $(rdma resource show qp | grep -c 'state RTS') -ge {case.own_lanes}")
    jobs = []
    for number, guest in enumerate(clients):
        first = 1 + number * case.clients
        leaves = case.leaves and number == 0
        rounds = f"{case.rounds // 2} leaves" if leaves else str(case.rounds)
        command = f"lock_peer client {how} {{server}} {first} {case.clients} {rounds}"
        jobs.append((guest, guest.start(filled(command, guest, server))))
    return jobs, job


def locks(case: Case, lab: Lab, change: Callable[[], None]) -> tuple[list[str], dict[int, int]]:
    """Takes locks; what is wrong, and what was asked for."""
    jobs, job = start_locks(case, lab)
    server = lab.guests[-1]
    for _ in case.changes:
        time.sleep(1)
        change()
    problems = []
    for guest, client in jobs:
        # A lock that a client held when it ended is held for ever.
        problems += ended(f"the clients in {guest.name}", guest, client, 1 if problems else TIMEOUT_S)[0]
    failed, output = ended("the server", server, job, 1 if problems else TIMEOUT_S)
    problems += failed
    told = {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", output)}
    rounds = case.clients * len(jobs) * case.rounds
    if case.leaves:
        rounds -= case.clients * (case.rounds - case.rounds // 2)
    if not problems and (told["rounds"], told["counted"]) != (rounds, rounds):
        problems.append(f"{rounds} rounds were wanted: {output.rstrip()}")
    # Behind the page's WRITE and the unlock's, and two READs
    atomics = {COMPARE_SWAP: told.get("attempts", 0), FETCH_ADD: told.get("tickets", 0)}
    return problems, {**atomics, READ_REQUEST: 2 * rounds, WRITE_ONLY: 2 * rounds}


def decoded(understudy: Path, trace: Path) -> dict[int, int]:
    """What the server sent, by opcode: an atomic that it was asked for has an answer of its own kind."""
    command = [str(understudy), "decode", "--json", str(trace)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    packets = [json.loads(line) for line in lines]
    answers: dict[int, int] = {}
    for packet in packets:
        answers[packet["opcode"]] = answers.get(packet["opcode"], 0) + 1
    return answers


def check(
    case: Case, switch: Wire, grown: list[Counters], asked: dict[int, int], answers: dict[int, int]
) -> list[str]:
    report = switch.report
    told = report["swordbox"]
    ports = {port["name"]: port for port in report["ports"]}
    problems = []
    for name, counters in zip("abc", grown, strict=True):
        # Clients of the time before a restart try again when nobody is there.
        if counters.sent != ports[name]["roce_frames"] and name != case.bad and not case.restarts:
            problems.append(f"guest {name} sent {counters.sent} packets, {ports[name]['roce_frames']} came in")
    retransmitted = case.bad or sum(counters.retransmissions for counters in grown)
    seen = {row["opcode"]: row["frames"] for row in report["opcodes"]}
    for opcode, count in asked.items():
        if seen.get(opcode, 0) < count or (seen.get(opcode, 0) > count and not retransmitted):
            problems.append(f"opcode {opcode:#04x}: {count} were asked for, {seen.get(opcode, 0)} came")
    atomics = asked.get(COMPARE_SWAP, 0) + asked.get(FETCH_ADD, 0)
    left = answers.get(ATOMIC_ACK, 0)
    here = told["decided"] + told["answered"]
    # Every atomic was done by the server or decided here; those repeated are answered again.
    if atomics and (left + here < atomics or (left + here > atomics and not (retransmitted or told["repeated"]))):
        problems.append(f"of {atomics} atomics, the server has answered {left}, and {here} were decided")
    if here < case.decided * atomics:
        problems.append(f"of {atomics} atomics only {here} were decided")
    if case.layers == "[]" and not case.changes and told["diverged"]:
        problems.append("without a layer, sides of a connection have come to differ")
    if case.restarts and not told["ended"]:
        problems.append("nothing of the time before the restart was refused")
    if case.by_cm and told["paired_by_cm"] != told["paired"]:
        problems.append("connections were not learnt from the connection manager")
    # One that was lost would have been opened again.
    if told["own_lanes"] != case.own_lanes or (case.own_lanes and told["lanes"]):
        problems.append(f"of {case.own_lanes} lanes {told['own_lanes']} are the switch's, and {told['lanes']} were lent")
    # The switch's own end with the server's program, which ends before the switch.
    told["lanes_lost"] -= told["own_lanes_lost"]
    wrong = ("spoofed", "unwritten", "lanes_lost", "untracked", "keys_refused")
    problems += [f"{name}: {told[name]}" for name in wrong if told[name]]
    if problems:
        problems.append(f"the switch: {told}, drops {report['drops']}")
        problems.append(f"retransmissions by guest: {[counters.retransmissions for counters in grown]}")
    return problems


def words(switch: Wire, answers: dict[int, int]) -> str:
    told = switch.report["swordbox"]
    return (
        f"{told['diverged']} of {told['paired']} connections shared, {told['remapped']} remapped, {told['decided']} decided, "
        f"{told['answered']} answered; the server sent {answers.get(ATOMIC_ACK, 0)} atomic ACKs, {answers.get(ACK, 0)} ACKs"
    )


def set_up(lab: Lab) -> None:
    lab.add_guest("a", tap="host-a", address=1)
    lab.add_guest("b", tap="host-b", address=2)
    lab.add_guest("c", tap="host-c", address=3)
    lab.add_cable("far", "near")


def main() -> int:
    arguments = suite.parser(__doc__ or "").parse_args()
    return suite.run(arguments, suite.chosen(arguments, cases()), set_up, run_case, "through understudy's Swordbox")


if __name__ == "__main__":
    sys.exit(main())
