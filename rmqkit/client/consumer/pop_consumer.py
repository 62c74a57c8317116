"""The pop consumer (Java: DefaultMQPushConsumer with setClientRebalance(false); SimpleConsumer of 5.x)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.consumer.assigned import LANES
from rmqkit.client.consumer.bad_records import described, taken
from rmqkit.client.consumer.decoding import with_value
from rmqkit.client.consumer.delivery import DeadLetter, MessageOutcomes
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.handler_consumer import HandlerConsumer
from rmqkit.client.consumer.lasting import is_lasting, is_pause
from rmqkit.client.consumer.lease import Lease
from rmqkit.client.consumer.lease_outcomes import LeaseOutcomes
from rmqkit.client.consumer.leases import Leases
from rmqkit.client.consumer.options import Subscribe, subscriptions
from rmqkit.client.consumer.pop_options import PopOptions, check_lease
from rmqkit.client.consumer.popping import MAX_POP, Popper
from rmqkit.client.consumer.retry_schedule import DEAD_LETTER, RetrySchedule
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.client.consumer.settling import log_dead
from rmqkit.client.consumer.statistics import ConsumeStatistics
from rmqkit.client.instance import Instance
from rmqkit.errors import ClientError, ConnectFailed, ConnectionLost, RmqError
from rmqkit.model.dead_letter import ASKED, Why
from rmqkit.model.subscription import CONSUME_PASSIVELY

log = logging.getLogger(__name__)

#: How long brokers hold a pop, and the pause after one that failed.
HOLD_MS: Final = 15_000
POP_RETRY_S: Final = 1.0
#: Routes are looked at again after this time at the latest, and sooner while one is missing.
ROUTES_S: Final = 30.0
MISSING_ROUTE_S: Final = 1.0
RECEIVE_WAIT_MS: Final = 15_000

#: A topic at one broker.
_Place = tuple[str, str]


class PopConsumer(HandlerConsumer):
    """A member of a consumer group that leases messages one by one, created by `Client.pop_consumer`:

        async with client.pop_consumer("billing", subscribe={"Orders": "*"}) as consumer:
            await consumer.run(handle)

    Any member may get any message of any queue, so members may outnumber queues, and a slow message holds up
    nobody else. A message is leased until its handler ends, for the lease is renewed meanwhile; what a killed
    member had goes to others when its leases end. Handlers, iteration and batches are those of
    `PushConsumer`. A failed message is delivered again after a time that the group's retry policy says, else
    this client by the number of attempts; `Retry` and `DeadLetter` say otherwise.

    `receive`, `ack`, `extend`, `release` and `dead_letter` do the same by hand: nobody renews those leases.

    Leaving waits up to `drain_s` for the handlers, cancels the others, sends acknowledgements, and gives back
    what is leased and was not handled.
    """

    consume_type = CONSUME_PASSIVELY
    options: PopOptions
    _distributor: Distributor[Lease]

    def __init__(self, instance: Instance, group: str, subscribe: Subscribe, options: PopOptions) -> None:
        subscribed = subscriptions(subscribe, instance.now_ms())
        for each in subscribed.values():
            if each.class_filter_mode:
                raise ClientError(
                    f"topic {each.topic!r} is subscribed with a filter class, which pops do not know; use"
                    " tags, SQL92 or a filter in Python"
                )
        super().__init__(instance, group, subscribed, options, Distributor(self._note_room))
        self.options = options
        self.statistics = ConsumeStatistics()
        self._popper = Popper(instance, group, order=options.order, from_first=options.start == "first")
        self._send_back = SendBack(instance, group, RetrySchedule(options.max_attempts))
        self._leases: Leases | None = None
        self._loops: dict[_Place, anyio.CancelScope] = {}
        #: Set when something asks for messages for the first time.
        self._wanted = anyio.Event()
        #: Set at the next change of what may be leased; None while nothing waits for it.
        self._room_changed: anyio.Event | None = None
        self._turn = 0

    # --- work -----------------------------------------------------------------------------------------------

    def _opened(self) -> MessageOutcomes[Any]:
        outcomes = super()._opened()
        self._wanted.set()
        return outcomes

    async def _work(self, tasks: TaskGroup) -> None:
        leases = self._leases = Leases(
            self._popper,
            self._distributor,
            tasks,
            self.options.lease_ms,
            LANES[self.options.order],
            self._note_room,
        )
        self._outcomes = LeaseOutcomes(
            self._instance,
            self.group,
            self.options,
            self._popper,
            leases,
            self._send_back,
            self.statistics,
            self._breaker(),
        )
        tasks.start_soon(leases.run)
        tasks.start_soon(self._follow_routes, tasks)

    async def _follow_routes(self, tasks: TaskGroup) -> None:
        """Pop from each broker that has a topic, as soon as somebody wants messages."""
        await self._wanted.wait()
        while True:
            places, is_complete = await self._places()
            for place, scope in list(self._loops.items()):
                if place not in places:
                    scope.cancel()
            for place in places:
                if place not in self._loops:
                    self._loops[place] = anyio.CancelScope()
                    tasks.start_soon(self._pop_loop, place)
            with anyio.move_on_after(ROUTES_S if is_complete else MISSING_ROUTE_S):
                await self._instance.routes.changed()

    async def _places(self) -> tuple[list[_Place], bool]:
        """The brokers that have a topic, and whether all topics have a route."""
        places: dict[_Place, None] = {}
        is_complete = True
        for topic in self._subscriptions:
            try:
                route = await self._instance.routes.for_reading(topic)
            except RmqError as error:
                if is_lasting(error):
                    raise
                log.info("%s", error)
                is_complete = False
                continue
            places |= dict.fromkeys((topic, queue.broker_name) for queue in route.read_queues)
        return list(places), is_complete

    def _note_room(self) -> None:
        if self._room_changed is not None:
            self._room_changed.set()
            self._room_changed = None

    async def _await_room(self) -> None:
        """Wait for the next change of what may be leased."""
        if self._room_changed is None:
            self._room_changed = anyio.Event()
        await self._room_changed.wait()

    def _room(self) -> int:
        """How many messages may be leased now."""
        assert self._leases is not None
        ahead = 0 if self._leases.stalled else self.options.prefetch
        return ahead + self._distributor.wanted - self._leases.waiting

    async def _pop_loop(self, place: _Place) -> None:
        """Pop one topic from one broker until it has neither, or the consumer stops."""
        try:
            with self._loops[place]:
                lost_connection = paused = False
                while not self._stopping.is_set():
                    room = self._room()
                    if room <= 0:
                        await self._await_room()
                        continue
                    try:
                        await self._pop(place, min(room, MAX_POP))
                    except RmqError as error:
                        if is_lasting(error):
                            raise
                        if not (paused and is_pause(error)):
                            log.warning("%s", error)
                        paused = is_pause(error)
                        lost_connection = lost_connection or isinstance(
                            error, (ConnectFailed, ConnectionLost)
                        )
                        await anyio.sleep(POP_RETRY_S)
                        continue
                    if lost_connection:
                        # A restarted broker does not know the members of the group.
                        lost_connection = False
                        self._instance.heartbeat_soon()
        finally:
            del self._loops[place]

    async def _pop(self, place: _Place, count: int) -> None:
        """One held pop. It runs in a task of the client: what it brings after this member has stopped is
        given back, and not left alone until its lease ends. Raises as `Popper.pop`."""
        leases = self._leases
        assert leases is not None
        done = anyio.Event()
        failures: list[RmqError] = []

        async def pop() -> None:
            try:
                found = await self._lease(place, count, wait_ms=HOLD_MS)
                if self._stopping.is_set():
                    for lease in found:
                        await leases.release(lease)
                else:
                    self._offer(found)
            except RmqError as error:
                failures.append(error)
            finally:
                done.set()

        self._instance.group.start_soon(pop)
        await done.wait()
        if failures:
            raise failures[0]

    async def _lease(self, place: _Place, count: int, *, wait_ms: int, lease_ms: int = 0) -> list[Lease]:
        topic, broker_name = place
        began_s = anyio.current_time()
        found = await self._popper.pop(
            broker_name,
            self._subscriptions[topic],
            count,
            lease_ms=lease_ms or self.options.lease_ms,
            wait_ms=wait_ms,
        )
        for lease in found:
            lease.message = with_value(lease.message, self.options.codec)
        now_s = anyio.current_time()
        self.statistics.pulled(topic, len(found), now_s - began_s, now_s)
        return found

    def _offer(self, found: Iterable[Lease]) -> None:
        assert self._leases is not None
        for lease in self._deliverable(found):
            self._leases.offer(lease)

    def _deliverable(self, found: Iterable[Lease]) -> list[Lease]:
        """Those that the application gets; the others are put away."""
        assert self._leases is not None
        good = []
        for lease in found:
            if lease.message.fault is not None and self.options.bad_records == "dead_letter":
                self._leases.keep(lease)
                self._instance.group.start_soon(self._put_away, lease)
            else:
                good.append(lease)
        return good

    async def _put_away(self, lease: Lease) -> None:
        """Move a record that cannot be decoded to the dead letters of the group. When that fails, it comes
        again after its lease."""
        assert self._leases is not None
        with anyio.CancelScope() as scope:
            lease.handlers.add(scope)
            try:
                await self._send_back.put_away(lease.message)
            except RmqError as error:
                log.warning("%s; it comes again after its lease: %s", described(lease.message), error)
                self._leases.let_end(lease)
            else:
                log.error("%s; %s", described(lease.message), taken(self.group))
                self._leases.finish(lease)
            finally:
                lease.handled(scope)

    # --- leaving --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Lease and give out nothing more; what waits for messages ends. For signal handlers and other tasks
        of the same event loop."""
        super().stop()
        self._note_room()

    def _sources(self) -> list[Lease]:
        assert self._leases is not None
        return self._leases.held

    async def _leave(self) -> None:
        leases = self._leases
        assert leases is not None
        async with anyio.create_task_group() as group:
            for lease in leases.held:
                group.start_soon(leases.release, lease)
        await leases.flush()
        await super()._leave()

    # --- by hand --------------------------------------------------------------------------------------------

    async def receive(
        self, max_messages: int = MAX_POP, *, wait_ms: int = RECEIVE_WAIT_MS, lease_ms: int | None = None
    ) -> list[Lease]:
        """Lease up to `max_messages` messages, as soon as there are some; none after `wait_ms`, and after
        `stop`. Each is yours for `lease_ms` (default: that of the options), and delivered again after it
        unless you `ack` it.

        Raises ClientError for numbers out of range and when the client has ended, BrokerError when a broker
        refuses for good. When cancelled, no message is leased.
        """
        self._check_open()
        if max_messages < 1:
            raise ClientError(f"max_messages={max_messages}: at least one message must be asked for")
        if wait_ms < 0:
            raise ClientError(f"wait_ms={wait_ms}: must not be negative")
        length_ms = self.options.lease_ms if lease_ms is None else lease_ms
        check_lease(length_ms)
        ends_s = anyio.current_time() + wait_ms / 1000
        while not self._stopping.is_set():
            await anyio.lowlevel.checkpoint()
            places, is_complete = await self._places()
            with anyio.CancelScope(shield=True):
                found = await self._receive_now(places, max_messages, length_ms)
            left_s = ends_s - anyio.current_time()
            if found or left_s <= 0:
                return found
            with anyio.move_on_after(left_s if is_complete else min(left_s, MISSING_ROUTE_S)):
                await self._await_messages(places, left_s)
        return []

    async def _receive_now(self, places: list[_Place], count: int, lease_ms: int) -> list[Lease]:
        """What is there, beginning with another broker and topic each time."""
        found: list[Lease] = []
        self._turn += 1
        first = self._turn % max(len(places), 1)
        failure: RmqError | None = None
        for place in (*places[first:], *places[:first]):
            while len(found) < count:
                wanted = min(count - len(found), MAX_POP)
                try:
                    some = await self._lease(place, wanted, wait_ms=0, lease_ms=lease_ms)
                except RmqError as error:
                    if is_lasting(error):
                        failure = failure or error
                    log.warning("%s", error)
                    break
                found += self._deliverable(some)
                if len(some) < wanted:
                    break
        if failure is not None and not found:
            raise failure
        return found

    async def _await_messages(self, places: list[_Place], wait_s: float) -> None:
        """Wait until a broker has messages, or the consumer stops."""
        if not places:
            await self._instance.routes.changed()
            return
        async with anyio.create_task_group() as group:

            async def ask(place: _Place) -> None:
                topic, broker_name = place
                wait_ms = max(1, min(HOLD_MS, round(wait_s * 1000)))
                try:
                    if not await self._popper.ready(broker_name, self._subscriptions[topic], wait_ms):
                        return
                except RmqError as error:
                    log.warning("%s", error)
                    await anyio.sleep(POP_RETRY_S)
                group.cancel_scope.cancel()

            async def stopped() -> None:
                await self._stopping.wait()
                group.cancel_scope.cancel()

            group.start_soon(stopped)
            async with anyio.create_task_group() as asking:
                for place in places:
                    asking.start_soon(ask, place)
            group.cancel_scope.cancel()

    async def ack(self, *leases: Lease) -> None:
        """Finish messages of `receive`. Several of one broker go in one request, in which those whose lease
        has ended are passed over, to be delivered again; a single one raises BrokerError then. Raises
        RmqError when a broker does not answer. When cancelled, they may be finished."""
        self._check_open()
        await self._popper.ack(leases)

    async def extend(self, lease: Lease, lease_ms: int | None = None) -> None:
        """Renew the lease of a message of `receive`: it ends `lease_ms` from now on (default: that of the
        options). Raises ClientError for a length out of range, BrokerError when the lease has ended, RmqError
        when the broker does not answer. When cancelled, it may be renewed."""
        self._check_open()
        length_ms = self.options.lease_ms if lease_ms is None else lease_ms
        check_lease(length_ms)
        await self._popper.change(lease, length_ms)

    async def release(self, lease: Lease, *, after_ms: int = 0, counts: bool = True) -> None:
        """Give a message of `receive` back, to be delivered again after a time. `counts`: as another attempt.
        Raises ClientError for a negative time, else as `extend`."""
        self._check_open()
        if after_ms < 0:
            raise ClientError(f"after_ms={after_ms}: must not be negative")
        await self._popper.change(lease, after_ms, suspend=not counts)

    async def dead_letter(self, lease: Lease, why: str = "") -> None:
        """Move a message of `receive` to the dead letters of the group, which say `why`. Raises RmqError;
        when cancelled, it may have been moved, and come once more."""
        self._check_open()
        await self._send_back.send(lease.message, DEAD_LETTER, Why(ASKED, why))
        await self._popper.ack([lease])
        log_dead(self.group, lease.message, DeadLetter(why))

    def ids_changed(self) -> None:
        """Nothing: members share no queues."""

    def running_info(self) -> dict[str, Any]:
        """Subscriptions, figures of each topic, and the settings."""
        return self._running_info(statistics=self.statistics.described(anyio.current_time()))
