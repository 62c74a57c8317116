"""The push consumer (Java: DefaultMQPushConsumer, DefaultMQPushConsumerImpl; behaviour sheet, B1 to B12)."""

from __future__ import annotations

import logging

from anyio.abc import TaskGroup

from rmqkit.client.consumer.assigned import Assigned
from rmqkit.client.consumer.group_consumer import GroupConsumer
from rmqkit.client.consumer.handler_consumer import HandlerConsumer
from rmqkit.client.consumer.options import PushOptions, Subscribe, subscriptions
from rmqkit.client.consumer.rebalance import Rebalance
from rmqkit.client.consumer.settling import RetryPolicy
from rmqkit.client.instance import Instance
from rmqkit.model.names import retry_topic
from rmqkit.model.subscription import CONSUME_PASSIVELY, tag_subscription
from rmqkit.plugin.allocation import AllocationStrategy

log = logging.getLogger(__name__)


class PushConsumer(GroupConsumer, HandlerConsumer):
    """A member of a consumer group, created by `Client.push_consumer`:

        async with client.push_consumer("billing", subscribe={"Orders": "*"}) as consumer:
            await consumer.run(handle)

    The members of a group share the queues of its topics, and every message is delivered at least once to one
    of them. A handler that returns finishes its message; one that raises has it delivered again later, see
    `Retry` and `DeadLetter`. A cancelled handler does neither: its message stays unfinished.

    The committed offset of a queue is never beyond an unfinished message. When another member takes a queue
    over, the handlers of its messages are cancelled.

    Leaving stops the pulls, waits up to `drain_s` for the handlers, cancels the others, commits, releases
    locks and leaves the group, in this order, also after a cancellation.
    """

    consume_type = CONSUME_PASSIVELY
    options: PushOptions

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscribe: Subscribe,
        options: PushOptions,
        strategy: AllocationStrategy | None,
    ) -> None:
        now_ms = instance.now_ms()
        subscribed = subscriptions(subscribe, now_ms)
        if not options.broadcast:
            retries = retry_topic(group)
            subscribed[retries] = tag_subscription(retries, None, now_ms)
        client_id = instance.settings.effective_client_id
        rebalance = Rebalance(group, client_id, None if options.broadcast else strategy)
        super().__init__(instance, group, subscribed, options, rebalance)
        self.options = options

    async def _work(self, tasks: TaskGroup) -> None:
        self._outcomes = RetryPolicy(
            self.group,
            self.options,
            self._send_back,
            self._distributor,
            self._engine.statistics,
            tasks,
            self._instance,
            self._breaker(),
        )
        await super()._work(tasks)

    def _sources(self) -> list[Assigned]:
        return list(self._engine.assigned.values())
