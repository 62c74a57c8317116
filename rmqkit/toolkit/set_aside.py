"""Puts records aside that a service cannot read or deliver, so that none is lost in silence and none stops
the service: delay levels, retries, and whatever else passes on what the broker has stored.

    origin = Origin("mine", topic, queue_id, queue_offset, physical_offset)
    if not set_aside(broker, origin, record, "it has no real topic"):
        ...  # the store takes nothing now: the record comes again later

The place is the topic `rmq_sys_SET_ASIDE` of the broker; `rmqkit set-aside` lists and prints what is there.
"""

from __future__ import annotations

import logging
from typing import Final

from rmqkit.errors import RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.set_aside import Origin, properties_of
from rmqkit.plugin.broker import Broker
from rmqkit.protocol.codes import is_temporary

_log: Final[logging.Logger] = limited_logger(__name__)


async def prepare(broker: Broker) -> None:
    """Create the topic, so that it can be read. Raises RequestRefused as `Topics.ensure`."""
    await broker.topics.ensure(names.SET_ASIDE_TOPIC, 1)


def set_aside(broker: Broker, origin: Origin, record: Buffer | None, reason: str) -> bool:
    """Store a record with its origin and the reason, log it and count it. False, when the store takes nothing
    now: the caller keeps the record and tries again later.

    `record` is None when none begins at its offset; nothing is stored when it was before the beginning of the
    log, for then it was removed with the log. A record that is too large to be stored once more is named
    without its bytes: they stay at its offset as long as the log does. Never raises."""
    if record is None and origin.physical_offset < broker.store.start_offset:
        return _gone(broker, origin, "was removed with the log before it could be passed on")
    body = b"" if record is None else bytes(record)
    refused = _put(broker, origin, body, reason)
    if refused is not None and body and not is_temporary(refused.code):
        refused = _put(broker, origin, b"", f"{reason} (its {len(body)} bytes are in the log alone)")
    if refused is None:
        _log.error("%s is set aside, see `rmqkit set-aside list`: %s", origin, reason)
        broker.stats.set_aside(origin.service, kept=True)
        return True
    if is_temporary(refused.code):
        _log.error("%s cannot be set aside now, trying again (%s): %s", origin, refused, reason)
        return False
    return _gone(broker, origin, f"is passed over, it cannot be set aside ({refused}): {reason}")


def _gone(broker: Broker, origin: Origin, why: str) -> bool:
    _log.error("%s %s", origin, why)
    broker.stats.set_aside(origin.service, kept=False)
    return True


def _put(broker: Broker, origin: Origin, body: bytes, reason: str) -> RequestRefused | None:
    message = PutMessage(
        topic=names.SET_ASIDE_TOPIC,
        queue_id=0,
        body=body,
        properties={},
        properties_bytes=b"",
        born_timestamp_ms=broker.clock.now_ms(),
        wait=False,
    )
    message.set_properties(properties_of(origin, reason))
    (result,) = broker.appender.append(MessageRun([message]))
    return result if isinstance(result, RequestRefused) else None


__all__ = ["Origin", "prepare", "set_aside"]
