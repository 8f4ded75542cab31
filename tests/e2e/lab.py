"""The e2e laboratory: virtual machines, taps and a wire, in a network namespace of its own.

    with Lab(guest_dir, log_dir) as lab:
        a = lab.add_guest("a", tap="host-a", address=1)
        b = lab.add_guest("b", tap="host-b", address=2)
        lab.boot()
        with lab.wire(["understudy", "run", ...]) as wire:
            server = a.start("ib_write_bw")
            b.run("ib_write_bw 10.0.0.1")
            a.finish(server)
        wire.report["ports"]

A guest's first network device, eth0, ends in a tap of the namespace, where whatever
is called "the wire" picks its frames up: understudy, or `bridge.py` in its place.
Leaving the `with` ends every process that was started and removes the namespace.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from guest import DIE_WITH_PARENT, Guest, LabError

# Names the namespaces of this program; what follows is the pid of the one that made it.
NAMESPACE_PREFIX = "understudy-e2e-"
# What tcpdump says when it is told to count
CAPTURED = re.compile(r"(\d+) packets? captured")


@dataclass
class Wire:
    """A running forwarder between the taps, and its report once it has stopped."""

    process: subprocess.Popen[str]
    log: Path
    report: dict[str, Any] = field(default_factory=dict)

    def wait_ready(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while "ready" not in self.log.read_text().split():
            if self.process.poll() is not None:
                raise LabError(f"the wire ended at its start:\n{self.log.read_text().rstrip()}")
            if time.monotonic() > deadline:
                raise LabError(f"the wire was not ready in {timeout_s:.0f} s, see {self.log}")
            time.sleep(0.02)

    def wait_ended(self, timeout_s: float) -> None:
        """Waits until it ends by itself; `stop` tells how."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def stop(self, timeout_s: float = 30) -> None:
        """Asks for the end with SIGINT, as a user does, and reads the report."""
        self.process.send_signal(signal.SIGINT)
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LabError(f"the wire did not stop in {timeout_s:.0f} s after SIGINT, see {self.log}") from None
        if self.process.returncode != 0:
            raise LabError(f"the wire exited with {self.process.returncode}:\n{self.log.read_text().rstrip()}")
        try:
            self.report = json.loads(output)
        except ValueError as error:
            raise LabError(f"the wire's report is not one JSON object ({error}):\n{output[:2000]}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Lab:
    """A network namespace with taps, and the guests behind them."""

    def __init__(self, guest_dir: Path, log_dir: Path, mtu: int = 1500, accel: str = "tcg") -> None:
        self.guest_dir = guest_dir
        self.log_dir = log_dir
        self.mtu = mtu
        self.accel = accel
        self.namespace = f"{NAMESPACE_PREFIX}{os.getpid()}"
        self.guests: list[Guest] = []
        self._wire: Wire | None = None

    def __enter__(self) -> Self:
        for tool in ("ip", "setpriv", "qemu-system-x86_64"):
            if shutil.which(tool) is None:
                raise LabError(f"{tool} is missing: apt-get install iproute2 util-linux qemu-system-x86")
        if os.geteuid() != 0:
            raise LabError("network namespaces and taps need root: sudo make e2e")
        _remove_orphans()
        _ip("netns", "add", self.namespace)
        # This kernel must not speak on the taps: no neighbour discovery of its own.
        self._inside("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for guest in self.guests:
            # After a failure a guest may be busy for long: no waiting for its own end.
            guest.power_off(patience_s=5 if error is None else 0)
        _ip("netns", "delete", self.namespace)

    def add_guest(self, name: str, tap: str, address: int) -> Guest:
        """A guest behind a tap of that name; `address` is the last part of its addresses."""
        self._inside("ip", "tuntap", "add", tap, "mode", "tap")
        # A long queue: a burst of an unacknowledged transport has nobody to slow it down.
        self._inside("ip", "link", "set", tap, "mtu", str(self.mtu), "txqueuelen", "8192", "up")
        guest = Guest(name, tap, address, self.log_dir, self._check_wire)
        self.guests.append(guest)
        return guest

    def add_cable(self, one_end: str, other_end: str) -> None:
        """Two interfaces, of which each receives what the other sends."""
        self._inside("ip", "link", "add", other_end, "type", "veth", "peer", "name", one_end)
        for end in (one_end, other_end):
            self._inside("ip", "link", "set", end, "mtu", str(self.mtu), "up")

    def boot(self, memory_mb: int = 256) -> None:
        """Boots all guests and gives eth0 its addresses and a soft-RoCE device, rxe0."""
        for guest in self.guests:
            guest.start_machine(self._prefix, self.guest_dir, self.accel, memory_mb)
        for guest in self.guests:
            guest.wait_booted()
            guest.configure(self.mtu)

    @contextmanager
    def wire(self, command: list[str], name: str = "wire") -> Iterator[Wire]:
        """Runs a forwarder in the namespace; at the end of the block it is stopped and has its report."""
        log = self.log_dir / f"{name}.log"
        wire = self._start_wire(command, log)
        try:
            wire.wait_ready()
            self._wire = wire
            yield wire
            self._wire = None
            wire.stop()
        finally:
            self._wire = None
            wire.kill()

    def _start_wire(self, command: list[str], log: Path) -> Wire:
        """Starts a forwarder; once more, with another process id, if DPDK's af_packet has made the number of a fanout group
        from it (process id XOR interface index) that another forwarder of this namespace has."""
        for _ in range(4):
            with log.open("w") as stderr:
                wire = Wire(self.spawn(command, stdout=subprocess.PIPE, stderr=stderr, text=True), log)
            try:
                wire.wait_ready()
                break
            except LabError:
                wire.kill()
                if "could not set PACKET_FANOUT" not in log.read_text():
                    raise
        return wire

    @contextmanager
    def recorded(self, tap: str, file: Path, only: str = "") -> Iterator[None]:
        """Records what a guest sends into a tap, packet by packet: all, or `only` what a filter lets through.

        What it receives is not recorded: frames that DPDK writes to a tap pass by the
        kernel's packet taps, so both directions need both taps.
        """
        if shutil.which("tcpdump") is None:
            raise LabError("tcpdump is missing: apt-get install tcpdump")
        log = self.log_dir / f"tcpdump-{tap}.log"
        with log.open("w") as stderr:
            # Immediate mode: otherwise frames wait up to a second in a buffer, and SIGINT loses them.
            options = ["-Q", "in", "--immediate-mode", "-U", "-B", "65536", "-Z", "root"]
            command = ["tcpdump", "-i", tap, *options, "-w", str(file), *only.split()]
            process = self.spawn(command, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            while "listening on" not in log.read_text():
                if process.poll() is not None:
                    raise LabError(f"tcpdump: {log.read_text().rstrip()}")
                time.sleep(0.02)
            yield
            _drain(process, log)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
        if "\n0 packets dropped by kernel" not in log.read_text():
            raise LabError(f"tcpdump lost frames of {tap}: {log.read_text().rstrip()}")

    def spawn(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process inside the namespace, out of Ctrl-C's reach."""
        return subprocess.Popen([*self._prefix, *DIE_WITH_PARENT, *command], start_new_session=True, **options)

    def _check_wire(self) -> None:
        if self._wire is not None and (code := self._wire.process.poll()) is not None:
            raise LabError(f"the wire ended with {code} while it was needed:\n{self._wire.log.read_text().rstrip()}")

    @property
    def _prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]

    def _inside(self, *command: str) -> None:
        _check_call([*self._prefix, *command])


def _drain(process: subprocess.Popen[Any], log: Path) -> None:
    """Waits until tcpdump has written what was sent before: told to count twice, it has found nothing in between.

    On a busy machine it may be far behind, and what it has not read when it ends is lost without a word.
    """
    counted: list[str] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        process.send_signal(signal.SIGUSR1)
        asked = len(counted)
        while len(counted) <= asked and time.monotonic() < deadline:
            time.sleep(0.1)
            counted = CAPTURED.findall(log.read_text())
        if len(counted) > 1 and counted[-1] == counted[-2]:
            return


def _ip(*arguments: str) -> None:
    _check_call(["ip", *arguments])


def _check_call(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{shlex.join(command)}: {done.stderr.strip()}")


def _remove_orphans() -> None:
    """Removes namespaces of runs that were killed before they could."""
    for entry in Path("/run/netns").glob(f"{NAMESPACE_PREFIX}*"):
        pid = entry.name.removeprefix(NAMESPACE_PREFIX)
        if not Path(f"/proc/{pid}").exists():
            _ip("netns", "delete", entry.name)
