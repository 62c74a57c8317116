"""The filter servers that have registered with a broker (Java: FilterServerManager)."""

from __future__ import annotations

from ipaddress import ip_address

from attrs import frozen

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_FILTER_SERVERS, MAX_REGISTERED_TEXT_LENGTH
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import RegisterFilterServerRequestHeader, RegisterFilterServerResponseHeader
from rmqkit.protocol.message_id import unpack_host

_log = limited_logger(__name__)
#: A filter server that has not registered for this time is removed.
EXPIRY_MS = 30_000


@frozen(eq=False)
class _Entry:
    peer: Peer
    seen_ms: int


class RegisteredFilterServers(EachRequest):
    """Answers REGISTER_FILTER_SERVER. Filter servers run on the broker's machine: others are refused, because
    consumers connect to every address that is registered."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._entries: dict[str, _Entry] = {}

    def handle(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(RegisterFilterServerRequestHeader)
        address = header.filter_server_addr
        self._check(address, peer)
        if address not in self._entries:
            _log.info("the filter server at %s has registered", address)
        self._entries[address] = _Entry(peer, self._broker.clock.now_ms())
        self._announce()
        config = self._broker.config
        found = RegisterFilterServerResponseHeader(broker_name=config.broker_name, broker_id=config.broker_id)
        return answer(request, header=found)

    def scan(self) -> None:
        """Remove filter servers that are silent or whose connection has ended (Java:
        scanNotActiveChannel)."""
        now_ms = self._broker.clock.now_ms()
        for address, entry in list(self._entries.items()):
            silent = now_ms - entry.seen_ms > EXPIRY_MS
            if silent or entry.peer.closed:
                del self._entries[address]
                reason = f"was silent for more than {EXPIRY_MS} ms" if silent else "has disconnected"
                _log.warning("the filter server at %s %s, removed", address, reason)
                entry.peer.close()
        self._announce()

    def _announce(self) -> None:
        self._broker.filter_servers.announce(self._entries)

    def _check(self, address: str, peer: Peer) -> None:
        """Check the machine and the address of a filter server, and the number of those that are registered.
        Raises RequestRefused."""
        host, _ = unpack_host(peer.remote_host)
        own, _ = unpack_host(self._broker.store_host)
        if not (ip_address(host).is_loopback or host == own):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"filter servers run on the machine of their broker, {own}; this one connected from {host}",
            )
        try:
            if len(address) > MAX_REGISTERED_TEXT_LENGTH:
                raise ValueError(f"it has more than {MAX_REGISTERED_TEXT_LENGTH} characters")
            parsed = Address.parse(address)
            if not parsed.port or str(parsed) != address:
                raise ValueError("it is not host:port")
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the address {address[:100]!r} of a filter server: {error}"
            ) from error
        if address not in self._entries and len(self._entries) >= MAX_FILTER_SERVERS:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the broker has {MAX_FILTER_SERVERS} filter servers already"
            )
