"""The exception tree of rmqkit.

Every error that can be sent to a peer has a RocketMQ response code (`code`) and a remark with the reason.
Errors raised by the client contain the address and, if a broker answered, its code and remark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from typing import NamedTuple, Self

from rmqkit.protocol.codes import ResponseCode


class ClientErrorCode(IntEnum):
    """`code` of errors detected by a client (Java: ClientErrorCode). Never sent: see `wire_code`."""

    CONNECT_BROKER = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NO_NAME_SERVER = 10004
    NOT_FOUND_TOPIC = 10005


class RmqError(Exception):
    """Root of all errors that rmqkit raises intentionally."""

    code: int = ResponseCode.SYSTEM_ERROR


def wire_code(error: RmqError) -> int:
    """The response code sent to a peer; a client's own codes mean nothing to it."""
    return ResponseCode.SYSTEM_ERROR if error.code in _CLIENT_CODES else error.code


_CLIENT_CODES = frozenset(map(int, ClientErrorCode))


class Fault(NamedTuple):
    """One fault in the settings or the plugins. `key` is the setting concerned, empty when there is none."""

    key: str
    text: str


class ConfigError(RmqError):
    """A setting, a plugin or a configured file is wrong; the text contains a remedy. `faults` has one entry
    for each fault."""

    def __init__(self, text: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(text)
        self.faults = tuple(faults) or (Fault("", text),)

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> Self:
        """One error for all faults, without duplicates; there must be at least one."""
        faults = tuple(dict.fromkeys(faults))
        return cls("; ".join(fault.text for fault in faults), faults)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` with the known name that resembles an unknown one, else `otherwise`.

    Case, dots, hyphens and underscores do not count. `cutoff` is the required similarity (0 to 1).
    """
    by_bare = {re.sub(r"[._-]", "", each).lower(): each for each in known}
    near = get_close_matches(re.sub(r"[._-]", "", name).lower(), by_bare, 1, cutoff)
    return f"; did you mean {by_bare[near[0]]!r}?" if near else otherwise


def how_to_install(*extras: str) -> str:
    """The command that adds extras, for errors. rmqkit is installed from a checkout: no index of packages has
    it, and its name there would be somebody else's."""
    return f"pip install '.[{','.join(extras)}]' in a checkout of rmqkit"


class PluginError(ConfigError):
    """A plugin cannot be loaded, occurs twice, or implements a hook that does not exist."""


class ProtocolError(RmqError):
    """The peer violated the framing; no answer is possible, so the connection is closed."""


class HeaderError(RmqError):
    """A request header lacks a field or has a field of the wrong type; answered with SYSTEM_ERROR, as in
    Java."""


class DecodeError(RmqError):
    """A body, a record or a properties text is malformed."""


class RequestRefused(RmqError):
    """A processor or a hook refuses a request: `code` and the text are sent to the peer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class RequestDelayed(RequestRefused):
    """A request hook has a request processed `delay_s` seconds later. Not an answer: `code` and the text are
    only used where a request cannot be delayed."""

    def __init__(self, delay_s: float, remark: str = "the request is delayed") -> None:
        super().__init__(ResponseCode.SYSTEM_BUSY, remark)
        self.delay_s = delay_s


class StoreError(RmqError):
    """The message store cannot perform an operation."""


class StoreNotWritable(StoreError):
    """The store accepts no messages now (disk full, closing); answered with SERVICE_NOT_AVAILABLE, after
    which producers try another broker."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class StaleEpoch(RmqError):
    """A change of a broker's role comes from an epoch that is over."""


class StoreBusy(StoreNotWritable):
    """More is appended than the disk accepts at present; answered with SYSTEM_BUSY, as Java does without a
    free buffer."""

    code = ResponseCode.SYSTEM_BUSY


class MessageIllegal(StoreError):
    """A message exceeds a limit of the stored format; answered with MESSAGE_ILLEGAL."""

    code = ResponseCode.MESSAGE_ILLEGAL


class StoreInUse(StoreError):
    """Another process uses the store directory."""


class StoreCorrupt(StoreError):
    """The files of a store are inconsistent; the text names the file."""


class BrokerProcessFailed(RmqError):
    """One of several broker processes (`--brokers N`) cannot start, dies repeatedly, or does not stop
    cleanly; the text names the broker."""


class ClientError(RmqError):
    """Root of the client's errors."""


class MissingExtra(ConfigError, ClientError):
    """The package for an optional part is not installed; the text names the extra."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}: {how_to_install(extra)}")
        self.what = what
        self.extra = extra


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
    """No answer arrived within the time-out."""

    code = ClientErrorCode.ACCESS_BROKER_TIMEOUT

    def __init__(self, address: str, timeout_ms: int) -> None:
        super().__init__(f"no answer from {address} within {timeout_ms} ms")
        self.address = address
        self.timeout_ms = timeout_ms


class TooManyFailures(ClientError):
    """The handlers of a consumer have failed so often in a row that it has ended itself; the last error is
    the cause. What they had in hand is neither finished nor sent back."""

    def __init__(self, group: str, failures: int, last: Exception) -> None:
        super().__init__(
            f"the handlers of the consumer of {group!r} have failed {failures} times in a row"
            f" (stop_after_failures), at last with {type(last).__name__}: {last}. Its messages wait; start it"
            " again when the cause is mended"
        )
        self.failures = failures


class NoRoute(ClientError):
    """No name server has the topic."""

    code = ClientErrorCode.NOT_FOUND_TOPIC

    def __init__(self, topic: str, hint: str) -> None:
        super().__init__(f"no route for topic {topic!r}: {hint}")
        self.topic = topic


class NoMaster(NoRoute):
    """The brokers of a topic have no master at the moment. A replica group may be electing one."""


class BrokerUnknown(ClientError):
    """No known route contains an address of the broker."""

    code = ClientErrorCode.BROKER_NOT_EXIST


class NameServersUnreachable(ClientError):
    """None of the configured name servers answered."""

    code = ClientErrorCode.NO_NAME_SERVER


class BrokerError(ClientError):
    """A server answered with another code than success."""

    def __init__(self, code: int, remark: str, address: str) -> None:
        super().__init__(f"{address} answered {_code_name(code)}: {remark}")
        self.code = code
        self.remark = remark
        self.address = address


class SendFailed(ClientError):
    """Every attempt to send failed; the text lists the brokers, `__cause__` is the last error and `code` its
    code."""


def first_error(error: BaseException) -> BaseException:
    """The first error inside a group, or groups of groups, of errors; an error that is not a group itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _code_name(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
