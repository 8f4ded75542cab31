"""RDMA programs that run between the guests, and the packets that each of them has to send.

The counts are computed from message size, number of messages and path MTU, by the
rules of the InfiniBand specification (a message of several packets is First,
Middle..., Last) and by the choices of soft-RoCE within them: it requests an ACK on the last
packet of every RC message, and its responder never coalesces ACKs. (It also requests one
after 64 packets without a request, which no message here reaches.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

PATH_MTU = 1024  # the largest RoCE MTU that fits the link's 1500 bytes

# BTH opcodes: an operation plus the transport service's base.
SERVICE = {"RC": 0x00, "UC": 0x20, "UD": 0x60}
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(0x00, 0x06)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(0x06, 0x0C)
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY = 0x0C, 0x0D, 0x0E, 0x0F, 0x10
ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD = 0x11, 0x12, 0x13, 0x14
SEND_LAST_INV, SEND_ONLY_INV = 0x16, 0x17
UD_SEND_ONLY = SERVICE["UD"] + SEND_ONLY

SEND = (SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY)
WRITE = (WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY)
READ_RESPONSE = (READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY)
RESPONSES = frozenset({*READ_RESPONSE, ACK, ATOMIC_ACK})

# True in a guest where a server waits for its client: perftest listens on TCP port 18515
# (0x4853), the others on a connection manager's id.
PERFTEST_LISTENS = "grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6"
CM_LISTENS = "rdma resource show cm_id | grep -q LISTEN"
UD_CM_LISTENS = "rdma resource show cm_id | grep -q ps.UDP"


@dataclass(frozen=True)
class Program:
    """A server command in one guest and a client command in the other.

    In both, `{address}` is the server's address and `{gid}` the index of the guest's own
    GID, on the network that the program uses.
    """

    name: str
    server: str
    client: str
    listening: str
    messages: int
    # Frames per opcode, without those of the connection manager, which the guests count.
    # None if the counts depend on the program's timing: then only the guests' totals are compared.
    expected: Counter[int] | None
    # Set when the server prints its QPNs: then each gets an equal share of the requests.
    queue_pairs: int = 0
    network: str = "ipv4"  # or "ipv6", "vlan-ipv4", "vlan-ipv6"

    @property
    def command(self) -> str:
        """Returns what describes the program in a list."""
        return self.client


def segments(operation: tuple[int, int, int, int], size: int, count: int, mtu: int = PATH_MTU) -> Counter[int]:
    """Returns the packets of `count` messages (or READ responses) of `size` bytes."""
    first, middle, last, only = operation
    packets = max(1, -(-size // mtu))
    if packets == 1:
        return Counter({only: count})
    return +Counter({first: count, middle: (packets - 2) * count, last: count})


def packets_of(tool: str, transport: str, size: int, count: int, mtu: int, atomic: str) -> Counter[int]:
    """Returns the packets, in both directions, of a perftest bandwidth test."""
    if tool == "ib_read_bw":
        return Counter({READ_REQUEST: count}) + segments(READ_RESPONSE, size, count, mtu)
    if tool == "ib_atomic_bw":
        return Counter({COMPARE_SWAP if atomic == "CMP_AND_SWAP" else FETCH_ADD: count, ATOMIC_ACK: count})
    requests = segments(SEND if tool == "ib_send_bw" else WRITE, size, count, mtu)
    packets = Counter({SERVICE[transport] + opcode: frames for opcode, frames in requests.items()})
    return packets + Counter({ACK: count}) if transport == "RC" else packets


def perftest(
    name: str,
    tool: str,
    size: int,
    count: int,
    transport: str = "RC",
    queue_pairs: int = 1,
    mtu: int = PATH_MTU,
    atomic: str = "",
    options: str = "",
    network: str = "ipv4",
) -> Program:
    # -u 20: retransmit after 4 s, since an emulated host may well take longer than the
    # default 67 ms to respond. -F: no warning about the CPU's frequency.
    command = f"{tool} -F -u 20 -d rxe0 -x {{gid}} -n {count} -q {queue_pairs} -m {mtu}"
    command += f" -A {atomic}" if tool == "ib_atomic_bw" else f" -s {size} -c {transport}"
    if tool == "ib_send_bw":
        # UC and UD have no flow control: post a receive buffer for every message in advance.
        command += f" -r {count}"
    command = f"{command} {options}".rstrip()
    return Program(
        name=name,
        server=command,
        client=f"{command} {{ipv4}}",
        listening=PERFTEST_LISTENS,
        messages=count * queue_pairs,
        expected=packets_of(tool, transport, size, count * queue_pairs, mtu, atomic),
        queue_pairs=queue_pairs,
        network=network,
    )


def rping(name: str, count: int, size: int, network: str = "ipv4") -> Program:
    """An exchange is four SENDs (two each way), a READ and a WRITE, with the data compared."""
    expected = Counter({SEND_ONLY: 4 * count, READ_REQUEST: count, ACK: 5 * count})
    expected += segments(READ_RESPONSE, size, count) + segments(WRITE, size, count)
    common = f"-a {{address}} -C {count} -S {size} -v -V"
    return Program(
        name=name,
        server=f"rping -s {common}",
        client=f"rping -c {common}",
        listening=CM_LISTENS,
        messages=6 * count,
        expected=expected,
        network=network,
    )


def ucmatose(name: str, connections: int, count: int, size: int, network: str = "ipv4") -> Program:
    """Both sides send `count` messages on each connection."""
    messages = 2 * connections * count
    common = f"-c {connections} -C {count} -S {size}"
    return Program(
        name=name,
        server=f"ucmatose -b {{address}} {common}",
        client=f"ucmatose -s {{address}} {common}",
        listening=CM_LISTENS,
        messages=messages,
        expected=segments(SEND, size, messages) + Counter({ACK: messages}),
        network=network,
    )


def udaddy(name: str, connections: int, count: int, size: int) -> Program:
    """Like ucmatose, over UD, each message with immediate data (the sender's QPN).

    The server replies to an endpoint only after all of its messages have arrived.
    """
    messages = 2 * connections * count
    common = f"-c {connections} -C {count} -S {size}"
    return Program(
        name=name,
        server=f"udaddy -b {{address}} {common}",
        client=f"udaddy -s {{address}} {common}",
        listening=UD_CM_LISTENS,
        messages=messages,
        expected=Counter({SERVICE["UD"] + SEND_ONLY_IMM: messages}),
    )


def rstream(name: str, count: int, size: int) -> Program:
    """A byte stream over RDMA (rsockets): WRITEs with immediate, and credits at its own pace."""
    common = f"-f ip -S {size} -C {count} -I 1"
    return Program(
        name=name,
        server=f"rstream -b {{address}} {common}",
        client=f"rstream -s {{address}} {common}",
        listening=CM_LISTENS,
        messages=2 * count,
        expected=None,
    )


def odd_verbs(name: str, network: str = "ipv4") -> Program:
    """Program odd_verbs.c of this folder: operations that no packaged program sends, and four requests that are refused."""
    rc = Counter({
        SEND_ONLY: 4, SEND_ONLY_IMM: 1, SEND_ONLY_INV: 1, SEND_FIRST: 2, SEND_LAST_IMM: 1, SEND_LAST_INV: 1,
        WRITE_ONLY: 1, WRITE_ONLY_IMM: 1, WRITE_FIRST: 2, WRITE_MIDDLE: 1, WRITE_LAST: 1, WRITE_LAST_IMM: 1,
        READ_REQUEST: 2, READ_ONLY: 1, READ_FIRST: 1, READ_MIDDLE: 1, READ_LAST: 1, ACK: 12,
    })  # fmt: skip
    uc = Counter({
        SERVICE["UC"] + opcode: 1
        for opcode in (SEND_ONLY, SEND_ONLY_IMM, SEND_FIRST, SEND_LAST_IMM,
                       WRITE_ONLY, WRITE_ONLY_IMM, WRITE_FIRST, WRITE_LAST_IMM)
    })  # fmt: skip
    # Refused permanently: a WRITE with a wrong key, a READ where none are allowed, a SEND
    # longer than its receive buffer. A SEND without a receive buffer is sent twice.
    refused = Counter({WRITE_ONLY: 1, READ_REQUEST: 1, SEND_ONLY: 1 + 2, ACK: 5})
    return Program(
        name=name,
        server="odd_verbs {gid}",
        client="odd_verbs {gid} {ipv4}",
        listening=PERFTEST_LISTENS,
        messages=24,
        expected=rc + uc + refused,
        network=network,
    )


PROGRAMS = [
    perftest("send-rc-64", "ib_send_bw", size=64, count=100),
    perftest("send-rc-4096", "ib_send_bw", size=4096, count=50),
    perftest("send-uc-4096", "ib_send_bw", size=4096, count=50, transport="UC"),
    perftest("send-ud-1024", "ib_send_bw", size=1024, count=100, transport="UD"),
    perftest("write-rc-64", "ib_write_bw", size=64, count=100),
    perftest("write-rc-65536", "ib_write_bw", size=65536, count=20),
    perftest("write-rc-4qp", "ib_write_bw", size=4096, count=20, queue_pairs=4),
    perftest("write-rc-mtu256", "ib_write_bw", size=4096, count=20, mtu=256),
    perftest("write-uc-4096", "ib_write_bw", size=4096, count=50, transport="UC"),
    perftest("read-rc-64", "ib_read_bw", size=64, count=50),
    perftest("read-rc-65536", "ib_read_bw", size=65536, count=20),
    perftest("fetch-add", "ib_atomic_bw", size=8, count=100, atomic="FETCH_AND_ADD"),
    perftest("compare-swap", "ib_atomic_bw", size=8, count=100, atomic="CMP_AND_SWAP"),
    rping("rping", count=10, size=64),
    ucmatose("ucmatose", connections=3, count=10, size=100),
    udaddy("udaddy", connections=2, count=10, size=100),
    rstream("rstream", count=20, size=4096),
    odd_verbs("odd-verbs"),
    perftest("write-rc-ipv6", "ib_write_bw", size=4096, count=50, network="ipv6"),
    perftest("read-rc-ipv6", "ib_read_bw", size=4096, count=50, network="ipv6"),
    perftest("send-ud-ipv6", "ib_send_bw", size=1024, count=100, transport="UD", network="ipv6"),
    rping("rping-ipv6", count=10, size=4096, network="ipv6"),
    perftest("write-rc-vlan", "ib_write_bw", size=4096, count=50, network="vlan-ipv4"),
    perftest("send-rc-vlan-ipv6", "ib_send_bw", size=4096, count=50, network="vlan-ipv6"),
]
