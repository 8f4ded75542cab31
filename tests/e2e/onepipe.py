#!/usr/bin/env python3
"""Runs 1Pipe at Linux routers: hosts deliver in one order, and beacons pass the links that they describe, even slow ones.

    tests/e2e/onepipe.py --understudy target/release/understudy

Network namespaces, three of which are routers:

    a, b --- s0 ========== s1 --- c, d      a to d send messages to all (`understudy process`). The link between s0 and s1 is slow,
               \\          /                 and packets queue there. h1, h2 and h3 represent s0, s1 and s2 (`understudy run`): packets
                +-- s2 --+                  between them are routed through s2 only, which is fast. So a beacon has to take a
                    |                       detour, through tunnels that routers terminate, or it overtakes messages that its
               h1, h2, h3                   barrier covers.

All files are written by `understudy plan`. Every sender sends scatterings to all hosts. Each message has to be delivered once, or
to be reported to its sender as failed; any two receivers have to deliver their common messages in one order; barriers have to
rise at every host; and no message may be late. Beacons are recorded at the routers, and have to pass the links that they describe.
Then the same without the detours between s0 and s1: now messages have to be late, which are refused and reported to their
senders, and the order is still correct. Needs root, but no virtual machines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import routers
from routers import End, Failed, Network, Shape, call, expect, captured_frames, wait

SCATTERINGS = 300
SIZE = 1000
# Rate of the slow link: some 100 ms of packets queue there, while a beacon through s2 takes a few ms
SLOW = "rate 20mbit burst 5kb limit 8mb".split()
# Time limit of each step, in seconds: long, because all processes share a CPU that may be busy
STEP_TIMEOUT_S = 100
# Interval of the processes' JSON reports, in seconds
LIVE_S = 0.2
# Timestamps have 48 bits, and wrap
WRAP = 1 << 48

SWITCHES = {"s0": "10.255.0.1", "s1": "10.255.0.2", "s2": "10.255.0.3"}
REPRESENTATIVES = {"s0": "h1", "s1": "h2", "s2": "h3"}


@dataclass(frozen=True)
class Host:
    """A host, alone in its subnet with its router."""

    name: str
    router: str
    address: str
    gateway: str
    mac: str
    # Id of its process in the plan; 0 if it has none
    process: int = 0


HOSTS = [
    Host("a", "s0", "10.0.3.1", "10.0.3.2", "02:00:00:00:03:01", 1),
    Host("b", "s0", "10.0.3.5", "10.0.3.6", "02:00:00:00:03:05", 2),
    Host("c", "s1", "10.0.4.1", "10.0.4.2", "02:00:00:00:04:01", 3),
    Host("d", "s1", "10.0.4.5", "10.0.4.6", "02:00:00:00:04:05", 4),
    Host("h1", "s2", "10.0.1.1", "10.0.1.2", "02:00:00:00:01:01"),
    Host("h2", "s2", "10.0.1.5", "10.0.1.6", "02:00:00:00:01:05"),
    Host("h3", "s2", "10.0.1.9", "10.0.1.10", "02:00:00:00:01:09"),
]
SENDERS = [host for host in HOSTS if host.process]


def router_mac(router: str) -> str:
    """Returns the MAC address of a router at all of its hosts."""
    return f"02:00:00:01:00:0{router[1:]}"


SHAPE = Shape(
    routers=tuple(SWITCHES),
    hosts=[host.name for host in HOSTS],
    links=[
        (End("s0", "02:00:00:01:01:01", "10.1.0.1/30"), End("s1", "02:00:00:01:01:02", "10.1.0.2/30")),
        (End("s0", "02:00:00:01:02:01", "10.1.1.1/30"), End("s2", "02:00:00:01:02:02", "10.1.1.2/30")),
        (End("s1", "02:00:00:01:03:01", "10.1.2.1/30"), End("s2", "02:00:00:01:03:02", "10.1.2.2/30")),
        # A host's kernel has no address: its port is understudy's alone, which answers ARP, too.
        *((End(h.name, h.mac), End(h.router, router_mac(h.router), f"{h.gateway}/30")) for h in HOSTS),
    ],
    routes=[
        ("s0", "10.0.4.0/24", "10.1.0.2"),
        ("s0", "10.0.1.0/24", "10.1.1.2"),
        ("s0", "10.255.0.2/32", "10.1.0.2"),
        ("s0", "10.255.0.3/32", "10.1.1.2"),
        ("s1", "10.0.3.0/24", "10.1.0.1"),
        ("s1", "10.0.1.0/24", "10.1.2.2"),
        ("s1", "10.255.0.1/32", "10.1.0.1"),
        ("s1", "10.255.0.3/32", "10.1.2.2"),
        ("s2", "10.0.3.0/24", "10.1.1.1"),
        ("s2", "10.0.4.0/24", "10.1.2.1"),
        ("s2", "10.255.0.1/32", "10.1.1.1"),
        ("s2", "10.255.0.2/32", "10.1.2.1"),
    ],
)


def topology() -> str:
    """Returns the network as input of `understudy plan`. 

    Limits are long, because processes that share a CPU may be silent. Processes accept messages from the beginning, because
    they start one after the other.
    """
    text = """[topology]
beacon_interval_ns = 1000000
dead_after_intervals = 1000000
ahead_max_us = 1000000
clock_error_us = 0
timeout_us = 10000000
idle = "sleep"
"""
    for layer, (name, tunnel) in enumerate(SWITCHES.items(), 1):
        text += f"""[[switch]]
name = "{name}"
layer = {layer}
mac = "{router_mac(name)}"
tunnel = "{tunnel}"
representative = "{REPRESENTATIVES[name]}"
os = "linux"
"""
    for host in HOSTS:
        text += f"""[[host]]
name = "{host.name}"
address = "{host.address}/30"
mac = "{host.mac}"
switch = "{host.router}"
interface = "{host.router}"
messages = {"true" if host.process else "false"}
"""
    for ends in (["s0", "s1"], ["s0", "s2"], ["s1", "s2"]):
        text += f"[[link]]\nends = {json.dumps(ends)}\n"
    return text


@dataclass
class Log:
    """Output of a process."""

    # Timestamp, sender and scattering number of delivered messages, in order
    delivered: list[tuple[int, int, int]] = field(default_factory=list)
    # Failed messages that it sent: scattering number and receiver, with the reason
    failed: dict[tuple[int, int], str] = field(default_factory=dict)
    # JSON reports, in order
    reports: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Log:
        """Reads a process's messages, and its reports in the file beside them."""
        log = Log()
        # The last line may be incomplete.
        reports = path.with_suffix(".reports")
        log.reports = [json.loads(line) for line in reports.read_text().split("\n")[:-1]] if reports.exists() else []
        for line in path.read_text().split("\n")[:-1]:
            words = line.split()
            if words[0] == "failed":
                message = (int(words[1]), int(words[2]))
                expect(f"{path.name}: a message fails at most once", message not in log.failed, message)
                log.failed[message] = words[3]
            else:
                timestamp, sender, number, size = map(int, words)
                expect(f"{path.name}: a message has {SIZE} bytes", size == SIZE, line)
                log.delivered.append((timestamp, sender, number))
        return log

    @property
    def latest(self) -> dict[str, Any]:
        return self.reports[-1] if self.reports else {}

    @property
    def is_settled(self) -> bool:
        """Whether all messages that it sent are acknowledged or have failed."""
        counters, failed = self.latest.get("counters", {}), self.latest.get("failed", {})
        return counters.get("acknowledged", 0) + sum(failed.values()) >= SCATTERINGS * len(SENDERS)


def elapsed(earlier: int, later: int) -> int:
    """Returns the nanoseconds from one timestamp to another, negative if `later` is earlier. Timestamps wrap."""
    return (later - earlier + WRAP // 2) % WRAP - WRAP // 2


class Run:
    """Representatives and processes on a network, started with the files of a plan."""

    def __init__(self, network: Network, understudy: Path, plan: Path, folder: Path) -> None:
        self.network = network
        self.folder = folder
        folder.mkdir()
        for router in SWITCHES:
            call("ip", "-n", network.name(router), "neigh", "flush", "all")
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        # Latest clock of the processes when all messages were settled, which is later than all timestamps
        self.settled_at: int | None = None
        for host in SENDERS:
            work = ["--send", str(SCATTERINGS), "--size", str(SIZE), "--print", "--json", "--live", str(LIVE_S)]
            work += ["--report", str(self.folder / f"{host.name}.reports")]
            self.start(host.name, str(understudy), "process", str(plan / f"{host.name}.process.toml"), *work)
        # No process sends before its representative runs, because there is no barrier. Packets that reach a router before it
        # has the MAC address of the destination would get lost.
        for host in SENDERS:
            condition = f"{host.name} is in the neighbour table of {host.router}"
            wait(lambda host=host: self.is_found(host), condition, STEP_TIMEOUT_S, LIVE_S)
        for switch, name in REPRESENTATIVES.items():
            self.start(name, str(understudy), "run", str(plan / f"{switch}.representative.toml"), "--json")

    def start(self, host: str, *command: str) -> None:
        out, err = (self.folder / f"{host}.{ending}" for ending in ("out", "err"))
        self.programs[host] = self.network.start(host, command, out, err)

    def is_found(self, host: Host) -> bool:
        """Returns whether the host's router has the host's MAC address; makes it send an ARP request if not."""
        if " is ready" not in (self.folder / f"{host.name}.err").read_text():
            return False
        self.network.inside(host.router, "bash", "-c", f"echo > /dev/udp/{host.address}/9")
        return host.mac in call("ip", "-n", self.network.name(host.router), "neigh", "show", host.address)

    def logs(self) -> dict[int, Log]:
        for host, program in self.programs.items():
            if (code := program.poll()) is not None:
                raise Failed(f"{host} exited with code {code}: {(self.folder / f'{host}.err').read_text().rstrip()}")
        return {host.process: Log.read(self.folder / f"{host.name}.out") for host in SENDERS}

    def barriers_are_known(self) -> bool:
        return all(log.latest.get("barrier_ns") is not None for log in self.logs().values())

    def is_over(self) -> bool:
        """Returns whether all messages are settled, and every barrier has passed that moment: nothing is left to deliver."""
        logs = self.logs().values()
        if not all(log.is_settled for log in logs):
            return False
        if self.settled_at is None:
            self.settled_at = max(log.latest["clock_ns"] for log in logs)
        return all(elapsed(self.settled_at, log.latest["barrier_ns"]) > 0 for log in logs)

    def end(self) -> dict[int, Log]:
        """Ends the processes, then the representatives. Returns the output of the processes."""
        processes = [host.name for host in SENDERS]
        for host in (*processes, *REPRESENTATIVES.values()):
            program = self.programs[host]
            program.send_signal(signal.SIGINT)
            code = program.wait(STEP_TIMEOUT_S)
            expect(f"{host} exits with 0", code == 0, f"{code}, {(self.folder / f'{host}.err').read_text().rstrip()}")
        for host in REPRESENTATIVES.values():
            report = json.loads((self.folder / f"{host}.out").read_text().splitlines()[-1])["onepipe"]
            expect(f"{host} refuses nothing", report["refused"] == {}, report)
            expect(f"{host} detects no dead links", report["dead"] == 0, report)
        return {host.process: Log.read(self.folder / f"{host.name}.out") for host in SENDERS}


def check(logs: dict[int, Log]) -> Counter[str]:
    """Checks order, barriers and outcomes. Returns the number of delivered messages, and of failed ones by reason."""
    outcomes: Counter[str] = Counter()
    positions = {receiver: {message: at for at, message in enumerate(log.delivered)} for receiver, log in logs.items()}
    timestamps: dict[tuple[int, int], int] = {}
    for receiver, log in logs.items():
        expect(f"process {receiver}: nothing is delivered twice", len(positions[receiver]) == len(log.delivered), "duplicates")
        for (before, one, _), (after, other, _) in itertools.pairwise(log.delivered):
            later = elapsed(before, after)
            expect(f"process {receiver}: messages are in order", later > 0 or later == 0 and one < other, (before, after))
        for timestamp, sender, number in log.delivered:
            # A scattering has one timestamp, wherever it is delivered.
            first = timestamps.setdefault((sender, number), timestamp)
            expect(f"scattering {number} of {sender} has one timestamp", first == timestamp, (first, timestamp))
        barriers = [report["barrier_ns"] for report in log.reports if report["barrier_ns"] is not None]
        steps = [elapsed(before, after) for before, after in itertools.pairwise(barriers)]
        expect(f"process {receiver}: the barrier rises", min(steps) >= 0 and sum(steps) > 0, barriers)
    for one, other in itertools.combinations(positions.values(), 2):
        common = one.keys() & other.keys()
        expect("any two receivers have common messages", bool(common), "none")
        same_order = sorted(common, key=one.__getitem__) == sorted(common, key=other.__getitem__)
        expect("any two receivers deliver common messages in one order", same_order, "different orders")
    delivered = {(sender, number, receiver) for receiver, log in logs.items() for _, sender, number in log.delivered}
    for sender, log in logs.items():
        for number, receiver in itertools.product(range(SCATTERINGS), logs):
            reason = log.failed.get((number, receiver))
            is_delivered = (sender, number, receiver) in delivered
            # After `no_answer` the sender does not know whether the message was delivered.
            is_consistent = is_delivered != (reason is not None) or reason == "no_answer"
            outcomes["delivered" if is_delivered else str(reason)] += 1
            condition = f"message {number} from {sender} to {receiver} was either delivered or failed"
            expect(condition, is_consistent, f"delivered: {is_delivered}, failed: {reason}")
    expect("only sent messages were delivered", outcomes["delivered"] == len(delivered), len(delivered))
    return outcomes


@dataclass(frozen=True)
class Detour:
    """A planned detour: sender and receiver of the beacons, and the two switches of the link."""

    source: Host
    target: Host
    near: str
    far: str


def detours(plan: Path) -> Iterator[Detour]:
    """Yields the detours between switches, from the configurations of the representatives."""
    by_address = {host.address: host for host in HOSTS}
    for switch, host in REPRESENTATIVES.items():
        config = tomllib.loads((plan / f"{switch}.representative.toml").read_text())
        source = next(found for found in HOSTS if found.name == host)
        for link in config["onepipe"]["links"]:
            if "detour" in link:
                near, far = (next(name for name, end in SWITCHES.items() if end == endpoint) for endpoint in link["detour"])
                yield Detour(source, by_address[link["address"]], near, far)


def record(network: Network) -> list[subprocess.Popen[bytes]]:
    """Records 2,000 packets at each interface through which beacons between representatives can pass."""
    options = ("-s", "128", "-c", "2000")
    ends = [(node, other) for node in SWITCHES for other in network.interfaces(node)]
    near = {*SWITCHES, *REPRESENTATIVES.values()}
    recorders = [network.record(node, other, *options) for node, other in ends if other in near]
    hosts = [network.record(host, "s2", *options) for host in REPRESENTATIVES.values()]
    return recorders + hosts


def check_detours(folder: Path, plan: Path) -> int:
    """Checks that the beacons of each planned detour were captured on the link that they describe, and on no other path.

    Returns the number of beacons on these links.
    """
    frames = [(frame.link, [(source, target) for source, target, _ in frame.headers]) for frame in captured_frames(folder)]
    on_links = 0
    planned = list(detours(plan))
    expect("the plan has 6 detours between switches", len(planned) == 6, planned)
    for detour in planned:
        source, target = detour.source, detour.target
        inner = (source.address, target.address)
        ends = (SWITCHES[detour.near], SWITCHES[detour.far])
        found = Counter((link, *headers[:-1]) for link, headers in frames if headers[-1] == inner)
        crossing = (f"{detour.near}-{detour.far}", ends)
        start = (f"{source.name}-s2", (source.address, ends[0]), ends)
        end = (f"s2-{target.name}",)
        paths = {start, crossing, end}
        if detour.near != "s2":
            paths.add((f"s2-{detour.near}", *start[1:]))
        if detour.far != "s2":
            paths.add((f"{detour.far}-s2",))
        what = f"beacons from {source.name} to {target.name} for the link from {detour.near} to {detour.far}"
        expect(f"{what} take the planned path", found.keys() == paths, dict(found))
        on_links += found[crossing]
    return on_links


def without_detours(plan: Path, other: Path) -> None:
    """Writes a copy of the plan without the detours for the link between s0 and s1."""
    call("cp", "-r", str(plan), str(other))
    for switch in ("s0", "s1"):
        file = other / f"{switch}.representative.toml"
        ends = [SWITCHES[switch], *(SWITCHES[far] for far in ("s0", "s1") if far != switch)]
        line = f"detour = {json.dumps(ends)}\n"
        text = file.read_text()
        expect(f"{file.name} has one detour between s0 and s1", text.count(line) == 1, text)
        file.write_text(text.replace(line, ""))


def run_all(network: Network, understudy: Path, plan: Path, folder: Path, recorded: bool = False) -> Counter[str]:
    """Runs all processes until all messages are settled. Returns the outcomes."""
    run = Run(network, understudy, plan, folder)
    wait(run.barriers_are_known, "every host has a barrier", STEP_TIMEOUT_S, LIVE_S)
    # By now, all beacons reach their receivers.
    recorders = record(network) if recorded else []
    wait(run.is_over, "all messages are delivered or failed, and all barriers have passed that moment", STEP_TIMEOUT_S, LIVE_S)
    condition = "tcpdump has recorded 2,000 packets at each interface"
    wait(lambda: all(recorder.poll() is not None for recorder in recorders), condition, STEP_TIMEOUT_S)
    return check(run.end())


def format_outcomes(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(outcomes.items()))


def run(arguments: argparse.Namespace, folder: Path) -> None:
    # The kernel has a receive queue for each CPU: packets of a link stay in order only on one CPU.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    plan, other = folder / "plan", folder / "without"
    file = folder / "topology.toml"
    file.write_text(topology())
    call(str(arguments.understudy), "plan", str(file), "--out", str(plan))
    without_detours(plan, other)
    with Network(SHAPE, folder) as network:
        mechanism = network.terminate_tunnels(plan)
        for node, far in (("s0", "s1"), ("s1", "s0")):
            call("tc", "-n", network.name(node), "qdisc", "add", "dev", far, "root", "tbf", *SLOW)
        outcomes = run_all(network, arguments.understudy, plan, folder / "with-detours", recorded=True)
        expect("no message is late", outcomes["late"] == 0, format_outcomes(outcomes))
        print(f"ok  {len(SENDERS)} hosts at Linux routers, {SCATTERINGS} scatterings each: {format_outcomes(outcomes)}; in one order")
        on_links = check_detours(folder, plan)
        print(f"ok  beacons took detours: {on_links} were captured on the link that they describe (headers removed by {mechanism})")
        outcomes = run_all(network, arguments.understudy, other, folder / "without-detours")
        expect("messages are late without detours", outcomes["late"] > 0, format_outcomes(outcomes))
        print(f"ok  without the detours between s0 and s1: {format_outcomes(outcomes)}; still in one order")


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ip", "tc", "tcpdump", "sysctl"), run))
