"""Which errors time does not cure."""

from __future__ import annotations

from collections.abc import Iterator

from rmqkit.errors import BrokerError, ConfigError
from rmqkit.model.topic import PAUSED_REMARK
from rmqkit.protocol.codes import ResponseCode

_CODES = frozenset({ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.SUBSCRIPTION_PARSE_FAILED})
#: How brokers begin the remark to NO_PERMISSION when they, or a topic, may not be read: the next route is
#: without those queues (Java: PullMessageProcessor).
_OF_PLACES = ("the broker[", "the topic[", "broker ", "topic ")
_FOR_A_WHILE = (*_OF_PLACES, PAUSED_REMARK)


def is_lasting(error: Exception) -> bool:
    """Whether an error stays until somebody changes something: settings, a file, a missing package, a group
    that does not exist or may not consume, a condition that the broker does not understand. Others, such as a
    broker that does not answer or a group that is paused, are worth another try."""
    if isinstance(error, BrokerError):
        forbidden = error.code == ResponseCode.NO_PERMISSION and not error.remark.startswith(_FOR_A_WHILE)
        return forbidden or error.code in _CODES
    return isinstance(error, ConfigError)


def is_pause(error: Exception) -> bool:
    """Whether a broker says that the group is paused. It says so at every try: once is enough for a log."""
    return isinstance(error, BrokerError) and error.remark.startswith(PAUSED_REMARK)


def lasting_error(error: Exception) -> Exception | None:
    """The first such error in an exception group, or the error itself; None when there is another error
    too."""
    parts = list(_parts(error))
    return parts[0] if all(map(is_lasting, parts)) else None


def _parts(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for part in error.exceptions:
            yield from _parts(part)
    else:
        yield error
