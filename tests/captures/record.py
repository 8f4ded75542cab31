#!/usr/bin/env python3
"""Records captures of this folder, with the guests of the e2e tests.

    tests/captures/record.py [NAME...]      (as root; default: all in RECORDINGS)

The files differ from run to run (PSNs, ports, times); their opcode counts do not. After
a new recording, run verify.py and update the table in README.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
E2E = HERE.parent / "e2e"
sys.path.insert(0, str(E2E))
from frames import dissect, read_pcap, write_pcap  # noqa: E402
from lab import Lab  # noqa: E402
from programs import Program, odd_verbs, perftest, rping, rstream, udaddy  # noqa: E402
from run import run_program  # noqa: E402

GUEST_DIR = HERE.parent.parent / "target/e2e"


@dataclass(frozen=True)
class Recording:
    program: Program
    link_mtu: int = 1500
    frames: int | None = None  # maximum number; the rest is cut


RECORDINGS = [
    Recording(perftest("ipv6_rc_send_64", "ib_send_bw", size=64, count=20, network="ipv6")),
    Recording(perftest("ipv6_rc_write_4096", "ib_write_bw", size=4096, count=10, network="ipv6")),
    Recording(perftest("ipv6_rc_read_3072", "ib_read_bw", size=3072, count=10, network="ipv6")),
    Recording(perftest("ipv6_rc_fetch_add", "ib_atomic_bw", size=8, count=20, atomic="FETCH_AND_ADD", network="ipv6")),
    Recording(perftest("ipv6_ud_send_512", "ib_send_bw", size=512, count=30, transport="UD", network="ipv6")),
    Recording(rping("ipv6_cm_rping", count=5, size=64, network="ipv6")),
    Recording(perftest("vlan_rc_write_4096", "ib_write_bw", size=4096, count=10, network="vlan-ipv4")),
    Recording(perftest("vlan_ipv6_rc_send_1500", "ib_send_bw", size=1500, count=20, network="vlan-ipv6")),
    Recording(perftest("qinq_rc_write_64", "ib_write_bw", size=64, count=20, network="qinq-ipv4")),
    Recording(perftest("uc_send_4097", "ib_send_bw", size=4097, count=10, transport="UC")),
    Recording(perftest("dscp_ecn_rc_write_64", "ib_write_bw", size=64, count=20, options="--tclass=106")),
    Recording(
        perftest("dscp_ce_ipv6_rc_write_64", "ib_write_bw", size=64, count=20, options="--tclass=107", network="ipv6")
    ),
    Recording(rstream("rc_write_imm_rstream", count=20, size=1024), frames=120),
    Recording(udaddy("ud_send_imm_udaddy", connections=2, count=10, size=100)),
    Recording(odd_verbs("odd_verbs")),
    Recording(odd_verbs("ipv6_odd_verbs", network="ipv6")),
    Recording(perftest("rc_write_8192_mtu4096", "ib_write_bw", size=8192, count=5, mtu=4096), link_mtu=4500),
]


def record(recordings: Iterable[Recording], link_mtu: int, work: Path) -> None:
    with Lab(GUEST_DIR, work, mtu=link_mtu) as lab:
        a = lab.add_guest("a", tap="host-a", address=1)
        b = lab.add_guest("b", tap="host-b", address=2)
        lab.boot()
        for guest in (a, b):
            guest.add_vlan(10)
            guest.run("ip link add link eth0 name eth0.200 type vlan proto 802.1ad id 200 && ip link set eth0.200 up")
            guest.add_vlan(20, on="eth0.200", network="qinq")
        for recording in recordings:
            parts = [work / "a.pcap", work / "b.pcap"]
            forwarder = [sys.executable, str(E2E / "bridge.py"), "host-a", "host-b"]
            with lab.recorded(a.tap, parts[0]), lab.recorded(b.tap, parts[1]), lab.forwarder(forwarder):
                run_program(recording.program, server=a, client=b)
            records = sorted(record for part in parts for record in read_pcap(part))
            roce = [record for record in records if dissect(record.frame) is not None]
            if recording.program.expected is not None:
                complete = recording.program.expected.total()
                assert len(roce) >= complete, f"{recording.program.name}: {len(roce)} frames recorded, {complete} expected"
            file = HERE / f"{recording.program.name}.pcap"
            write_pcap(file, roce[: recording.frames])
            print(f"{file.name}: {recording.program.client}", flush=True)


def main() -> None:
    names = set(sys.argv[1:])
    chosen = [recording for recording in RECORDINGS if not names or recording.program.name in names]
    subprocess.run([E2E / "build-guest.sh", GUEST_DIR], check=True)
    for link_mtu in sorted({recording.link_mtu for recording in chosen}):
        with tempfile.TemporaryDirectory() as work:
            record((r for r in chosen if r.link_mtu == link_mtu), link_mtu, Path(work))


if __name__ == "__main__":
    main()
