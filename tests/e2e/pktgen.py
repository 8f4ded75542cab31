#!/usr/bin/env python3
"""Runs `understudy pktgen` against a queue pair of soft-RoCE, which has to accept every packet.

    tests/e2e/pktgen.py --understudy target/release/understudy

A guest opens a queue pair with plain ibverbs, and prints its number, key and memory address. A
profile with these values runs at the other end of the guest's link. Every message has to be
acknowledged and none refused; the queue pair has to expect the PSN after the last packet, and
memory has to hold the data that was sent, byte by byte. Needs root, for a network namespace.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import suite
from lab import Lab

TIMEOUT_S = 120
PATH_MTU = 1024
HOST = {"ipv4": "10.0.0.9", "ipv6": "fd00::9"}
HOST_MAC = "02:00:00:00:00:09"
ETHERNET, UDP, BTH = 14, 8, 12
ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x11, 0x12
NAK = 3

PROFILE = """
[[port]]
name = "eth"
mtu = 1500
af_packet = {{ interface = "host-a" }}

[pktgen]
send = "eth"
drain_ms = 5_000
duration_s = 60                 # ends the run if packets are refused

[[pktgen.stream]]
verb = "{verb}"
src = "{host}"
src_mac = "{host_mac}"
dst = "{guest}"
dst_mac = "{guest_mac}"
first_qpn = {qpn}
first_psn = {psn}
rkey = {rkey}
va = {va}
slots = {slots}
{size}
latency = false
outstanding = {outstanding}
timeout_us = 5_000_000
burst = 1
packets = {packets}
"""


@dataclass(frozen=True)
class Case:
    """A stream, and the memory that it writes."""

    name: str
    verb: str
    size: int
    messages: int
    slots: int = 8
    psn: int = 0xFFFFF0  # so that the PSN wraps during the run
    outstanding: int = 8
    network: str = "ipv4"

    @property
    def command(self) -> str:
        return f"{self.messages} messages ({self.verb}) of {self.size} bytes over {self.network}"

    @property
    def packets(self) -> int:
        return self.messages * max(1, -(-self.size // PATH_MTU))


def cases() -> list[Case]:
    return [
        Case("write_one_packet", "write", 64, 200),
        Case("write_three_packets", "write", 3000, 100),
        Case("write_ipv6", "write", 2048, 100, network="ipv6"),
        Case("write_odd", "write", 1025, 64, slots=3, psn=0),
        Case("fetch_add", "fetch_add", 8, 100, outstanding=1),
    ]


def run_case(case: Case, lab: Lab, understudy: Path, folder: Path) -> tuple[list[str], str]:
    """Runs the case. Returns the problems, and the number of packets."""
    (guest,) = lab.guests
    address, host = guest.addresses[case.network], HOST[case.network]
    # The generator does not respond to ARP and neighbour discovery.
    guest.run(f"rm -f /tmp/check; ip neighbour replace {host} lladdr {HOST_MAC} dev eth0")
    job = guest.start(f"pktgen_peer {guest.gid_index(address)} {host} {case.psn} {case.size} {case.slots}")
    guest.wait_for(f"grep -q . {job.name}.out")
    qpn, rkey, va = (int(word) for word in guest.run(f"cat {job.name}.out").output.split())
    profile = folder / f"{case.name}.toml"
    size = f"size = {case.size}\n" if case.verb == "write" else ""
    profile.write_text(
        PROFILE.format(
            verb=case.verb, host=host, host_mac=HOST_MAC, guest=address, guest_mac=guest.mac, qpn=qpn, psn=case.psn,
            rkey=rkey, va=va, slots=case.slots, size=size, outstanding=case.outstanding, packets=case.packets,
        )
    )  # fmt: skip
    capture_file = folder / f"{case.name}.pcap"
    with lab.recorded("host-a", capture_file, "udp dst port 4791"):
        with lab.forwarder([str(understudy), "pktgen", str(profile), "--json"], f"pktgen-{case.name}") as generator:
            generator.wait_ended(TIMEOUT_S)
        guest.run("touch /tmp/check")
        result = guest.finish(job, timeout_s=20)
    problems = check_memory(case, result.output.splitlines()[-1] if result.code == 0 else result.output)
    problems += check_report(case, generator.report)
    acknowledged, refused = count_acknowledgements(capture_file.read_bytes(), case)
    if refused:
        problems.append(f"{refused} packets were refused (NAK)")
    if not acknowledged:
        problems.append("no acknowledgement was captured")
    return problems, f"{case.packets} packets, {acknowledged} acknowledgements"


def check_memory(case: Case, output: str) -> list[str]:
    """Checks the output of the guest: state of the queue pair, expected PSN, content of memory."""
    memory = "pattern" if case.verb == "write" else f"count {case.messages}"
    expected = f"ready {(case.psn + case.packets) & 0xFFFFFF} {memory}"
    return [] if output.strip() == expected else [f"the guest printed `{output.strip()}` instead of `{expected}`"]


def check_report(case: Case, report: dict) -> list[str]:
    (stream,) = report["streams"]
    requests = stream["answers"]["requests"]
    expected = {"sent": case.packets, "messages": case.messages}
    problems = [f"{key} is {stream[key]}, not {value}" for key, value in expected.items() if stream[key] != value]
    for key, value in {"answered": case.messages, "unanswered": 0, "under_way": 0}.items():
        if requests[key] != value:
            problems.append(f"{key} is {requests[key]}, not {value}")
    if not report["adds_up"] or report["spoiled"] or report["malformed"]:
        problems.append(f"adds_up {report['adds_up']}, spoiled {report['spoiled']}, malformed {report['malformed']}")
    return [*problems, f"the generator's report: {report}"] if problems else []


def count_acknowledgements(capture: bytes, case: Case) -> tuple[int, int]:
    """Returns the number of acknowledgements that the guest sent, and the number of NAKs among them."""
    bth = ETHERNET + (20 if case.network == "ipv4" else 40) + UDP
    acknowledged, refused, at = 0, 0, 24
    while at + 16 <= len(capture):
        begin, length = at + 16, int.from_bytes(capture[at + 8 : at + 12], "little")
        at = begin + length
        frame = capture[begin:at]
        if frame[bth] in (ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE):
            acknowledged += 1
            refused += frame[bth + BTH] >> 5 & 3 == NAK
    return acknowledged, refused


def set_up(lab: Lab) -> None:
    lab.add_guest("a", tap="host-a", address=1)


def main() -> int:
    arguments = suite.parser(__doc__ or "").parse_args()
    return suite.run(arguments, suite.chosen(arguments, cases()), set_up, run_case, "from the generator to soft-RoCE")


if __name__ == "__main__":
    sys.exit(main())
