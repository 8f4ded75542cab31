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
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import suite
from check import read_counters, settled_counters, verdict
from guest import CommandFailed, Guest, LabError
from lab import Lab
from machine import PREFIX, Machine, Nic
from programs import PROGRAMS
from run import run_program

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

    def journal(self, unit: str, text: str) -> bool:
        found = self.machine.run(f"journalctl -q --no-pager -o cat --unit understudy@{unit} | grep -F -- '{text}'", check=False)
        return found.code == 0


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
def instance(bench: Bench, name: str, text: str, user: str = "understudy", capabilities: str = "", before: str = "true") -> Iterator[Json]:
    """Runs an instance in the machine, with these capabilities only, after the command `before`. The value gets its report at the end of the block."""
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


def programs(bench: Bench, name: str, text: str, names: tuple[str, ...], **rights: str) -> tuple[list[str], list[Json]]:
    """Runs programs, each through an instance of its own. Compares its report with what the guests and the programs count."""
    problems: list[str] = []
    reports = []
    a, b = bench.hosts
    for program in (program for program in PROGRAMS if program.name in names):
        with instance(bench, name, text, **rights) as report:
            before = [read_counters(guest) for guest in (a, b)]
            output, failures = "", []
            try:
                output = run_program(program, server=a, client=b)
            except CommandFailed as failure:
                failures.append(str(failure))
            after = settled_counters([a, b])
        increases = [new - old for new, old in zip(after, before)]
        outcome = verdict(program, report, increases, (a, b), output, failures, 0)
        problems += [f"{program.name}: {problem}" for problem in outcome.problems]
        reports.append(report)
    return problems, reports


def frames(reports: list[Json]) -> int:
    return sum(port["roce_frames"] for report in reports for port in report["ports"])


# --- cases ------------------------------------------------------------------------------


def doctor(bench: Bench) -> tuple[list[str], str]:
    """Runs the commands that `understudy doctor` prints for huge pages, VFIO and the cards, until it has nothing to fix."""
    machine = bench.machine
    before = machine.run(f"{UNDERSTUDY} doctor", check=False).output
    commands = [line.strip().removeprefix("# ") for line in before.splitlines() if line.strip().startswith("# ")]
    wanted = [command for command in commands if "hugepages" in command or "vfio-pci" in command]
    for command in wanted:
        machine.run(command, timeout_s=LIMIT_S)
    after = machine.run(f"{UNDERSTUDY} doctor", check=False).output
    problems = []
    if len(wanted) != 2 + len(NICS):
        problems.append(f"doctor prints these commands: {wanted}\n{before}")
    for number in range(1, len(NICS) + 1):
        if f"is bound to vfio-pci: write `{pci(number)}`" not in " ".join(after.split()):
            problems.append(f"doctor does not find card {number} ready:\n{after}")
    return problems, f"{len(wanted)} commands, then: {after.strip().splitlines()[-1]}"


def prepared(run: Callable[[Bench], tuple[list[str], str]]) -> Callable[[Bench], tuple[list[str], str]]:
    """Returns a case that first gives huge pages and the cards to the user `understudy`, for this and every start of the machine."""

    def case(bench: Bench) -> tuple[list[str], str]:
        machine = bench.machine
        machine.run(PREPARE)
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
        names = ("write-rc-4qp", "read-rc-ipv6")
        problems, reports = programs(bench, "rss", config("rss", pci(3), pci(4), workers=2), names)
    shares = [[worker["rx_frames"] for worker in report["workers"]] for report in reports]
    # Four queue pairs have as many UDP source ports.
    if not all(shares[0]):
        problems.append(f"RSS gave a worker nothing: {shares}")
    return problems, f"{len(names)} programs, frames of workers: {shares}"


def start_unit(bench: Bench) -> str:
    """Enables and starts the unit on two cards. Returns the path of its configuration."""
    path = bench.configure("wire", config("wire", pci(1), pci(2)))
    bench.machine.run(f"install -D -m 644 {DEPLOY}/pci.conf /etc/systemd/system/understudy@wire.service.d/pci.conf && systemctl daemon-reload")
    bench.machine.run("systemctl enable --now understudy@wire", timeout_s=LIMIT_S)
    bench.until_links(path)
    return path


def service(bench: Bench) -> tuple[list[str], str]:
    """The unit on cards, a link that is lost, and a restart of the machine, after which nothing is done by hand."""
    machine = bench.machine
    started = time.monotonic()
    path = start_unit(bench)
    ready = time.monotonic() - started
    with bench.wire("nic1", "nic2"):
        problems = bench.passes("rping")
        capabilities = machine.run("grep CapEff /proc/$(systemctl show --value -p MainPID understudy@wire)/status").output.split()[1]
        machine.restart()
        bench.until_links(path)
        problems += bench.passes("rping")
    if int(capabilities, 16):
        problems.append(f"the instance has the capabilities {capabilities}")
    if not machine.run("systemctl is-active understudy@wire", check=False).output.startswith("active"):
        problems.append("the unit does not run after a restart of the machine")
    return problems, f"forwards {ready:.1f} s after systemctl start, without capabilities; runs again after a restart"


def link(bench: Bench) -> tuple[list[str], str]:
    """Takes the cable from one card while a program writes, and puts it in again."""
    path = start_unit(bench)
    a, b = bench.hosts
    with bench.wire("nic1", "nic2"):
        job, client = long_writes(bench)
        moved = bench.top(path)["ports"][1]["rx_frames"]
        bench.until("writes pass", lambda: bench.top(path)["ports"][1]["rx_frames"] > moved)
        for port, nic in (("a", "nic1"), ("b", "nic2")):
            bench.machine.monitor("set_link", name=nic, up=False)
            bench.until_links(path, "no_carrier", port)
            bench.machine.monitor("set_link", name=nic, up=True)
            bench.until_links(path)
        results = [b.finish(client, 2 * LIMIT_S), a.finish(job, LIMIT_S)]
    problems = [f"exit code {result.code} of the program:\n{result.output}" for result in results if result.code != 0]
    problems += [f"the journal lacks `{line}`" for line in ("Port a is down: it has no link.", "Port b is down: it has no link.", "Port b is up.")
                 if not bench.journal("wire", line)]  # fmt: skip
    return problems, "the program's connections outlive the loss of each link"


def long_writes(bench: Bench) -> tuple[Any, Any]:
    """Starts a program that writes for a while between the hosts, and retransmits for long."""
    a, b = bench.hosts
    command = f"ib_write_bw -F -u 17 -d rxe0 -x {{gid}} -n 3000 -q 1 -m 1024 -s 4096 -c RC"
    server = a.start(command.format(gid=a.gid_index(a.addresses["ipv4"])))
    a.wait_for("grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6")
    client = b.start(command.format(gid=b.gid_index(b.addresses["ipv4"])) + f" {a.addresses['ipv4']}")
    return server, client


def removal(bench: Bench) -> tuple[list[str], str]:
    """Unplugs a card of the running unit, and plugs it in again."""
    machine = bench.machine
    path = start_unit(bench)
    with bench.wire("nic1", "nic2"):
        problems = bench.passes("write-rc-64")
        machine.monitor("device_del", id="nic-nic1")
        bench.until("the card is gone", lambda: machine.run("[ ! -e /sys/bus/pci/devices/0000:01:00.0 ]", check=False).code == 0)
        machine.monitor("device_add", **NICS[0].device())
        bench.until_links(path)
        problems += bench.passes("write-rc-64")
    for line in ("Port a is gone: its device is to be removed", "understudy@wire.service: Main process exited, code=exited, status=3"):
        if not bench.journal("wire", line):
            problems.append(f"the journal lacks `{line}`")
    machine.run("systemctl disable --now understudy@wire")
    return problems, "the unit gave it back, ended with 3, and uses it again"


def af_xdp(bench: Bench) -> tuple[list[str], str]:
    """Gives the cards back to the kernel, and uses their interfaces through AF_XDP: in the driver, and in generic mode."""
    machine = bench.machine
    for number in range(1, len(NICS) + 1):
        machine.run(f"driverctl unset-override 0000:{number:02x}:00.0", timeout_s=LIMIT_S, check=False)
        machine.wait_for(f"ip link set enp{number}s0 up", LIMIT_S)
    # What the error of `run` names for drivers without XDP; libxdp detaches it when an instance ends.
    generic = " && ".join(f"xdp-loader load -m skb enp{n}s0 /usr/lib/x86_64-linux-gnu/bpf/xsk_def_xdp_prog.o" for n in (1, 2))
    names = ("write-rc-4qp", "rping")
    problems: list[str] = []
    counts = []
    for first, second, queues, before in ((3, 4, 2, "true"), (1, 2, 1, generic)):
        ports = [f'rx_queues = {queues}\naf_xdp = {{ interface = "enp{number}s0" }}' for number in (first, second)]
        text = config("xdp", *ports, huge_pages=False)
        with bench.wire(f"nic{first}", f"nic{second}"):
            more, reports = programs(bench, "xdp", text, names, user="root", capabilities=",+net_raw,+net_admin,+sys_admin", before=before)
        problems += more
        counts.append(frames(reports))
    return problems, f"{len(names)} programs each; RoCE frames: {counts[0]} in the driver (virtio), {counts[1]} in generic mode"


CASES = [
    Case("doctor", "understudy doctor, and what it prints", doctor),
    Case("e1000e-vmxnet3", "programs through two cards of different drivers", prepared(e1000e_vmxnet3)),
    Case("virtio-rss", "programs through two cards with two queues, and two workers", prepared(rss)),
    Case("service", "systemctl enable --now understudy@wire; reboot", prepared(service)),
    Case("link", "set_link off, set_link on while a program writes", prepared(link)),
    Case("removal", "device_del, device_add of a card of the running service", prepared(removal)),
    Case("af-xdp", "programs through AF_XDP on the cards' interfaces", af_xdp),
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
