#!/usr/bin/env python3
"""Changes the rules of a running wire while ping and a TCP connection go through it.

    tests/e2e/steer.py --understudy target/release/understudy

    h1 --- wire --- h2        three network namespaces; `understudy run` with [impair] in the middle one

ping and TCP go on for the whole test. RoCEv2 packets from a capture are sent from h1 while `understudy impair` sets their loss
to 0, 30 % and 0 again: the rule's counters have to show that no packet, then about 30 %, and then none is lost, and ping and
the TCP connection must not be affected. Needs root, but no virtual machines.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

import routers
from routers import REPOSITORY, End, Network, Shape, call, expect, wait

SHAPE = Shape(
    routers=(),
    hosts=("h1", "h2", "wire"),
    links=[
        (End("h1", "02:00:00:00:00:01", "10.0.0.1/24"), End("wire", "02:00:00:00:01:01")),
        (End("h2", "02:00:00:00:00:02", "10.0.0.2/24"), End("wire", "02:00:00:00:01:02")),
    ],
    routes=[],
)

WIRE = """
[runtime]
idle = "sleep"
[[port]]
name = "h1"
af_packet = { interface = "h1" }
[[port]]
name = "h2"
af_packet = { interface = "h2" }
[observe]
socket = "wire.sock"
[impair]
pairs = [["h1", "h2"]]
"""

# Program that sends the frames of a capture in a loop, until it has sent the given number of frames
SENDER = """
import socket, struct, sys, time
data = open(sys.argv[1], "rb").read()
frames, at = [], 24
while at < len(data):
    length = struct.unpack_from("<I", data, at + 8)[0]
    frames.append(data[at + 16 : at + 16 + length])
    at += 16 + length
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("wire", 0))
for number in range(int(sys.argv[2])):
    link.send(frames[number % len(frames)])
    if number % 16 == 15:
        time.sleep(0.002)
"""

# One TCP connection: the client exchanges messages until a file exists, and prints their number
SERVER = """
import socket
listener = socket.create_server(("10.0.0.2", 5000))
connection, _ = listener.accept()
while message := connection.recv(65536):
    connection.sendall(message)
"""
CLIENT = """
import os, socket, sys
connection, exchanged = socket.create_connection(("10.0.0.2", 5000)), 0
while not os.path.exists(sys.argv[1]):
    connection.sendall(b"x" * 1000)
    got = 0
    while got < 1000:
        got += len(connection.recv(65536))
    exchanged += 1
print(exchanged)
"""


def run(arguments: argparse.Namespace, folder: Path) -> None:
    program, config = str(arguments.understudy), folder / "wire.toml"
    config.write_text(WIRE)
    capture = str(REPOSITORY / "tests/captures/rc_send_64.pcap")
    with Network(SHAPE, folder) as network:
        for node, interface in (("h1", "wire"), ("h2", "wire"), ("wire", "h1"), ("wire", "h2")):
            # A wire has to see whole packets with their checksums.
            network.inside(node, "ethtool", "-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off")
        wire = network.start("wire", [program, "run", "--json", str(config)], folder / "report.json", folder / "wire.log")
        wait(lambda: (folder / "wire.sock").exists(), "the wire is ready")

        def impair(*request: str) -> dict[str, object]:
            return json.loads(call(program, "impair", "--json", str(config), *request))["rules"][0]

        network.start("h2", [sys.executable, "-c", SERVER], None, folder / "server.log")
        wait(lambda: "5000" in network.inside("h2", "ss", "-tln"), "the server listens")
        done, exchanged = folder / "done", folder / "exchanged"
        client = network.start("h1", [sys.executable, "-c", CLIENT, str(done)], exchanged, folder / "client.log")
        ping = network.start("h1", ["ping", "-i", "0.02", "10.0.0.2"], folder / "ping.txt", folder / "ping.log")
        rule = impair("add", "name=lossy", "action=drop", "share=0")
        for share, least, most in ((0, 0, 0), (0.3, 450, 750), (0, 0, 0)):
            before = impair("set", "lossy", f"share={share}")
            network.inside("h1", sys.executable, "-c", SENDER, capture, "2000")
            matched = int(str(before["matched"])) + 2000
            wait(lambda matched=matched: int(str(impair("list")["matched"])) >= matched, "the packets have passed")
            rule = impair("list")
            lost = int(str(rule["acted"])) - int(str(before["acted"]))
            expect(f"{least} to {most} of 2000 packets are lost with share = {share}", least <= lost <= most, rule)
        done.touch()
        wait(lambda: client.poll() is not None, "the TCP connection ends")
        expect("messages were exchanged", client.returncode == 0 and int(exchanged.read_text()) > 100, exchanged.read_text())
        ping.send_signal(signal.SIGINT)
        wait(lambda: ping.poll() is not None, "ping ends")
        answered = (folder / "ping.txt").read_text()
        expect("ping loses nothing", " 0% packet loss" in answered, answered[-300:])
        wire.send_signal(signal.SIGINT)
        wait(lambda: wire.poll() is not None, "the wire ends")
        report = json.loads((folder / "report.json").read_text())
        dropped = {drop["reason"]: drop["frames"] for drop in report["drops"]}
        expect("only the rule dropped packets", dropped == {"impaired": rule["acted"]}, dropped)
    print(f"ok  loss of 0, 30 and 0 %: {rule['acted']} of 6000 packets; {exchanged.read_text().strip()} messages over TCP, ping without loss")


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ip", "ethtool", "ping", "ss", "sysctl"), run))
