"""Does the wire's report agree with what the guests sent? Three accounts of the same packets:

1. the guests' soft-RoCE counters, which must equal the wire's totals exactly;
2. the packets that the program had to send (programs.py), per opcode and per queue pair;
3. the connection manager's counters, for its messages, whose number the programs leave open.
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
# What a guest counts when it sends, or sees, a packet for the second time. With all of
# these at rest every packet crossed the wire once, and counts must be exact.
RETRANSMISSION_COUNTERS = (
    "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "completer_retry_err",
)  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """What a guest counts. soft-RoCE's totals hold packets of all queue pairs, the connection
    manager's included; a packet with a wrong ICRC is not "received"."""

    values: Counter[str]

    def __sub__(self, earlier: Self) -> Counters:
        grown = Counter(self.values)
        grown.subtract(earlier.values)
        return Counters(grown)

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
    # The kernel keeps its answer for `lifespan` milliseconds, 10 by default.
    output = guest.run(f"sleep 0.02; cd {PORT_DIR} && grep -H . hw_counters/* cm_tx_msgs/*").output
    pairs = (line.split(":") for line in output.splitlines() if ":" in line)
    return Counters(Counter({name: int(value) for name, value in pairs if name != "hw_counters/lifespan"}))


# Packets to a queue pair that its program has just destroyed are not counted by soft-RoCE. The last acknowledgements of a
# program that closes without waiting (rstream) may meet that, one for each direction's last message.
LATE = 2


def settled_counters(guests: list[Guest], timeout_s: float = 10) -> list[Counters]:
    """The counters once they stand still: the last ACK may outlive the program that caused it."""
    deadline = time.monotonic() + timeout_s
    last = [read_counters(guest) for guest in guests]
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = [read_counters(guest) for guest in guests]
        if now == last:
            return now
        last = now
    raise LabError(f"the guests still send packets {timeout_s:.0f} s after their programs ended")


@dataclass
class Outcome:
    """A program's verdict."""

    name: str
    passed: bool
    messages: int
    packets: int
    retransmissions: int
    seconds: float
    problems: list[str]

    def line(self) -> str:
        again = f", {self.retransmissions} retransmission events" if self.retransmissions else ""
        text = (
            f"{'ok  ' if self.passed else 'FAIL'} {self.name:18} {self.messages:4} messages"
            f" {self.packets:6} packets {self.seconds:5.1f} s{again}"
        )
        return "\n".join([text, *("     " + problem.replace("\n", "\n     ") for problem in self.problems)])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 2)}


def verdict(
    program: Program,
    report: dict[str, Any],
    grown: list[Counters],
    guests: tuple[Guest, Guest],
    server_output: str,
    problems: list[str],
    seconds: float,
) -> Outcome:
    """Compares a report with the counters of guests a (the server) and b, which `grown` are in order."""
    retransmissions = sum(counters.retransmissions for counters in grown)
    frames = 0
    try:
        ports = {port["name"]: port for port in report["ports"]}
        frames = sum(port["roce_frames"] for port in ports.values())
        problems = [
            *problems,
            *check_totals(ports, report["drops"], grown),
            *check_opcodes(program, report, grown, retransmissions > 0),
            *check_queue_pairs(program, report, frames, guests, server_output, retransmissions > 0),
        ]
    except (KeyError, TypeError) as error:
        problems = [*problems, f"the wire's report lacks {error}"]
    return Outcome(program.name, not problems, program.messages, frames, retransmissions, seconds, problems)


def check_totals(ports: dict[str, Any], drops: list[dict[str, Any]], grown: list[Counters]) -> list[str]:
    a, b = ports["a"], ports["b"]
    comparisons = [
        ("guest a sent", grown[0].sent, "RoCE frames came in at port a", a["roce_frames"]),
        ("guest b sent", grown[1].sent, "RoCE frames came in at port b", b["roce_frames"]),
        ("port b sent", b["tx_frames"], "frames came in at port a", a["rx_frames"]),
        ("port a sent", a["tx_frames"], "frames came in at port b", b["rx_frames"]),
        ("port b sent bytes", b["tx_bytes"], "bytes came in at port a", a["rx_bytes"]),
        ("port a sent bytes", a["tx_bytes"], "bytes came in at port b", b["rx_bytes"]),
    ]
    problems = [f"{what} {count}, but {other} {reported}"
                for what, count, other, reported in comparisons if count != reported]  # fmt: skip
    for guest, received, port, frames in (("a", grown[0].received, "b", b), ("b", grown[1].received, "a", a)):
        # That these left towards the guest is compared above; at the guest some may come to a closed door.
        if not frames["roce_frames"] - LATE <= received <= frames["roce_frames"]:
            problems.append(f"guest {guest} received {received}, but RoCE frames came in at port {port} "
                            f"{frames['roce_frames']}")  # fmt: skip
    for drop in drops:
        if drop["frames"]:
            problems.append(f"dropped {drop['frames']}: {drop['reason']}")
    for name, port in ports.items():
        # Neighbours were forgotten before, so there was something else than RoCE to carry.
        if port["rx_frames"] <= port["roce_frames"]:
            problems.append(f"port {name} carried no address resolution")
    return problems


def check_opcodes(program: Program, report: dict[str, Any], grown: list[Counters], retransmitted: bool) -> list[str]:
    reported = Counter({row["opcode"]: row["frames"] for row in report["opcodes"]})
    roce_frames = sum(port["roce_frames"] for port in report["ports"])
    problems = []
    if reported.total() != roce_frames:
        problems.append(f"the opcodes add up to {reported.total()} frames, the ports to {roce_frames}")
    if program.expected is None:
        return problems
    expected = program.expected + Counter({UD_SEND_ONLY: sum(counters.cm_sent for counters in grown)})
    for opcode in sorted(expected.keys() | reported.keys()):
        count, wanted = reported[opcode], expected[opcode]
        # A retransmission may repeat any packet; how many there were in all is
        # still compared exactly, with the guests' totals.
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
        problems.append(f"the queue pairs add up to {sum(reported.values())} frames, the ports to {roce_frames}")
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
