"""Test lab: virtual machines, taps and a forwarder between them, in a network namespace of its own.

    with Lab(guest_dir, log_dir) as lab:
        a = lab.add_guest("a", tap="host-a", address=1)
        b = lab.add_guest("b", tap="host-b", address=2)
        lab.boot()
        with lab.forwarder(["understudy", "run", ...]) as forwarder:
            server = a.start("ib_write_bw")
            b.run("ib_write_bw 10.0.0.1")
            a.finish(server)
        forwarder.report["ports"]

A guest's first network device, eth0, is connected to a tap of the namespace. The
forwarder receives its frames there: understudy, or `bridge.py` in its place. The end of
the `with` block ends every process that was started, and removes the namespace.
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
from machine import Machine, Nic

# Prefix of the namespaces' names; the pid of the process that created the namespace follows.
NAMESPACE_PREFIX = "understudy-e2e-"
# Output of tcpdump after SIGUSR1
CAPTURED = re.compile(r"(\d+) packets? captured")


@dataclass
class Forwarder:
    """A running forwarder between the taps, and its report after it has stopped."""

    process: subprocess.Popen[str]
    log: Path
    report: dict[str, Any] = field(default_factory=dict)

    def wait_ready(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while "ready" not in self.log.read_text().split():
            if self.process.poll() is not None:
                raise LabError(f"the forwarder exited before it was ready:\n{self.log.read_text().rstrip()}")
            if time.monotonic() > deadline:
                raise LabError(f"the forwarder was not ready in {timeout_s:.0f} s, see {self.log}")
            time.sleep(0.02)

    def wait_ended(self, timeout_s: float) -> None:
        """Waits until the forwarder ends by itself; `stop` then checks its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def stop(self, timeout_s: float = 30) -> None:
        """Sends SIGINT, as a user does, waits for the exit, and reads the report."""
        self.process.send_signal(signal.SIGINT)
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LabError(f"the forwarder did not stop in {timeout_s:.0f} s after SIGINT, see {self.log}") from None
        if self.process.returncode != 0:
            raise LabError(f"the forwarder exited with code {self.process.returncode}:\n{self.log.read_text().rstrip()}")
        try:
            self.report = json.loads(output)
        except ValueError as error:
            raise LabError(f"the forwarder's report is not one JSON object ({error}):\n{output[:2000]}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Lab:
    """A network namespace with taps, and the guests that are connected to them."""

    def __init__(self, guest_dir: Path, log_dir: Path, mtu: int = 1500, accel: str = "tcg") -> None:
        self.guest_dir = guest_dir
        self.log_dir = log_dir
        self.mtu = mtu
        self.accel = accel
        self.namespace = f"{NAMESPACE_PREFIX}{os.getpid()}"
        self.guests: list[Guest] = []
        self._forwarder: Forwarder | None = None

    def __enter__(self) -> Self:
        for tool in ("ip", "setpriv", "qemu-system-x86_64"):
            if shutil.which(tool) is None:
                raise LabError(f"{tool} is missing: run `apt-get install iproute2 util-linux qemu-system-x86`")
        if os.geteuid() != 0:
            raise LabError("network namespaces and taps need root: run `sudo make e2e`")
        _remove_orphans()
        _ip("netns", "add", self.namespace)
        # This kernel must not send on the taps: no neighbour discovery.
        self._inside("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for guest in self.guests:
            # After a failure, a guest may not respond for a long time: it is killed at once.
            guest.power_off(patience_s=5 if error is None else 0)
        _ip("netns", "delete", self.namespace)

    def add_guest(self, name: str, tap: str, address: int) -> Guest:
        """Adds a guest with a tap of this name; `address` is the last part of its addresses."""
        self._add_tap(tap)
        guest = Guest(name, tap, address, self.log_dir, self._check_forwarder)
        self.guests.append(guest)
        return guest

    def add_vhost_guest(self, name: str, socket: Path, address: int) -> Guest:
        """Adds a guest whose network card is at understudy's port with this socket."""
        guest = Guest(name, "", address, self.log_dir, self._check_forwarder, socket)
        self.guests.append(guest)
        return guest

    def add_machine(self, nics: list[Nic]) -> Machine:
        """Adds a machine with a tap for each of its cards."""
        for nic in nics:
            self._add_tap(nic.tap, *(["multi_queue"] if nic.queues > 1 else []))
        machine = Machine(nics, self.log_dir, self._check_forwarder)
        self.guests.append(machine)
        return machine

    def _add_tap(self, tap: str, *options: str) -> None:
        self._inside("ip", "tuntap", "add", tap, "mode", "tap", *options)
        # A long queue: bursts of an unacknowledged transport have no flow control.
        self._inside("ip", "link", "set", tap, "mtu", str(self.mtu), "txqueuelen", "8192", "up")

    def add_cable(self, one_end: str, other_end: str) -> None:
        """Adds two interfaces; each receives what the other sends."""
        self._inside("ip", "link", "add", other_end, "type", "veth", "peer", "name", one_end)
        for end in (one_end, other_end):
            self._inside("ip", "link", "set", end, "mtu", str(self.mtu), "up")

    def boot(self, memory_mb: int = 256) -> None:
        """Boots all guests, and configures eth0 with its addresses and a soft-RoCE device, rxe0."""
        for guest in self.guests:
            guest.start_machine(self._prefix, self.guest_dir, self.accel, memory_mb)
        for guest in self.guests:
            guest.wait_booted()
            guest.configure(self.mtu)

    @contextmanager
    def forwarder(self, command: list[str], name: str = "forwarder") -> Iterator[Forwarder]:
        """Runs a forwarder in the namespace. At the end of the block the forwarder is stopped, and its report is read."""
        log = self.log_dir / f"{name}.log"
        forwarder = self._start_forwarder(command, log)
        try:
            forwarder.wait_ready()
            self._forwarder = forwarder
            yield forwarder
            self._forwarder = None
            forwarder.stop()
        finally:
            self._forwarder = None
            forwarder.kill()

    def _start_forwarder(self, command: list[str], log: Path) -> Forwarder:
        """Starts a forwarder, and retries up to three times if its fanout group is in use.

        DPDK's af_packet driver computes the number of the group as process id XOR interface index. Another forwarder in
        this namespace may have the same number; another process id gives another number.
        """
        for _ in range(4):
            with log.open("w") as stderr:
                forwarder = Forwarder(self.spawn(command, stdout=subprocess.PIPE, stderr=stderr, text=True), log)
            try:
                forwarder.wait_ready()
                break
            except LabError:
                forwarder.kill()
                if "could not set PACKET_FANOUT" not in log.read_text():
                    raise
        return forwarder

    @contextmanager
    def recorded(self, tap: str, file: Path, filter_expression: str = "") -> Iterator[None]:
        """Records each frame that a guest sends into a tap: all, or those that match `filter_expression`.

        Frames that the guest receives are not recorded, because frames that DPDK writes to a
        tap bypass the kernel's packet taps. Recording both directions needs both taps.
        """
        if shutil.which("tcpdump") is None:
            raise LabError("tcpdump is missing: run `apt-get install tcpdump`")
        log = self.log_dir / f"tcpdump-{tap}.log"
        with log.open("w") as stderr:
            # Immediate mode: otherwise frames wait up to a second in a buffer, which SIGINT discards.
            options = ["-Q", "in", "--immediate-mode", "-U", "-B", "65536", "-Z", "root"]
            command = ["tcpdump", "-i", tap, *options, "-w", str(file), *filter_expression.split()]
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
        """Starts a process inside the namespace, in a session of its own, which Ctrl-C does not reach."""
        return subprocess.Popen([*self._prefix, *DIE_WITH_PARENT, *command], start_new_session=True, **options)

    def _check_forwarder(self) -> None:
        if self._forwarder is not None and (code := self._forwarder.process.poll()) is not None:
            raise LabError(f"the forwarder exited with code {code} while a program used it:\n{self._forwarder.log.read_text().rstrip()}")

    @property
    def _prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]

    def _inside(self, *command: str) -> None:
        _check_call([*self._prefix, *command])


def _drain(process: subprocess.Popen[Any], log: Path) -> None:
    """Waits until tcpdump has written all frames sent so far: until two successive counts are equal.

    On a busy machine tcpdump may be far behind, and frames that it has not read when it ends are lost silently.
    """
    counts: list[str] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        process.send_signal(signal.SIGUSR1)
        counts_before = len(counts)
        while len(counts) <= counts_before and time.monotonic() < deadline:
            time.sleep(0.1)
            counts = CAPTURED.findall(log.read_text())
        if len(counts) > 1 and counts[-1] == counts[-2]:
            return


def _ip(*arguments: str) -> None:
    _check_call(["ip", *arguments])


def _check_call(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{shlex.join(command)}: {done.stderr.strip()}")


def _remove_orphans() -> None:
    """Removes namespaces of runs that were killed."""
    for entry in Path("/run/netns").glob(f"{NAMESPACE_PREFIX}*"):
        pid = entry.name.removeprefix(NAMESPACE_PREFIX)
        if not Path(f"/proc/{pid}").exists():
            _ip("netns", "delete", entry.name)
