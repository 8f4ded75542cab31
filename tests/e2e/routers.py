"""Network namespaces, some of which route, and what is recorded on the links between them.

Routers take headers off tunnels by the rules that `understudy plan` writes where the kernel has tunnels (`ip link add type ipip`);
where it has none, its eBPF does, for the same sources (`bpf_skb_adjust_room`).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# Names the namespaces; what follows is the pid of the program that made them, and which it is.
PREFIX = "understudy-net-"


class Failed(Exception):
    pass


def call(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def wait(until: Callable[[], bool], what: str, timeout_s: float = 10, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not until():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not in {timeout_s:.0f} s")
        time.sleep(every_s)


def expect(what: str, is_so: bool, told: object) -> None:
    if not is_so:
        raise Failed(f"{what}: {told}")


@dataclass(frozen=True)
class End:
    """An end of a link: the node, its MAC address there, and its IP address, if its kernel has one."""

    node: str
    mac: str
    address: str = ""


@dataclass(frozen=True)
class Shape:
    """A network. Interfaces are called after the node at the other end. Routes: at which node, where to, by way of whom"""

    routers: Sequence[str]
    hosts: Sequence[str]
    links: Sequence[tuple[End, End]]
    routes: Sequence[tuple[str, str, str]]


class Network:
    """The namespaces, and what was started for them. Leaving the `with` removes all of it."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        self.folder = folder
        self.made: list[str] = []
        self.running: list[subprocess.Popen[bytes]] = []
        self.bpf: Path | None = None

    def name(self, node: str) -> str:
        return f"{PREFIX}{os.getpid()}-{node}"

    def inside(self, node: str, *command: str) -> str:
        return call("ip", "netns", "exec", self.name(node), *command)

    def start(self, node: str, command: Sequence[str], stdout: Path | None, stderr: Path) -> subprocess.Popen[bytes]:
        """Starts a program that is ended with the network, if not before."""
        # `ip netns exec` becomes the program, so the pid is the program's.
        full = ["ip", "netns", "exec", self.name(node), *command]
        with open(stdout or os.devnull, "wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        self.running.append(process)
        return process

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
        for node in (*self.shape.routers, *self.shape.hosts):
            call("ip", "netns", "add", self.name(node))
            self.made.append(self.name(node))
            # This kernel must not speak by itself: no neighbour discovery.
            settings = ["net.ipv6.conf.default.disable_ipv6=1"]
            if node in self.shape.routers:
                both = [f"net.ipv4.conf.{which}" for which in ("all", "default")]
                # A packet may have to leave by the interface that it came by: where it is from needs not be told.
                settings += [f"{which}.{what}=0" for which in both for what in ("rp_filter", "send_redirects")]
                settings.append("net.ipv4.ip_forward=1")
            self.inside(node, "sysctl", "-q", "-w", *settings)
            self.inside(node, "ip", "link", "set", "lo", "up")
        for a, b in self.shape.links:
            peer = ("type", "veth", "peer", "name", a.node, "address", b.mac, "netns", self.name(b.node))
            call("ip", "-n", self.name(a.node), "link", "add", "name", b.node, "address", a.mac, *peer)
            for end, other in ((a, b), (b, a)):
                if end.address:
                    call("ip", "-n", self.name(end.node), "address", "add", end.address, "dev", other.node)
                call("ip", "-n", self.name(end.node), "link", "set", "dev", other.node, "up")
        for node, to, via in self.shape.routes:
            call("ip", "-n", self.name(node), "route", "add", to, "via", via)

    def remove(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
        for name in self.made:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        self.made.clear()
        if self.bpf is not None:
            subprocess.run(["umount", str(self.bpf)], check=False)

    def end_tunnels(self, plan: Path) -> str:
        """Has routers take headers off, as the plan's rules for Linux say; by what."""
        rules = {path.name.removesuffix(".linux.sh"): path for path in sorted(plan.glob("*.linux.sh"))}
        expect("routers that the plan has rules for", bool(rules) and rules.keys() <= set(self.shape.routers), rules)
        some = self.name(next(iter(rules)))
        tunnel = ["name", "probe", "type", "ipip", "local", "10.255.255.1", "remote", "10.255.255.2"]
        probe = subprocess.run(["ip", "-n", some, "link", "add", *tunnel], check=False, capture_output=True)
        if probe.returncode == 0:
            call("ip", "-n", some, "link", "delete", "probe")
            for node, path in rules.items():
                self.inside(node, "sh", str(path))
            return "the kernel's ipip, by the rules of `understudy plan`"
        self.bpf = self.folder / "bpf"
        self.bpf.mkdir(exist_ok=True)
        call("mount", "-t", "bpf", "bpf", str(self.bpf))
        for node, path in rules.items():
            tunnels = re.findall(r"type ipip local (\S+) remote (\S+)", path.read_text())
            (end,) = {local for local, _ in tunnels}
            program = self.bpf / node
            pin(decapsulation([remote for _, remote in tunnels], end), program)
            call("ip", "-n", self.name(node), "address", "add", f"{end}/32", "dev", "lo")
            tc = ["tc", "-n", self.name(node)]
            for interface in self.interfaces(node):
                call(*tc, "qdisc", "add", "dev", interface, "clsact")
                call(*tc, "filter", "add", "dev", interface, "ingress", "bpf", "da", "object-pinned", str(program))
            # What a router finds in the first tunnel is from its own address.
            self.inside(node, "sysctl", "-q", "-w", "net.ipv4.conf.all.accept_local=1")
        return "the kernel's eBPF, as it has no ipip"

    def interfaces(self, node: str) -> list[str]:
        links = [(a.node, b.node) for a, b in self.shape.links]
        return [b if a == node else a for a, b in links if node in (a, b)]

    def record(self, node: str, interface: str, *options: str) -> subprocess.Popen[bytes]:
        """Records what comes in by an interface, until the end or as `options` for tcpdump say: INTERFACE-NODE.pcap."""
        file, log = (self.folder / f"{interface}-{node}.{ending}" for ending in ("pcap", "log"))
        command = ["tcpdump", "-i", interface, "-Q", "in", "-Z", "root", *options, "-w", str(file), "ip"]
        recorder = self.start(node, command, None, log)
        wait(lambda: "listening on" in log.read_text(), f"tcpdump at {node}")
        return recorder


def remove_orphans() -> None:
    """Removes namespaces of runs that were killed before they could."""
    for entry in Path("/run/netns").glob(f"{PREFIX}*"):
        pid = entry.name.removeprefix(PREFIX).split("-")[0]
        if not Path(f"/proc/{pid}").exists():
            call("ip", "netns", "delete", entry.name)


# eBPF: instructions of eight bytes


def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhI", code, src << 4 | dst, offset, immediate & 0xFFFFFFFF)


def decapsulation(sources: Collection[str], end: str) -> bytes:
    """Takes the outer header off IPv4 packets from `sources` to `end` that carry IPv4 packets, and lets others be."""
    load8, load16, load32 = 0x71, 0x69, 0x61
    jump, if_equal, if_not_equal, if_greater = 0x05, 0x1D, 0x5D, 0x2D
    little = lambda address: int.from_bytes(socket.inet_aton(address), "little")  # noqa: E731
    headers = [
        (load16, 12, 0x0008),  # IPv4
        (load8, 14, 0x45),  # without options
        (load8, 23, 4),  # that carries IPv4
        (load32, 30, little(end)),
    ]
    # Code, destination, source, offset or label, immediate
    program: list[tuple[int, int, int, int | str, int]] = [
        (0xBF, 6, 1, 0, 0),  # r6 = the packet
        # What a ring of AF_PACKET sent lies in pages, of which a program sees what it asks for.
        (0xB7, 2, 0, 0, 14 + 20),
        (0x85, 0, 0, 0, 39),  # bpf_skb_pull_data, which leaves short ones to the next test
        (load32, 2, 6, 76, 0),  # r2 = its data
        (load32, 3, 6, 80, 0),  # r3 = where they end
        (0xBF, 4, 2, 0, 0),
        (0x07, 4, 0, 0, 14 + 20),
        (if_greater, 4, 3, "done", 0),  # too short
    ]
    for load, offset, value in headers:
        # By way of a register: the number in a comparison would be extended with its sign.
        program += [(load, 5, 2, offset, 0), (0xB4, 7, 0, 0, value), (if_not_equal, 5, 7, "done", 0)]
    program.append((load32, 5, 2, 26, 0))
    for source in sources:
        program += [(0xB4, 7, 0, 0, little(source)), (if_equal, 5, 7, "shorten", 0)]
    program.append((jump, 0, 0, "done", 0))
    labels = {"shorten": len(program)}
    program += [
        (0xBF, 1, 6, 0, 0),
        (0xB7, 2, 0, 0, -20),  # shorter by a header
        (0xB7, 3, 0, 0, 1),  # behind the Ethernet header
        (0xB7, 4, 0, 0, 0),
        (0x85, 0, 0, 0, 50),  # bpf_skb_adjust_room
    ]
    labels["done"] = len(program)
    program += [(0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]  # go on
    code = []
    for at, (operation, dst, src, offset, immediate) in enumerate(program):
        # A jump's offset counts from the instruction behind it.
        distance = labels[offset] - at - 1 if isinstance(offset, str) else offset
        code.append(instruction(operation, dst, src, distance, immediate))
    return b"".join(code)


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


def run(doc: str, tools: Sequence[str], what: Callable[[argparse.Namespace, Path], None]) -> int:
    """A command: its options, its folder, its verdict."""
    options = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    options.add_argument("--understudy", type=Path, default=REPOSITORY / "target/release/understudy", metavar="PATH")
    options.add_argument("--keep-logs", action="store_true", help="keep captures and logs when all is well, too")
    arguments = options.parse_args()
    arguments.understudy = arguments.understudy.resolve()
    for tool in tools:
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
        what(arguments, folder)
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
