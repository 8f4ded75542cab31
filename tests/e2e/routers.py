"""Network namespaces, some of which are routers, and captures of the links between them.

Routers terminate tunnels by the rules that `understudy plan` writes, where the kernel supports `ip link add type ipip`.
Otherwise an eBPF program removes the headers (`bpf_skb_adjust_room`), for the same sources.
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
# Prefix of the namespaces' names; the pid of the process that created them and the node's name follow.
PREFIX = "understudy-net-"


class Failed(Exception):
    """A check or a command of the test failed."""


def call(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def wait(condition: Callable[[], bool], what: str, timeout_s: float = 10, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(every_s)


def expect(condition: str, is_true: bool, found: object) -> None:
    """Raises Failed unless `is_true`."""
    if not is_true:
        raise Failed(f"not true: {condition}; found {found}")


@dataclass(frozen=True)
class End:
    """End of a link: the node, and its MAC address and IP address (if any) on this link."""

    node: str
    mac: str
    address: str = ""


@dataclass(frozen=True)
class Shape:
    """A network. Interfaces have the name of the node at the other end. Routes: node, destination, next hop."""

    routers: Sequence[str]
    hosts: Sequence[str]
    links: Sequence[tuple[End, End]]
    routes: Sequence[tuple[str, str, str]]


class Network:
    """The namespaces, and the processes started in them. The end of the `with` block removes all of these."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        self.folder = folder
        self.namespaces: list[str] = []
        self.running: list[subprocess.Popen[bytes]] = []
        self.bpf: Path | None = None

    def name(self, node: str) -> str:
        return f"{PREFIX}{os.getpid()}-{node}"

    def inside(self, node: str, *command: str) -> str:
        return call("ip", "netns", "exec", self.name(node), *command)

    def start(self, node: str, command: Sequence[str], stdout: Path | None, stderr: Path) -> subprocess.Popen[bytes]:
        """Starts a program, which is ended with the network at the latest."""
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
            self.namespaces.append(self.name(node))
            # This kernel must not send packets of its own: no neighbour discovery.
            settings = ["net.ipv6.conf.default.disable_ipv6=1"]
            if node in self.shape.routers:
                both = [f"net.ipv4.conf.{which}" for which in ("all", "default")]
                # A packet may leave through the interface on which it arrived; its source must not get redirects.
                settings += [f"{which}.{setting}=0" for which in both for setting in ("rp_filter", "send_redirects")]
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
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        self.namespaces.clear()
        if self.bpf is not None:
            subprocess.run(["umount", str(self.bpf)], check=False)

    def terminate_tunnels(self, plan: Path) -> str:
        """Makes routers terminate tunnels by the plan's rules for Linux. Returns a description of the mechanism."""
        rules = {path.name.removesuffix(".linux.sh"): path for path in sorted(plan.glob("*.linux.sh"))}
        expect("the plan has rules for routers of this network only", bool(rules) and rules.keys() <= set(self.shape.routers), rules)
        some = self.name(next(iter(rules)))
        tunnel = ["name", "probe", "type", "ipip", "local", "10.255.255.1", "remote", "10.255.255.2"]
        probe = subprocess.run(["ip", "-n", some, "link", "add", *tunnel], check=False, capture_output=True)
        if probe.returncode == 0:
            call("ip", "-n", some, "link", "delete", "probe")
            for node, path in rules.items():
                self.inside(node, "sh", str(path))
            return "the kernel's ipip, with the rules of `understudy plan`"
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
            # The inner packet of the first tunnel has the router's own address as its source.
            self.inside(node, "sysctl", "-q", "-w", "net.ipv4.conf.all.accept_local=1")
        return "eBPF, because the kernel lacks ipip"

    def interfaces(self, node: str) -> list[str]:
        links = [(a.node, b.node) for a, b in self.shape.links]
        return [b if a == node else a for a, b in links if node in (a, b)]

    def record(self, node: str, interface: str, *options: str) -> subprocess.Popen[bytes]:
        """Records packets that an interface receives in INTERFACE-NODE.pcap. `options` are those of tcpdump."""
        file, log = (self.folder / f"{interface}-{node}.{ending}" for ending in ("pcap", "log"))
        command = ["tcpdump", "-i", interface, "-Q", "in", "-Z", "root", *options, "-w", str(file), "ip"]
        recorder = self.start(node, command, None, log)
        wait(lambda: "listening on" in log.read_text(), f"tcpdump at {node} is ready")
        return recorder


def remove_orphans() -> None:
    """Removes namespaces of runs that were killed."""
    for entry in Path("/run/netns").glob(f"{PREFIX}*"):
        pid = entry.name.removeprefix(PREFIX).split("-")[0]
        if not Path(f"/proc/{pid}").exists():
            call("ip", "netns", "delete", entry.name)


# eBPF: instructions of eight bytes


def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhI", code, src << 4 | dst, offset, immediate & 0xFFFFFFFF)


def decapsulation(sources: Collection[str], end: str) -> bytes:
    """Returns an eBPF program that removes the outer header of IPv4-in-IPv4 packets from `sources` to `end`."""
    load8, load16, load32 = 0x71, 0x69, 0x61
    jump, if_equal, if_not_equal, if_greater = 0x05, 0x1D, 0x5D, 0x2D
    little = lambda address: int.from_bytes(socket.inet_aton(address), "little")  # noqa: E731
    headers = [
        (load16, 12, 0x0008),  # IPv4
        (load8, 14, 0x45),  # no options
        (load8, 23, 4),  # IPv4 in IPv4
        (load32, 30, little(end)),
    ]
    # Code, destination, source, offset or label, immediate
    program: list[tuple[int, int, int, int | str, int]] = [
        (0xBF, 6, 1, 0, 0),  # r6 = the packet
        # Packets sent by an AF_PACKET ring are in pages; bpf_skb_pull_data makes the headers accessible.
        (0xB7, 2, 0, 0, 14 + 20),
        (0x85, 0, 0, 0, 39),  # bpf_skb_pull_data; the next check handles packets that are too short
        (load32, 2, 6, 76, 0),  # r2 = its data
        (load32, 3, 6, 80, 0),  # r3 = end of the data
        (0xBF, 4, 2, 0, 0),
        (0x07, 4, 0, 0, 14 + 20),
        (if_greater, 4, 3, "done", 0),  # too short
    ]
    for load, offset, value in headers:
        # Through a register: an immediate in a comparison is sign-extended.
        program += [(load, 5, 2, offset, 0), (0xB4, 7, 0, 0, value), (if_not_equal, 5, 7, "done", 0)]
    program.append((load32, 5, 2, 26, 0))
    for source in sources:
        program += [(0xB4, 7, 0, 0, little(source)), (if_equal, 5, 7, "shorten", 0)]
    program.append((jump, 0, 0, "done", 0))
    labels = {"shorten": len(program)}
    program += [
        (0xBF, 1, 6, 0, 0),
        (0xB7, 2, 0, 0, -20),  # shorter by one IPv4 header
        (0xB7, 3, 0, 0, 1),  # BPF_ADJ_ROOM_MAC: after the Ethernet header
        (0xB7, 4, 0, 0, 0),
        (0x85, 0, 0, 0, 50),  # bpf_skb_adjust_room
    ]
    labels["done"] = len(program)
    program += [(0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]  # return 0: accept the packet
    code = []
    for at, (operation, dst, src, offset, immediate) in enumerate(program):
        # The offset of a jump counts from the next instruction.
        distance = labels[offset] - at - 1 if isinstance(offset, str) else offset
        code.append(instruction(operation, dst, src, distance, immediate))
    return b"".join(code)


def bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    # Number of the system call on x86_64
    done = libc.syscall(321, command, buffer, 128)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def pin(program: bytes, path: Path) -> None:
    """Loads a traffic control program, and pins it at a path."""
    code = ctypes.create_string_buffer(program, len(program))
    licence, log = ctypes.create_string_buffer(b"MIT"), ctypes.create_string_buffer(65536)
    scheduler_classifier = 3
    pointers = [ctypes.addressof(code), ctypes.addressof(licence)]
    counts = (scheduler_classifier, len(program) // 8)
    attributes = struct.pack("<IIQQIIQ", *counts, *pointers, 1, len(log), ctypes.addressof(log))
    try:
        descriptor = bpf(5, attributes)
    except OSError as error:
        raise Failed(f"the kernel rejects the eBPF program: {error}\n{log.value.decode()}") from None
    name = ctypes.create_string_buffer(str(path).encode())
    bpf(6, struct.pack("<QI", ctypes.addressof(name), descriptor))
    os.close(descriptor)


@dataclass(frozen=True)
class CapturedFrame:
    """A frame that was captured at an end of a link."""

    link: str
    at: float
    frame: bytes

    @property
    def headers(self) -> list[tuple[str, str, int]]:
        """Source, destination and TTL of each IP header, outermost first"""
        found, at, protocol = [], 14, 4
        while protocol == 4:
            ip = self.frame[at : at + 20]
            found.append((socket.inet_ntoa(ip[12:16]), socket.inet_ntoa(ip[16:20]), ip[8]))
            at, protocol = at + 20, ip[9]
        return found

    @property
    def transport(self) -> bytes:
        return self.frame[14 + 20 * len(self.headers) :]


def captured_frames(folder: Path) -> list[CapturedFrame]:
    """Returns every captured UDP packet, with any number of IP headers, in order of time."""
    found = []
    for path in folder.glob("*.pcap"):
        data, at = path.read_bytes(), 24
        while at + 16 <= len(data):
            seconds, micros, length = struct.unpack_from("<III", data, at)
            frame = data[at + 16 : at + 16 + length]
            if frame[23] in (4, 17):
                found.append(CapturedFrame(path.stem, seconds + micros / 1e6, frame))
            at += 16 + length
    return sorted(found, key=lambda frame: frame.at)


def run(doc: str, tools: Sequence[str], test: Callable[[argparse.Namespace, Path], None]) -> int:
    """Runs a test command: parses options, creates a folder, calls `test`. Returns the exit code."""
    options = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    options.add_argument("--understudy", type=Path, default=REPOSITORY / "target/release/understudy", metavar="PATH")
    options.add_argument("--keep-logs", action="store_true", help="also keep captures and logs if the test passes")
    arguments = options.parse_args()
    arguments.understudy = arguments.understudy.resolve()
    for tool in tools:
        if shutil.which(tool) is None:
            print(f"{tool} is missing: run `apt-get install iproute2 iputils-ping ethtool tcpdump procps`", file=sys.stderr)
            return 2
    if os.geteuid() != 0:
        print("network namespaces need root: run `sudo make e2e`", file=sys.stderr)
        return 2
    # SIGTERM raises SystemExit, so that namespaces are removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        test(arguments, folder)
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
