#!/usr/bin/env python3
"""Forwards frames between two network interfaces, without understudy: run.py's `--wire bridge`.

    bridge.py INTERFACE-A INTERFACE-B

It checks that the test itself passes without understudy. It has the interface of
`understudy run ... --json` ("ready" on stderr, one JSON report on stdout after SIGINT),
but forwards with plain packet sockets and counts with tests/captures/frames.py.
It does not use a Linux bridge, since kernels built for containers often lack it.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import struct
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "captures"))
from frames import dissect, opcode_name

ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_AUXDATA = 8
PACKET_IGNORE_OUTGOING = 23
SO_RCVBUFFORCE = 33
TP_STATUS_VLAN_VALID = 0x10
TP_STATUS_VLAN_TPID_VALID = 0x40


def open_interface(name: str) -> socket.socket:
    interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    interface.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    interface.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    interface.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    interface.bind((name, ETH_P_ALL))
    interface.setblocking(False)
    return interface


def receive(interface: socket.socket) -> bytes:
    """Receives one frame and restores the outer VLAN tag that the kernel has removed."""
    frame, ancillary, _, _ = interface.recvmsg(65536, 64)
    for level, kind, data in ancillary:
        if level == SOL_PACKET and kind == PACKET_AUXDATA:
            status, _, _, _, _, tci, tpid = struct.unpack_from("IIIHHHH", data)
            if status & TP_STATUS_VLAN_VALID:
                tpid = tpid if status & TP_STATUS_VLAN_TPID_VALID else 0x8100
                return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
    return frame


class Counters:
    """The counters of understudy's report, for two ports."""

    def __init__(self) -> None:
        self.ports = [Counter({"rx_frames": 0, "rx_bytes": 0, "tx_frames": 0, "tx_bytes": 0, "roce_frames": 0})
                      for _ in range(2)]  # fmt: skip
        self.opcodes: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.qps: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        self.drops: Counter[str] = Counter()

    def count(self, frame: bytes, port: int, sent: bool) -> None:
        self.ports[port].update(rx_frames=1, rx_bytes=len(frame))
        if sent:
            self.ports[1 - port].update(tx_frames=1, tx_bytes=len(frame))
        else:
            self.drops["interface full"] += 1
        packet = dissect(frame)
        if packet is None:
            return
        self.ports[port]["roce_frames"] += 1
        for row in self.opcodes[packet.opcode], self.qps[packet.destination, packet.destination_qp]:
            row[0] += 1
            row[1] += len(frame)

    def report(self) -> dict[str, Any]:
        return {
            "ports": [{"name": name, **port} for name, port in zip("ab", self.ports)],
            "opcodes": [
                {"opcode": opcode, "name": opcode_name(opcode), "frames": frames, "bytes": octets}
                for opcode, (frames, octets) in sorted(self.opcodes.items())
            ],
            "drops": [{"reason": reason, "frames": frames} for reason, frames in self.drops.items()],
            "qps": [
                {"dst": dst, "qpn": qpn, "frames": frames, "bytes": octets}
                for (dst, qpn), (frames, octets) in sorted(self.qps.items())
            ],
        }


def main() -> None:
    interfaces = [open_interface(name) for name in sys.argv[1:3]]
    counters = Counters()
    selector = selectors.DefaultSelector()
    for port, interface in enumerate(interfaces):
        selector.register(interface, selectors.EVENT_READ, port)
    # A signal ends the select below. Unlike an exception, it cannot interrupt the code
    # between forwarding a frame and counting it.
    wakeup, stop = socket.socketpair()
    stop.setblocking(False)
    signal.set_wakeup_fd(stop.fileno())
    signal.signal(signal.SIGINT, lambda *_: None)
    selector.register(wakeup, selectors.EVENT_READ, None)
    print("ready", file=sys.stderr, flush=True)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                print(json.dumps(counters.report()))
                return
            for _ in range(32):
                try:
                    frame = receive(interfaces[key.data])
                except BlockingIOError:
                    break
                try:
                    interfaces[1 - key.data].send(frame)
                    sent = True
                except (BlockingIOError, OSError):
                    sent = False
                counters.count(frame, key.data, sent)


if __name__ == "__main__":
    main()
