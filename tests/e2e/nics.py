#!/usr/bin/env python3
"""Runs unmodified RDMA programs through understudy on network cards: in a machine of its own, with cards on PCI.

    tests/e2e/nics.py --understudy target/release/understudy

    guest a == host-a -- wire -- nicN == machine == nicM -- wire -- host-b == guest b

The machine is a Debian 12 with systemd that QEMU emulates, with huge pages, an IOMMU, and cards that DPDK's own drivers
use through vfio-pci. understudy is installed in it as `make install` does, and runs as the user `understudy`. The wire
between the taps is another understudy. Needs root, and `make library`.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import suite
from check import verdict
from guest import CommandFailed, Guest, Job, LabError
from lab import Lab
from machine import PREFIX, Machine, Nic
from programs import PERFTEST_LISTENS, PROGRAMS
from run import run_and_count, run_program

UNDERSTUDY = f"{PREFIX}/bin/understudy"
NICS = [
    Nic("nic1", "e1000e", slot=1),
    Nic("nic2", "vmxnet3", slot=2),
    Nic("nic3", "virtio-net-pci", slot=3, queues=2),
    Nic("nic4", "virtio-net-pci", slot=4, queues=2),
]
# As docs/hardware.md: huge pages and the rules of udev, for this and every start of the machine
DEPLOY = f"{PREFIX}/share/doc/understudy/deploy/systemd"
PREPARE = f"""echo vm.nr_hugepages=192 > /etc/sysctl.d/60-understudy.conf
cp {DEPLOY}/70-understudy.rules /etc/udev/rules.d/ && udevadm control --reload && /usr/lib/systemd/systemd-sysctl"""
LIMIT_S = 90

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A case: what it runs, in a line, and its code, which returns the problems and a summary."""

    name: str
    command: str
    run: Callable[[Bench], tuple[list[str], str]]


@dataclass
class Bench:
    """The lab of a case."""

    lab: Lab
    program: Path
    folder: Path

    @property
    def machine(self) -> Machine:
        machine = self.lab.guests[2]
        assert isinstance(machine, Machine)
        return machine

    @property
    def hosts(self) -> tuple[Guest, Guest]:
        return self.lab.guests[0], self.lab.guests[1]

    @contextmanager
    def wire(self, left: str, right: str) -> Iterator[None]:
        """Connects the hosts' taps with those of two cards."""
        config = self.folder / "wire.toml"
        taps = ("host-a", left, right, "host-b")
        ports = "".join(f'[[port]]\nname = "{tap}"\naf_packet = {{ interface = "{tap}" }}\n' for tap in taps)
        pairs = f'[forward]\npairs = [["host-a", "{left}"], ["{right}", "host-b"]]\n'
        config.write_text(f'[runtime]\nidle = "sleep"\n{ports}{pairs}')
        with self.lab.forwarder([str(self.program), "run", str(config), "--json"], "wire"):
            yield

    def configure(self, name: str, text: str) -> str:
        """Writes a configuration in the machine, and returns its path."""
        path = f"/etc/understudy/{name}.toml"
        self.machine.run(f"cat > {path} <<'END'\n{text}END\nchgrp understudy {path} && chmod 640 {path}")
        return path

    def top(self, config: str) -> Json:
        snapshot: Json = json.loads(self.machine.run(f"{UNDERSTUDY} top --json {config}").output)
        return snapshot

    def until(self, what: str, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise CommandFailed(f"not within {limit_s:.0f} s: {what}")
            time.sleep(0.3)

    def until_links(self, config: str, state: str = "up", port: str = "") -> None:
        """Waits until the instance runs, and the links of all its ports, or of one, have this state."""

        def have_state() -> bool:
            found = self.machine.run(f"{UNDERSTUDY} top --json {config}", check=False)
            if found.code != 0 or not found.output.strip():
                return False
            ports = json.loads(found.output)["ports"]
            return all(each["link"] == state for each in ports if port in ("", each["name"]))

        self.until(f"{config}: {port or 'all ports'} {state}", have_state)

    def passes(self, name: str) -> list[str]:
        """Runs a program between the hosts. Returns its problems."""
        (program,) = (program for program in PROGRAMS if program.name == name)
        try:
            run_program(program, *self.hosts)
        except CommandFailed as failure:
            return [f"{name}: {failure}"]
        return []

    def cursor(self) -> str:
        """Returns the end of the journal."""
        shown = self.machine.run("journalctl -q --no-pager -n 0 --show-cursor").output
        return shown.strip().removeprefix("-- cursor: ")

    def lacks(self, cursor: str, lines: tuple[str, ...]) -> list[str]:
        """Returns the problem of each line that the unit's journal does not have since `cursor`."""
        journal = self.machine.run(f"journalctl -q --no-pager -o cat --after-cursor '{cursor}' --unit understudy@wire").output
        return [f"the journal lacks `{line}`:\n{journal}" for line in lines if line not in journal]


def config(name: str, a: str, b: str, *, workers: int = 1, huge_pages: bool = True) -> str:
    any_cpu = ", ".join(['"any"'] * workers)
    return f"""[runtime]
workers = [{any_cpu}]
idle = "sleep"
hugepages = {str(huge_pages).lower()}
memory_mb = 160
[observe]
socket = "/run/understudy/{name}/observe.sock"
[[port]]
name = "a"
{a}
[[port]]
name = "b"
{b}
[forward]
pairs = [["a", "b"]]
verify = ["icrc"]
drop = ["icrc", "truncated"]
"""


def pci(number: int) -> str:
    return f'pci = "0000:{number:02x}:00.0"'


@contextmanager
def instance(
    bench: Bench, name: str, text: str, user: str = "understudy", capabilities: str = "", before: str = "true"
) -> Iterator[Json]:
    """Runs an instance in the machine, with these capabilities only, after the command `before`.

    The value gets its report at the end of the block.
    """
    machine = bench.machine
    path = bench.configure(name, text)
    machine.run(f"install -d -o {user} -g understudy /run/understudy/{name} && {before}", timeout_s=LIMIT_S)
    caps = " ".join(f"--{each}=-all{capabilities}" for each in ("inh-caps", "ambient-caps", "bounding-set"))
    as_user = f"setpriv --reuid={user} --regid=understudy --clear-groups --no-new-privs {caps}"
    errors = f"/tmp/{name}.err"
    job = machine.start(f"{as_user} {UNDERSTUDY} run {path} --json 2>{errors}")
    report: Json = {}
    try:
        machine.wait_for(f"grep -q 'is ready' {errors} || [ -s {job.name}.rc ]", LIMIT_S)
        if machine.run(f"[ -s {job.name}.rc ]", check=False).code != 0:
            bench.until_links(path)
            yield report
    finally:
        machine.run(f"kill -INT $(cat {job.name}.pid)", check=False)
        result = machine.finish(job, timeout_s=30)
        messages = machine.run(f"cat {errors}", check=False).output
    if result.code != 0:
        raise CommandFailed(f"understudy in the machine: exit code {result.code}\n{messages}\n{result.output}")
    report.update(json.loads(result.output))


def is_tolerated(problem: str, retransmissions: int, loss: int) -> bool:
    """Returns whether a problem is that up to `loss` frames did not arrive at a port, and that hosts repeated them."""
    counts = re.fullmatch(r"guest [ab] sent: (\d+), but RoCE frames received by port [ab]: (\d+)", problem)
    return counts is not None and retransmissions > 0 and 0 < int(counts[1]) - int(counts[2]) <= loss


def programs(
    bench: Bench, name: str, text: str, names: tuple[str, ...], loss: int = 0, **rights: str
) -> tuple[list[str], list[Json]]:
    """Runs programs, each through an instance of its own. Compares its report with what the guests and the programs count.

    Up to `loss` frames may be lost before they reach a port, if the hosts repeat them.
    """
    problems: list[str] = []
    reports = []
    a, b = bench.hosts
    by_name = {program.name: program for program in PROGRAMS}
    for program in (by_name[name] for name in names):
        with instance(bench, name, text, **rights) as report:
            output, failures, increases = run_and_count(program, a, b)
        outcome = verdict(program, report, increases, (a, b), output, failures, 0)
        problems += [f"{program.name}: {problem}" for problem in outcome.problems if not is_tolerated(problem, outcome.retransmissions, loss)]
        reports.append(report)
    return problems, reports


def frames(reports: list[Json]) -> int:
    return sum(port["roce_frames"] for report in reports for port in report["ports"])


# --- cases ------------------------------------------------------------------------------


def doctor(bench: Bench) -> tuple[list[str], str]:
    """Runs the commands that `understudy doctor` prints for huge pages, VFIO and the cards; then nothing is left to fix."""
    machine = bench.machine
    before = machine.run(f"{UNDERSTUDY} doctor", check=False).output
    commands = [line.strip().removeprefix("# ") for line in before.splitlines() if line.strip().startswith("# ")]
    wanted = [command for command in commands if "hugepages" in command or "vfio-pci" in command]
    for command in wanted:
        machine.run(command, timeout_s=LIMIT_S)
    after = machine.run(f"{UNDERSTUDY} doctor", check=False).output
    problems = []
    if "hardware ports: ready" not in after:
        problems.append(f"doctor still finds something to fix:\n{after}")
    if len(wanted) != 2 + len(NICS):
        problems.append(f"doctor prints these commands: {wanted}\n{before}")
    for number in range(1, len(NICS) + 1):
        if f"is bound to vfio-pci: write `{pci(number)}`" not in " ".join(after.split()):
            problems.append(f"doctor does not find card {number} ready:\n{after}")
    return problems, f"{len(wanted)} commands, then: {after.strip().splitlines()[-1]}"


def prepared(run: Callable[[Bench], tuple[list[str], str]]) -> Callable[[Bench], tuple[list[str], str]]:
    """Returns a case that first gives huge pages and the cards to the user `understudy`, also at every start of the machine."""

    def case(bench: Bench) -> tuple[list[str], str]:
        machine = bench.machine
        machine.run("systemctl stop understudy@wire", timeout_s=LIMIT_S)
        machine.run(PREPARE, timeout_s=LIMIT_S)
        for number in range(1, len(NICS) + 1):
            machine.run(f"driverctl set-override 0000:{number:02x}:00.0 vfio-pci", timeout_s=LIMIT_S)
        machine.run("udevadm trigger --subsystem-match=vfio && udevadm settle", timeout_s=LIMIT_S)
        return run(bench)

    return case


def e1000e_vmxnet3(bench: Bench) -> tuple[list[str], str]:
    with bench.wire("nic1", "nic2"):
        names = ("write-rc-65536", "odd-verbs", "send-rc-vlan-ipv6")
        problems, reports = programs(bench, "cards", config("cards", pci(1), pci(2)), names)
    return problems, f"{len(names)} programs, {frames(reports)} RoCE frames"


def rss(bench: Bench) -> tuple[list[str], str]:
    with bench.wire("nic3", "nic4"):
        names = ("write-rc-4qp",)
        problems, reports = programs(bench, "rss", config("rss", pci(3), pci(4), workers=2), names)
    shares = [[worker["rx_frames"] for worker in report["workers"]] for report in reports]
    # Four queue pairs have as many UDP source ports.
    if not all(shares[0]):
        problems.append(f"RSS gave a worker nothing: {shares}")
    return problems, f"frames of workers: {shares}"


def start_unit(bench: Bench) -> str:
    """Enables and starts the unit on two cards. Returns the path of its configuration."""
    path = bench.configure("wire", config("wire", pci(1), pci(2)))
    drop_in = "/etc/systemd/system/understudy@wire.service.d/pci.conf"
    bench.machine.run(f"install -D -m 644 {DEPLOY}/pci.conf {drop_in} && systemctl daemon-reload", timeout_s=LIMIT_S)
    bench.machine.run("systemctl enable --now understudy@wire", timeout_s=LIMIT_S)
    bench.until_links(path)
    return path


def service(bench: Bench) -> tuple[list[str], str]:
    """The unit on cards, and a restart of the machine, after which nothing is done by hand."""
    machine = bench.machine
    started = time.monotonic()
    path = start_unit(bench)
    ready = time.monotonic() - started
    with bench.wire("nic1", "nic2"):
        problems = bench.passes("rping")
        process = machine.run("systemctl show --value -p MainPID understudy@wire").output.strip()
        capabilities = machine.run(f"grep CapEff /proc/{process}/status").output.split()[1]
        machine.restart()
        bench.until_links(path)
        problems += bench.passes("rping")
    if int(capabilities, 16):
        problems.append(f"the instance has the capabilities {capabilities}")
    if not machine.run("systemctl is-active understudy@wire", check=False).output.startswith("active"):
        problems.append("the unit does not run after a restart of the machine")
    return problems, f"forwards {ready:.1f} s after systemctl start, without capabilities; runs again after a restart"


def link(bench: Bench) -> tuple[list[str], str]:
    """Takes the cable from each card while a program writes, and puts it back."""
    path = start_unit(bench)
    cursor = bench.cursor()
    a, b = bench.hosts
    with bench.wire("nic1", "nic2"):
        server, client = long_writes(bench)
        moved = received(bench, path)
        for port, nic in (("a", "nic1"), ("b", "nic2")):
            bench.until("frames pass", lambda: received(bench, path) > moved)
            bench.machine.monitor("set_link", name=nic, up=False)
            bench.until_links(path, "no_carrier", port)
            if b.run(f"[ -s {client.name}.rc ]", check=False).code == 0:
                raise CommandFailed(f"the program ended before the loss of {port}'s link was seen: write more")
            bench.machine.monitor("set_link", name=nic, up=True)
            bench.until_links(path)
            moved = received(bench, path)
        results = [b.finish(client, 4 * LIMIT_S), a.finish(server, LIMIT_S)]
    problems = [f"exit code {result.code} of the program:\n{result.output}" for result in results if result.code != 0]
    lines = ("Port a is down: it has no link.", "Port a is up.", "Port b is down: it has no link.", "Port b is up.")
    return problems + bench.lacks(cursor, lines), "the program's connection outlives the loss of each link"


def received(bench: Bench, path: str) -> int:
    return sum(port["rx_frames"] for port in bench.top(path)["ports"])


def long_writes(bench: Bench) -> tuple[Job, Job]:
    """Starts a program that writes for a while between the hosts, and repeats a packet for up to half a minute."""
    a, b = bench.hosts
    command = "ib_write_bw -F -u 20 -d rxe0 -x {gid} -n 6000 -q 1 -m 1024 -s 4096 -c RC"
    server = a.start(command.format(gid=a.gid_index(a.addresses["ipv4"])))
    a.wait_for(PERFTEST_LISTENS)
    client = b.start(command.format(gid=b.gid_index(b.addresses["ipv4"])) + f" {a.addresses['ipv4']}")
    return server, client


def removal(bench: Bench) -> tuple[list[str], str]:
    """Unplugs a card of the running unit, and plugs it in again."""
    machine = bench.machine
    path = start_unit(bench)
    cursor = bench.cursor()

    def plug_in() -> bool:
        try:
            machine.monitor("device_add", **NICS[0].device())
        except LabError as error:
            # The emulator still has the old one.
            if "uplicate" not in str(error):
                raise
            return False
        return True

    with bench.wire("nic1", "nic2"):
        problems = bench.passes("write-rc-64")
        machine.monitor("device_del", id="nic-nic1")
        bench.until("the card is gone", lambda: machine.run("[ ! -e /sys/bus/pci/devices/0000:01:00.0 ]", check=False).code == 0)
        bench.until("the emulator takes the card", plug_in)
        bench.until_links(path)
        problems += bench.passes("write-rc-64")
    lines = ("Port a is gone: its device is to be removed", "understudy@wire.service: Main process exited, code=exited, status=3")
    problems += bench.lacks(cursor, lines)
    machine.run("systemctl disable --now understudy@wire", timeout_s=LIMIT_S)
    return problems, "the unit gave it back, ended with 3, and uses it again"


def af_xdp(bench: Bench) -> tuple[list[str], str]:
    """Gives the cards back to the kernel, and uses their interfaces through AF_XDP: in the driver, and in generic mode."""
    machine = bench.machine
    for number in range(1, len(NICS) + 1):
        machine.run(f"driverctl unset-override 0000:{number:02x}:00.0", timeout_s=LIMIT_S, check=False)
        machine.wait_for(f"ip link set enp{number}s0 up", LIMIT_S)
    # What the error of `run` names for drivers without XDP; libxdp detaches it when an instance ends.
    generic = " && ".join(f"xdp-loader load -m skb enp{n}s0 /usr/lib/x86_64-linux-gnu/bpf/xsk_def_xdp_prog.o" for n in (1, 2))
    names = ("write-rc-4qp",)
    problems: list[str] = []
    counts = []
    for first, second, queues, before in ((3, 4, 2, "true"), (1, 2, 1, generic)):
        ports = [f'rx_queues = {queues}\naf_xdp = {{ interface = "enp{number}s0" }}' for number in (first, second)]
        text = config("xdp", *ports, huge_pages=False)
        with bench.wire(f"nic{first}", f"nic{second}"):
            # The kernel's drivers lose a frame at times when they begin with XDP, and do not count it at the socket.
            rights = {"user": "root", "capabilities": ",+net_raw,+net_admin,+sys_admin", "before": before}
            more, reports = programs(bench, "xdp", text, names, loss=5, **rights)
        problems += more
        counts.append(frames(reports))
    return problems, f"RoCE frames: {counts[0]} in the driver (virtio), {counts[1]} in generic mode"


CASES = [
    Case("doctor", "understudy doctor, and what it prints", doctor),
    Case("e1000e-vmxnet3", "programs through two cards of different drivers", prepared(e1000e_vmxnet3)),
    Case("virtio-rss", "a program through two cards with two queues, and two workers", prepared(rss)),
    Case("service", "systemctl enable --now understudy@wire; reboot", prepared(service)),
    Case("link", "set_link off, set_link on while a program writes", prepared(link)),
    Case("removal", "device_del, device_add of a card of the running service", prepared(removal)),
    Case("af-xdp", "a program through AF_XDP on the cards' interfaces", af_xdp),
]


def main() -> int:
    arguments = suite.parser(__doc__ or "").parse_args()

    def set_up(lab: Lab) -> None:
        lab.add_guest("a", tap="host-a", address=1)
        lab.add_guest("b", tap="host-b", address=2)
        lab.add_machine(NICS).install(arguments.understudy.resolve().parent.parent, arguments.guest_dir)

    def run_case(case: Case, lab: Lab, program: Path, folder: Path) -> tuple[list[str], str]:
        if not lab.guests[0].addresses.get("vlan-ipv4"):
            for guest in lab.guests[:2]:
                guest.add_vlan(10)
        return case.run(Bench(lab, program, folder))

    return suite.run(arguments, suite.chosen(arguments, CASES), set_up, run_case, "through understudy on network cards", ["build-machine.sh"])


if __name__ == "__main__":
    sys.exit(main())
