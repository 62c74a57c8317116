"""A non-blocking UDP socket for trio and asyncio that sends and receives datagrams in batches."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol

import anyio

from rmqkit.plugin.transport import Address
from rmqkit_transport_quic.limits import QUIC_LOOPBACK_DATAGRAM_BYTES
from rmqkit_transport_quic.settings import SMALLEST_DATAGRAM_BYTES

#: From linux/udp.h; missing in the socket module.
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
#: From linux/in.h and linux/in6.h: IP_MTU_DISCOVER and IPV6_MTU_DISCOVER with PMTUDISC_DO.
_NO_FRAGMENTS_4 = (socket.IPPROTO_IP, 10, 2)
#: The same headers: IP_MTU and IPV6_MTU, the largest packet to the peer of a connected socket.
_MTU_4, _MTU_6 = (socket.IPPROTO_IP, 14), (socket.IPPROTO_IPV6, 24)
#: Headers of IPv6 and UDP.
_HEADER_BYTES = 48
_NO_FRAGMENTS_6 = (socket.IPPROTO_IPV6, 23, 2)
#: Maximum number of datagrams of equal size in one system call (linux/udp.h: UDP_MAX_SEGMENTS), and of bytes.
_MAX_SEGMENTS = 64
_MAX_TRAIN_BYTES = 65_000
_RECEIVE_BYTES = 65_536
#: Requested buffer size, which the operating system may reduce: a burst of a complete congestion window
#: should fit.
_BUFFER_BYTES = 4 * 1024 * 1024
#: After this many datagrams, other tasks get a turn.
_PASS_DATAGRAMS = 64

Datagram = tuple[bytes, Any]


class Datagrams(Protocol):
    """The interface for sending and receiving the datagrams of an endpoint. `local` is its own address."""

    local: tuple[str, int]

    @property
    def closed(self) -> bool: ...
    async def wait(self) -> None:
        """Wait until there is something to receive. Raises anyio.ClosedResourceError."""

    def receive(self) -> tuple[list[Datagram], bool]:
        """The received datagrams, up to a limit, and whether the operating system has reported that no
        process listens at the peer's port."""

    def send(self, datagrams: list[Datagram]) -> None:
        """Send as much as possible now; the rest is lost, and QUIC retransmits it."""

    def close(self) -> None:
        """Close the socket and wake waiting tasks. May be called twice."""


class Network(Protocol):
    """Creates endpoints. A target is an address in the form used by sockets."""

    async def bind(self, address: Address) -> Datagrams:
        """A socket for datagrams that is bound to an address. Raises OSError."""

    async def find(self, address: Address) -> list[Any]:
        """The targets of an address. Raises OSError."""

    def connect(self, target: Any) -> Datagrams:
        """An endpoint for this peer only. Raises OSError."""


class UdpNetwork:
    """The network of the operating system."""

    async def bind(self, address: Address) -> UdpSocket:
        found = await anyio.getaddrinfo(
            address.host, address.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, target = found[0]
        return _socket(family, lambda sock: sock.bind(target))

    async def find(self, address: Address) -> list[Any]:
        found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        return list(dict.fromkeys(target for *_, target in found))

    def connect(self, target: Any) -> UdpSocket:
        family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        return _socket(family, lambda sock: sock.connect(target), target)


def _socket(family: int, prepare: Callable[[socket.socket], None], peer: Any = None) -> UdpSocket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        prepare(sock)
        return UdpSocket(sock, peer)
    except BaseException:
        sock.close()
        raise


class UdpSocket:
    """Takes over `sock`, bound or connected. `peer` is the destination of datagrams without an address; set
    for connected sockets."""

    def __init__(self, sock: socket.socket, peer: Any = None) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._peer = peer
        self.local: tuple[str, int] = sock.getsockname()[:2]
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        # QUIC discovers the path's datagram size itself; fragmentation would hide it (RFC 9000, section 14).
        _try_option(sock, *(_NO_FRAGMENTS_6 if sock.family == socket.AF_INET6 else _NO_FRAGMENTS_4))
        self._trains = _try_option(sock, _SOL_UDP, _UDP_SEGMENT, 0)
        _try_option(sock, _SOL_UDP, _UDP_GRO, 1)

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    async def wait(self) -> None:
        await anyio.wait_readable(self._socket)

    def receive(self) -> tuple[list[Datagram], bool]:
        found: list[Datagram] = []
        while len(found) < _PASS_DATAGRAMS:
            try:
                data, ancillary, _, address = self._socket.recvmsg(_RECEIVE_BYTES, 64)
            except BlockingIOError:
                break
            except OSError as error:
                # For connected sockets this is an ICMP message; for others it identifies no peer.
                return found, error.errno == errno.ECONNREFUSED
            address = self._peer if self._peer is not None else address
            size = _segment_bytes(ancillary) or len(data)
            if len(data) <= size:
                found.append((data, address))
            else:
                found += [(data[start : start + size], address) for start in range(0, len(data), size)]
        return found, False

    def send(self, datagrams: list[Datagram]) -> None:
        for train, address in (
            _trains(datagrams) if self._trains else (([data], address) for data, address in datagrams)
        ):
            where = () if self._peer is not None else (address,)
            segment = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", len(train[0])))] if len(train) > 1 else []
            try:
                self._socket.sendmsg(train, segment, 0, *where)
            except BlockingIOError:
                return
            except OSError as error:
                if segment and error.errno in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP):
                    # The device does not support segmentation: from now on datagrams are sent one by one.
                    self._trains = False
                    self.send([(data, address) for data in train])

    def close(self) -> None:
        if not self.closed:
            anyio.notify_closing(self._socket)
            self._socket.close()


def _try_option(sock: socket.socket, level: int, option: int, value: int) -> bool:
    with suppress(OSError):
        sock.setsockopt(level, option, value)
        return True
    return False


def _segment_bytes(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == _SOL_UDP and kind == _UDP_GRO:
            return int(struct.unpack_from("=i", data)[0])
    return 0


def _trains(datagrams: list[Datagram]) -> Iterator[tuple[list[bytes], Any]]:
    """Groups of datagrams to one address and of one size; only the last of a group may be shorter."""
    train: list[bytes] = []
    where: Any = None
    total = 0
    for data, address in datagrams:
        fits = train and address == where and len(train[-1]) == len(train[0]) >= len(data)
        if not fits or len(train) == _MAX_SEGMENTS or total + len(data) > _MAX_TRAIN_BYTES:
            if train:
                yield train, where
            train, where, total = [], address, 0
        train.append(data)
        total += len(data)
    if train:
        yield train, where


def loopback_datagram_bytes(host: str) -> int:
    """Payload of a datagram to a numeric address of the loopback interface, 0 for any other address and where
    the operating system does not tell the interface's packet size."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return 0
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if not (mapped or address).is_loopback:
        return 0
    six = isinstance(address, IPv6Address)
    family = socket.AF_INET6 if six else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((host, 9))
        size = sock.getsockopt(*(_MTU_6 if six else _MTU_4)) - _HEADER_BYTES
        return min(size, QUIC_LOOPBACK_DATAGRAM_BYTES) if size >= SMALLEST_DATAGRAM_BYTES else 0
    return 0
