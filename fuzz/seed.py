#!/usr/bin/env python3
"""Writes the first inputs of a fuzz target, made from the repository's captures: seed.py TARGET FOLDER"""
import struct
import sys
from pathlib import Path

CAPTURES = Path(__file__).parent.parent / "tests" / "captures"
# Enough of each file to have every opcode; more would only slow the fuzzer's start.
PER_FILE = 24


def frames(path: Path) -> list[bytes]:
    data, at, found = path.read_bytes(), 24, []
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        found.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return found


def seeds(target: str, frame: bytes) -> list[bytes]:
    if target == "decode":
        return [b"\0" + frame, b"\2" + frame[14:]]
    if target == "forward":
        return [bytes([how, 0, min(len(frame), 255)]) + frame[:255] for how in (0x43, 0x4E)]
    if target == "impair":
        return [bytes([share]) + 4 * (bytes([7, min(len(frame), 255)]) + frame[:255]) for share in (50, 100)]
    if target == "p4ce":
        # From the leader, from two replicas, and to QP 1: with three PSNs of each
        bth = frame[42:-4][:500]
        steps = [(1, 0), (0x11, 1), (0x21, 2), (0x03, 0)]
        made = b""
        for kind, host in steps:
            psn = (0xFFFFFD + 1000 * host) & 0xFFFFFF
            body = bth[:9] + psn.to_bytes(3, "big") + bth[12:]
            made += bytes([kind, (len(body) + 1) // 2]) + body + b"\0" * (len(body) % 2)
        return [bytes([how]) + 2 * made for how in (0, 5)]
    if target == "swordbox":
        # Both clients contend: requests, their way to the server, and the answers' way back
        step = bytes([0, 0, 0x80, 3, 5, 0, 5, 0, 8, 0, 8, 0])
        # Strangers to the server, and answers to strangers: 256 queue pairs each time
        crowd = bytes([14, 0x80, 14, 0x81, 13, 255, 13, 255])
        small = [bytes([how]) + 20 * step + bytes([15, 40]) + frame[:40] + step for how in (1, 3)]
        return small + [bytes([33]) + 4 * (step + crowd) + step]
    if target == "tunnel":
        # Into one tunnel that ends there, and into another behind it; checksums are right
        def inside(packet: bytes, src: int, dst: int) -> bytes:
            head = struct.pack(">BBHIBBH", 0x45, 0x6A, 20 + len(packet), 0x4000, 64, 4, 0)
            head += bytes([10, 0, 0, src, 10, 0, 0, dst])
            total = sum(struct.unpack(">10H", head))
            total = (total & 0xFFFF) + (total >> 16)
            return head[:10] + struct.pack(">H", 0xFFFF - total) + head[12:] + packet

        if frame[12:14] != b"\x08\x00":
            return []
        deep = inside(frame[14:], 101, 102)
        ethernet = b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\0"
        return [bytes([how]) + ethernet + inside(packet, 1, 101) for how in (0, 1) for packet in (frame[14:], deep)]
    if target == "process":
        # Scatterings, runs from three senders, barriers, ACKs, time; and a frame
        step = lambda *bytes4: bytes(bytes4) + b"\xff" * 12
        life = step(0xC5, 15, 9, 0) + step(0x40, 1, 0, 1) + step(0x60, 1, 0, 2) + step(0x48, 1, 0, 3)
        life += step(0x02, 0, 0, 1) + step(0x46, 0, 200, 3) + step(0x44, 0, 1, 0) + step(0xC5, 7, 100, 0)
        # And two at once, when nothing is before them
        life += step(0xC2, 0, 0, 1) + step(0x05, 0x61, 8, 0) + step(0x05, 0x61, 20, 1)
        return [bytes([how]) + 6 * life + bytes([7, min(len(frame), 254) | 2, 0, 0]) + frame[:255] for how in (0, 1)]
    if target == "rdmc":
        # Both others create the group and join; blocks come from the one and words from the other; the root closes
        def made(*steps):
            return b"".join(bytes(step) for step in steps)

        life = made((13, 0, 0, 0), (2, 0, 0, 1), (2, 1, 0, 1), (4, 0, 0, 0), (4, 1, 0, 0))
        sent = made((11, 1, 0, 9), (11, 0, 0, 9), (13, 0, 1, 60), (8, 0, 200, 5), (8, 0, 200, 5), (8, 1, 200, 5))
        more = made((8, 0, 200, 5), (24, 0, 200, 8), (12, 0, 10, 9), (13, 0, 2, 0), (5, 0, 1, 1), (5, 1, 1, 1), (5, 0, 2, 0))
        # Then the one asks without end, and does not listen
        more += made((13, 0, 4, 0), (15, 0, 1, 0), (7, 0, 255, 0), (7, 0, 255, 0))
        return [bytes([len(frame) // 4 % 16]) + life + 2 * sent + more + bytes([0, 0, 0, 0]) + frame[:48]]
    if target == "rnic":
        bth = frame[42:-4][:510]
        return [bytes([how]) + bytes([0, to, len(bth) // 2]) + bth for how in (1, 12) for to in (3, 9)]
    if target == "cm":
        return [frame[-260:-4]] if len(frame) > 310 else []
    return [frame]


def main() -> None:
    target, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True)
    for path in sorted(CAPTURES.glob("*.pcap")):
        some = frames(path)
        step = max(1, len(some) // PER_FILE)
        for n, frame in enumerate(some[::step]):
            for m, seed in enumerate(seeds(target, frame)):
                (folder / f"{path.stem}-{n}-{m}").write_bytes(seed)


main()
