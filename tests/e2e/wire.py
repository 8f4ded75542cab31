#!/usr/bin/env python3
"""Runs wires between kernel interfaces: one process for each interface, and warnings whose commands make TCP pass.

    tests/e2e/wire.py --understudy target/release/understudy

Network namespaces; w and v run `understudy run`, each with interfaces named a and b:

    a ==== w ==== b
      ==== v ====

A second process on an interface has to be refused with the process that uses it, until that one ends in any way; another
namespace with interfaces of the same names is free. With the offloads that a veth has by default, and with an address on an
interface of w, `check` and `run` have to warn; when exactly the printed commands have run, nothing is left to warn of, and TCP
passes. Needs root, but no virtual machines.
"""

from __future__ import annotations

import argparse
import re
import shlex
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
            expect(f"`{command}` states what to do", f"(kill {first.pid})" in text, text)
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


SERVER = "import socket, sys; s = socket.create_server(('10.0.0.2', 5001)); c, _ = s.accept(); d = b''.join(iter(lambda: c.recv(65536), b'')); c.sendall(str(len(d)).encode())"
CLIENT = "import socket; c = socket.create_connection(('10.0.0.2', 5001), 5); c.settimeout(5); c.sendall(bytes(1 << 20)); c.shutdown(1); print(c.recv(64).decode())"


def tcp(lab: Lab) -> str:
    """Sends 1 MB from a to b by TCP. Returns how many bytes b has received, or the client's error."""
    server = lab.network.start("b", ["python3", "-c", SERVER], None, lab.folder / "tcp.log")
    listens = ["ip", "netns", "exec", lab.network.name("b"), "ss", "-Hltn", "sport", "=", "5001"]
    wait(lambda: bool(subprocess.run(listens, check=True, capture_output=True).stdout), "the TCP server listens")
    client = ["ip", "netns", "exec", lab.network.name("a"), "python3", "-c", CLIENT]
    done = subprocess.run(client, check=False, capture_output=True, text=True, timeout=60)
    server.kill()
    server.wait()
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def advice(lab: Lab, config: Path) -> list[str]:
    """Returns the commands that `check` prints for the wire at w."""
    notes = lab.network.inside("w", str(lab.understudy), "check", str(config))
    return re.findall(r"^note: port `\w+`: .*; run: (.*)$", notes, re.MULTILINE)


def offloads(lab: Lab) -> None:
    config = lab.folder / "wire.toml"
    config.write_text(WIRE)
    lab.network.inside("w", "ip", "address", "add", "10.0.7.1/24", "dev", "a")
    with lab.wire("w", config) as (_, log):
        expect("a ping passes", lab.passes("10.0.0.2"), "no answer")
        result = tcp(lab)
        expect("TCP times out with the default offloads", "TimeoutError" in result, result)
        warnings = [line.split("; run: ")[1] for line in log.read_text().splitlines() if "warning: " in line and "; run: " in line]
    commands = advice(lab, config)
    expect("`run` warns as `check` does", warnings == commands, (warnings, commands))
    far = [f"ip netns exec {lab.network.name(node)} ethtool -K w tx off" for node in ("a", "b")]
    expected = ["ip addr flush dev a", *far]
    expect("`check` names both other ends", [c[: len(e)] for c, e in zip(commands, expected, strict=True)] == expected, commands)
    for command in commands:
        lab.network.inside("w", *shlex.split(command))
    expect("nothing is left to warn of", advice(lab, config) == [], advice(lab, config))
    with lab.wire("w", config) as (_, log):
        result = tcp(lab)
        expect("TCP passes after the printed commands", result == str(1 << 20), result)
        expect("`run` has no warning", "warning" not in log.read_text(), log.read_text())
    print("ok  `check` and `run` warn of addresses and offloads, and TCP passes after the printed commands")


def run(arguments: argparse.Namespace, folder: Path) -> None:
    with Network(SHAPE, folder) as network:
        lab = Lab(network, arguments.understudy, folder)
        claims(lab)
        offloads(lab)


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ethtool", "ip", "ping", "ss", "sysctl"), run))
