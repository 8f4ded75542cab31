"""An emulated Debian with systemd, several network cards on PCI behind an IOMMU, and understudy installed in it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guest import DIE_WITH_PARENT, NO_OFFLOADS, Guest, LabError

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# The folder below which understudy is installed in the machine
PREFIX = "/opt/understudy"


@dataclass(frozen=True)
class Nic:
    """A network card of the machine, which QEMU emulates. Its other end is a tap of the lab."""

    tap: str
    model: str
    slot: int
    queues: int = 1

    @property
    def mac(self) -> str:
        return f"52:54:00:00:01:{self.slot:02x}"

    def tap_options(self) -> str:
        queues = f",queues={self.queues}" if self.queues > 1 else ""
        return f"tap,id={self.tap},ifname={self.tap},script=no,downscript=no,vhost=off{queues}"

    def device(self) -> dict[str, Any]:
        """Returns the device as the monitor's `device_add` takes it."""
        device: dict[str, Any] = {
            "driver": self.model, "id": f"nic-{self.tap}", "netdev": self.tap, "mac": self.mac,
            "bus": f"slot{self.slot}", "romfile": "",
        }  # fmt: skip
        if self.model == "virtio-net-pci":
            device |= {option.removesuffix("=off"): False for option in NO_OFFLOADS.split(",")}
            # Through the IOMMU, as a card of hardware is
            device |= {"iommu_platform": True, "ats": False, "disable-legacy": "on", "rx_queue_size": 1024}
            if self.queues > 1:
                device |= {"mq": True, "rss": True, "vectors": 2 * self.queues + 2}
        return device


class Machine(Guest):
    """The machine. Its disk lasts over restarts."""

    def __init__(self, nics: list[Nic], log_dir: Path, check_surroundings: Callable[[], None] = lambda: None) -> None:
        super().__init__("machine", "", 9, log_dir, check_surroundings)
        self.nics = nics
        self.disk = Path()
        self._disk_folder: tempfile.TemporaryDirectory[str] | None = None
        self._monitor_path = log_dir / "machine.monitor"
        self._starts = 0
        self._start_again: Callable[[], None] = lambda: None

    def install(self, build_dir: Path, guest_dir: Path) -> None:
        """Makes the disk, with understudy installed as `make install` does."""
        # Beside the other images: /tmp may have no room.
        self._disk_folder = tempfile.TemporaryDirectory(dir=guest_dir, prefix="disk.")
        self.disk = Path(self._disk_folder.name) / "machine.disk"
        with tempfile.TemporaryDirectory(dir=guest_dir, prefix="root.") as folder:
            root = Path(folder)
            call("tar", "-xf", str(guest_dir / "machine/root.tar"), "-C", folder)
            environment = {"PREFIX": PREFIX, "DESTDIR": folder}
            call(str(REPOSITORY / "packaging/install.sh"), str(build_dir), environment=environment)
            # docs/service.md, in another machine's root
            call("chroot", folder, "systemd-sysusers")
            call("chroot", folder, "chgrp", "understudy", "/etc/understudy")
            (root / "etc/understudy").chmod(0o750)
            call("mke2fs", "-q", "-t", "ext4", "-d", folder, str(self.disk), "1500M")

    def start_machine(self, prefix: list[str], guest_dir: Path, accel: str, memory_mb: int) -> None:
        """Starts the emulator, with more memory than other guests get."""
        del memory_mb
        self._start_again = lambda: self.start_machine(prefix, guest_dir, accel, 0)
        self._starts += 1
        nics: list[str] = []
        for nic in self.nics:
            root_port = f"pcie-root-port,id=slot{nic.slot},chassis={nic.slot},slot={nic.slot}"
            nics += ["-netdev", nic.tap_options(), "-device", root_port, "-device", json.dumps(nic.device())]
        log = self.log_dir / f"machine-{self._starts}"
        ours, theirs = socket.socketpair()
        command = [
            *prefix, *DIE_WITH_PARENT, "qemu-system-x86_64",
            # The program needs AVX2, which QEMU 7.2 emulates.
            "-machine", "q35", "-accel", accel, "-cpu", "max", "-m", "1536", "-smp", "2",
            "-nodefaults", "-no-reboot", "-display", "none",
            "-device", "intel-iommu",
            "-kernel", str(guest_dir / "vmlinuz"), "-initrd", str(guest_dir / "machine/initramfs.cpio"),
            "-append", "console=ttyS0 loglevel=4 panic=-1 mitigations=off intel_iommu=on",
            "-drive", f"file={self.disk},format=raw,if=none,id=disk,cache=unsafe", "-device", "virtio-blk-pci,drive=disk",
            "-serial", f"file:{log}.kernel.log",
            # Not the standard output, to which the emulation of vmxnet3 prints
            "-chardev", f"socket,id=shell,fd={theirs.fileno()}", "-device", "virtio-serial-pci",
            "-device", "virtserialport,chardev=shell,name=shell",
            "-qmp", f"unix:{self._monitor_path},server=on,wait=off",
            *nics,
        ]  # fmt: skip
        with Path(f"{log}.qemu.log").open("wb") as messages, ours, theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages,
                start_new_session=True, pass_fds=[theirs.fileno()],
            )  # fmt: skip
            self._process.stdin, self._process.stdout = ours.makefile("wb", buffering=0), ours.makefile("rb", buffering=0)

    def wait_booted(self, timeout_s: float = 240) -> None:
        super().wait_booted(timeout_s)

    def power_off(self, patience_s: float = 5) -> None:
        super().power_off(patience_s)
        if self._disk_folder is not None:
            self._disk_folder.cleanup()

    def monitor(self, command: str, **arguments: Any) -> None:
        """Gives the emulator a command: `set_link`, `device_del`, `device_add`."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._monitor_path))
            connection.settimeout(10)
            lines = connection.makefile("rw")
            for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                lines.write(json.dumps(request) + "\n")
                lines.flush()
                while True:
                    answer = json.loads(lines.readline())
                    if "error" in answer:
                        raise LabError(f"the emulator refuses {request}: {answer['error']}")
                    if "return" in answer:
                        break

    def configure(self, mtu: int) -> None:
        """Leaves the network alone: the machine only forwards."""

    def restart(self) -> None:
        """Restarts Debian, as `reboot` does, and waits until it runs."""
        process = self._process
        assert process is not None and process.stdin is not None
        process.stdin.write(b"systemctl reboot\n")
        process.stdin.flush()
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            raise LabError("the machine does not restart") from None
        self._unread = b""
        self._start_again()
        self.wait_booted()


def call(*command: str, environment: dict[str, str] | None = None) -> None:
    if shutil.which(command[0]) is None:
        raise LabError(f"{command[0]} is missing: run scripts/deps.sh e2e")
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | (environment or {}))
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")
