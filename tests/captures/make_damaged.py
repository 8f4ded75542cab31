#!/usr/bin/env python3
"""Writes damaged.pcap: valid frames mixed with malformed, unusual and non-RoCEv2 frames of every kind.

    tests/captures/make_damaged.py

The frames are derived from the real captures beside it. Each malformed frame has ONE
fault: checksums and ICRC are corrected after the change unless they are the fault. The
output is the same to the byte every time. damaged.tsv describes each frame: its number,
"good" (valid RoCEv2, to be forwarded), "foreign" (valid, but not RoCEv2) or "broken"
(malformed), and the fault.
"""

from __future__ import annotations

import struct
from pathlib import Path

from frames import Packet, Record, dissect, read_pcap, write_pcap

HERE = Path(__file__).parent

# Offsets in an untagged IPv4 frame without options
VLAN_TAG, ETHERTYPE, IP, UDP, BTH = 12, 12, 14, 34, 42
AFTER_BTH = BTH + 12
RETH_LEN, AETH_LEN, ICRC_LEN = 16, 4, 4


def with_icrc(frame: bytes | bytearray, ip: int = IP, ip_header_len: int = 20) -> bytes:
    """Returns the frame with a correct IPv4 checksum and a correct ICRC."""
    fixed = bytearray(frame)
    if fixed[ip] >> 4 == 4:
        fixed[ip + 10 : ip + 12] = b"\0\0"
        fixed[ip + 10 : ip + 12] = struct.pack("!H", ipv4_checksum(fixed[ip : ip + ip_header_len]))
    packet = Packet(bytes(fixed), ip, ip + ip_header_len, len(fixed), (), "", "")
    return bytes(fixed[:-ICRC_LEN]) + struct.pack("<I", packet.computed_icrc())


def ipv4_checksum(header: bytes | bytearray) -> int:
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def with_checksum(frame: bytes | bytearray) -> bytes:
    """Returns the frame with a correct IPv4 checksum, otherwise unchanged."""
    fixed = bytearray(frame)
    fixed[IP + 10 : IP + 12] = b"\0\0"
    fixed[IP + 10 : IP + 12] = struct.pack("!H", ipv4_checksum(fixed[IP : IP + 20]))
    return bytes(fixed)


def with_lengths(frame: bytes | bytearray) -> bytes:
    """Returns the frame with length fields that match its size, and a correct IPv4 checksum."""
    fixed = bytearray(frame)
    fixed[IP + 2 : IP + 4] = struct.pack("!H", len(fixed) - IP)
    fixed[UDP + 4 : UDP + 6] = struct.pack("!H", len(fixed) - UDP)
    return with_checksum(fixed)


def with_lengths_and_icrc(frame: bytes | bytearray) -> bytes:
    """Returns the frame with correct length fields, IPv4 checksum and ICRC, which is its last four bytes."""
    return with_icrc(with_lengths(frame))


def replaced(frame: bytes | bytearray, offset: int, value: bytes) -> bytearray:
    changed = bytearray(frame)
    changed[offset : offset + len(value)] = value
    return changed


def shortened(frame: bytes, length: int) -> bytes:
    """Returns a frame whose length fields match, but which is too short for the headers that its opcode requires."""
    if length < AFTER_BTH + ICRC_LEN:
        return with_lengths(frame[:length])  # no room for an ICRC
    return with_lengths_and_icrc(frame[:length])


def write_of(size: int, write: bytes) -> bytes:
    """Returns a WRITE Only with `size` bytes of payload, in the RETH and in fact."""
    payload = bytes(index & 0xFF for index in range(size))
    headers = replaced(write[: AFTER_BTH + RETH_LEN], AFTER_BTH + 12, struct.pack("!I", size))
    return with_lengths_and_icrc(bytes(headers) + payload + bytes(ICRC_LEN))


def with_ipv6_extension(frame: bytes, next_header: int, extension: bytes) -> bytes:
    changed = bytearray(frame[: IP + 40] + extension + frame[IP + 40 :])
    changed[IP + 4 : IP + 6] = struct.pack("!H", len(changed) - IP - 40)
    changed[IP + 6] = next_header
    return with_icrc(changed, ip_header_len=40 + len(extension))


def with_ipv4_options(frame: bytes) -> bytes:
    changed = bytearray(frame[: IP + 20] + bytes([0x94, 4, 0, 0]) + frame[IP + 20 :])  # router alert
    changed[IP] = 0x46
    changed[IP + 2 : IP + 4] = struct.pack("!H", len(changed) - IP)
    return with_icrc(changed, ip_header_len=24)


def with_vlan_tags(frame: bytes, *tags: tuple[int, int]) -> bytes:
    return frame[:VLAN_TAG] + b"".join(struct.pack("!HH", *tag) for tag in tags) + frame[VLAN_TAG:]


def foreign_frames(base: bytes) -> list[tuple[str, bytes]]:
    ethernet = base[:12]
    addresses = base[IP + 12 : IP + 20]
    arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + base[6:12] + addresses[:4] + bytes(6) + addresses[4:]
    syn = struct.pack("!HHIIBBHHH", 40000, 18515, 1, 0, 5 << 4, 0x02, 64240, 0, 0)
    dns = struct.pack("!HHHH", 40000, 53, 8 + 12, 0) + bytes(12)

    def ipv4(protocol: int, payload: bytes) -> bytes:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0x4000, 64, protocol, 0) + addresses
        return with_checksum(ethernet + b"\x08\x00" + header + payload)

    return [
        ("an ARP request", ethernet + b"\x08\x06" + arp),
        ("a TCP SYN", ipv4(6, syn)),
        ("UDP to another port", ipv4(17, dns)),
        ("an ICMP echo request", ipv4(1, bytes([8, 0, 0xF7, 0xFF]) + bytes(4))),
        ("LLDP", ethernet + b"\x88\xcc" + bytes(46)),
        ("an IEEE 802.3 length instead of an EtherType", ethernet + b"\x00\x26" + bytes(38)),
    ]


def good_frames(write: bytes, ack: bytes) -> list[tuple[str, bytes]]:
    """Returns valid but unusual frames, with descriptions."""
    return [
        ("Ethernet padding behind the packet", ack + bytes(6)),
        ("FECN, BECN and reserved bits set", bytes(replaced(write, BTH + 4, b"\xff"))),
        ("CE mark and another time to live", with_checksum(replaced(replaced(write, IP + 1, b"\x6b"), IP + 8, b"\x05"))),
        ("MigReq and solicited event set", with_icrc(replaced(write, BTH + 1, b"\xc0"))),
        ("an unpadded byte count: 61 bytes and PadCnt 3", padded_write(write)),
        ("a WRITE of no bytes", write_of(0, write)),
        ("the largest payload, 4096 bytes", write_of(4096, write)),
        ("VLAN tagged", with_vlan_tags(write, (0x8100, 0x600A))),
        ("two VLAN tags", with_vlan_tags(write, (0x88A8, 0x00C8), (0x8100, 0x600A))),
        ("IPv4 with options", with_ipv4_options(write)),
    ]


def padded_write(write: bytes) -> bytes:
    changed = replaced(write, BTH + 1, bytes([write[BTH + 1] | 0x30]))
    return with_icrc(replaced(changed, AFTER_BTH + 12, struct.pack("!I", 61)))


def broken_frames(write: bytes, ack: bytes, ipv6: bytes) -> list[tuple[str, bytes]]:
    whole = len(write)

    def set_length(ip_delta: int, udp_delta: int) -> bytes:
        ip_len, udp_len = whole - IP + ip_delta, whole - UDP + udp_delta
        changed = replaced(replaced(write, IP + 2, struct.pack("!H", ip_len)), UDP + 4, struct.pack("!H", udp_len))
        return with_checksum(changed)

    flipped = replaced(write, AFTER_BTH + RETH_LEN + 5, bytes([write[AFTER_BTH + RETH_LEN + 5] ^ 0x10]))
    hop_by_hop = bytes([17, 0, 1, 4, 0, 0, 0, 0])
    fragment = bytes([17, 0, 0, 1, 0, 0, 0, 7])
    cuts = [
        (0, "an empty frame"), (6, "cut in the Ethernet addresses"), (13, "cut in the EtherType"),
        (IP, "cut before the IPv4 header"), (IP + 10, "cut in the IPv4 header"), (UDP, "cut before the UDP header"),
        (UDP + 4, "cut in the UDP header"), (BTH, "cut before the BTH"), (BTH + 6, "cut in the BTH"),
        (AFTER_BTH, "cut before the RETH"), (AFTER_BTH + 8, "cut in the RETH"),
        (AFTER_BTH + RETH_LEN, "cut before the payload"), (AFTER_BTH + RETH_LEN + 32, "cut in the payload"),
        (whole - ICRC_LEN, "cut before the ICRC"), (whole - 1, "cut in the ICRC"),
    ]  # fmt: skip
    shrinks = [
        (BTH, "a UDP datagram of no bytes"), (BTH + 8, "a UDP datagram shorter than a BTH"),
        (AFTER_BTH, "BTH and no ICRC"), (AFTER_BTH + ICRC_LEN, "WRITE Only without RETH"),
        (AFTER_BTH + 8 + ICRC_LEN, "WRITE Only with half a RETH"),
    ]  # fmt: skip
    return [
        *((what, write[:length]) for length, what in cuts),
        ("an ACK cut before the AETH", ack[:AFTER_BTH]),
        ("an ACK cut before the ICRC", ack[: AFTER_BTH + AETH_LEN]),
        ("cut in the VLAN tag", with_vlan_tags(write, (0x8100, 0x600A))[:15]),
        ("cut behind the VLAN tag", with_vlan_tags(write, (0x8100, 0x600A))[:18]),
        ("IPv6 cut in its header", ipv6[: IP + 20]),
        ("IPv6 cut before the UDP header", ipv6[: IP + 40]),
        ("IPv6 cut in the payload", ipv6[: IP + 40 + 8 + 12 + 10]),
        *((what, shortened(write, length)) for length, what in shrinks),
        ("ACK without AETH", shortened(ack, AFTER_BTH + ICRC_LEN)),
        ("IPv4 total length beyond the frame", set_length(+40, 0)),
        ("IPv4 total length short of the UDP length", set_length(-20, 0)),
        ("IPv4 total length below its header", with_checksum(replaced(write, IP + 2, b"\x00\x13"))),
        ("UDP length beyond the IPv4 packet", set_length(0, +16)),
        ("UDP length short of the IPv4 packet", set_length(0, -16)),
        ("UDP length below its header", with_checksum(replaced(write, UDP + 4, b"\x00\x07"))),
        ("IPv4 version 5", with_checksum(replaced(write, IP, b"\x55"))),
        ("IPv4 header length 16", with_checksum(replaced(write, IP, b"\x44"))),
        ("IPv4 header length beyond the packet", bytes(replaced(ack, IP, b"\x4f"))),
        ("IPv4 header checksum wrong", bytes(replaced(write, IP + 10, bytes([write[IP + 10] ^ 0xFF])))),
        ("ICRC wrong: a payload bit flipped", bytes(flipped)),
        ("ICRC wrong: itself flipped", bytes(replaced(write, whole - 1, bytes([write[-1] ^ 0x80])))),
        ("ICRC wrong: PSN changed on the way", bytes(replaced(write, BTH + 11, bytes([write[BTH + 11] ^ 1])))),
        ("ICRC wrong: an ACK made a NAK", bytes(replaced(ack, AFTER_BTH, bytes([ack[AFTER_BTH] ^ 0x60])))),
        ("first IPv4 fragment", with_checksum(replaced(write, IP + 6, b"\x20\x00"))),
        ("later IPv4 fragment", with_checksum(replaced(write, IP + 6, b"\x00\x10"))),
        ("unknown opcode 0xc5", with_icrc(replaced(write, BTH, b"\xc5"))),
        ("reserved RC opcode 0x1c", with_icrc(replaced(write, BTH, b"\x1c"))),
        ("reserved UD opcode 0x66", with_icrc(replaced(write, BTH, b"\x66"))),
        ("payload not a multiple of four, PadCnt 0", with_lengths_and_icrc(write[: whole - ICRC_LEN - 1] + bytes(ICRC_LEN))),
        ("PadCnt 3 and no payload to pad", with_icrc(replaced(ack, BTH + 1, bytes([ack[BTH + 1] | 0x30])))),
        ("transport version 1", with_icrc(replaced(write, BTH + 1, bytes([write[BTH + 1] | 0x01])))),
        ("payload of 4100 bytes", write_of(4100, write)),
        ("payload of 8192 bytes", write_of(8192, write)),
        ("IPv6 with a hop-by-hop header", with_ipv6_extension(ipv6, 0, hop_by_hop)),
        ("IPv6 with a fragment header", with_ipv6_extension(ipv6, 44, fragment)),
        ("IPv6 version 5", bytes(replaced(ipv6, IP, bytes([0x50 | ipv6[IP] & 0x0F])))),
        ("IPv6 payload length beyond the frame", bytes(replaced(ipv6, IP + 4, b"\x01\x00"))),
        ("IPv6 payload length short of the UDP length", bytes(replaced(ipv6, IP + 4, b"\x00\x18"))),
    ]


def main() -> None:
    writes = read_pcap(HERE / "rc_write_64.pcap")
    sends = read_pcap(HERE / "rc_send_64.pcap")
    write = next(record.frame for record in writes if opcode_of(record) == 0x0A)
    ack = next(record.frame for record in writes if opcode_of(record) == 0x11)
    ipv6 = next(record.frame for record in read_pcap(HERE / "ipv6_rc_send_64.pcap") if opcode_of(record) == 0x04)

    special = [
        *(("good", what, frame) for what, frame in good_frames(write, ack)),
        *(("foreign", what, frame) for what, frame in foreign_frames(write)),
        *(("broken", what, frame) for what, frame in broken_frames(write, ack, ipv6)),
    ]
    # A real frame before each special one, and at the end: valid frames have to be
    # forwarded between malformed ones.
    real = writes + sends
    rows: list[tuple[str, str, bytes]] = []
    for index, row in enumerate(special):
        rows += [("good", "as recorded", real[index % len(real)].frame), row]
    rows += [("good", "as recorded", record.frame) for record in sends[:4]]

    write_pcap(HERE / "damaged.pcap", [Record(1_000_000 * index, frame) for index, (_, _, frame) in enumerate(rows)])
    lines = [f"{number}\t{kind}\t{what}" for number, (kind, what, _) in enumerate(rows, start=1)]
    (HERE / "damaged.tsv").write_text("\n".join(["frame\tkind\twhat", *lines]) + "\n")
    check(rows)
    print(f"damaged.pcap: {len(rows)} frames, {sum(kind == 'broken' for kind, _, _ in rows)} of them malformed")


def opcode_of(record: Record) -> int | None:
    packet = dissect(record.frame)
    return packet.opcode if packet else None


def check(rows: list[tuple[str, str, bytes]]) -> None:
    """Asserts that the kind of each frame agrees with frames.py."""
    for kind, what, frame in rows:
        packet = dissect(frame)
        if kind == "good":
            assert packet is not None and packet.icrc_ok, what
        if kind == "foreign":
            assert packet is None, what
        if "ICRC wrong" in what:
            assert packet is not None and not packet.icrc_ok, what


if __name__ == "__main__":
    main()
