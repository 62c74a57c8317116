"""What becomes of records that cannot be decoded: a body that cannot be decompressed, a wrong CRC, parts that
do not add up."""

from __future__ import annotations

import logging
from typing import Literal, get_args

import anyio

from rmqkit.client.consumer.assigned import Assigned
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.errors import BrokerError, ClientError, RmqError
from rmqkit.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

#: Whether they go to the dead-letter topic of the group, or to the application.
BadRecords = Literal["dead_letter", "deliver"]
#: Pause after a failure to put one away, and the number of times that a broker may refuse one until it is
#: passed over.
AGAIN_S = 5.0
MAX_REFUSALS = 3
#: Answers of a broker that says nothing about the record.
_BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL})


def check_bad_records(chosen: str) -> None:
    """Check the choice of a consumer for undecodable records. Raises ClientError for another word than those
    of `BadRecords`."""
    if chosen not in get_args(BadRecords):
        raise ClientError(f"bad_records={chosen!r}: must be {' or '.join(get_args(BadRecords))}")


def described(message: ReceivedMessage) -> str:
    """The place and the fault of a record, for the log."""
    return (
        f"the record at offset {message.queue_offset} of {message.queue}, log offset"
        f" {message.physical_offset}, cannot be decoded: {message.fault}"
    )


def taken(group: str) -> str:
    """Where the broker has put such a record, for the log."""
    return f"the broker has it among the dead letters of group {group}, or set aside"


class PuttingAway:
    """Takes records that cannot be decoded out of the way: each one counts as finished when it is in the
    dead-letter topic of the group. Without a topic (`send_back` is None), and when the broker cannot read the
    record either, it is passed over with an error in the log."""

    def __init__(self, group: str, send_back: SendBack | None, distributor: Distributor[Assigned]) -> None:
        self._group = group
        self._send_back = send_back
        self._distributor = distributor

    async def put_away(self, assigned: Assigned, message: ReceivedMessage) -> None:
        """Put a message in hand away; it stays unfinished when the queue is lost before."""
        with anyio.CancelScope() as scope:
            assigned.handlers.add(scope)
            try:
                await self._send(message)
                if not assigned.dropped:
                    assigned.finish(message)
                    self._distributor.offer(assigned)
            finally:
                assigned.handled(scope)

    async def _send(self, message: ReceivedMessage) -> None:
        if self._send_back is None:
            log.error("%s; it is passed over", described(message))
            return
        refusals = 0
        while True:
            try:
                await self._send_back.put_away(message)
            except RmqError as error:
                if isinstance(error, BrokerError) and error.code not in _BUSY:
                    refusals += 1
                if refusals == MAX_REFUSALS:
                    log.error(
                        "%s; it is passed over, because the broker refuses: %s", described(message), error
                    )
                    return
                log.warning("%s; it is put away again in %s s: %s", described(message), AGAIN_S, error)
                await anyio.sleep(AGAIN_S)
            else:
                log.error("%s; %s", described(message), taken(self._group))
                return
