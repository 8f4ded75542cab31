#!/usr/bin/env python3
"""Checks captures: the ICRC of every RoCEv2 frame, and the opcode counts in README.md.

    tests/captures/verify.py [FILE.pcap...]      (default: all in this folder)

Prints a line per file. Exits with 1 if an ICRC is wrong or README.md has other counts.
Frames of `damaged.pcap` are malformed on purpose: they are counted, not checked.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from frames import dissect, read_pcap

HERE = Path(__file__).parent
MALFORMED_ON_PURPOSE = "damaged.pcap"


def documented_counts() -> dict[str, Counter[int]]:
    """Returns opcode counts by file name, from the tables of README.md (`6 x32, 8 x31` in a row's last cell)."""
    documented = {}
    for line in (HERE / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        counts = re.findall(r"(\d+) x(\d+)", cells[-1])
        if cells[0].endswith(".pcap") and counts:
            documented[cells[0]] = Counter({int(opcode): int(count) for opcode, count in counts})
    return documented


def main() -> int:
    files = [Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.pcap"))
    documented = documented_counts()
    failed = False
    for file in files:
        records = read_pcap(file)
        packets = [packet for record in records if (packet := dissect(record.frame)) is not None]
        opcodes = Counter(packet.opcode for packet in packets)
        bad = sum(not packet.icrc_ok for packet in packets)
        problems = []
        if file.name != MALFORMED_ON_PURPOSE:
            if bad:
                problems.append(f"{bad} WRONG ICRC")
            if documented.get(file.name, opcodes) != opcodes:
                problems.append("opcode counts differ from README.md")
        failed |= bool(problems)
        counts = ", ".join(f"{opcode} x{count}" for opcode, count in sorted(opcodes.items()))
        print(
            f"{file.name}: {len(records)} frames, {len(records) - len(packets)} not RoCEv2, "
            f"{bad} wrong ICRC; {counts}{' <-- ' if problems else ''}{'; '.join(problems)}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
