#!/usr/bin/env python3
"""Overloads ports and removes their interfaces, and compares their counters with those of the kernel.

    tests/e2e/ports.py --understudy target/release/understudy

Network namespaces, joined by veths: a --- wire --- b. understudy forwards between the two interfaces of `wire`, and once
between a tap interface and one of them. Overload does not depend on timing: understudy is stopped (SIGSTOP) while more frames
are sent than a ring holds. Needs root, but no virtual machines.

In every case, for every port, exactly:

- frames that the kernel counted on their way to the port = received + lost in the ring + refused with an error;
- frames that the workers received = frames that they sent + frames that they dropped for a reason;
- frames that the port sent = frames that the kernel counted at the other end + frames that it dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import routers
from routers import End, Network, Shape, call, expect, wait

SHAPE = Shape(
    routers=(),
    hosts=("a", "b", "wire"),
    links=[
        (End("a", "02:00:00:00:00:01"), End("wire", "02:00:00:00:00:11")),
        (End("b", "02:00:00:00:00:02"), End("wire", "02:00:00:00:00:12")),
    ],
    routes=[],
)
# Default number of frames in a ring
RING = 512
# Frames that a stopped instance gets
BURST = 3000
LIMIT_S = 60

# Sends frames of different lengths and sources through an interface. Prints how many the kernel accepted.
SENDER = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind((sys.argv[1], 0))
accepted = 0
for n in range(int(sys.argv[2])):
    try:
        link.send(bytes.fromhex("0200000000fe02000000") + (n % 65536).to_bytes(2, "big") + bytes.fromhex("88b5") + bytes(46 + n % 1000))
        accepted += 1
    except OSError:
        pass
print(accepted)
"""

Json = dict[str, Any]


class Instance:
    """A running instance in the namespace `wire`."""

    def __init__(
        self, arguments: argparse.Namespace, network: Network, folder: Path, config: str, *, command: str = "run", as_text: bool = False
    ) -> None:
        self.program, self.network = str(arguments.understudy), network
        self.socket = folder / "observe.sock"
        self.config, self.stdout, self.stderr = (folder / f"instance.{ending}" for ending in ("toml", "out", "err"))
        observe = f'[observe]\nsocket = "{self.socket}"\nprometheus = true\n'
        self.config.write_text(config + observe)
        words = [self.program, command, *(() if as_text else ("--json",)), str(self.config)]
        self.process = network.start("wire", words, self.stdout, self.stderr)
        self.prints("is ready")

    def prints(self, words: str, times: int = 1) -> None:
        def has_printed() -> bool:
            if self.process.poll() is not None and words not in self.stderr.read_text():
                raise routers.Failed(f"the instance ended with {self.process.returncode}: {self.stderr.read_text()}")
            return self.stderr.read_text().count(words) >= times

        wait(has_printed, f"{words!r} is printed {times} times", LIMIT_S)

    def top(self) -> Json:
        snapshot: Json = json.loads(self.network.inside("wire", self.program, "top", "--json", str(self.socket)))
        return snapshot

    def port(self, name: str) -> Json:
        (port,) = (port for port in self.top()["ports"] if port["name"] == name)
        return port

    def metrics(self) -> dict[str, float]:
        """Returns the series that Prometheus scrapes."""
        code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics', timeout={LIMIT_S}).read().decode())"
        lines = self.network.inside("wire", sys.executable, "-c", code).splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and not line.startswith("#")}

    def until(self, condition: Callable[[Json], bool], what: str) -> None:
        wait(lambda: condition(self.top()), what, LIMIT_S)

    def until_link(self, name: str, state: str) -> None:
        """Waits until the link has this state, and all workers know it."""
        self.until(lambda top: any(port["name"] == name and port["link"] == state for port in top["ports"]), f"{name} is {state}")
        # A worker reads its messages in every turn; the one that it is in may have passed that point.
        turns = [worker["turns"] for worker in self.top()["workers"]]
        self.until(
            lambda top: all(worker["turns"] > before + 1 for worker, before in zip(top["workers"], turns)), "workers have taken turns"
        )

    def end(self, code: int = 0) -> str:
        """Ends the instance as Ctrl-C does, unless it ends by itself. Returns what it printed."""
        if code == 0:
            self.process.send_signal(signal.SIGINT)
        found = self.process.wait(LIMIT_S)
        expect(f"the exit code is {code}", found == code, f"{found}: {self.stderr.read_text()}")
        return self.stdout.read_text()

    def report(self, code: int = 0) -> Json:
        report: Json = json.loads(self.end(code))
        return report


class Stopped:
    """Stops a process for the duration of the `with` block."""

    def __init__(self, instance: Instance) -> None:
        self.pid = instance.process.pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        state = lambda: Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]  # noqa: E731
        wait(lambda: state() == "T", "the instance is stopped", LIMIT_S)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


def kernel(network: Network, node: str, interface: str) -> Json:
    """Returns the kernel's counters of an interface."""
    (link,) = json.loads(call("ip", "-n", network.name(node), "-s", "-j", "link", "show", "dev", interface))
    counters: Json = link["stats64"]
    return counters


def send(network: Network, node: str, interface: str, count: int) -> None:
    sent = int(network.inside(node, sys.executable, "-c", SENDER, interface, str(count)))
    expect("the kernel accepts every frame", sent == count, f"{sent} of {count}")


def ip(network: Network, *words: str) -> None:
    call("ip", "-n", network.name("wire"), *words)


def wire(left: str = "", right: str = "", runtime: str = "") -> str:
    return f"""
[runtime]
idle = "sleep"
{runtime}
[[port]]
name = "left"
af_packet = {{ interface = "a" }}
{left}
[[port]]
name = "right"
af_packet = {{ interface = "b" }}
{right}
[forward]
pairs = [["left", "right"]]
"""


def lost(port: Json) -> int:
    return sum(port[key] for key in ("missed", "rx_errors", "no_buffer", "tx_errors", "kernel_rx_dropped", "kernel_tx_dropped"))


def adds_up(port: Json, offered: int) -> bool:
    """Returns whether every frame that the kernel counted is accounted for."""
    return bool(port["offered"] == offered == port["rx_frames"] + port["missed"] + port["rx_errors"] + port["waiting"])


def check_totals(top: Json, network: Network) -> None:
    """Checks the counters of the whole path when no frame is in flight."""
    left, right = top["ports"]
    at_a, at_b = kernel(network, "a", "wire"), kernel(network, "b", "wire")
    dropped = sum(drop["frames"] for drop in top["drops"])
    for port, at in ((left, at_a), (right, at_b)):
        expect(f"frames to {port['name']} add up", adds_up(port, at["tx"]["packets"]) and port["waiting"] == 0, (port, at["tx"]))
        sent = port["tx_frames"] - port["tx_errors"] - port["kernel_tx_dropped"]
        expect(f"frames from {port['name']} add up", sent == at["rx"]["packets"], (port, at["rx"]))
    received, sent = (sum(port[key] for port in (left, right)) for key in ("rx_frames", "tx_frames"))
    expect("frames within the wire add up", received == sent + dropped, (received, sent, dropped))


def is_quiet(top: Json, network: Network) -> bool:
    """Returns whether the kernel's frames have all been received or lost, and all of the received ones sent or dropped."""
    left, right = top["ports"]
    offered = kernel(network, "a", "wire")["tx"]["packets"] + kernel(network, "b", "wire")["tx"]["packets"]
    dropped = sum(drop["frames"] for drop in top["drops"])
    moved = left["rx_frames"] + right["rx_frames"] == left["tx_frames"] + right["tx_frames"] + dropped
    return bool(moved and left["offered"] + right["offered"] == offered and left["waiting"] + right["waiting"] == 0)


def overload(instance: Instance, network: Network, ring: int) -> None:
    """Fills the ring of `left` while the instance is stopped, and both rings while it runs."""
    with Stopped(instance):
        send(network, "a", "wire", BURST)
    instance.until(lambda top: is_quiet(top, network), "the burst has been received")
    left = instance.port("left")
    expected = max(0, BURST - ring)
    expect(f"a ring of {ring} frames loses {expected}", left["missed"] == expected, left)
    expect("the rest is received", left["rx_frames"] == BURST - expected, left)
    flood = [sys.executable, "-c", SENDER, "wire", "200000"]
    floods = [subprocess.Popen(["ip", "netns", "exec", network.name(node), *flood], stdout=subprocess.DEVNULL) for node in "ab"]
    for flood_process in floods:
        expect("the flood is sent", flood_process.wait(LIMIT_S * 4) == 0, flood_process.returncode)
    instance.until(lambda top: is_quiet(top, network), "the flood has been received")
    check_totals(instance.top(), network)


def case_overload(arguments: argparse.Namespace, folder: Path) -> str:
    with Network(SHAPE, folder) as network:
        instance = Instance(arguments, network, folder, wire())
        overload(instance, network, RING)
        top, metrics = instance.top(), instance.metrics()
        for port in top["ports"]:
            for key, name in (("offered", "offered_frames_total"), ("missed", "missed_frames_total"), ("waiting", "waiting_frames")):
                series = f'understudy_port_{name}{{port="{port["name"]}"}}'
                expect(f"{series} is in the snapshot", metrics[series] == port[key], (metrics[series], port))
        report = instance.report()
        for seen, reported in zip(top["ports"], report["ports"]):
            expect("the report has what was observed", all(reported[key] == value for key, value in seen.items()), (seen, reported))
        return f"{top['ports'][0]['missed']} of {top['ports'][0]['offered']} frames were lost in the ring"


def case_advice(arguments: argparse.Namespace, folder: Path) -> str:
    """The closing report and `doctor` recommend a larger ring; with the recommended size, nothing is lost."""
    with Network(SHAPE, folder) as network:
        instance = Instance(arguments, network, folder, wire(), as_text=True)
        with Stopped(instance):
            send(network, "a", "wire", BURST)
        instance.until(lambda top: is_quiet(top, network), "the burst has been received")
        text = instance.end()
        advice = "set `descriptors = 4096`"
        expect("the report has the loss", f"{BURST - RING} lost at ports" in text and advice in text, text)
        doctor = call(str(arguments.understudy), "doctor", "--json", str(instance.config))
        expect("doctor has the advice", advice in json.dumps(json.loads(doctor)["findings"]), doctor)
    with Network(SHAPE, folder) as network:
        overload(Instance(arguments, network, folder, wire(left="descriptors = 4096")), network, 4096)
    return advice


def case_queues(arguments: argparse.Namespace, folder: Path) -> str:
    """Several queues, each with a socket of its own."""
    with Network(SHAPE, folder) as network:
        config = wire("rx_queues = 2", "rx_queues = 2", 'workers = ["any", "any"]')
        instance = Instance(arguments, network, folder, config)
        with Stopped(instance):
            send(network, "a", "wire", BURST)
        instance.until(lambda top: is_quiet(top, network), "the burst has been received")
        check_totals(instance.top(), network)
        left = instance.port("left")
        # The kernel selects a queue for each frame, and the other one when that is full.
        expect("frames were lost in both rings", 0 < left["missed"] <= BURST - RING, left)
        instance.end()
        return f"{left['missed']} of {left['offered']} frames were lost in two rings"


def case_early(arguments: argparse.Namespace, folder: Path) -> str:
    """Frames that arrive while the instance starts are counted once or not at all, and never at another port."""
    with Network(SHAPE, folder) as network:
        flood = [sys.executable, "-c", SENDER, "wire", "100000000"]
        flooding = subprocess.Popen(["ip", "netns", "exec", network.name("b"), *flood], stdout=subprocess.DEVNULL)
        try:
            wait(lambda: kernel(network, "b", "wire")["tx"]["packets"] > 1000, "b sends", LIMIT_S)
            instance = Instance(arguments, network, folder, wire())
            instance.until(lambda top: top["ports"][1]["rx_frames"] > 0, "frames pass")
        finally:
            flooding.kill()
            flooding.wait()

        def is_accounted_for(top: Json) -> bool:
            left, right = top["ports"]
            dropped = sum(drop["frames"] for drop in top["drops"])
            return bool(adds_up(right, right["offered"]) and right["waiting"] == 0 and left["tx_frames"] + dropped == right["rx_frames"])

        instance.until(is_accounted_for, "every frame to b's port is accounted for")
        left = instance.port("left")
        expect("no frame of b was received at a's port", left["offered"] == left["rx_frames"] == 0, left)
        instance.end()
        return "no frame of another interface was received, and none was counted twice"


def case_xdp(arguments: argparse.Namespace, folder: Path) -> str:
    """The ring of an AF_XDP socket, whose kernel driver counts all frames."""
    try:
        # AF_XDP
        socket.socket(44, socket.SOCK_RAW).close()
    except OSError as error:
        return f"not tried: this kernel has no AF_XDP ({error})"
    with Network(SHAPE, folder) as network:
        instance = Instance(arguments, network, folder, wire().replace('af_packet = { interface = "a" }', 'af_xdp = { interface = "a" }'))
        with Stopped(instance):
            send(network, "a", "wire", BURST)
        instance.until(lambda top: top["ports"][0]["offered"] == kernel(network, "a", "wire")["tx"]["packets"], "frames are counted")
        instance.until(lambda top: top["ports"][1]["tx_frames"] == top["ports"][0]["rx_frames"], "frames pass")
        left = instance.port("left")
        expect("frames to the port add up", adds_up(left, BURST), left)
        expect("the ring loses frames", left["missed"] == BURST - RING and lost(left) == left["missed"], left)
        instance.end()
        return f"{left['missed']} of {left['offered']} frames were lost in the ring of the AF_XDP socket"


def case_host(arguments: argparse.Namespace, folder: Path) -> str:
    """A function that forwards nothing reports its port, too."""
    config = """
[[port]]
name = "eth"
af_packet = { interface = "a" }
[nic]
addresses = ["10.0.0.1/24"]
[[nic.service]]
kind = "rping_server"
"""
    with Network(SHAPE, folder) as network:
        instance = Instance(arguments, network, folder, config, command="host")
        with Stopped(instance):
            send(network, "a", "wire", BURST)
        instance.until(lambda top: adds_up(top["ports"][0], BURST) and top["ports"][0]["waiting"] == 0, "the burst is accounted for")
        (port,) = instance.report()["ports"]
        expect("the report has the loss", adds_up(port, BURST) and port["missed"] == BURST - RING, port)
        return f"{port['missed']} of {port['offered']} frames were lost in the ring of a host"


def case_tap(arguments: argparse.Namespace, folder: Path) -> str:
    """A tap interface, whose ring is in the kernel."""
    with Network(SHAPE, folder) as network:
        config = wire().replace('af_packet = { interface = "a" }', 'tap = { interface = "tap0" }')
        instance = Instance(arguments, network, folder, config)
        ip(network, "link", "set", "dev", "tap0", "txqueuelen", "256")
        before = instance.port("left")
        with Stopped(instance):
            send(network, "wire", "tap0", BURST)
        instance.until(lambda top: top["ports"][1]["tx_frames"] == top["ports"][0]["rx_frames"] > before["rx_frames"], "frames pass")

        def accounted() -> bool:
            port, counters = instance.port("left"), kernel(network, "wire", "tap0")["tx"]
            offered = counters["packets"] + counters["dropped"]
            return adds_up(port, offered) and port["offered"] == before["offered"] + BURST and port["waiting"] == 0

        wait(accounted, "frames to the tap interface add up", LIMIT_S)
        left = instance.port("left")
        expect("the ring of the tap interface loses frames", left["missed"] == BURST - 256, left)
        ip(network, "link", "set", "dev", "tap0", "down")
        instance.until_link("left", "down")
        report = instance.report()
        expect("the report has the link", report["ports"][0]["link"] == "down", report["ports"][0])
        return f"{left['missed']} of {left['offered']} frames were lost in the ring of the tap interface"


def case_link_down(arguments: argparse.Namespace, folder: Path) -> str:
    with Network(SHAPE, folder) as network:
        instance = Instance(arguments, network, folder, wire())
        rounds, count = 3, 500
        for number in range(1, rounds + 1):
            ip(network, "link", "set", "dev", "a", "down")
            instance.until_link("left", "down")
            expect("the metric is 0", instance.metrics()['understudy_port_up{port="left"}'] == 0, instance.metrics())
            send(network, "b", "wire", 2 * count)
            instance.until(lambda top: is_quiet(top, network), "frames to a port without a link are dropped")
            ip(network, "link", "set", "dev", "a", "up")
            instance.until_link("left", "up")
            expect("the metric is 1", instance.metrics()['understudy_port_up{port="left"}'] == 1, instance.metrics())
            send(network, "a", "wire", count)
            send(network, "b", "wire", count)
            instance.until(lambda top: is_quiet(top, network), "frames pass again")
            expect("both changes are printed", "Port left is down" in instance.stderr.read_text(), instance.stderr.read_text())
            instance.prints("Port left is up", number)
        top = instance.top()
        check_totals(top, network)
        down = sum(drop["frames"] for drop in top["drops"] if drop["reason"] == "link_down")
        expect("frames to the port without a link were dropped", down + top["ports"][1]["missed"] == 2 * count * rounds, top)
        expect("no other frames were lost", lost(top["ports"][0]) == 0, top["ports"][0])
        # A change and its opposite before the next reading are two lines.
        with Stopped(instance):
            ip(network, "link", "set", "dev", "a", "down")
            ip(network, "link", "set", "dev", "a", "up")
        instance.prints("Port left is up", rounds + 1)
        instance.prints("Port left is down", rounds + 1)
        # The other end of the veth
        call("ip", "-n", network.name("a"), "link", "set", "dev", "wire", "down")
        instance.until_link("left", "no_carrier")
        instance.prints("interface a has no carrier")
        call("ip", "-n", network.name("a"), "link", "set", "dev", "wire", "up")
        instance.until_link("left", "up")
        instance.report()
        return f"{down} frames dropped while the link was down, the others passed"


def case_link_gone(arguments: argparse.Namespace, folder: Path) -> str:
    with Network(SHAPE, folder) as network:
        instance = Instance(arguments, network, folder, wire())
        send(network, "a", "wire", 10)
        instance.until(lambda top: is_quiet(top, network), "frames pass")
        (link,) = json.loads(call("ip", "-n", network.name("wire"), "-j", "link", "show", "dev", "a"))
        ip(network, "link", "delete", "dev", "a")
        instance.until_link("left", "gone")
        instance.prints("Port left is gone")
        send(network, "b", "wire", 100)
        instance.until(lambda top: top["ports"][1]["rx_frames"] == 100, "the other port continues")
        peer = ("type", "veth", "peer", "name", "wire", "netns", network.name("a"))
        # The same name and the same number, which the driver's socket does not follow
        ip(network, "link", "add", "name", "a", "index", str(link["ifindex"]), *peer)
        ip(network, "link", "set", "dev", "a", "up")
        instance.prints("There is an interface a again. Restart this instance")
        expect("the port stays gone", instance.port("left")["link"] == "gone", instance.port("left"))
        metrics = instance.metrics()
        up = [metrics[f'understudy_port_up{{port="{name}"}}'] for name in ("left", "right")]
        expect("only the other port is up", up == [0, 1], up)
        report = instance.report()
        left, right = report["ports"]
        expect("the report has the links", (left["link"], right["link"]) == ("gone", "up"), report["ports"])
        expect("the counters of the port are kept", adds_up(left, 10) and left["rx_frames"] == 10, left)
        expect("frames to the port were dropped", report["drops"] == [{"reason": "link_down", "frames": 100}], report["drops"])
        return "the port is gone, and the other one continues"


PORT = """
[runtime]
workers = ["any"]
idle = "sleep"
on_link_loss = "exit"

[[port]]
name = "eth"
af_packet = { interface = "a" }
"""
PROCESS = (
    PORT
    + """
[process]
id = 1
address = "10.0.0.1/24"

[[process.beacons]]
switch = "tor"
mac = "02:00:00:00:00:01"
address = "10.0.0.9"
qpn = 0x100

[[process.peers]]
id = 2
mac = "02:00:00:00:00:01"
address = "10.0.0.9"
"""
)
HOST = PORT + '[nic]\naddresses = ["10.0.0.1/24"]\n'


def polls(pid: int) -> bool:
    """Returns whether a process has a worker, so that its control thread monitors the links."""
    def name(thread: str) -> str:
        try:
            return Path(f"/proc/{pid}/task/{thread}/comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""  # It has ended since it was listed.

    return any(name(thread) == "worker-0\n" for thread in os.listdir(f"/proc/{pid}/task"))


def case_exit(arguments: argparse.Namespace, folder: Path) -> str:
    for words in (("set", "dev", "a", "down"), ("delete", "dev", "a")):
        with Network(SHAPE, folder) as network:
            instance = Instance(arguments, network, folder, wire(runtime='on_link_loss = "exit"'))
            send(network, "a", "wire", 10)
            instance.until(lambda top: is_quiet(top, network), "frames pass")
            ip(network, "link", *words)
            report = instance.report(code=3)
            expect("the report is complete", report["ports"][0]["rx_frames"] == 10, report["ports"])
            expect("the report has the link", report["ports"][0]["link"] in ("down", "gone"), report["ports"])
    with Network(SHAPE, folder) as network:
        # A link that is not up at the start is not lost.
        ip(network, "link", "set", "dev", "a", "down")
        instance = Instance(arguments, network, folder, wire(runtime='on_link_loss = "exit"'))
        instance.prints("Port left is down")
        ip(network, "link", "set", "dev", "a", "up")
        instance.until_link("left", "up")
        instance.report()
    for command in (["process"], ["rdmc", "receive", "--from", "10.0.0.9", "--on"]):
        with Network(SHAPE, folder) as network:
            config, out, err = (folder / f"host.{ending}" for ending in ("toml", "out", "err"))
            config.write_text(PROCESS if command == ["process"] else HOST)
            program = network.start("wire", [str(arguments.understudy), *command, str(config)], out, err)
            wait(lambda: polls(program.pid), "the worker polls", LIMIT_S)
            ip(network, "link", "set", "dev", "a", "down")
            code = program.wait(LIMIT_S)
            expect(f"{command[0]} has exit code 3", code == 3, f"{code}: {err.read_text()}")
            expect(f"{command[0]} says why", "interface a was set down" in err.read_text(), err.read_text())
    return "exit code 3, with a report; also for `process` and `rdmc`"


CASES = [case_overload, case_advice, case_queues, case_early, case_xdp, case_host, case_tap, case_link_down, case_link_gone, case_exit]


def run(arguments: argparse.Namespace, folder: Path) -> None:
    for case in CASES:
        result = case(arguments, folder)
        print(f"ok  {case.__name__.removeprefix('case_').replace('_', ' '):10} {result}", flush=True)


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ip", "sysctl"), run))
