"""Asks the kernel how many packets the queues of each network interface have dropped (rtnetlink(7), RTM_GETQDISC).

A drop here says that this node's own interface sends too slowly. A retransmission alone may also be the fault of the receiver.
The kernel answers at once. Any trouble gives no answer, never 0.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_GET_QDISC, _NEW_QDISC, _DONE, _ERROR = 38, 36, 3, 2
_REQUEST_DUMP = 0x1 | 0x300
_ROOT = 0xFFFFFFFF  # the parent of an interface's outermost queue
_STATS2, _STATS_QUEUE = 7, 3  # TCA_STATS2, TCA_STATS_QUEUE: qlen, backlog, drops, requeues, overlimits
_HEADER, _MESSAGE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxxxiIII"), struct.Struct("=HH")
_SECONDS = 0.5
_ANSWER_MAX = 64  # reads; the queues of 64 interfaces fit into a few


def read() -> dict[str, int]:
    """Return the packets dropped by the outermost queue of each interface, or {} if the kernel does not say."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
            link.settimeout(_SECONDS)
            body = _MESSAGE.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
            link.send(_HEADER.pack(_HEADER.size + len(body), _GET_QDISC, _REQUEST_DUMP, 1, 0) + body)
            names = dict(socket.if_nameindex())
            return {names[index]: drops for index, drops in _answers(link) if index in names}
    except (OSError, struct.error):
        return {}


def _answers(link: socket.socket) -> Iterator[tuple[int, int]]:
    for _ in range(_ANSWER_MAX):
        data = link.recv(1 << 16)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, *_rest = _HEADER.unpack_from(data, at)
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return
            if kind == _NEW_QDISC:
                yield from parsed(data[at + _HEADER.size : at + length])
            at += (length + 3) & ~3


def parsed(message: bytes) -> Iterator[tuple[int, int]]:
    """Yield the interface's index and the dropped packets of one RTM_NEWQDISC, if it is an outermost queue."""
    _family, index, _handle, parent, _info = _MESSAGE.unpack_from(message)
    if parent != _ROOT:
        return
    for kind, value in _attributes(message[_MESSAGE.size :]):
        for inner, queue in _attributes(value) if kind == _STATS2 else ():
            if inner == _STATS_QUEUE and len(queue) >= 12:
                yield index, struct.unpack_from("=I", queue, 8)[0]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
