#!/usr/bin/env python3
"""1Pipe through Linux routers: hosts deliver in one order, and beacons pass the links that they speak of, however slow these are.

    tests/e2e/onepipe.py --understudy target/release/understudy

Network namespaces, of which three are routers:

    a, b --- s0 ========== s1 --- c, d      a to d send messages to all (`understudy process`). The link between s0 and s1 is slow,
               \\          /                 and packets wait for it. h1, h2 and h3 stand for s0, s1 and s2 (`understudy run`): what
                +-- s2 --+                  they tell each other is routed by way of s2 alone, which is fast. So a beacon has to go
                    |                       around, through tunnels that routers end, or it is there before the messages that it
               h1, h2, h3                   says are all there.

Every file is what `understudy plan` writes. Everybody scatters to all. Each message has to be delivered once, or its sender told
that it is not; every two receivers have to deliver what both do in one order; barriers have to rise at every host; and no message
may be late. Beacons are recorded at the routers, and have to come by the link that they speak of. Then the same without the detours
between s0 and s1: now messages are late, which are refused and their senders told, and the order is right all the same.
Needs root; no virtual machines.
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
from routers import End, Failed, Network, Shape, call, expect, seen, wait

SCATTERINGS = 300
SIZE = 1000
# What a link is slowed down to: what waits for it are some 100 ms, and a beacon goes by way of s2 in a few.
SLOW = "rate 20mbit burst 5kb limit 8mb".split()
# Everybody shares the CPU with whatever else there is.
PATIENCE_S = 100
# How often processes say how far they are
LIVE_S = 0.2
# Timestamps have so many bits, and wrap.
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
    # As the plan numbers it, if it has a process
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
    """What a router is to all of its hosts."""
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
    """The network as `understudy plan` takes it. Whoever shares its CPU is silent for a while, and not dead."""
    text = """[topology]
beacon_interval_ns = 1000000
dead_after_intervals = 1000000
ahead_max_us = 1000000
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
    """What a process has printed."""

    # Timestamp, sender and number of what it delivered, in its order
    delivered: list[tuple[int, int, int]] = field(default_factory=list)
    # Of what it sent: number and receiver, with the reason
    failed: dict[tuple[int, int], str] = field(default_factory=dict)
    # Lines of JSON, in their order
    reports: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Log:
        log = Log()
        # The last line may not be complete yet.
        for line in path.read_text().split("\n")[:-1]:
            words = line.split()
            if line.startswith("{"):
                log.reports.append(json.loads(line))
            elif words[0] == "failed":
                place = (int(words[1]), int(words[2]))
                expect(f"{path.name}: a message fails once", place not in log.failed, place)
                log.failed[place] = words[3]
            else:
                timestamp, sender, number, size = map(int, words)
                expect(f"{path.name}: bytes of a message", size == SIZE, line)
                log.delivered.append((timestamp, sender, number))
        return log

    @property
    def now(self) -> dict[str, Any]:
        return self.reports[-1] if self.reports else {}

    @property
    def is_settled(self) -> bool:
        """Whether it is known of everything that it sent what has become of it."""
        counters, failed = self.now.get("counters", {}), self.now.get("failed", {})
        return counters.get("acknowledged", 0) + sum(failed.values()) >= SCATTERINGS * len(SENDERS)


def since(earlier: int, later: int) -> int:
    """Nanoseconds from one timestamp to another, negative if it is before; they wrap."""
    return (later - earlier + WRAP // 2) % WRAP - WRAP // 2


class Run:
    """Representatives and processes on a network, started from the files of a plan."""

    def __init__(self, network: Network, understudy: Path, plan: Path, folder: Path) -> None:
        self.network = network
        self.folder = folder
        folder.mkdir()
        for router in SWITCHES:
            call("ip", "-n", network.name(router), "neigh", "flush", "all")
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        # By somebody's clock, which is past all timestamps by then
        self.settled_at: int | None = None
        for host in SENDERS:
            work = ["--send", str(SCATTERINGS), "--size", str(SIZE), "--print", "--json", "--live", str(LIVE_S)]
            self.start(host.name, str(understudy), "process", str(plan / f"{host.name}.process.toml"), *work)
        # Without representatives there is no barrier yet, so nobody sends: what comes before a router knows a host would get lost.
        for host in SENDERS:
            wait(lambda host=host: self.is_found(host), f"an answer to ARP from {host.name}", PATIENCE_S, LIVE_S)
        for switch, name in REPRESENTATIVES.items():
            self.start(name, str(understudy), "run", str(plan / f"{switch}.representative.toml"), "--json")

    def start(self, host: str, *command: str) -> None:
        out, err = (self.folder / f"{host}.{ending}" for ending in ("out", "err"))
        self.programs[host] = self.network.start(host, command, out, err)

    def is_found(self, host: Host) -> bool:
        """Whether its router has its MAC address; if not, that asks."""
        if " is ready" not in (self.folder / f"{host.name}.err").read_text():
            return False
        self.network.inside(host.router, "bash", "-c", f"echo > /dev/udp/{host.address}/9")
        return host.mac in call("ip", "-n", self.network.name(host.router), "neigh", "show", host.address)

    def logs(self) -> dict[int, Log]:
        for host, program in self.programs.items():
            if (code := program.poll()) is not None:
                raise Failed(f"{host} ended with {code}: {(self.folder / f'{host}.err').read_text().rstrip()}")
        return {host.process: Log.read(self.folder / f"{host.name}.out") for host in SENDERS}

    def barriers_are_known(self) -> bool:
        return all(log.now.get("barrier_ns") is not None for log in self.logs().values())

    def is_over(self) -> bool:
        """Whether everybody's messages are settled, and every barrier has passed that moment: nothing is left to deliver."""
        logs = self.logs().values()
        if not all(log.is_settled for log in logs):
            return False
        if self.settled_at is None:
            self.settled_at = max(log.now["clock_ns"] for log in logs)
        return all(since(self.settled_at, log.now["barrier_ns"]) > 0 for log in logs)

    def end(self) -> dict[int, Log]:
        """Ends the processes, then the representatives; what the former have printed."""
        processes = [host.name for host in SENDERS]
        for host in (*processes, *REPRESENTATIVES.values()):
            program = self.programs[host]
            program.send_signal(signal.SIGINT)
            code = program.wait(PATIENCE_S)
            expect(f"how {host} ends", code == 0, f"{code}, {(self.folder / f'{host}.err').read_text().rstrip()}")
        for host in REPRESENTATIVES.values():
            report = json.loads((self.folder / f"{host}.out").read_text().splitlines()[-1])["onepipe"]
            expect(f"what {host} refuses", report["refused"] == {}, report)
            expect(f"links that {host} takes for dead", report["dead"] == 0, report)
        return {host.process: Log.read(self.folder / f"{host.name}.out") for host in SENDERS}


def check(logs: dict[int, Log]) -> Counter[str]:
    """What holds whatever happens; how many messages were delivered, and how many failed for which reason."""
    told: Counter[str] = Counter()
    places = {receiver: {message: at for at, message in enumerate(log.delivered)} for receiver, log in logs.items()}
    timestamps: dict[tuple[int, int], int] = {}
    for receiver, log in logs.items():
        expect(f"process {receiver}: nothing is delivered twice", len(places[receiver]) == len(log.delivered), "it was")
        for (before, one, _), (after, other, _) in itertools.pairwise(log.delivered):
            later = since(before, after)
            expect(f"process {receiver}: its order", later > 0 or later == 0 and one < other, (before, after))
        for timestamp, sender, number in log.delivered:
            # A scattering has one timestamp, wherever it is delivered.
            first = timestamps.setdefault((sender, number), timestamp)
            expect(f"the timestamp of scattering {number} of {sender}", first == timestamp, (first, timestamp))
        barriers = [report["barrier_ns"] for report in log.reports if report["barrier_ns"] is not None]
        steps = [since(before, after) for before, after in itertools.pairwise(barriers)]
        expect(f"process {receiver}: its barrier rises", min(steps) >= 0 and sum(steps) > 0, barriers)
    for one, other in itertools.combinations(places.values(), 2):
        common = one.keys() & other.keys()
        expect("that two receivers have messages in common", bool(common), "none")
        expect("their order", sorted(common, key=one.__getitem__) == sorted(common, key=other.__getitem__), "it differs")
    delivered = {(sender, number, receiver) for receiver, log in logs.items() for _, sender, number in log.delivered}
    for sender, log in logs.items():
        for number, receiver in itertools.product(range(SCATTERINGS), logs):
            why = log.failed.get((number, receiver))
            is_delivered = (sender, number, receiver) in delivered
            # Of one alone it is not known whether it arrived.
            right = is_delivered != (why is not None) or why == "no_answer"
            told["delivered" if is_delivered else str(why)] += 1
            expect(f"message {number} from {sender} to {receiver}", right, f"delivered: {is_delivered}, failed: {why}")
    expect("what was delivered was sent", told["delivered"] == len(delivered), len(delivered))
    return told


@dataclass(frozen=True)
class Detour:
    """Whose beacons go around to whom, and over which link"""

    source: Host
    target: Host
    near: str
    far: str


def detours(plan: Path) -> Iterator[Detour]:
    """Those between switches, as the files of representatives have them."""
    by_address = {host.address: host for host in HOSTS}
    for switch, host in REPRESENTATIVES.items():
        config = tomllib.loads((plan / f"{switch}.representative.toml").read_text())
        source = next(found for found in HOSTS if found.name == host)
        for link in config["onepipe"]["links"]:
            if "detour" in link:
                near, far = (next(name for name, end in SWITCHES.items() if end == way) for way in link["detour"])
                yield Detour(source, by_address[link["address"]], near, far)


def record(network: Network) -> list[subprocess.Popen[bytes]]:
    """Records so many packets at the routers, wherever beacons between representatives can pass."""
    options = ("-s", "128", "-c", "2000")
    ends = [(node, other) for node in SWITCHES for other in network.interfaces(node)]
    near = {*SWITCHES, *REPRESENTATIVES.values()}
    recorders = [network.record(node, other, *options) for node, other in ends if other in near]
    hosts = [network.record(host, "s2", *options) for host in REPRESENTATIVES.values()]
    return recorders + hosts


def check_ways(folder: Path, plan: Path) -> int:
    """Each planned detour's beacons were seen on the link that they speak of, and never beside it; how many were, on such links."""
    frames = [(frame.link, [(source, target) for source, target, _ in frame.headers]) for frame in seen(folder)]
    on_links = 0
    planned = list(detours(plan))
    expect("detours between switches", len(planned) == 6, planned)
    for detour in planned:
        source, target = detour.source, detour.target
        inner = (source.address, target.address)
        ends = (SWITCHES[detour.near], SWITCHES[detour.far])
        found = Counter((link, *headers[:-1]) for link, headers in frames if headers[-1] == inner)
        crossing = (f"{detour.near}-{detour.far}", ends)
        start = (f"{source.name}-s2", (source.address, ends[0]), ends)
        end = (f"s2-{target.name}",)
        ways = {start, crossing, end}
        if detour.near != "s2":
            ways.add((f"s2-{detour.near}", *start[1:]))
        if detour.far != "s2":
            ways.add((f"{detour.far}-s2",))
        what = f"beacons from {source.name} to {target.name}, of the link from {detour.near} to {detour.far}"
        expect(f"the way of {what}", found.keys() == ways, dict(found))
        on_links += found[crossing]
    return on_links


def without_detours(plan: Path, other: Path) -> None:
    """The same plan, whose beacons of the link between s0 and s1 are left to routes."""
    call("cp", "-r", str(plan), str(other))
    for switch in ("s0", "s1"):
        file = other / f"{switch}.representative.toml"
        ends = [SWITCHES[switch], *(SWITCHES[far] for far in ("s0", "s1") if far != switch)]
        line = f"detour = {json.dumps(ends)}\n"
        text = file.read_text()
        expect("detours between s0 and s1", text.count(line) == 1, text)
        file.write_text(text.replace(line, ""))


def play(network: Network, understudy: Path, plan: Path, folder: Path, recorded: bool = False) -> Counter[str]:
    """Has everybody send everything; what became of it."""
    run = Run(network, understudy, plan, folder)
    wait(run.barriers_are_known, "barriers at every host", PATIENCE_S, LIVE_S)
    # Everybody's beacons come everywhere by now.
    recorders = record(network) if recorded else []
    wait(run.is_over, "every message delivered or reported failed, and barriers past it", PATIENCE_S, LIVE_S)
    wait(lambda: all(recorder.poll() is not None for recorder in recorders), "packets to record", PATIENCE_S)
    return check(run.end())


def in_words(told: Counter[str]) -> str:
    return ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in sorted(told.items()))


def run(arguments: argparse.Namespace, folder: Path) -> None:
    # A kernel's queue of what has come is a CPU's: packets of a link stay in order on one alone.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    plan, other = folder / "plan", folder / "without"
    file = folder / "topology.toml"
    file.write_text(topology())
    call(str(arguments.understudy), "plan", str(file), "--out", str(plan))
    without_detours(plan, other)
    with Network(SHAPE, folder) as network:
        by = network.end_tunnels(plan)
        for node, far in (("s0", "s1"), ("s1", "s0")):
            call("tc", "-n", network.name(node), "qdisc", "add", "dev", far, "root", "tbf", *SLOW)
        told = play(network, arguments.understudy, plan, folder / "with-detours", recorded=True)
        expect("no message is late", told["late"] == 0, in_words(told))
        print(f"ok  {len(SENDERS)} hosts at Linux routers, {SCATTERINGS} scatterings each: {in_words(told)}; in one order")
        on_links = check_ways(folder, plan)
        print(f"ok  beacons went around: {on_links} were seen on the link that they speak of (headers taken off by {by})")
        told = play(network, arguments.understudy, other, folder / "without-detours")
        expect("that messages are late without detours", told["late"] > 0, in_words(told))
        print(f"ok  without the detours between s0 and s1: {in_words(told)}; in one order all the same")


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ip", "tc", "tcpdump", "sysctl"), run))
