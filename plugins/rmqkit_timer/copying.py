"""What a slave copies from its master, so that it goes on with the timers when it becomes the master (Java:
SlaveSynchronize.syncTimerCheckPoint, syncTimerMetrics), and what a master answers."""

from __future__ import annotations

import msgspec
import trio

from rmqkit.plugin.broker import Broker
from rmqkit.plugin.replication import MasterTable
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit_timer import checkpoint as checkpoints
from rmqkit_timer.checkpoint import Checkpoint
from rmqkit_timer.counts import Counts
from rmqkit_timer.service import TimerService


class CheckpointAnswers(EachRequest):
    """GET_TIMER_CHECK_POINT: how far the timers of this master have come."""

    def __init__(self, service: TimerService) -> None:
        self._service = service

    def handle(self, request: Command, peer: Peer) -> Outcome:
        found = self._service.checkpoint()
        if found is None:
            return answer(request, ResponseCode.SYSTEM_ERROR, _IDLE)
        return answer(request, body=checkpoints.encode(found))


class CountsAnswers(EachRequest):
    """GET_TIMER_METRICS: how many messages of each topic wait."""

    def __init__(self, service: TimerService) -> None:
        self._service = service

    def handle(self, request: Command, peer: Peer) -> Outcome:
        found = self._service.counts()
        if found is None:
            return answer(request, ResponseCode.SYSTEM_ERROR, _IDLE)
        return answer(request, body=msgspec.json.encode(found))


_IDLE = "no timers run on this broker: it is not a master, or timerWheelEnable is false"


class CheckpointCopy(MasterTable):
    """Takes over a master's checkpoint when this broker has all deliveries of which it tells."""

    code = RequestCode.GET_TIMER_CHECK_POINT

    def __init__(self, service: TimerService, broker: Broker) -> None:
        self._service = service
        self._broker = broker
        #: One that tells of more than this broker had.
        self._held: Checkpoint | None = None

    async def take(self, body: bytes) -> None:
        for found in (checkpoints.decode(body), self._held):
            if found is None:
                continue
            if found.moment is None or found.moment.broker_end <= self._broker.store.end_offset:
                self._held = None
                await trio.to_thread.run_sync(self._service.kept(self._broker).copy, found)
                return
            self._held = found if self._held is None else self._held


class CountsCopy(MasterTable):
    """Takes over the counts."""

    code = RequestCode.GET_TIMER_METRICS

    def __init__(self, service: TimerService, broker: Broker) -> None:
        self._service = service
        self._broker = broker

    async def take(self, body: bytes) -> None:
        found = loose_json.decode(body, Counts)
        await trio.to_thread.run_sync(self._service.kept(self._broker).copy_counts, found)
