"""Members of a consumer group that have queues: keeping a share of them, pulling, committing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.consumer.assigned import Assigned
from rmqkit.client.consumer.bad_records import PuttingAway
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.engine import Engine
from rmqkit.client.consumer.member import Member
from rmqkit.client.consumer.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from rmqkit.client.consumer.options import GroupOptions
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.consumer.rebalance import Rebalance
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.client.instance import Instance
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import BROADCASTING, CONSUME_ACTIVELY, SubscriptionData


class GroupConsumer(Member):
    """A member of a consumer group that shares the queues with the others. The subclasses give its messages
    to the application."""

    _distributor: Distributor[Assigned]

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscribed: dict[str, SubscriptionData],
        options: GroupOptions,
        rebalance: Rebalance,
    ) -> None:
        super().__init__(instance, group, subscribed, options, Distributor())
        if options.broadcast:
            self.message_model = BROADCASTING
        self._store: OffsetStore = (
            FileOffsets(options.offsets_folder, instance.settings.stable_client_id, group)
            if options.broadcast
            else BrokerOffsets(QueueOffsets(instance), group)
        )
        self._send_back = SendBack(instance, group, options.schedule)
        self._engine = Engine(
            instance,
            self._subscriptions,
            options,
            rebalance,
            self._store,
            self._distributor,
            PuttingAway(group, None if options.broadcast else self._send_back, self._distributor),
            lite=self.consume_type == CONSUME_ACTIVELY,
        )

    def stop(self) -> None:
        """Pull and give out nothing more; what waits for messages ends. For signal handlers and other tasks
        of the same event loop."""
        self._engine.stop_pulling()
        super().stop()

    async def _work(self, tasks: TaskGroup) -> None:
        await self._engine.run(tasks)

    async def _leave(self) -> None:
        await self._engine.leave()
        await super()._leave()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that belong to this member now, those of the retry topic included, sorted."""
        return self._names.outward(sorted(self._engine.assigned))

    def ids_changed(self) -> None:
        """Rebalance, because members have joined or left."""
        self._engine.rebalance_soon()

    def running_info(self) -> dict[str, Any]:
        """Subscriptions, the state of each queue, figures of each topic, and the settings."""
        now_ms = self._instance.now_ms()
        return self._running_info(
            {queue: assigned.described(now_ms) for queue, assigned in self._engine.assigned.items()},
            self._engine.statistics.described(anyio.current_time()),
        )

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The end of the finished prefix of each queue of the topic."""
        return {
            queue: assigned.messages.commit_offset
            for queue, assigned in self._engine.assigned.items()
            if queue.topic == topic
        }

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the queues at these offsets, and commit them; handlers of their messages are cancelled."""
        for queue, offset in offsets.items():
            assigned = self._engine.assigned.get(queue)
            if assigned is not None:
                self._engine.restart(assigned, offset, commit=True)
