"""Compares the forwarder's report with three independent counts of the same packets:

1. the guests' soft-RoCE counters, which have to equal the forwarder's totals exactly;
2. the packets that the program had to send (programs.py), per opcode and per queue pair;
3. the connection manager's counters, for its messages, whose number programs.py does not specify.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Self

from guest import Guest, LabError
from programs import RESPONSES, UD_SEND_ONLY, Program

PORT_DIR = "/sys/class/infiniband/rxe0/ports/1"
# Counters of a guest that increase when it sends or receives a packet for the second time. If
# none of them increases, every packet was sent once, and counts have to be exact.
RETRANSMISSION_COUNTERS = (
    "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "completer_retry_err",
)  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """Counters of a guest. soft-RoCE's totals include packets of all queue pairs, also those of the
    connection manager; a packet with a wrong ICRC does not count as received."""

    values: Counter[str]

    def __sub__(self, earlier: Self) -> Counters:
        increases = Counter(self.values)
        increases.subtract(earlier.values)
        return Counters(increases)

    @property
    def sent(self) -> int:
        return self.values["hw_counters/sent_pkts"]

    @property
    def received(self) -> int:
        return self.values["hw_counters/rcvd_pkts"]

    @property
    def cm_sent(self) -> int:
        return sum(count for name, count in self.values.items() if name.startswith("cm_tx_msgs/"))

    @property
    def retransmissions(self) -> int:
        return sum(self.values[f"hw_counters/{name}"] for name in RETRANSMISSION_COUNTERS)


def read_counters(guest: Guest) -> Counters:
    # The kernel caches the counters for `lifespan` milliseconds, 10 by default.
    output = guest.run(f"sleep 0.02; cd {PORT_DIR} && grep -H . hw_counters/* cm_tx_msgs/*").output
    pairs = (line.split(":") for line in output.splitlines() if ":" in line)
    return Counters(Counter({name: int(value) for name, value in pairs if name != "hw_counters/lifespan"}))


# Maximum number of packets that soft-RoCE does not count because their program has just destroyed the queue pair: the last
# acknowledgement in each direction, if a program closes without waiting (rstream).
MAX_UNCOUNTED = 2


def settled_counters(guests: list[Guest], timeout_s: float = 10) -> list[Counters]:
    """Returns the counters when they no longer change: the last ACK may arrive after its program has ended."""
    deadline = time.monotonic() + timeout_s
    last = [read_counters(guest) for guest in guests]
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = [read_counters(guest) for guest in guests]
        if now == last:
            return now
        last = now
    raise LabError(f"the guests still send packets {timeout_s:.0f} s after their programs have ended")


@dataclass
class Outcome:
    """Result of a program."""

    name: str
    passed: bool
    messages: int
    packets: int
    retransmissions: int
    seconds: float
    problems: list[str]

    def line(self) -> str:
        retransmitted = f", {self.retransmissions} retransmission events" if self.retransmissions else ""
        text = (
            f"{'ok  ' if self.passed else 'FAIL'} {self.name:18} {self.messages:4} messages"
            f" {self.packets:6} packets {self.seconds:5.1f} s{retransmitted}"
        )
        return "\n".join([text, *("     " + problem.replace("\n", "\n     ") for problem in self.problems)])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 2)}


def verdict(
    program: Program,
    report: dict[str, Any],
    increases: list[Counters],
    guests: tuple[Guest, Guest],
    server_output: str,
    problems: list[str],
    seconds: float,
) -> Outcome:
    """Compares a report with the `increases` of the counters of guests a (the server) and b, in this order."""
    retransmissions = sum(counters.retransmissions for counters in increases)
    frames = 0
    try:
        ports = {port["name"]: port for port in report["ports"]}
        frames = sum(port["roce_frames"] for port in ports.values())
        problems = [
            *problems,
            *check_totals(ports, report["drops"], increases),
            *check_opcodes(program, report, increases, retransmissions > 0),
            *check_queue_pairs(program, report, frames, guests, server_output, retransmissions > 0),
        ]
    except (KeyError, TypeError) as error:
        problems = [*problems, f"the forwarder's report lacks {error}"]
    return Outcome(program.name, not problems, program.messages, frames, retransmissions, seconds, problems)


def check_totals(ports: dict[str, Any], drops: list[dict[str, Any]], increases: list[Counters]) -> list[str]:
    a, b = ports["a"], ports["b"]
    comparisons = [
        ("guest a sent", increases[0].sent, "RoCE frames received by port a", a["roce_frames"]),
        ("guest b sent", increases[1].sent, "RoCE frames received by port b", b["roce_frames"]),
        ("port b sent", b["tx_frames"], "frames received by port a", a["rx_frames"]),
        ("port a sent", a["tx_frames"], "frames received by port b", b["rx_frames"]),
        ("bytes sent by port b", b["tx_bytes"], "bytes received by port a", a["rx_bytes"]),
        ("bytes sent by port a", a["tx_bytes"], "bytes received by port b", b["rx_bytes"]),
    ]
    problems = [f"{what}: {count}, but {other}: {reported}"
                for what, count, other, reported in comparisons if count != reported]  # fmt: skip
    for guest, received, port, frames in (("a", increases[0].received, "b", b), ("b", increases[1].received, "a", a)):
        # The comparisons above show that all were sent to the guest; some may arrive after the queue pair was destroyed.
        if not frames["roce_frames"] - MAX_UNCOUNTED <= received <= frames["roce_frames"]:
            problems.append(f"guest {guest} received: {received}, but RoCE frames received by port {port}: "
                            f"{frames['roce_frames']}")  # fmt: skip
    for drop in drops:
        if drop["frames"]:
            problems.append(f"dropped {drop['frames']}: {drop['reason']}")
    for name, port in ports.items():
        # Neighbour tables were flushed before, so other frames than RoCE have to pass.
        if port["rx_frames"] <= port["roce_frames"]:
            problems.append(f"port {name} received no frames of address resolution")
    return problems


def check_opcodes(program: Program, report: dict[str, Any], increases: list[Counters], retransmitted: bool) -> list[str]:
    reported = Counter({row["opcode"]: row["frames"] for row in report["opcodes"]})
    roce_frames = sum(port["roce_frames"] for port in report["ports"])
    problems = []
    if reported.total() != roce_frames:
        problems.append(f"the opcodes' counts add up to {reported.total()} frames, the ports' to {roce_frames}")
    if program.expected is None:
        return problems
    expected = program.expected + Counter({UD_SEND_ONLY: sum(counters.cm_sent for counters in increases)})
    for opcode in sorted(expected.keys() | reported.keys()):
        count, wanted = reported[opcode], expected[opcode]
        # A retransmission may repeat any packet. The total is still compared
        # exactly, with the guests' totals.
        if count < wanted or (count > wanted and not (retransmitted and wanted)):
            problems.append(f"opcode {opcode}: {wanted} frames expected, {count} reported")
    return problems


def check_queue_pairs(
    program: Program,
    report: dict[str, Any],
    roce_frames: int,
    guests: tuple[Guest, Guest],
    server_output: str,
    retransmitted: bool,
) -> list[str]:
    reported = {(row["dst"], row["qpn"]): row["frames"] for row in report["qps"]}
    problems = []
    if sum(reported.values()) != roce_frames:
        problems.append(f"the queue pairs' counts add up to {sum(reported.values())} frames, the ports' to {roce_frames}")
    if program.queue_pairs == 0 or program.expected is None or not server_output:
        return problems
    requests = sum(count for opcode, count in program.expected.items() if opcode not in RESPONSES)
    responses = program.expected.total() - requests
    for side, guest, frames in (("local", guests[0], requests), ("remote", guests[1], responses)):
        address = guest.addresses[program.network]
        numbers = re.findall(rf"{side} address:.* QPN (0x[0-9a-f]+)", server_output)
        if len(numbers) != program.queue_pairs:
            problems.append(f"the server printed {len(numbers)} {side} queue pairs instead of {program.queue_pairs}")
        share = frames // program.queue_pairs
        for number in numbers:
            count = reported.get((address, int(number, 16)), 0)
            if count < share or (count > share and not retransmitted):
                problems.append(f"queue pair {number} of {address}: {share} frames expected, {count} reported")
    return problems
