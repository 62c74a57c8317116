"""One exception tree for the whole kit.

Every error that may reach a peer carries the RocketMQ response code that says so (`code`) and a remark that names what was wrong.
Errors raised by the client carry the address they concern and, when a broker answered, its code and remark.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, Self

from rmqkit.protocol.codes import ResponseCode


class ClientErrorCode(IntEnum):
    """`code` of errors that a client finds by itself (Java: ClientErrorCode). Never on the wire: see `wire_code`."""

    CONNECT_BROKER = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NO_NAME_SERVER = 10004
    NOT_FOUND_TOPIC = 10005


class RmqError(Exception):
    """Root of everything rmqkit raises on purpose."""

    code: int = ResponseCode.SYSTEM_ERROR


def wire_code(error: RmqError) -> int:
    """The response code a peer is told; a client's own codes mean nothing to it."""
    return ResponseCode.SYSTEM_ERROR if error.code in _CLIENT_CODES else error.code


_CLIENT_CODES = frozenset(map(int, ClientErrorCode))


class Fault(NamedTuple):
    """One thing that is wrong with the settings or the plugins. `key` is the setting it is about, empty when it is about none."""

    key: str
    text: str


class ConfigError(RmqError):
    """A setting, a plugin or a file named by a setting is wrong; the text says what to change. `faults` has one entry for each thing that is wrong."""

    def __init__(self, text: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(text)
        self.faults = tuple(faults) or (Fault("", text),)

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> Self:
        """One error for all of them, the same one once; there must be one."""
        faults = tuple(dict.fromkeys(faults))
        return cls("; ".join(fault.text for fault in faults), faults)


class PluginError(ConfigError):
    """A plugin cannot be loaded, is named twice, or names a hook that does not exist."""


class ProtocolError(RmqError):
    """The peer broke the framing; there is no way to answer it, so the connection is closed."""


class HeaderError(RmqError):
    """A request header lacks a field or has one of the wrong type; answered with SYSTEM_ERROR, as Java's failing parser does."""


class DecodeError(RmqError):
    """A body, a record or a properties text does not have the shape it claims."""


class RequestRefused(RmqError):
    """A processor or a before-hook refuses a request: `code` and the text go to the peer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class StoreError(RmqError):
    """The message store cannot do what was asked."""


class StoreNotWritable(StoreError):
    """The store takes no messages now (disk full, closing); answered with SERVICE_NOT_AVAILABLE, which producers retry elsewhere."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class StoreBusy(StoreNotWritable):
    """More is appended than the disk takes, for the moment; answered with SYSTEM_BUSY, as Java does without a free buffer."""

    code = ResponseCode.SYSTEM_BUSY


class MessageIllegal(StoreError):
    """A message breaks a limit of the stored format; answered with MESSAGE_ILLEGAL."""

    code = ResponseCode.MESSAGE_ILLEGAL


class StoreInUse(StoreError):
    """Another process holds the store directory."""


class StoreCorrupt(StoreError):
    """The files of a store do not fit together; the text names the file."""


class BrokerProcessFailed(RmqError):
    """One of several broker processes (`--brokers N`) cannot start, dies again and again, or does not stop cleanly; the text names the broker."""


class ClientError(RmqError):
    """Root of what the client raises."""


class ConnectFailed(ClientError):
    """The address cannot be reached."""

    code = ClientErrorCode.CONNECT_BROKER

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"cannot connect to {address}: {why}")
        self.address = address


class ConnectionLost(ClientError):
    """The connection ended while an answer was awaited."""

    code = ClientErrorCode.CONNECT_BROKER

    def __init__(self, address: str, why: str = "closed by the peer") -> None:
        super().__init__(f"connection to {address} lost: {why}")
        self.address = address


class RequestTimeout(ClientError):
    """No answer within the time-out."""

    code = ClientErrorCode.ACCESS_BROKER_TIMEOUT

    def __init__(self, address: str, timeout_ms: int) -> None:
        super().__init__(f"no answer from {address} within {timeout_ms} ms")
        self.address = address
        self.timeout_ms = timeout_ms


class NoRoute(ClientError):
    """No name server knows the topic."""

    code = ClientErrorCode.NOT_FOUND_TOPIC

    def __init__(self, topic: str, hint: str) -> None:
        super().__init__(f"no route for topic {topic!r}: {hint}")
        self.topic = topic


class BrokerUnknown(ClientError):
    """No known route has an address for the broker."""

    code = ClientErrorCode.BROKER_NOT_EXIST


class NameServersUnreachable(ClientError):
    """None of the configured name servers answered."""

    code = ClientErrorCode.NO_NAME_SERVER


class BrokerError(ClientError):
    """A server answered with a code that is not success."""

    def __init__(self, code: int, remark: str, address: str) -> None:
        super().__init__(f"{address} answered {_code_name(code)}: {remark}")
        self.code = code
        self.remark = remark
        self.address = address


class SendFailed(ClientError):
    """Every attempt to send failed; the text lists the brokers tried, `__cause__` is the last error and `code` that error's."""


def _code_name(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
