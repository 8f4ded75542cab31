"""A virtual machine of the e2e tests, driven through a shell: commands, background jobs, network."""

from __future__ import annotations

import ipaddress
import os
import re
import select
import shlex
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# The kernel kills a child when this process ends, even if this process is killed and cannot clean up.
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
# Offloads would put partial checksums and frames above the MTU on the tap, which no cable carries.
NO_OFFLOADS = ",".join(
    f"{offload}=off"
    for offload in (
        "csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo",
        "host_tso4", "host_tso6", "host_ecn", "host_ufo",
    )
)  # fmt: skip


class LabError(Exception):
    """A failure of the lab itself, not of a program under test: the run cannot continue."""


class CommandFailed(Exception):
    """A command in a guest exited with a code other than 0, or did not exit within its time limit."""


@dataclass(frozen=True)
class Result:
    """The output and exit code of a command in a guest. `code` is None if the command exceeded its time limit."""

    code: int | None
    output: str


@dataclass(frozen=True)
class Job:
    """A command that runs in a guest's background."""

    name: str
    command: str


# At its end, rping closes its event channel while another of its threads may be about to read from it. That thread then
# ends the whole program with code 255. This code counts as success only if nothing else failed. A server whose client has
# disconnected (state 10) reports that it waits for the next advertisement.
RPING = r"""rping_result() {
    case "$1 $(printf '%s\n' "$2" | grep -v '^wait for RDMA_READ_ADV state 10$')" in
    *fail* | *error* | *mismatch* | *"wait for"* | *unexpected*) ;;
    255*"DISCONNECT EVENT"*"rdma_get_cm_event: Bad file descriptor"*) return 0 ;;
    esac
    return "$1"
}
rping() {
    rping_output=$(timeout -s KILL "${RPING_LIMIT_S:-600}" rping "$@" 2>&1)
    rping_code=$?
    printf '%s\n' "$rping_output"
    rping_result $rping_code "$rping_output"
}"""


class Guest:
    """A virtual machine, driven through a shell on a virtio serial port."""

    def __init__(
        self,
        name: str,
        tap: str,
        address: int,
        log_dir: Path,
        check_surroundings: Callable[[], None] = lambda: None,
        vhost: Path | None = None,
    ) -> None:
        """Calls `check_surroundings` while it waits for output; this raises if waiting further is useless.

        The network card is at the tap, or at a port of understudy that has the socket `vhost`.
        """
        self.name = name
        self._check_surroundings = check_surroundings
        self.tap = tap
        self._vhost = vhost
        self.mac = f"52:54:00:00:00:{address:02x}"
        self.host_number = address
        # By network: "ipv4", "ipv6", and the networks that add_vlan() adds.
        self.addresses = {"ipv4": f"10.0.0.{address}", "ipv6": f"fd00::{address:x}"}
        self.log_dir = log_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._commands = 0
        self._gid_indices: dict[str, int] = {}
        self._transcript = (log_dir / f"guest-{name}.shell.log").open("w")

    def start_machine(self, prefix: list[str], guest_dir: Path, accel: str, memory_mb: int) -> None:
        """Starts the emulator; `prefix` is a command that runs another command in the right namespace."""
        card = f"virtio-net-pci,netdev=net0,mac={self.mac},rx_queue_size=1024,romfile=,{NO_OFFLOADS}"
        if self._vhost is None:
            network = ["-netdev", f"tap,id=net0,ifname={self.tap},script=no,downscript=no,vhost=off", "-device", card]
        else:
            network = [
                # The port accesses the guest's memory. It opens the socket; the guest tries until then, and again after it.
                "-object", f"memory-backend-memfd,id=memory,size={memory_mb}M,share=on", "-machine", "memory-backend=memory",
                "-chardev", f"socket,id=port,path={self._vhost},reconnect=1", "-netdev", "vhost-user,id=net0,chardev=port",
                # With MSI-X, QEMU 7.2 crashes here (vhost-user without KVM).
                "-device", f"{card},vectors=0",
            ]  # fmt: skip
        command = [
            *prefix, *DIE_WITH_PARENT, "qemu-system-x86_64",
            "-accel", accel, "-m", str(memory_mb), "-smp", "1",
            "-nodefaults", "-no-reboot", "-display", "none",
            "-kernel", str(guest_dir / "vmlinuz"), "-initrd", str(guest_dir / "initramfs.cpio"),
            # panic=-1 with -no-reboot: a kernel panic ends the emulator, and thereby the wait for it.
            "-append", "console=ttyS0 loglevel=4 panic=-1 mitigations=off",
            "-serial", f"file:{self.log_dir / f'guest-{self.name}.kernel.log'}",
            "-chardev", "stdio,id=shell", "-device", "virtio-serial-pci",
            "-device", "virtserialport,chardev=shell",
            *network,
        ]  # fmt: skip
        with (self.log_dir / f"guest-{self.name}.qemu.log").open("wb") as log:
            # In a session of its own: Ctrl-C reaches this process only, which then shuts the guest down.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def wait_booted(self, timeout_s: float = 120) -> None:
        if self._read_until(re.compile(rb"@@READY\n"), time.monotonic() + timeout_s) is None:
            raise LabError(f"guest {self.name} did not boot in {timeout_s:.0f} s, see {self.log_dir}")
        self.run(RPING)

    # --- commands ---------------------------------------------------------------------

    def run(self, command: str, timeout_s: float = 30, check: bool = True) -> Result:
        """Runs a shell command to its end and returns what it printed (both streams)."""
        assert self._process is not None and self._process.stdin is not None
        self._commands += 1
        marker = f"@@END {self._commands}"
        # The marker gets a line of its own even when the output ends in the middle of one.
        line = f"{{ {command}\n}} </dev/null 2>&1; printf '\\n{marker} %d\\n' $?\n"
        self._log(f"# {command}")
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LabError(f"guest {self.name} is gone, see {self.log_dir}") from None
        end = re.compile(rb"\n" + marker.encode() + rb" (\d+)\n")
        found = self._read_until(end, time.monotonic() + timeout_s)
        if found is None:
            # The shell is still running the command: this guest cannot be used any more.
            raise LabError(f"guest {self.name}: no answer in {timeout_s:.0f} s to: {command}")
        output, code = found[0].decode(errors="replace"), int(found[1])
        self._log(f"{output.rstrip()}\n# -> {code}")
        if check and code != 0:
            raise CommandFailed(f"guest {self.name}: exit code {code} from: {command}\n{output.rstrip()}")
        return Result(code, output)

    def start(self, command: str) -> Job:
        """Starts a command in the background; `finish` returns its result."""
        self._commands += 1
        job = Job(f"/tmp/job{self._commands}", command)
        # exec: the shell's pid is the command's, so that `finish` can end it.
        inner = shlex.quote(f"echo $$ >{job.name}.pid; exec {command}")
        self.run(f"( sh -c {inner} >{job.name}.out 2>&1 </dev/null; echo $? >{job.name}.rc ) &")
        return job

    def finish(self, job: Job, timeout_s: float) -> Result:
        """Waits for a background command; kills it at its time limit."""
        ticks = max(1, int(timeout_s / 0.1))
        self.run(
            f"n=0; while [ ! -s {job.name}.rc ] && [ $n -lt {ticks} ]; do sleep 0.1; n=$((n+1)); done",
            # `sleep 0.1` takes longer than 0.1 s on an emulated CPU that gets little time.
            timeout_s=timeout_s * 5 + 30,
        )
        late = self.run(f"[ -s {job.name}.rc ]", check=False).code != 0
        if late:
            self.run(f"kill -9 $(cat {job.name}.pid)", check=False)
        output = self.run(f"cat {job.name}.out").output
        if late:
            return Result(None, output)
        code = int(self.run(f"cat {job.name}.rc").output)
        if job.command.startswith("rping "):
            code = self.run(f'rping_result {code} "$(cat {job.name}.out)"', check=False).code
        self.run(f"rm -f {job.name}.*")
        return Result(code, output)

    def wait_for(self, condition: str, timeout_s: float = 15) -> None:
        """Waits until a shell condition is true."""
        deadline = time.monotonic() + timeout_s
        while self.run(condition, check=False).code != 0:
            if time.monotonic() > deadline:
                raise CommandFailed(f"guest {self.name}: condition not true within {timeout_s:.0f} s: {condition}")
            time.sleep(0.05)

    # --- the network ------------------------------------------------------------------

    def configure(self, mtu: int) -> None:
        """Gives eth0 its addresses and a soft-RoCE device, rxe0."""
        self.run(
            f"ip link set eth0 mtu {mtu} up && "
            f"ip address add {self.addresses['ipv4']}/24 dev eth0 && "
            f"ip address add {self.addresses['ipv6']}/64 dev eth0 nodad && "
            # soft-RoCE requires the link to be up.
            "rdma link add rxe0 type rxe netdev eth0"
        )

    def add_vlan(self, vlan_id: int, on: str = "eth0", protocol: str = "802.1Q", network: str = "vlan") -> str:
        """Adds a VLAN and its addresses, and returns its device. Packets that rxe0 sends from these addresses are tagged.

        The tag has priority 3: a tag with only a VLAN number could be removed and rebuilt without a visible difference.
        """
        name = f"{on}.{vlan_id}"
        self.addresses[f"{network}-ipv4"] = f"10.0.{vlan_id}.{self.host_number}"
        self.addresses[f"{network}-ipv6"] = f"fd00:{vlan_id}::{self.host_number:x}"
        self.run(
            f"ip link add link {on} name {name} type vlan proto {protocol} id {vlan_id} egress-qos-map 0:3 && "
            f"ip link set {name} up && "
            f"ip address add {self.addresses[f'{network}-ipv4']}/24 dev {name} && "
            f"ip address add {self.addresses[f'{network}-ipv6']}/64 dev {name} nodad"
        )
        return name

    def gid_index(self, address: str) -> int:
        """Returns the index in rxe0's GID table of an address of this guest."""
        gid = ipaddress.ip_address(address)
        if isinstance(gid, ipaddress.IPv4Address):
            gid = ipaddress.IPv6Address(f"::ffff:{gid}")
        name = gid.exploded
        if name not in self._gid_indices:
            # The kernel fills the table a short time after the address was added.
            self.wait_for(f"cat /sys/class/infiniband/rxe0/ports/1/gids/? | grep -q {name}")
            found = self.run(f"cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l {name} ?").output
            self._gid_indices[name] = int(found.split()[0])
        return self._gid_indices[name]

    # --- the end ----------------------------------------------------------------------

    def power_off(self, patience_s: float = 5) -> None:
        """Shuts the guest down; kills its emulator (no other) if the guest does not end."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(b"poweroff -f\n")
            process.stdin.flush()
            process.wait(timeout=patience_s)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.close()
        self._transcript.close()

    # --- the serial port ----------------------------------------------------------------

    def _read_until(self, end: re.Pattern[bytes], deadline: float) -> tuple[bytes, bytes] | None:
        """Returns the output before `end`, and the group that `end` captured."""
        assert self._process is not None and self._process.stdout is not None
        stream = self._process.stdout.fileno()
        while (match := end.search(self._unread)) is None:
            left = deadline - time.monotonic()
            self._check_surroundings()
            if left > 0 and not select.select([stream], [], [], min(left, 0.5))[0]:
                continue
            if left <= 0:
                self._log(f"# TIMEOUT, read so far:\n{self._unread.decode(errors='replace')}")
                return None
            chunk = os.read(stream, 65536)
            if not chunk:
                raise LabError(f"guest {self.name} ended, see {self.log_dir}")
            self._unread += chunk
        before = self._unread[: match.start()]
        self._unread = self._unread[match.end() :]
        return before, match[1] if match.re.groups else b""

    def _log(self, text: str) -> None:
        print(text, file=self._transcript, flush=True)
