"""Parser of RoCEv2 frames and pcap files, with the standard library only.

It is independent of the Rust crates, so that the captures here and the e2e tests are
checked by a second implementation. It follows the specification, with `zlib.crc32`.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROCEV2_PORT = 4791
VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
PROTOCOL_UDP = 17
BTH_LEN = 12
ICRC_LEN = 4

SERVICES = {0x00: "RC", 0x20: "UC", 0x40: "RD", 0x60: "UD", 0x80: "CNP", 0xA0: "XRC"}
OPERATIONS = [
    "SEND First", "SEND Middle", "SEND Last", "SEND Last with Immediate", "SEND Only", "SEND Only with Immediate",
    "WRITE First", "WRITE Middle", "WRITE Last", "WRITE Last with Immediate", "WRITE Only", "WRITE Only with Immediate",
    "READ Request", "READ Response First", "READ Response Middle", "READ Response Last", "READ Response Only",
    "Acknowledge", "ATOMIC Acknowledge", "Compare and Swap", "Fetch and Add", "Resync",
    "SEND Last with Invalidate", "SEND Only with Invalidate",
]  # fmt: skip


def opcode_name(opcode: int) -> str:
    if opcode == 0x81:
        return "CNP"
    operation = opcode & 0x1F
    if operation >= len(OPERATIONS):
        return f"unknown 0x{opcode:02x}"
    return f"{SERVICES.get(opcode & 0xE0, '?')} {OPERATIONS[operation]}"


@dataclass(frozen=True)
class Packet:
    """A RoCEv2 frame: offsets of its parts, and fields of its base transport header (BTH)."""

    frame: bytes
    ip: int
    udp: int
    end: int
    vlan_ids: tuple[int, ...]
    source: str
    destination: str

    @property
    def bth(self) -> int:
        return self.udp + 8

    @property
    def opcode(self) -> int:
        return self.frame[self.bth]

    @property
    def destination_qp(self) -> int:
        return int.from_bytes(self.frame[self.bth + 5 : self.bth + 8], "big")

    @property
    def psn(self) -> int:
        return int.from_bytes(self.frame[self.bth + 9 : self.bth + 12], "big")

    @property
    def icrc(self) -> int:
        """The ICRC as transmitted: little-endian, the last four bytes of the UDP payload."""
        return int.from_bytes(self.frame[self.end - ICRC_LEN : self.end], "little")

    def computed_icrc(self) -> int:
        """Returns the CRC-32 of the packet, in which all bits that a router may change are ones.

        InfiniBand Architecture, annex A17 (RoCEv2): eight bytes of ones replace the local
        route header. Masked are: of IPv4 the type of service, time to live and checksum; of
        IPv6 the traffic class, flow label and hop limit; the UDP checksum; and the BTH's
        fifth byte (FECN, BECN, reserved). Ethernet and VLAN headers are not covered.
        """
        masked = bytearray(self.frame[self.ip : self.end - ICRC_LEN])
        udp = self.udp - self.ip
        if masked[0] >> 4 == 4:
            masked[1] = masked[8] = 0xFF
            masked[10:12] = b"\xff\xff"
        else:
            masked[0] |= 0x0F
            masked[1:4] = b"\xff\xff\xff"
            masked[7] = 0xFF
        masked[udp + 6 : udp + 8] = b"\xff\xff"
        masked[udp + 8 + 4] = 0xFF
        return zlib.crc32(masked, zlib.crc32(b"\xff" * 8))

    @property
    def icrc_ok(self) -> bool:
        return self.icrc == self.computed_icrc()


def dissect(frame: bytes) -> Packet | None:
    """Returns the RoCEv2 packet in an Ethernet frame, or None for any other or malformed frame."""
    at, vlan_ids = 12, []
    while len(frame) >= at + 4 and int.from_bytes(frame[at : at + 2], "big") in VLAN_TYPES:
        vlan_ids.append(int.from_bytes(frame[at + 2 : at + 4], "big") & 0xFFF)
        at += 4
    ethertype, ip = int.from_bytes(frame[at : at + 2], "big"), at + 2
    if ethertype == ETHERTYPE_IPV4 and len(frame) >= ip + 20:
        header_len = (frame[ip] & 0x0F) * 4
        ip_len = int.from_bytes(frame[ip + 2 : ip + 4], "big")
        fragmented = int.from_bytes(frame[ip + 6 : ip + 8], "big") & 0x3FFF
        if frame[ip] >> 4 != 4 or header_len < 20 or fragmented or frame[ip + 9] != PROTOCOL_UDP:
            return None
        addresses = frame[ip + 12 : ip + 16], frame[ip + 16 : ip + 20]
    elif ethertype == ETHERTYPE_IPV6 and len(frame) >= ip + 40:
        header_len = 40
        ip_len = 40 + int.from_bytes(frame[ip + 4 : ip + 6], "big")
        if frame[ip] >> 4 != 6 or frame[ip + 6] != PROTOCOL_UDP:
            return None
        addresses = frame[ip + 8 : ip + 24], frame[ip + 24 : ip + 40]
    else:
        return None
    udp, end = ip + header_len, ip + ip_len
    if end > len(frame) or ip_len < header_len + 8 + BTH_LEN + ICRC_LEN:
        return None
    if int.from_bytes(frame[udp + 2 : udp + 4], "big") != ROCEV2_PORT:
        return None
    if int.from_bytes(frame[udp + 4 : udp + 6], "big") != end - udp:
        return None
    source, destination = (str(ipaddress.ip_address(address)) for address in addresses)
    return Packet(frame, ip, udp, end, tuple(vlan_ids), source, destination)


# --- pcap files -----------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Record:
    """A recorded frame, and its time in microseconds."""

    time_us: int
    frame: bytes


def read_pcap(path: Path) -> list[Record]:
    """Reads a classic pcap file of Ethernet frames, of either byte order and time unit."""
    data = path.read_bytes()
    magics = {0xA1B2C3D4: 1, 0xA1B23C4D: 1000}
    order = "<" if struct.unpack_from("<I", data)[0] in magics else ">"
    magic, *_, link_type = struct.unpack_from(f"{order}IHHiIII", data)
    if magic not in magics or link_type != 1:
        raise ValueError(f"{path}: not a pcap file of Ethernet frames; record it with `tcpdump -w`")
    records, at = [], 24
    while at + 16 <= len(data):
        seconds, fraction, captured, _ = struct.unpack_from(f"{order}IIII", data, at)
        at += 16
        records.append(Record(seconds * 1_000_000 + fraction // magics[magic], data[at : at + captured]))
        at += captured
    return records


def write_pcap(path: Path, records: Iterable[Record]) -> None:
    """Writes a little-endian, microsecond pcap file."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for record in records:
            seconds, microseconds = divmod(record.time_us, 1_000_000)
            file.write(struct.pack("<IIII", seconds, microseconds, len(record.frame), len(record.frame)))
            file.write(record.frame)
