"""What all members of a consumer group have in common: joining and leaving, and what brokers ask them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Protocol, Self

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.lasting import lasting_error
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.instance import Instance
from rmqkit.client.running_info import running_info
from rmqkit.errors import ClientError, NoRoute
from rmqkit.model.names import group_fault, retry_topic
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.model.subscription import CLUSTERING, CheckClientRequestBody, ConsumerData, SubscriptionData
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request

log = logging.getLogger(__name__)

DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"
#: Time limit for the last requests and for leaving the group, after the handlers have ended.
LEAVE_S = 10.0


class MemberOptions(Protocol):
    """What settings of a member say to brokers."""

    @property
    def consume_from_where(self) -> str:
        """Where a new group begins, in the words of heartbeats."""

    def described(self) -> dict[str, str]:
        """The settings by their names in Java, for administrators."""


class Member(ABC):
    """A member of a consumer group. The subclasses get its messages, and give them to the application.

    An error that time does not cure ends it: wrong settings, a damaged or forbidden file of offsets, a
    missing package, a group that does not exist or may not consume. What waits for messages raises the error,
    or else the end of `async with`. Other errors are logged, and the work is tried again.

    consume_type   the kind of consumer in heartbeats
    message_model  whether members share the messages, in heartbeats
    """

    consume_type: ClassVar[str]
    message_model = CLUSTERING

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscribed: dict[str, SubscriptionData],
        options: MemberOptions,
        distributor: Distributor[Any],
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
        self._settings = options
        self._distributor = distributor
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
            self._instance.group.start_soon(self._run, ready)
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
            await self._leave()
        self._left.set()
        self._distributor.check_told()

    @abstractmethod
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
        self._distributor.close()
        self._stopping.set()

    @property
    def is_open(self) -> bool:
        """Whether the consumer has been started and not been left."""
        return self._joined and not self._left.is_set()

    @property
    def has_left(self) -> bool:
        """Whether the consumer has been left: it cannot be opened again."""
        return self._left.is_set()

    def _check_open(self) -> None:
        if not self.is_open:
            raise ClientError(f"consumer of {self.group!r} is not open; use it inside `async with`")
        self._instance.check_usable()

    @abstractmethod
    async def _work(self, tasks: TaskGroup) -> None:
        """Start what gets messages, in a task group that ends when the group has been left. The application
        may ask for messages from the first checkpoint on."""

    async def _leave(self) -> None:
        """Leave the group, within a time limit. Failures are logged."""
        await self._instance.leave(consumer=self.group)

    async def _run(self, ready: anyio.Event) -> None:
        """Run everything that does not depend on handlers, in the client's task group."""
        try:
            async with anyio.create_task_group() as tasks:
                self._joined = True
                ready.set()
                await self._work(tasks)
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
            self.stop()

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
            message_model=self.message_model,
            consume_from_where=self._settings.consume_from_where,
            subscription_data_set=self._described(),
        )

    def _described(self) -> list[SubscriptionData]:
        return [self._subscriptions[topic] for topic in sorted(self._subscriptions)]

    @abstractmethod
    def ids_changed(self) -> None:
        """Members have joined or left."""

    def running_info(self) -> dict[str, Any]:
        """Subscriptions and settings."""
        return self._running_info()

    def _running_info(
        self,
        queues: Mapping[MessageQueue, Mapping[str, int | bool]] = MappingProxyType({}),
        statistics: Mapping[str, Mapping[str, float | int]] = MappingProxyType({}),
    ) -> dict[str, Any]:
        return running_info(
            self._instance,
            self.consume_type,
            self._described(),
            queues,
            started_ms=self._started_ms,
            statistics=statistics,
            settings={"consumerGroup": self.group} | self._settings.described(),
        )

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Refuse to consume one message on an administrator's demand. Raises ClientError: there is no
        handler."""
        raise ClientError(
            f"the consumer of {self.group!r} asks for messages, and has no handler to consume one directly"
        )

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """None: it has no queues."""
        return {}

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Refuse: it has no queues. Raises ClientError."""
        raise ClientError(f"the consumer of {self.group!r} has no queues whose offsets could be reset")
