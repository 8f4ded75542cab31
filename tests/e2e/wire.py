#!/usr/bin/env python3
"""Runs wires between kernel interfaces: one process for each interface, and warnings whose commands make TCP pass.

    tests/e2e/wire.py --understudy target/release/understudy

Network namespaces; w and v run `understudy run`, each with interfaces named a and b:

    a ==== w ==== b
      ==== v ====

A second process on an interface has to be refused with the process that uses it, until that one ends in any way; another
namespace with interfaces of the same names is free. Needs root, but no virtual machines.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import routers
from routers import End, Network, Shape, expect, wait

WIRE = """
[runtime]
idle = "sleep"
[[port]]
name = "left"
af_packet = { interface = "a" }
[[port]]
name = "right"
af_packet = { interface = "b" }
[forward]
pairs = [["left", "right"]]
"""


def mac(node: str, other: str) -> str:
    return f"02:00:00:00:{ord(node):02x}:{ord(other):02x}"


def link(a: str, b: str, address_a: str = "", address_b: str = "") -> tuple[End, End]:
    return End(a, mac(a, b), address_a), End(b, mac(b, a), address_b)


SHAPE = Shape(
    routers=[],
    hosts=["a", "b", "v", "w"],
    links=[
        link("a", "w", "10.0.0.1/24"),
        link("w", "b", "", "10.0.0.2/24"),
        link("a", "v", "10.0.1.1/24"),
        link("v", "b", "", "10.0.1.2/24"),
    ],
    routes=[],
)


class Lab:
    """The network, and the program to run in it."""

    def __init__(self, network: Network, understudy: Path, folder: Path) -> None:
        self.network = network
        self.understudy = understudy
        self.folder = folder
        self.started = 0

    def start(self, node: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts understudy at a node. Returns the process, and the file with its standard error."""
        self.started += 1
        log = self.folder / f"{node}-{self.started}.log"
        return self.network.start(node, [str(self.understudy), *command], None, log), log

    def ready(self, node: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts understudy at a node, and waits until it is ready. A fanout group in use is that of another process."""
        for _ in range(4):
            process, log = self.start(node, *command)
            wait(lambda: "is ready" in log.read_text() or process.poll() is not None, f"{log.name}: ready", 60)
            if process.poll() is None or "could not set PACKET_FANOUT" not in log.read_text():
                break
        expect("understudy is ready", process.poll() is None, log.read_text())
        return process, log

    def refused(self, node: str, *command: str) -> str:
        """Runs a command that has to fail. Returns what it printed, with its lines joined."""
        process, log = self.start(node, *command)
        process.wait(60)
        expect("the command fails", process.returncode == 1, (process.returncode, log.read_text()))
        return " ".join(log.read_text().replace("│", " ").split())

    @contextmanager
    def wire(self, node: str, config: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        process, log = self.ready(node, "run", str(config))
        yield process, log
        process.send_signal(signal.SIGINT)
        expect("the wire ends without an error", process.wait(30) == 0, log.read_text())

    def passes(self, address: str) -> bool:
        """Returns whether one ping from a is answered, once."""
        ping = ["ip", "netns", "exec", self.network.name("a"), "ping", "-c", "2", "-i", "0.2", "-w", "10", address]
        done = subprocess.run(ping, check=False, capture_output=True, text=True)
        expect("no answer comes twice", "DUP!" not in done.stdout, done.stdout)
        return done.returncode == 0


def claims(lab: Lab) -> None:
    config = lab.folder / "wire.toml"
    config.write_text(WIRE)
    host = lab.folder / "host.toml"
    port = '[runtime]\nidle = "sleep"\n[[port]]\nname = "eth"\naf_packet = { interface = "b" }\n'
    host.write_text(f'{port}[nic]\naddresses = ["10.0.0.9/24"]\n')
    pktgen = lab.folder / "pktgen.toml"
    stream = '[[pktgen.stream]]\nverb = "write"\nsrc = "10.0.0.1"\ndst = "10.0.0.2"\ndst_mac = "02:00:00:00:00:01"\n'
    pktgen.write_text(f'{port}[pktgen]\nsend = "eth"\nduration_s = 1\n{stream}')
    with lab.wire("w", config) as (first, _):
        expect("the wire passes a ping", lab.passes("10.0.0.2"), "no answer")
        for command, file, interface in (("run", config, "a"), ("host", host, "b"), ("pktgen", pktgen, "b")):
            text = lab.refused("w", command, str(file))
            use = f"the interface `{interface}` is in use by process {first.pid} ("
            expect(f"`{command}` names the process", use in text and f"run {config}" in text, text)
            expect(f"`{command}` says what to do", f"(kill {first.pid})" in text, text)
        expect("the wire still passes a ping, once", lab.passes("10.0.0.2"), "no answer")
        with lab.wire("v", config):
            expect("both wires pass a ping", lab.passes("10.0.1.2") and lab.passes("10.0.0.2"), "no answer")
    print("ok  a second process on an interface is refused, and names the first; another namespace is free")
    process, _ = lab.ready("w", "run", str(config))
    process.kill()
    process.wait()
    with lab.wire("w", config):
        expect("the wire passes a ping", lab.passes("10.0.0.2"), "no answer")
    print("ok  an interface is free after the death of its process")


def run(arguments: argparse.Namespace, folder: Path) -> None:
    with Network(SHAPE, folder) as network:
        lab = Lab(network, arguments.understudy, folder)
        claims(lab)


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ip", "ping", "sysctl"), run))
