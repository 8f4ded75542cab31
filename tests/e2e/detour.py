#!/usr/bin/env python3
"""Real routers: a beacon of 1Pipe goes around through Linux, and passes the link that it speaks of.

    tests/e2e/detour.py --understudy target/release/understudy

Network namespaces, of which three are routers:

    h1 ---+             +--- s0       h1 and h2 stand for s0 and s1. Routes between them pass s2 alone;
           >--- s2 ----<      |       what h1 says of the link from s0 to s1 has to pass that.
    h2 ---+             +--- s1

h1 sends a beacon as `representative` builds it, under three IP headers (detour_beacon.hex, which a test there compares).
The routers check and route it; s0 and s1 take a header off each. It is recorded at every hop, and has to come to h2 as
it was sent, by the links that it should pass and no other. Where the kernel has tunnels (`ip link add type ipip`) they
end it, by the rules that `understudy plan` writes; where it has none, its eBPF does (`bpf_skb_adjust_room`). Needs root;
no virtual machines.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import routers
from routers import End, Network, Seen, Shape, call, expect, seen, wait

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

# Sends a frame through an interface.
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
    """Records what comes in at either end of each link."""
    for a, b in SHAPE.links:
        for node, other in ((a.node, b.node), (b.node, a.node)):
            network.record(node, other, "--immediate-mode", "-U")


def send(network: Network, node: str, interface: str, frame: bytes) -> None:
    """Puts a frame on a link, as a representative's port does."""
    network.inside(node, sys.executable, "-c", SENDER, interface, frame.hex())


def check_way(folder: Path, frame: bytes, way: list[tuple[str, int]]) -> None:
    """The frame passed these links with so many headers, and came as it was sent."""
    wait(lambda: {link for link, _ in way} <= {found.link for found in seen(folder)}, "the beacon does not arrive")
    found = seen(folder)
    links = [(hop.link, len(hop.headers)) for hop in found]
    expect("the way of the beacon", links == way, links)
    sent = Seen("", 0, frame)
    for hop in found:
        expect(f"what is behind the headers on {hop.link}", hop.transport == sent.transport, hop.frame.hex())
    last = found[-1].headers[-1]
    expect("who it is from, and whom for", last[:2] == ("10.0.1.1", "10.0.2.1"), last)
    expect("its DSCP on every link", {hop.frame[15] for hop in found} == {0x6A}, [hop.frame[15] for hop in found])
    for path in folder.glob("*.pcap"):
        path.unlink()


def run(arguments: argparse.Namespace, folder: Path) -> None:
    frame = bytes.fromhex("".join((HERE / "detour_beacon.hex").read_text().split()))
    topology = folder / "topology.toml"
    topology.write_text(TOPOLOGY)
    call(str(arguments.understudy), "plan", str(topology), "--out", str(folder / "plan"))
    with Network(SHAPE, folder) as network:
        by = network.end_tunnels(folder / "plan")
        record(network)
        send(network, "h1", "s2", frame)
        way = [("h1-s2", 3), ("s2-s0", 3), ("s0-s1", 2), ("s1-s2", 1), ("s2-h2", 1)]
        wait(lambda: any(hop.link == "s2-h2" for hop in seen(folder)), "the beacon does not arrive")
        decoded = call(str(arguments.understudy), "decode", "--json", str(folder / "s2-h2.pcap"))
        packet = json.loads(decoded.splitlines()[0])
        expect("the ICRC at the end", packet["icrc"] == "ok", packet)
        check_way(folder, frame, way)
    print(f"ok  three headers: h1 -> s0 -> s1 -> h2, and no other way (headers taken off by {by})")
    with Network(SHAPE, folder) as network:
        record(network)
        send(network, "h1", "s2", frame[:14] + frame[14 + 40 :])
        check_way(folder, frame, [("h1-s2", 1), ("s2-h2", 1)])
    print("ok  one header: h1 -> h2, past the link that it speaks of")


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ip", "tc", "tcpdump", "sysctl"), run))
