#!/usr/bin/env python3
"""Runs clients of one memory server in two machines, with understudy as Swordbox between them and the server.

    tests/e2e/swordbox.py --understudy target/release/understudy

Boots three guests with Linux soft-RoCE and connects them by `understudy run` with [swordbox].
Unmodified perftest clients in two guests use the third guest at the same time. In other cases
many clients take locks in its memory (lock_peer.c): the guarded counters have to be incremented
once per round, and the server has to receive WRITEs in place of most atomics. Needs root, for a
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
from lab import Lab, Forwarder
from programs import ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD, READ_REQUEST, RESPONSES, WRITE_ONLY, perftest

# Rings that hold what the guests can have in flight, however long the switch's thread waits for a CPU
CONFIG = """
[runtime]
idle = "sleep"
workers = {workers}

[[port]]
name = "a"
mtu = 1500
descriptors = 4096
af_packet = {{ interface = "{interfaces[a]}" }}

[[port]]
name = "b"
mtu = 1500
descriptors = 4096
af_packet = {{ interface = "{interfaces[b]}" }}

[[port]]
name = "c"
mtu = 1500
descriptors = 4096
af_packet = {{ interface = "{interfaces[c]}" }}

[swordbox]
mac_table = {{}}
layers = {layers}
journal = "{journal}"
# Emulated hosts respond within milliseconds, sometimes tens of milliseconds.
settle_us = 100000
replay_after_us = 100000
dead_after_ms = 20000
# perftest has as many outstanding atomics as soft-RoCE permits.
rd_atomic = 128
connections = 4096
{options}
{first_server}
[[swordbox.server]]
host = "10.0.0.3"
detect = {detect}
{server}
"""

# Lossy link to a guest: loses packets in both directions, at random, from a seed
LOSSY_LINK = """
[runtime]
idle = "sleep"

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

# Addresses of lock_peer's locks, which are thus shared before the first one is taken
TABLE = """
[[swordbox.server.table]]
va = 0x200000000000
bytes = 32768
stride = 64
writable = true
"""

# Shared QPs that the switch owns
ADDRESS = 'addresses = ["10.0.0.254/24"]\nmac = "02:00:00:00:00:fe"'
CONNECT = "connect = { port = 18600, lanes = 2 }"

# Another server: with two workers, the memory server then belongs to the second
FIRST_SERVER = """
[[swordbox.server]]
host = "{host}"
"""

ALL_LAYERS = '["remap", "cas_to_write"]'
TIMEOUT_S = 120
LISTENS = "grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"
CM_LISTENS = "rdma resource show cm_id | grep LISTEN | grep -q ':{port} '"


@dataclass(frozen=True)
class Pair:
    """Commands of a client and its server, with `{gid}` and `{server}`."""

    server: str
    client: str
    listening: str
    # Requests that the client sends, by opcode
    requests: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """The work of the clients in guests a and b, which run at the same time."""

    name: str
    pairs: tuple[Pair, ...]
    layers: str = ALL_LAYERS
    detect: int = 4
    # Additional lines of [swordbox], and of its server
    options: str = ""
    server: str = ""
    # Cases with locks: rounds of each client, clients in each guest, and locks
    rounds: int = 0
    clients: int = 0
    locks: int = 1
    # Layers that are set one after the other while clients run
    changes: tuple[str, ...] = ()
    # Minimum share of the clients' atomics that the switch has to decide. The actual share depends on when atomics arrive:
    # those that arrive before the word's value is known go to the server.
    decided: float = 0.0
    # Guest whose link loses one in a hundred packets in each direction
    lossy_guest: str = ""
    # Whether the switch is restarted while locks are taken
    restarts: bool = False
    # Whether the clients that take locks are connected by rdma_cm
    by_cm: bool = False
    # Whether the clients in guest a do half of the rounds and exit without disconnecting, while the others continue
    leaves: bool = False
    # Number of shared QPs that the switch connects itself
    switch_owned: int = 0
    # Workers of the switch, and the host of the first one's server
    workers: int = 1
    first_server: str = "10.0.0.9"

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
        Case("fetch_add", both("ib_atomic_bw", 400, atomic=ADD), workers=2, first_server="10.0.0.1"),
        Case("atomics_4qp", both("ib_atomic_bw", 200, atomic=CAS, queue_pairs=4)),
        Case("write", both("ib_write_bw", 50, size=20000)),
        Case("read", both("ib_read_bw", 50, size=20000)),
        Case("mixed", (perf("ib_atomic_bw", 18515, 400, atomic=ADD), perf("ib_write_bw", 18516, 100, size=20000)),
             workers=2),
        Case("passing", both("ib_atomic_bw", 200, atomic=CAS), layers="[]"),
        Case("locks", locks=1, **locks, decided=0.3),
        Case("locks_table", locks=1, **locks, detect=0, server=TABLE, decided=0.3, workers=2),
        # The clients in guest a belong to a host that is a server of another worker, so their sides do not differ.
        Case("locks_of_server", locks=1, **locks, detect=0, server=TABLE, workers=2, first_server="10.0.0.1"),
        Case("locks_several", locks=3, **locks, decided=0.1),
        Case("locks_answered", locks=1, **locks, options='failed_cas = "answer"', decided=0.3),
        Case("locks_passing", locks=1, **locks, layers="[]"),
        Case("locks_changing", locks=2, **locks, changes=("[]", ALL_LAYERS, '["remap"]', ALL_LAYERS, "[]", ALL_LAYERS)),
        Case("locks_bad_server", locks=1, **locks, lossy_guest="c", decided=0.1, workers=2),
        Case("locks_bad_client", locks=1, **locks, lossy_guest="a", decided=0.1),
        Case("locks_restarted", locks=1, **locks, detect=0, server=TABLE, restarts=True, workers=2),
        Case("locks_connected", locks=1, **locks, by_cm=True, decided=0.3),
        Case("locks_left", locks=1, **locks, by_cm=True, leaves=True, decided=0.2),
        Case("locks_switch_owned", locks=1, **locks, by_cm=True, leaves=True, switch_owned=2, decided=0.2,
             options=ADDRESS, server=CONNECT, workers=2),
        Case("rping", tuple(
            Pair(f"rping -s -a {{server}} -p {port} -C 10 -V", f"rping -c -a {{server}} -p {port} -C 10 -V",
                 CM_LISTENS.format(port=port))
            for port in (7174, 7175)
        )),
    ]  # fmt: skip


def run_case(case: Case, lab: Lab, understudy: Path, folder: Path) -> tuple[list[str], str]:
    """Runs the case. Returns the problems, and the switch's counters."""
    for guest in lab.guests:
        guest.run("ip neighbour flush all")
    config = folder / f"{case.name}.toml"
    write_config(config, case, case.layers)
    command = [str(understudy), "run", str(config), "--json"]
    trace = folder / f"{case.name}-server.pcap"
    before = settled_counters(lab.guests)
    # Clients of the first switch time out soon, so the second one has to start right after this.
    problems = take_locks_until_stopped(case, lab, command, config.with_suffix(".journal")) if case.restarts else []
    with ExitStack() as stack:
        if case.lossy_guest:
            link_config = folder / f"{case.name}-wire.toml"
            link_config.write_text(LOSSY_LINK.format(guest=case.lossy_guest))
            stack.enter_context(lab.forwarder([str(understudy), "run", str(link_config), "--json"], f"wire-{case.name}"))
        stack.enter_context(lab.recorded("host-c", trace, "udp dst port 4791"))
        switch = stack.enter_context(lab.forwarder(command, f"switch-{case.name}"))
        if case.restarts:
            problems += check_refused(lab)
        new_problems, requests = locks(case, lab, layer_changes(case, config, switch)) if case.rounds else perftests(case, lab)
        problems += new_problems
        after = settled_counters(lab.guests)
    increases = [now - then for now, then in zip(after, before, strict=True)]
    responses = count_packets(understudy, trace)
    problems += check(case, switch, increases, requests, responses)
    if not problems:
        trace.unlink()
    return problems, summary(switch, responses)


def take_locks_until_stopped(case: Case, lab: Lab, command: list[str], journal: Path) -> list[str]:
    """Takes locks through a switch that is stopped in the middle. Returns the problems."""
    with lab.forwarder(command, f"switch-{case.name}-before") as switch:
        # More rounds than clients can finish before the switch stops
        start_locks(replace(case, rounds=case.rounds * 100), lab)
        deadline = time.monotonic() + TIMEOUT_S
        while "\n+" not in journal.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        # The journal shows that connections are shared now. Within 2 s the switch learns the values of the words.
        time.sleep(2)
    reported = switch.report["swordbox"]
    return [] if reported["decided"] and reported["diverged"] else [f"no connection was shared before the restart: {reported}"]


def check_refused(lab: Lab) -> list[str]:
    """Checks that connections that were shared before the restart end: their clients' NICs report it after some time."""
    problems = []
    for guest in lab.guests[:-1]:
        guest.wait_for("! pidof lock_peer", timeout_s=60)
        output = guest.run("cat /tmp/job*.out; rm -f /tmp/job*").output
        if "transport retry counter exceeded" not in output:
            problems.append(f"the connections of guest {guest.name} did not end after the restart: {output.rstrip()}")
    lab.guests[-1].wait_for("! pidof lock_peer")
    return problems


def write_config(config: Path, case: Case, layers: str) -> None:
    journal = config.with_suffix(".journal")
    interfaces = {guest: "near" if guest == case.lossy_guest else f"host-{guest}" for guest in "abc"}
    fields = {"layers": layers, "options": case.options, "detect": case.detect, "server": case.server}
    first_server = FIRST_SERVER.format(host=case.first_server) if case.workers > 1 else ""
    fields |= {"workers": json.dumps(["any"] * case.workers), "first_server": first_server}
    config.write_text(CONFIG.format(journal=journal, interfaces=interfaces, **fields))


def layer_changes(case: Case, config: Path, switch: Forwarder) -> Callable[[], None]:
    """Returns a function that sets the next layers as a user does: each call edits the file and sends SIGHUP."""
    remaining = list(case.changes)

    def change() -> None:
        if remaining:
            write_config(config, case, remaining.pop(0))
            switch.process.send_signal(signal.SIGHUP)

    return change


def fill_in(command: str, guest: Guest, server: Guest) -> str:
    gid = guest.gid_index(guest.addresses["ipv4"])
    return command.format(gid=gid, server=server.addresses["ipv4"])


def finish(actor: str, guest: Guest, job: Job, timeout_s: float = TIMEOUT_S) -> tuple[list[str], str]:
    result = guest.finish(job, timeout_s)
    problems = [] if result.code == 0 else [f"{actor}: exit code {result.code}\n{result.output.rstrip()}"]
    return problems, result.output


def perftests(case: Case, lab: Lab) -> tuple[list[str], dict[int, int]]:
    """Runs both clients at the same time, each with a server of its own. Returns the problems, and the requests by opcode."""
    *clients, server = lab.guests
    requests: dict[int, int] = {}
    jobs: list[tuple[str, Guest, Job]] = []
    for pair in case.pairs:
        jobs.append(("server", server, server.start(fill_in(pair.server, server, server))))
        server.wait_for(pair.listening)
        for opcode, count in pair.requests.items():
            requests[opcode] = requests.get(opcode, 0) + count
    for guest, pair in zip(clients, case.pairs, strict=True):
        jobs.append((f"client in guest {guest.name}", guest, guest.start(fill_in(pair.client, guest, server))))
    # The clients first: the output of a server whose client failed does not show the reason.
    problems: list[str] = []
    for actor, guest, job in reversed(jobs):
        problems += finish(actor, guest, job, 1 if problems and guest is server else TIMEOUT_S)[0]
    return problems, requests


def start_locks(case: Case, lab: Lab) -> tuple[list[tuple[Guest, Job]], Job]:
    """Starts the clients that take locks, and their server. Returns the jobs of both."""
    *clients, server = lab.guests
    count = case.clients * len(clients)
    how = "cm" if case.by_cm else "{gid}"
    job = server.start(fill_in(f"lock_peer server {how} {count} {case.locks}", server, server))
    server.wait_for(LISTENS.format(port=18600))
    if case.switch_owned:
        server.wait_for(f"test $(rdma resource show qp | grep -c 'state RTS') -ge {case.switch_owned}")
    jobs = []
    for number, guest in enumerate(clients):
        first = 1 + number * case.clients
        leaves = case.leaves and number == 0
        rounds = f"{case.rounds // 2} leaves" if leaves else str(case.rounds)
        command = f"lock_peer client {how} {{server}} {first} {case.clients} {rounds}"
        jobs.append((guest, guest.start(fill_in(command, guest, server))))
    return jobs, job


def locks(case: Case, lab: Lab, change: Callable[[], None]) -> tuple[list[str], dict[int, int]]:
    """Takes locks. Returns the problems, and the requests by opcode."""
    jobs, job = start_locks(case, lab)
    server = lab.guests[-1]
    for _ in case.changes:
        time.sleep(1)
        change()
    problems = []
    for guest, client in jobs:
        # A lock that a client held when it failed is never released: wait for the other clients only briefly.
        problems += finish(f"clients in guest {guest.name}", guest, client, 1 if problems else TIMEOUT_S)[0]
    new_problems, output = finish("server", server, job, 1 if problems else TIMEOUT_S)
    problems += new_problems
    results = {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", output)}
    rounds = case.clients * len(jobs) * case.rounds
    if case.leaves:
        rounds -= case.clients * (case.rounds - case.rounds // 2)
    if not problems and (results["rounds"], results["counted"]) != (rounds, rounds):
        problems.append(f"{rounds} rounds expected: {output.rstrip()}")
    # Each round also has the WRITEs of the counter and of the unlock, and two READs
    atomics = {COMPARE_SWAP: results.get("attempts", 0), FETCH_ADD: results.get("tickets", 0)}
    return problems, {**atomics, READ_REQUEST: 2 * rounds, WRITE_ONLY: 2 * rounds}


def count_packets(understudy: Path, trace: Path) -> dict[int, int]:
    """Returns the number of packets that the server sent, by opcode: executed atomics have a response opcode of their own."""
    command = [str(understudy), "decode", "--json", str(trace)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    packets = [json.loads(line) for line in lines]
    responses: dict[int, int] = {}
    for packet in packets:
        responses[packet["opcode"]] = responses.get(packet["opcode"], 0) + 1
    return responses


def check(
    case: Case, switch: Forwarder, increases: list[Counters], requests: dict[int, int], responses: dict[int, int]
) -> list[str]:
    report = switch.report
    reported = report["swordbox"]
    ports = {port["name"]: port for port in report["ports"]}
    problems = []
    for name, counters in zip("abc", increases, strict=True):
        # Clients retransmit while the switch is restarted.
        port = ports[name]
        if counters.sent != port["roce_frames"] and name != case.lossy_guest and not case.restarts:
            counts = f"the switch received {port['roce_frames']} and missed {port['missed']} frames"
            problems.append(f"guest {name} sent {counters.sent} packets, {counts}")
    retransmitted = case.lossy_guest or sum(counters.retransmissions for counters in increases)
    received = {row["opcode"]: row["frames"] for row in report["opcodes"]}
    for opcode, count in requests.items():
        if received.get(opcode, 0) < count or (received.get(opcode, 0) > count and not retransmitted):
            problems.append(f"opcode {opcode:#04x}: {count} requested, {received.get(opcode, 0)} received")
    atomics = requests.get(COMPARE_SWAP, 0) + requests.get(FETCH_ADD, 0)
    by_server = responses.get(ATOMIC_ACK, 0)
    by_switch = reported["decided"] + reported["answered"]
    # The server or the switch executed every atomic; repeated atomics get another response.
    executed = by_server + by_switch
    if atomics and (executed < atomics or (executed > atomics and not (retransmitted or reported["repeated"]))):
        problems.append(f"of {atomics} atomics, the server executed {by_server} and the switch {by_switch}")
    if by_switch < case.decided * atomics:
        problems.append(f"of {atomics} atomics, the switch decided only {by_switch}")
    if case.layers == "[]" and not case.changes and reported["diverged"]:
        problems.append("the sides of a connection differ although no layer is on")
    dispatched = sum(worker["dispatched"] for worker in report["workers"])
    if (dispatched > 0) != (case.workers > 1):
        problems.append(f"{dispatched} packets were handed over between {case.workers} workers")
    if case.restarts and not reported["ended"]:
        problems.append("no packet of a connection from before the restart was refused")
    if case.by_cm and reported["paired_by_cm"] != reported["paired"]:
        problems.append("not all connections were paired by the connection manager")
    # A lost one would have been connected again.
    if reported["own_lanes"] != case.switch_owned or (case.switch_owned and reported["lanes"]):
        shared = f"{reported['own_lanes']} of {case.switch_owned} shared QPs are the switch's"
        problems.append(f"{shared}, {reported['lanes']} are borrowed from clients")
    # The switch's own shared QPs end with the server program, which exits before the switch.
    reported["lanes_lost"] -= reported["own_lanes_lost"]
    wrong = ("spoofed", "unwritten", "lanes_lost", "untracked", "keys_refused")
    problems += [f"{name}: {reported[name]}" for name in wrong if reported[name]]
    if problems:
        problems.append(f"the switch's report: {reported}, drops {report['drops']}")
        problems.append(f"retransmissions by guest: {[counters.retransmissions for counters in increases]}")
    return problems


def summary(switch: Forwarder, responses: dict[int, int]) -> str:
    reported = switch.report["swordbox"]
    return (
        f"{reported['diverged']} of {reported['paired']} connections shared, {reported['remapped']} operations remapped, "
        f"{reported['decided']} atomics decided, {reported['answered']} answered by the switch; "
        f"the server sent {responses.get(ATOMIC_ACK, 0)} atomic ACKs, {responses.get(ACK, 0)} ACKs"
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
