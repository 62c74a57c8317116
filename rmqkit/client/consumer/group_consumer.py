"""What all members of a consumer group have in common: joining, keeping a share of the queues, leaving."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.consumer.bad_records import PuttingAway
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.engine import Engine
from rmqkit.client.consumer.lasting import lasting_error
from rmqkit.client.consumer.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from rmqkit.client.consumer.options import GroupOptions
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.consumer.rebalance import Rebalance
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.client.instance import Instance
from rmqkit.client.running_info import running_info
from rmqkit.errors import ClientError, NoRoute
from rmqkit.model.names import group_fault, retry_topic
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.model.subscription import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_ACTIVELY,
    CheckClientRequestBody,
    ConsumerData,
    SubscriptionData,
)
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request

log = logging.getLogger(__name__)

DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"
#: Time limit for the last commits and for leaving the group, after the handlers have ended.
LEAVE_S = 10.0


class GroupConsumer:
    """A member of a consumer group. The subclasses give its messages to the application.

    An error that time does not cure ends it: wrong settings, a damaged or forbidden file of offsets, a
    missing package, a group that does not exist or may not consume. What waits for messages raises the error,
    or else the end of `async with`. Other errors are logged, and the work is tried again.

    consume_type  the kind of consumer in heartbeats
    """

    consume_type: ClassVar[str]

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscribed: dict[str, SubscriptionData],
        options: GroupOptions,
        rebalance: Rebalance,
    ) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a consumer needs a legal group")
        if group == DEFAULT_CONSUMER_GROUP:
            raise ClientError(f"{DEFAULT_CONSUMER_GROUP} is reserved; name the group after your application")
        self.group = group
        self._instance = instance
        self._names = instance.names
        self._started_ms = instance.now_ms()
        self._subscriptions = subscribed
        self._distributor = Distributor()
        self._store: OffsetStore = (
            FileOffsets(options.offsets_folder, instance.settings.stable_client_id, group)
            if options.broadcast
            else BrokerOffsets(QueueOffsets(instance), group)
        )
        self._options = options
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
        self._joined = False
        self._stopping = anyio.Event()
        self._left = anyio.Event()

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Join the group and begin to pull; `aclose` leaves. `async with` calls both.

        Raises ClientError when this client already has a consumer of the group, and when the consumer was
        opened before; BrokerError when a broker refuses the condition of a subscription;
        NameServersUnreachable. A topic that does not exist yet is consumed from its creation on.
        """
        self._instance.check_usable()
        if self._joined:
            raise ClientError(f"this consumer of {self.group!r} was opened before; make another one")
        self._instance.join_consumer(self.group, self)
        try:
            await self._find_brokers()
            await self._check_conditions(self._subscriptions.values())
            await self._instance.heartbeat()
            ready = anyio.Event()
            self._instance.group.start_soon(self._run_engine, ready)
            await ready.wait()
        except BaseException:
            with anyio.move_on_after(LEAVE_S, shield=True):
                await self._instance.leave(consumer=self.group)
            raise
        return self

    async def aclose(self) -> None:
        """Stop, commit, release locks and leave the group. May be called twice; takes the time of a few
        requests, even when cancelled. Raises the error that ended the consumer, if nothing has raised it
        before."""
        if not self.is_open:
            return
        self.stop()
        await self._drain()
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self._engine.leave()
            await self._instance.leave(consumer=self.group)
        self._left.set()
        self._distributor.check_told()

    async def _drain(self) -> None:
        """Let the application finish what it has."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except Exception as ended:
            if error is None:
                raise
            log.error("the consumer of %s was ended by an error: %s", self.group, ended)

    def stop(self) -> None:
        """Pull and give out nothing more; what waits for messages ends. For signal handlers and other tasks
        of the same event loop."""
        self._engine.stop_pulling()
        self._distributor.close()
        self._stopping.set()

    @property
    def is_open(self) -> bool:
        """Whether the consumer has been started and not been left."""
        return self._joined and not self._left.is_set()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that belong to this member now, those of the retry topic included, sorted."""
        return self._names.outward(sorted(self._engine.assigned))

    def _check_open(self) -> None:
        if not self.is_open:
            raise ClientError(f"consumer of {self.group!r} is not open; use it inside `async with`")
        self._instance.check_usable()

    def _begin(self, tasks: TaskGroup) -> None:
        """Called once before the first pull, with the task group of the engine."""

    async def _run_engine(self, ready: anyio.Event) -> None:
        """Run everything that does not depend on handlers, in the client's task group."""
        try:
            async with anyio.create_task_group() as tasks:
                self._begin(tasks)
                self._joined = True
                ready.set()
                await self._engine.run(tasks)
                await self._left.wait()
                tasks.cancel_scope.cancel()
        except Exception as error:
            lasting = lasting_error(error)
            if lasting is None:
                raise
            log.error("the consumer of %s ends: %s", self.group, lasting)
            self._distributor.close(lasting)
        finally:
            self._distributor.close(ClientError(f"the client of the consumer of {self.group!r} has ended"))
            self._engine.stop_pulling()
            self._stopping.set()

    async def _find_brokers(self) -> None:
        for topic in self._subscriptions:
            if topic == retry_topic(self.group):
                continue
            try:
                await self._instance.routes.for_reading(topic)
            except NoRoute as error:
                log.warning("%s", error)

    async def _check_conditions(self, wanted: Iterable[SubscriptionData]) -> None:
        """Let a broker check each condition, so that a faulty one is an error here and not an empty
        queue."""
        for each in wanted:
            masters = [broker.master for broker in self._instance.routes.brokers(each.topic) if broker.master]
            if each.is_tag or not masters:
                continue
            client_id = self._instance.settings.effective_client_id
            body = CheckClientRequestBody(client_id=client_id, group=self.group, subscription_data=each)
            command = request(RequestCode.CHECK_CLIENT_CONFIG, body=compact(body))
            await self._instance.call(masters[0], command, f"checking the condition {each.sub_string!r}")

    # Requests of brokers: `server_requests.GroupMember`.

    def describe(self) -> ConsumerData:
        """The group's entry in heartbeats."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=BROADCASTING if self._options.broadcast else CLUSTERING,
            consume_from_where=self._options.consume_from_where,
            subscription_data_set=self._described(),
        )

    def _described(self) -> list[SubscriptionData]:
        return [self._subscriptions[topic] for topic in sorted(self._subscriptions)]

    def ids_changed(self) -> None:
        """Rebalance, because members have joined or left."""
        self._engine.rebalance_soon()

    def running_info(self) -> dict[str, Any]:
        """Subscriptions, the state of each queue, figures of each topic, and the settings."""
        now_ms = self._instance.now_ms()
        return running_info(
            self._instance,
            self.consume_type,
            self._described(),
            {queue: assigned.described(now_ms) for queue, assigned in self._engine.assigned.items()},
            started_ms=self._started_ms,
            statistics=self._engine.statistics.described(anyio.current_time()),
            settings={"consumerGroup": self.group} | self._options.described(),
        )

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Refuse to consume one message on an administrator's demand. Raises ClientError: there is no
        handler."""
        raise ClientError(
            f"the consumer of {self.group!r} asks for messages, and has no handler to consume one directly"
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
