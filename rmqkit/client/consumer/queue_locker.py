"""Locks of ordered queues at their brokers (Java: RebalanceImpl.lock, ConsumeMessageOrderlyService; behaviour
sheet, B12)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import anyio
from attrs import Factory, define

from rmqkit.client.consumer.lasting import is_lasting
from rmqkit.client.instance import Instance
from rmqkit.errors import BrokerUnknown, RmqError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import LockBatchMqBody, LockBatchMqResponseBody

log = logging.getLogger(__name__)

#: A lock is renewed this often, and counts as lost when it is older than its life. The broker lets another
#: member have it after 60 s.
RENEWAL_S = 20.0
LOCK_LIFE_S = 30.0
#: Pause after a renewal that a broker did not answer.
RENEWAL_RETRY_S = 3.0
LOCK_TIMEOUT_MS = 1000


@define
class Locked:
    """Outcome of a lock request. Queues whose broker did not answer are in neither set."""

    granted: set[MessageQueue] = Factory(set)
    refused: set[MessageQueue] = Factory(set)


class QueueLocker:
    """Locks and unlocks queues for one group and client."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> Locked:
        """Lock queues, or renew their locks. Failures are logged; those that time does not cure are raised,
        in a group. When cancelled, some may be locked."""
        outcome = Locked()

        async def lock_at(broker: str, wanted: list[MessageQueue]) -> None:
            response = await self._ask(RequestCode.LOCK_BATCH_MQ, broker, wanted)
            granted = set(response.decode_body(LockBatchMqResponseBody).lock_ok_mq_set)
            outcome.granted.update(granted.intersection(wanted))
            outcome.refused.update(set(wanted) - granted)

        await self._at_each_broker(queues, lock_at, raising=True)
        return outcome

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks. Failures are logged; the broker releases such a lock after 60 s."""

        async def unlock_at(broker: str, held: list[MessageQueue]) -> None:
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, broker, held)

        await self._at_each_broker(queues, unlock_at, raising=False)

    async def _at_each_broker(
        self,
        queues: Iterable[MessageQueue],
        ask: Callable[[str, list[MessageQueue]], Awaitable[None]],
        *,
        raising: bool,
    ) -> None:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            by_broker.setdefault(queue.broker_name, []).append(queue)

        async def ask_or_log(broker: str, part: list[MessageQueue]) -> None:
            try:
                await ask(broker, part)
            except RmqError as error:
                if raising and is_lasting(error):
                    raise
                log.warning("%s", error)

        async with anyio.create_task_group() as group:
            for broker, part in by_broker.items():
                group.start_soon(ask_or_log, broker, part)

    async def _ask(self, code: RequestCode, broker: str, queues: list[MessageQueue]) -> Command:
        address = self._instance.routes.master(broker)
        if address is None:
            raise BrokerUnknown(f"broker {broker!r} has no master; {code.name} needs one")
        client_id = self._instance.settings.effective_client_id
        body = LockBatchMqBody(consumer_group=self._group, client_id=client_id, mq_set=queues)
        doing = f"{code.name} of {len(queues)} queues"
        return await self._instance.call(address, request(code, body=compact(body)), doing, LOCK_TIMEOUT_MS)
