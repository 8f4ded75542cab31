#!/usr/bin/env python3
"""Runs unmodified RDMA programs in a virtual machine against `understudy host`.

    tests/e2e/host.py --understudy target/release/understudy

Boots a guest with Linux soft-RoCE, with `understudy host` at the other end of its link:
rping and ucmatose as client and as server, with many connections, large messages and
IPv6, perftest's clients, some of these with two workers of the host, and some through
`understudy run` with [impair], which loses packets. Each program has to succeed, and understudy's report has to show that every
connection was used and ended as expected. Needs root, for a network namespace of its own.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import suite
from guest import CommandFailed, Guest
from lab import Lab, Forwarder

CM_LISTENS = "rdma resource show cm_id | grep -q LISTEN"
# Filter for messages of the connection manager, over IPv4 and IPv6: 256 bytes in each packet, and headers
CM_MESSAGES = "udp dst port 4791 and greater 322 and less 342"
DREQ, DREP = 0x15, 0x16
# True in a guest whose connections to perftest's port (18515) have ended: both sides have closed them (TIME_WAIT).
PERFTEST_IS_OVER = """! awk '$3 ~ /:4853$/ && $4 != "06"' /proc/net/tcp | grep -q ."""
HOST = {"ipv4": "10.0.0.9", "ipv6": "fd00::9"}
TIMEOUT_S = 300
# On a lossy link: rdma_cm retransmits a message after 2 s without an acknowledgement.
LOSSY_TIMEOUT_S = 600
# For the messages that end a connection: a lost one is retransmitted after 4.3 s.
END_TIMEOUT_S = 30

# A ring in which the frames of a long message wait while the host does not get the CPU
NIC = """
[runtime]
idle = "sleep"
workers = {workers}

[[port]]
name = "eth"
mtu = {mtu}
descriptors = 4096
af_packet = {{ interface = "{interface}" }}

[nic]
mac = "02:00:00:00:00:09"
addresses = ["10.0.0.9/24", "fd00::9/64"]
mtu = {path_mtu}
{options}
"""

# Lossy link: loses packets in both directions, at random, from a seed
LOSSY_LINK = """
[runtime]
idle = "sleep"

[[port]]
name = "guest"
af_packet = {{ interface = "host-a" }}

[[port]]
name = "host"
af_packet = {{ interface = "far" }}

[impair]
pairs = [["guest", "host"]]
seed = 7

[[impair.rule]]
action = "drop"
share = {share}
"""


@dataclass(frozen=True)
class Case:
    """A service of the host, and the program that the guest runs against it."""

    name: str
    service: dict[str, Any]
    # Runs in the guest; `{host}` and `{guest}` are the addresses
    command: str
    connections: int
    # Whether the guest is the server: then `command` is started first, and the host connects to it
    guest_serves: bool = False
    network: str = "ipv4"
    loss: float = 0.0
    options: str = ""
    # Whether the guest's server does not exit by itself
    runs_forever: bool = False
    # Workers of the host
    workers: int = 1


def in_parallel(count: int, command: str) -> str:
    """Returns a command that runs `count` commands at the same time, all of which have to succeed."""
    one = f"{command} || touch /tmp/failed"
    return f"rm -f /tmp/failed; for i in $(seq {count}); do ( {one} ) & done; wait; [ ! -e /tmp/failed ]"


def perftest(
    test: str,
    name: str = "",
    options: str = "",
    connections: int = 1,
    transport: str = "rc",
    times: int = 1,
    network: str = "ipv4",
    loss: float = 0.0,
    size: int | None = None,
) -> Case:
    """Returns a perftest case. The exchange of parameters uses IPv4, whatever network the queue pairs use."""
    service: dict[str, Any] = {"kind": "perftest_server", "test": test}
    if size is not None:
        service["size"] = size
    if transport != "rc":
        service["transport"] = transport
    # perftest's default timeout of 67 ms is too short for a guest that is busy sending (-u 17: 537 ms; 20: 4.3 s, where no
    # packet is lost).
    timeout = 17 if loss > 0 else 20
    if "-n" not in options and "-D" not in options:
        options += " -n 100"
    command = f"ib_{test} -F -u {timeout} -d rxe0 -x {{gid}} {options.strip()} {{host_ipv4}}"
    if times > 1:
        command = f"for i in $(seq {times}); do {command} || exit 1; done"
    name = f"perftest_{test}_{name}".rstrip("_")
    return Case(name, service, command, connections * times, network=network, loss=loss)


def cases() -> list[Case]:
    rping = {"kind": "rping_server", "size": 1 << 20}
    ping = {"kind": "rping_client"}
    ucmatose = {"kind": "ucmatose_server"}
    all_cases = [
        Case("rping", rping, "rping -c -a {host} -C 10 -v -V", 1),
        Case("rping_ipv6", rping, "rping -c -a {host} -C 10 -V", 1, network="ipv6"),
        Case("rping_large", rping, "rping -c -a {host} -C 20 -S 65535 -V", 1),
        Case("rping_every_packet", rping, "rping -c -a {host} -C 10 -S 20000 -V", 1, options='ack = "every-packet"'),
        Case("rping_coalesced", rping, "rping -c -a {host} -C 10 -S 20000 -V", 1,
             options="ack = { packets = 4, time_us = 20 }\ncredits = true"),
        Case("rping_many", rping, in_parallel(8, "rping -c -a {host} -C 5 -S 4096 -V"), 8),
        Case("rping_again", rping, "for i in $(seq 10); do rping -c -a {host} -C 2 -V || exit 1; done", 10),
        Case("ucmatose", ucmatose, "ucmatose -s {host}", 1),
        Case("ucmatose_ipv6", ucmatose, "ucmatose -s {host}", 1, network="ipv6"),
        Case("ucmatose_many", ucmatose, "ucmatose -s {host} -c 100", 100),
        Case("ucmatose_large", {**ucmatose, "messages": 5, "size": 200_000}, "ucmatose -s {host} -c 4 -C 5 -S 200000", 4),
        Case("serves_rping", {**ping, "count": 20}, "rping -s -a {guest} -V", 1, True),
        Case("serves_rping_ipv6", {**ping, "count": 5}, "rping -s -a {guest}", 1, True, "ipv6"),
        Case("serves_rping_large", {**ping, "count": 20, "size": 65535}, "rping -s -a {guest} -S 65535", 1, True),
        Case("serves_rping_many", {**ping, "count": 20, "connections": 8, "at_once": 1}, "rping -s -P -a {guest}", 8, True, runs_forever=True),
        Case("serves_ucmatose", {"kind": "ucmatose_client"}, "ucmatose -b {guest}", 1, True),
        Case("serves_ucmatose_many", {"kind": "ucmatose_client", "connections": 100}, "ucmatose -b {guest} -c 100", 100, True),
        # Less than what a busy guest receives within the host's ACK timeout of 67 ms; more is retransmitted until retries end.
        Case("serves_ucmatose_large", {"kind": "ucmatose_client", "connections": 2, "messages": 3, "size": 100_000},
             "ucmatose -b {guest} -c 2 -C 3 -S 100000", 2, True),
    ]  # fmt: skip
    all_cases += [
        perftest("write_bw"),
        perftest("write_bw", "small_4qp", "-s 64 -q 4 -n 200", connections=4),
        perftest("write_bw", "mtu256", "-s 5000 -m 256"),
        perftest("write_bw", "ipv6", network="ipv6"),
        perftest("write_bw", "sizes", "-a -n 5"),
        perftest("write_bw", "duration", "-D 2"),
        perftest("write_bw", "uc", "-c UC -s 4096", transport="uc"),
        perftest("write_bw", "again", "-s 4096", times=3),
        perftest("read_bw"),
        perftest("read_bw", "2qp_ipv6", "-s 4096 -q 2", connections=2, network="ipv6"),
        perftest("send_bw"),
        perftest("send_bw", "small_4qp", "-s 64 -q 4 -n 1000", connections=4),
        perftest("send_bw", "uc", "-c UC -s 4096 -r 512", transport="uc"),
        perftest("atomic_bw", "fetch_add", "-A FETCH_AND_ADD"),
        perftest("atomic_bw", "compare_swap", "-A CMP_AND_SWAP -q 2", connections=2),
        perftest("write_lat"),
        perftest("write_lat", "large_ipv6", "-s 5000", network="ipv6", size=5000),
        perftest("write_lat", "uc", "-c UC", transport="uc"),
        perftest("read_lat"),
        perftest("send_lat"),
        perftest("send_lat", "sizes", "-a -n 5"),
        perftest("atomic_lat", "fetch_add", "-A FETCH_AND_ADD"),
    ]
    lossy = [
        Case("loss_rping", rping, "rping -c -a {host} -C 30 -S 20000 -V", 1, loss=0.01),
        Case("loss_ucmatose", ucmatose, "ucmatose -s {host} -c 20", 20, loss=0.01),
        Case("loss_serves_rping", {**ping, "count": 30, "size": 20000}, "rping -s -a {guest} -S 20000", 1, True, loss=0.01),
        Case("loss_serves_ucmatose", {"kind": "ucmatose_client", "connections": 20}, "ucmatose -b {guest} -c 20", 20, True,
             loss=0.01),
        perftest("write_bw", "loss", "-s 20000 -n 50", loss=0.01),
        perftest("read_bw", "loss", "-s 20000 -n 50", loss=0.01),
        perftest("send_bw", "loss", "-s 20000 -n 50 -q 2", loss=0.01, connections=2),
        perftest("atomic_bw", "loss", "-n 200", loss=0.01),
        perftest("write_lat", "loss", "-s 5000 -n 100", loss=0.01, size=5000),
        perftest("send_lat", "loss", "-s 5000 -n 100", loss=0.01),
    ]  # fmt: skip
    all_cases += lossy
    on_two_workers = (
        "rping_ipv6", "rping_many", "ucmatose_many", "serves_rping_many", "serves_ucmatose_many", "loss_ucmatose",
        "loss_serves_ucmatose", "perftest_write_bw_small_4qp", "perftest_send_lat", "perftest_read_bw_2qp_ipv6",
    )  # fmt: skip
    repeated = [case for case in all_cases if case.name in on_two_workers]
    return all_cases + [replace(case, name=f"two_workers_{case.name}", workers=2) for case in repeated]


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def config_of(case: Case, guest: Guest, interface: str) -> str:
    service = dict(case.service)
    if case.guest_serves:
        service["server"] = guest.addresses[case.network]
    workers = json.dumps(["any"] * case.workers)
    return NIC.format(interface=interface, workers=workers, mtu=1500, path_mtu=1024, options=case.options) + (
        "\n[[nic.service]]\n" + toml(service)
    )


def run_case(case: Case, lab: Lab, understudy: Path, folder: Path) -> tuple[list[str], str]:
    """Runs the case. Returns the problems, and the numbers of packets."""
    (guest,) = lab.guests
    guest.run("ip neighbour flush all")
    address = guest.addresses[case.network]
    command = case.command.format(
        host=HOST[case.network], host_ipv4=HOST["ipv4"], guest=address, gid=guest.gid_index(address)
    )
    limit = TIMEOUT_S if case.loss == 0 else LOSSY_TIMEOUT_S
    problems: list[str] = []
    link: Forwarder | None = None
    with ExitStack() as stack:
        interface = "host-a"
        if case.loss > 0:
            lossy = folder / f"{case.name}-wire.toml"
            lossy.write_text(LOSSY_LINK.format(share=case.loss))
            link = stack.enter_context(lab.forwarder([str(understudy), "run", str(lossy), "--json"], f"wire-{case.name}"))
            interface = "near"
        config = folder / f"{case.name}.toml"
        config.write_text(config_of(case, guest, interface))
        host_command = [str(understudy), "host", str(config), "--json"]
        if case.guest_serves:
            job = guest.start(command)
            guest.wait_for(CM_LISTENS)
            with lab.forwarder(host_command, f"host-{case.name}") as host:
                host.wait_ended(limit)
            # `finish` kills a server that does not exit by itself.
            result = guest.finish(job, timeout_s=1 if case.runs_forever else 20)
            if result.code != 0 and not case.runs_forever:
                problems.append(f"server in the guest: exit code {result.code}\n{result.output.rstrip()}")
        else:
            capture_file = folder / f"{case.name}.pcap"
            stack.enter_context(lab.recorded(interface, capture_file, CM_MESSAGES))
            with lab.forwarder(host_command, f"host-{case.name}") as host:
                try:
                    # A subshell: `exit` in it does not end the guest's shell.
                    guest.run(f"( {command} )", timeout_s=limit)
                    wait_for_ends(case, guest, capture_file)
                except CommandFailed as error:
                    problems.append(str(error))
    problems += verdict(case, host)
    if link is not None and sum(rule["acted"] for rule in link.report["impair"]["rules"]) == 0:
        problems.append("no packet was lost: the case tests nothing; use a larger --loss")
    nic = host.report["nic"]
    return problems, f"{nic['received']} packets in, {nic['sent']} out, {nic['retransmitted']} retransmitted"


def wait_for_ends(case: Case, guest: Guest, capture_file: Path) -> None:
    """Waits until the host has received the end of each connection, or for END_TIMEOUT_S; the host's report decides."""
    if case.service["kind"] == "perftest_server":
        guest.wait_for(PERFTEST_IS_OVER)
        return
    deadline = time.monotonic() + END_TIMEOUT_S
    while count_ends(capture_file.read_bytes()) < case.connections and time.monotonic() < deadline:
        time.sleep(0.05)
    # The message has reached the interface, and the host is about to read it.
    time.sleep(0.1)


def count_ends(capture: bytes) -> int:
    """Returns the number of connections whose end was captured: a DREQ, or the DREP to a DREQ of the host."""
    connections, at = set(), 24
    while at + 16 <= len(capture):
        begin, length = at + 16, int.from_bytes(capture[at + 8 : at + 12], "little")
        at = begin + length
        # A frame ends with a MAD and the ICRC. Each side numbers its connections.
        mad = capture[begin:at][-260:-4]
        if int.from_bytes(mad[16:18]) in (DREQ, DREP):
            connections.add(mad[24:28])
    return len(connections)


def verdict(case: Case, host: Forwarder) -> list[str]:
    (row,) = host.report["services"]
    expected = {"connections": case.connections, "finished": case.connections, "failed": 0, "refused": 0, "error": None}
    wrong = [f"{key} is {row[key]}, not {value}" for key, value in expected.items() if row[key] != value]
    if host.report["nic"]["icrc_errors"] or host.report["nic"]["malformed"]:
        wrong.append("the host received corrupt packets")
    return [*wrong, f"the host's report: {host.report}"] if wrong else []


def set_up(lab: Lab) -> None:
    lab.add_guest("a", tap="host-a", address=1)
    lab.add_cable("far", "near")


def main() -> int:
    options = suite.parser(__doc__ or "")
    options.add_argument("--loss", type=float, metavar="SHARE", help="share of packets that are lost in every case, such as 0.02")
    arguments = options.parse_args()
    chosen = suite.chosen(arguments, cases())
    if arguments.loss is not None:
        chosen = [Case(**{**vars(case), "loss": arguments.loss}) for case in chosen]
    return suite.run(arguments, chosen, set_up, run_case, "against understudy host")


if __name__ == "__main__":
    sys.exit(main())
