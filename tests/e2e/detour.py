#!/usr/bin/env python3
"""Sends a 1Pipe beacon with a detour through Linux routers, and checks that it passes the link that it describes.

    tests/e2e/detour.py --understudy target/release/understudy

Network namespaces, three of which are routers:

    h1 ---+             +--- s0       h1 and h2 represent s0 and s1. Routes between them pass only s2; a
           >--- s2 ----<      |       beacon of h1 for the link from s0 to s1 has to pass that link.
    h2 ---+             +--- s1

h1 sends a beacon as `representative` builds it, with three IP headers (detour_beacon.hex, with which a test there compares).
The routers check and route it; s0 and s1 remove one header each. It is recorded at every hop, and has to reach h2 unchanged
over the expected links and no others. Where the kernel supports `ip link add type ipip`, tunnels are terminated by the rules
that `understudy plan` writes, otherwise by eBPF (`bpf_skb_adjust_room`). Needs root, but no virtual machines.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import routers
from routers import CapturedFrame, End, Network, Shape, call, captured_frames, expect, wait

HERE = Path(__file__).resolve().parent
SHAPE = Shape(
    routers=("s0", "s1", "s2"),
    hosts=("h1", "h2"),
    links=[
        (End("h1", "02:00:00:00:00:01", "10.0.1.1/24"), End("s2", "02:00:00:01:00:01", "10.0.1.254/24")),
        (End("h2", "02:00:00:00:00:02", "10.0.2.1/24"), End("s2", "02:00:00:01:00:02", "10.0.2.254/24")),
        (End("s2", "02:00:00:01:01:01", "10.1.0.1/30"), End("s0", "02:00:00:01:01:02", "10.1.0.2/30")),
        (End("s2", "02:00:00:01:02:01", "10.1.1.1/30"), End("s1", "02:00:00:01:02:02", "10.1.1.2/30")),
        (End("s0", "02:00:00:01:03:01", "10.1.2.1/30"), End("s1", "02:00:00:01:03:02", "10.1.2.2/30")),
    ],
    routes=[
        ("h1", "default", "10.0.1.254"),
        ("h2", "default", "10.0.2.254"),
        ("s2", "10.255.0.1/32", "10.1.0.2"),
        ("s2", "10.255.0.2/32", "10.1.1.2"),
        ("s0", "10.255.0.2/32", "10.1.2.2"),
        ("s1", "10.255.0.1/32", "10.1.2.1"),
        ("s0", "10.0.0.0/16", "10.1.0.1"),
        ("s1", "10.0.0.0/16", "10.1.1.1"),
    ],
)

# Program that sends a frame through an interface
SENDER = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind((sys.argv[1], 0))
link.send(bytes.fromhex(sys.argv[2]))
"""

TOPOLOGY = """
[topology]
[[switch]]
name = "s0"
layer = 1
mac = "02:00:00:01:01:02"
tunnel = "10.255.0.1"
representative = "h1"
os = "linux"
[[switch]]
name = "s1"
layer = 2
tunnel = "10.255.0.2"
representative = "h2"
os = "linux"
[[switch]]
name = "s2"
layer = 3
tunnel = "10.255.0.3"
mac = "02:00:00:01:00:01"
[[host]]
name = "h1"
address = "10.0.1.1/24"
mac = "02:00:00:00:00:01"
switch = "s2"
messages = false
[[host]]
name = "h2"
address = "10.0.2.1/24"
mac = "02:00:00:00:00:02"
switch = "s2"
messages = false
[[host]]
name = "a"
id = 1
address = "10.0.3.1/24"
mac = "02:00:00:00:00:03"
switch = "s0"
[[link]]
ends = ["s0", "s1"]
[[link]]
ends = ["s0", "s2"]
[[link]]
ends = ["s1", "s2"]
"""


def record(network: Network) -> None:
    """Records the packets received at both ends of each link."""
    for a, b in SHAPE.links:
        for node, other in ((a.node, b.node), (b.node, a.node)):
            network.record(node, other, "--immediate-mode", "-U")


def send(network: Network, node: str, interface: str, frame: bytes) -> None:
    """Sends a frame through an interface, as the port of a representative does."""
    network.inside(node, sys.executable, "-c", SENDER, interface, frame.hex())


def check_path(folder: Path, frame: bytes, path_taken: list[tuple[str, int]]) -> None:
    """Checks that the frame passed exactly these links, each with this number of headers, and arrived unchanged."""
    wait(lambda: {link for link, _ in path_taken} <= {hop.link for hop in captured_frames(folder)}, "the beacon has arrived")
    frames = captured_frames(folder)
    links = [(hop.link, len(hop.headers)) for hop in frames]
    expect("the beacon takes the expected path", links == path_taken, links)
    sent = CapturedFrame("", 0, frame)
    for hop in frames:
        expect(f"the UDP datagram is unchanged on {hop.link}", hop.transport == sent.transport, hop.frame.hex())
    last = frames[-1].headers[-1]
    expect("the beacon is from h1 to h2", last[:2] == ("10.0.1.1", "10.0.2.1"), last)
    expect("the DSCP is unchanged on every link", {hop.frame[15] for hop in frames} == {0x6A}, [hop.frame[15] for hop in frames])
    for path in folder.glob("*.pcap"):
        path.unlink()


def run(arguments: argparse.Namespace, folder: Path) -> None:
    frame = bytes.fromhex("".join((HERE / "detour_beacon.hex").read_text().split()))
    topology = folder / "topology.toml"
    topology.write_text(TOPOLOGY)
    call(str(arguments.understudy), "plan", str(topology), "--out", str(folder / "plan"))
    with Network(SHAPE, folder) as network:
        mechanism = network.terminate_tunnels(folder / "plan")
        record(network)
        send(network, "h1", "s2", frame)
        path_taken = [("h1-s2", 3), ("s2-s0", 3), ("s0-s1", 2), ("s1-s2", 1), ("s2-h2", 1)]
        wait(lambda: any(hop.link == "s2-h2" for hop in captured_frames(folder)), "the beacon has arrived")
        decoded = call(str(arguments.understudy), "decode", "--json", str(folder / "s2-h2.pcap"))
        packet = json.loads(decoded.splitlines()[0])
        expect("the ICRC is correct at h2", packet["icrc"] == "ok", packet)
        check_path(folder, frame, path_taken)
    print(f"ok  three headers: h1 -> s0 -> s1 -> h2, and no other path (headers removed by {mechanism})")
    with Network(SHAPE, folder) as network:
        record(network)
        send(network, "h1", "s2", frame[:14] + frame[14 + 40 :])
        check_path(folder, frame, [("h1-s2", 1), ("s2-h2", 1)])
    print("ok  one header: h1 -> h2, bypassing the link that the beacon describes")


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ip", "tc", "tcpdump", "sysctl"), run))
