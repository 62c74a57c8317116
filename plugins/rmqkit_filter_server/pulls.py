"""Pulls of consumers: passed on to the broker, their messages filtered (Java: DefaultRequestProcessor of the
filter server)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

import trio

from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.limits import MAX_FILTER_SCANS
from rmqkit.model.buffer import Buffer
from rmqkit.model.route import MASTER_ID
from rmqkit.model.subscription import SUBSCRIBE_ALL, TAG
from rmqkit.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.plugin.broker import Pool
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.request import Outcome, Peer, RequestProcessor
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqkit_filter_server.classes import FilterClasses
from rmqkit_filter_server.limits import MAX_FORWARDED_PULLS

GROUP = "FILTERSRV_CONSUMER"
#: The broker answers before the consumer's own time has passed.
SHORTER_MS = 1_000
MAX_HOLD_MS = 19_000
#: Time for the answer besides the time for which the broker holds a pull.
CALL_TIMEOUT_MS = 10_000
_SIZE = Struct(">i")
_PASSED_ON = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class FilteredPulls(RequestProcessor):
    """Answers PULL_MESSAGE: pulls all messages from the broker as FILTERSRV_CONSUMER, and passes on those
    that match."""

    max_run = 1

    def __init__(self, pool: Pool, broker: str, classes: FilterClasses, nursery: trio.Nursery) -> None:
        self._pool = pool
        self._broker = broker
        self._classes = classes
        self._nursery = nursery
        self._forwarded = 0

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        return [self._begin(each, peer) for each in requests]

    def _begin(self, pull: Command, peer: Peer) -> Outcome:
        if self._forwarded >= MAX_FORWARDED_PULLS:
            error = RequestRefused(
                ResponseCode.SYSTEM_BUSY, f"the filter server passes {MAX_FORWARDED_PULLS} pulls on already"
            )
            return error_answer(pull, error)
        ticket = peer.postpone((pull,), held=True)

        async def complete() -> None:
            try:
                outcome: Outcome = await self._answered(pull)
            except Exception as error:  # noqa: BLE001 - the consumer needs an answer to every error
                outcome = error_answer(pull, error)
            finally:
                self._forwarded -= 1
            ticket.complete((outcome,))

        self._forwarded += 1
        self._nursery.start_soon(complete)
        return ticket

    async def _answered(self, pull: Command) -> Command:
        """Pull until a message matches, the queue has no more, or MAX_FILTER_SCANS pulls had no match. Raises
        RequestRefused, RmqError, DecodeError."""
        header = pull.header(PullMessageRequestHeader)
        compiled = self._classes.of(header.consumer_group, header.topic)
        offset, scans = header.queue_offset, MAX_FILTER_SCANS
        while True:
            found = await self._pull(header, offset)
            if found.code not in _PASSED_ON:
                raise RequestRefused(found.code, found.remark or "the broker refuses the pull")
            place = found.header(PullMessageResponseHeader)
            place.suggest_which_broker_id = MASTER_ID
            body = b""
            if found.code == ResponseCode.SUCCESS:
                body = await _matching(compiled, found.body)
                scans -= 1
                if not body and scans and place.next_begin_offset > offset:
                    offset = place.next_begin_offset
                    continue
            code = found.code
            if code == ResponseCode.SUCCESS and not body:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
            return answer(pull, code, found.remark, header=place, body=body)

    async def _pull(self, header: PullMessageRequestHeader, offset: int) -> Command:
        suspend = header.sys_flag & PULL_SUSPEND
        hold_ms = min(max(header.suspend_timeout_millis - SHORTER_MS, 0), MAX_HOLD_MS) if suspend else 0
        forwarded = PullMessageRequestHeader(
            consumer_group=GROUP,
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=offset,
            max_msg_nums=header.max_msg_nums,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=hold_ms,
            subscription=SUBSCRIBE_ALL,
            sub_version=0,
            expression_type=TAG,
        )
        command = request(RequestCode.PULL_MESSAGE, forwarded)
        return await self._pool.call(self._broker, command, hold_ms + CALL_TIMEOUT_MS)


async def _matching(compiled: CompiledFilter, body: bytes) -> bytes:
    """The records that match. Raises RequestRefused when the filter fails, DecodeError."""
    records = list(_records(memoryview(body)))
    if compiled.records_async is not None:
        verdicts = await compiled.records_async(records)
    elif compiled.records is not None:
        verdicts = compiled.records(records)
    else:
        verdicts = [True] * len(records)
    return b"".join(record for record, matches in zip(records, verdicts, strict=True) if matches)


def _records(body: memoryview) -> Iterator[Buffer]:
    at = 0
    while at < len(body):
        size = _SIZE.unpack_from(body, at)[0] if at + _SIZE.size <= len(body) else 0
        if not _SIZE.size < size <= len(body) - at:
            raise DecodeError(f"the broker's answer holds a record of {size} bytes at {at} of {len(body)}")
        yield body[at : at + size]
        at += size
