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
import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
# Names the namespaces of this program; what follows is the pid of the one that made them, and which it is.
PREFIX = "understudy-detour-"
NODES = ("h1", "h2", "s0", "s1", "s2")
# Each link, with the address and the MAC address of either end; interfaces are called after the node at the other end.
LINKS = [
    (("h1", "10.0.1.1/24", "02:00:00:00:00:01"), ("s2", "10.0.1.254/24", "02:00:00:01:00:01")),
    (("h2", "10.0.2.1/24", "02:00:00:00:00:02"), ("s2", "10.0.2.254/24", "02:00:00:01:00:02")),
    (("s2", "10.1.0.1/30", "02:00:00:01:01:01"), ("s0", "10.1.0.2/30", "02:00:00:01:01:02")),
    (("s2", "10.1.1.1/30", "02:00:00:01:02:01"), ("s1", "10.1.1.2/30", "02:00:00:01:02:02")),
    (("s0", "10.1.2.1/30", "02:00:00:01:03:01"), ("s1", "10.1.2.2/30", "02:00:00:01:03:02")),
]
ROUTES = [
    ("h1", "default", "10.0.1.254"),
    ("h2", "default", "10.0.2.254"),
    ("s2", "10.255.0.1/32", "10.1.0.2"),
    ("s2", "10.255.0.2/32", "10.1.1.2"),
    ("s0", "10.255.0.2/32", "10.1.2.2"),
    ("s1", "10.255.0.1/32", "10.1.2.1"),
    ("s0", "10.0.0.0/16", "10.1.0.1"),
    ("s1", "10.0.0.0/16", "10.1.1.1"),
]
# Where tunnels end: the switch, its address, whose packets it takes, and the interface by which they come
ENDS = [("s0", "10.255.0.1", "10.0.1.1", "s2"), ("s1", "10.255.0.2", "10.255.0.1", "s0")]

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


class Failed(Exception):
    pass


def call(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Network:
    """The namespaces, and what was started for them. Leaving the `with` removes all of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[str] = []
        self.recorders: list[subprocess.Popen[bytes]] = []
        self.bpf: Path | None = None

    def name(self, node: str) -> str:
        return f"{PREFIX}{os.getpid()}-{node}"

    def inside(self, node: str, *command: str) -> str:
        return call("ip", "netns", "exec", self.name(node), *command)

    def __enter__(self) -> Network:
        remove_orphans()
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def build(self) -> None:
        for node in NODES:
            call("ip", "netns", "add", self.name(node))
            self.made.append(self.name(node))
            # This kernel must not speak by itself: no neighbour discovery.
            settings = ["net.ipv6.conf.default.disable_ipv6=1"]
            if node.startswith("s"):
                filters = [f"net.ipv4.conf.{which}.rp_filter=0" for which in ("all", "default")]
                settings += ["net.ipv4.ip_forward=1", *filters]
            self.inside(node, "sysctl", "-q", "-w", *settings)
            self.inside(node, "ip", "link", "set", "lo", "up")
        for (a, a_ip, a_mac), (b, b_ip, b_mac) in LINKS:
            peer = ("type", "veth", "peer", "name", a, "address", b_mac, "netns", self.name(b))
            call("ip", "-n", self.name(a), "link", "add", "name", b, "address", a_mac, *peer)
            for node, other, address in ((a, b, a_ip), (b, a, b_ip)):
                call("ip", "-n", self.name(node), "address", "add", address, "dev", other)
                call("ip", "-n", self.name(node), "link", "set", "dev", other, "up")
        for node, to, via in ROUTES:
            call("ip", "-n", self.name(node), "route", "add", to, "via", via)

    def remove(self) -> None:
        for recorder in self.recorders:
            recorder.terminate()
            recorder.wait()
        for name in self.made:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        if self.bpf is not None:
            subprocess.run(["umount", str(self.bpf)], check=False)

    def end_tunnels(self, understudy: Path) -> str:
        """Has s0 and s1 take headers off; by what."""
        topology = self.folder / "topology.toml"
        topology.write_text(TOPOLOGY)
        call(str(understudy), "plan", str(topology), "--out", str(self.folder))
        tunnel = ["name", "probe", "type", "ipip", "local", "10.255.0.1", "remote", "10.0.1.1"]
        probe = subprocess.run(["ip", "-n", self.name("s0"), "link", "add", *tunnel], check=False, capture_output=True)
        if probe.returncode == 0:
            call("ip", "-n", self.name("s0"), "link", "delete", "probe")
            for node, *_ in ENDS:
                self.inside(node, "sh", str(self.folder / f"{node}.linux.sh"))
            return "the kernel's ipip, by the rules of `understudy plan`"
        self.bpf = self.folder / "bpf"
        self.bpf.mkdir()
        call("mount", "-t", "bpf", "bpf", str(self.bpf))
        for node, end, source, interface in ENDS:
            program = self.bpf / node
            pin(decapsulation(source, end), program)
            call("ip", "-n", self.name(node), "address", "add", f"{end}/32", "dev", "lo")
            tc = ["tc", "-n", self.name(node)]
            call(*tc, "qdisc", "add", "dev", interface, "clsact")
            call(*tc, "filter", "add", "dev", interface, "ingress", "bpf", "da", "object-pinned", str(program))
            # What s0 finds in the first tunnel is from its own address.
            self.inside(node, "sysctl", "-q", "-w", f"net.ipv4.conf.{interface}.accept_local=1")
        return "the kernel's eBPF, as it has no ipip"

    def record(self) -> None:
        """Records what comes in at either end of each link, until the end."""
        for (a, *_), (b, *_) in LINKS:
            for node, other in ((a, b), (b, a)):
                file = self.folder / f"{other}-{node}.pcap"
                options = ["-Q", "in", "--immediate-mode", "-U", "-Z", "root"]
                command = ["tcpdump", "-i", other, *options, "-w", str(file), "ip"]
                log = self.folder / f"{other}-{node}.log"
                with log.open("w") as stderr:
                    full = ["ip", "netns", "exec", self.name(node), *command]
                    self.recorders.append(subprocess.Popen(full, stdout=subprocess.DEVNULL, stderr=stderr))
                wait(lambda log=log: "listening on" in log.read_text(), f"tcpdump at {node}")

    def send(self, node: str, interface: str, frame: bytes) -> None:
        """Puts a frame on a link, as a representative's port does."""
        self.inside(node, sys.executable, "-c", SENDER, interface, frame.hex())


def wait(until: Callable[[], bool], what: str, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not until():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: nothing in {timeout_s:.0f} s")
        time.sleep(0.02)


def remove_orphans() -> None:
    """Removes namespaces of runs that were killed before they could."""
    for entry in Path("/run/netns").glob(f"{PREFIX}*"):
        pid = entry.name.removeprefix(PREFIX).split("-")[0]
        if not Path(f"/proc/{pid}").exists():
            call("ip", "netns", "delete", entry.name)


# eBPF: instructions of eight bytes


def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhI", code, src << 4 | dst, offset, immediate & 0xFFFFFFFF)


def decapsulation(source: str, end: str) -> bytes:
    """Takes the outer header off IPv4 packets from `source` to `end` that carry IPv4 packets, and lets others be."""
    load8, load16, load32 = 0x71, 0x69, 0x61
    little = lambda address: int.from_bytes(socket.inet_aton(address), "little")  # noqa: E731
    body = [
        (load16, 12, 0x0008),  # IPv4
        (load8, 14, 0x45),  # without options
        (load8, 23, 4),  # that carries IPv4
        (load32, 26, little(source)),
        (load32, 30, little(end)),
    ]
    program = [
        instruction(0xBF, 6, 1),  # r6 = the packet
        instruction(load32, 2, 1, 76),  # r2 = its data
        instruction(load32, 3, 1, 80),  # r3 = where they end
        instruction(0xBF, 4, 2),
        instruction(0x07, 4, 0, 0, 14 + 20),
    ]
    call_helper = [
        instruction(0xBF, 1, 6),
        instruction(0xB7, 2, 0, 0, -20),  # shorter by a header
        instruction(0xB7, 3, 0, 0, 1),  # behind the Ethernet header
        instruction(0xB7, 4, 0, 0, 0),
        instruction(0x85, 0, 0, 0, 50),  # bpf_skb_adjust_room
    ]
    # Each jump leads behind the call: over the tests that are left, of three instructions each.
    program.append(instruction(0x2D, 4, 3, 3 * len(body) + len(call_helper)))  # too short
    for done, (load, offset, value) in enumerate(body, 1):
        # By way of a register: the number in a comparison would be extended with its sign.
        rest = 3 * (len(body) - done) + len(call_helper)
        program += [instruction(load, 5, 2, offset), instruction(0xB4, 7, 0, 0, value)]
        program.append(instruction(0x5D, 5, 7, rest))
    program += call_helper
    program += [instruction(0xB7, 0, 0, 0, 0), instruction(0x95)]  # go on
    return b"".join(program)


def bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    # x86_64
    done = libc.syscall(321, command, buffer, 128)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def pin(program: bytes, path: Path) -> None:
    """Loads a program for traffic control, and keeps it at a path."""
    code = ctypes.create_string_buffer(program, len(program))
    licence, log = ctypes.create_string_buffer(b"MIT"), ctypes.create_string_buffer(65536)
    scheduler_classifier = 3
    pointers = [ctypes.addressof(code), ctypes.addressof(licence)]
    counts = (scheduler_classifier, len(program) // 8)
    attributes = struct.pack("<IIQQIIQ", *counts, *pointers, 1, len(log), ctypes.addressof(log))
    try:
        descriptor = bpf(5, attributes)
    except OSError as error:
        raise Failed(f"the kernel refuses the program: {error}\n{log.value.decode()}") from None
    name = ctypes.create_string_buffer(str(path).encode())
    bpf(6, struct.pack("<QI", ctypes.addressof(name), descriptor))
    os.close(descriptor)


@dataclass(frozen=True)
class Seen:
    """A frame at the end of a link."""

    link: str
    at: float
    frame: bytes

    @property
    def headers(self) -> list[tuple[str, str, int]]:
        """Source, destination and hops of each IP header"""
        found, at, protocol = [], 14, 4
        while protocol == 4:
            ip = self.frame[at : at + 20]
            found.append((socket.inet_ntoa(ip[12:16]), socket.inet_ntoa(ip[16:20]), ip[8]))
            at, protocol = at + 20, ip[9]
        return found

    @property
    def transport(self) -> bytes:
        return self.frame[14 + 20 * len(self.headers) :]


def seen(folder: Path) -> list[Seen]:
    """Every UDP packet that was recorded, under however many headers, in order."""
    found = []
    for path in folder.glob("*.pcap"):
        data, at = path.read_bytes(), 24
        while at + 16 <= len(data):
            seconds, micros, length = struct.unpack_from("<III", data, at)
            frame = data[at + 16 : at + 16 + length]
            if frame[23] in (4, 17):
                found.append(Seen(path.stem, seconds + micros / 1e6, frame))
            at += 16 + length
    return sorted(found, key=lambda frame: frame.at)


def expect(what: str, is_so: bool, told: object) -> None:
    if not is_so:
        raise Failed(f"{what}: {told}")


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
    with Network(folder) as network:
        by = network.end_tunnels(arguments.understudy)
        network.record()
        network.send("h1", "s2", frame)
        way = [("h1-s2", 3), ("s2-s0", 3), ("s0-s1", 2), ("s1-s2", 1), ("s2-h2", 1)]
        wait(lambda: any(hop.link == "s2-h2" for hop in seen(folder)), "the beacon does not arrive")
        decoded = call(str(arguments.understudy), "decode", "--json", str(folder / "s2-h2.pcap"))
        packet = json.loads(decoded.splitlines()[0])
        expect("the ICRC at the end", packet["icrc"] == "ok", packet)
        check_way(folder, frame, way)
    print(f"ok  three headers: h1 -> s0 -> s1 -> h2, and no other way (headers taken off by {by})")
    with Network(folder) as network:
        network.record()
        network.send("h1", "s2", frame[:14] + frame[14 + 40 :])
        check_way(folder, frame, [("h1-s2", 1), ("s2-h2", 1)])
    print("ok  one header: h1 -> h2, past the link that it speaks of")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("--understudy", type=Path, default=REPOSITORY / "target/release/understudy", metavar="PATH")
    options.add_argument("--keep-logs", action="store_true", help="keep captures and logs when all is well, too")
    arguments = options.parse_args()
    for tool in ("ip", "tc", "tcpdump", "sysctl"):
        if shutil.which(tool) is None:
            print(f"{tool} is missing: apt-get install iproute2 tcpdump procps", file=sys.stderr)
            return 2
    if os.geteuid() != 0:
        print("network namespaces need root: sudo make e2e", file=sys.stderr)
        return 2
    # So that what was made is removed then, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        run(arguments, folder)
    except Failed as error:
        print(f"FAILED  {error}\nlogs and captures: {folder}", file=sys.stderr)
        return 1
    except BaseException:
        shutil.rmtree(folder)
        raise
    if arguments.keep_logs:
        print(f"logs and captures: {folder}")
    else:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
