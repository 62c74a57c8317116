"""The loops of a member of a group: rebalance, pulls, commits, lock renewals (behaviour sheet, B4, B7, B9,
B10, B12).

The loops run in the client's task group, not in the tasks of handlers: a slow handler delays none of them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.consumer.assigned import Assigned
from rmqkit.client.consumer.bad_records import PuttingAway
from rmqkit.client.consumer.decoding import with_value
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.lasting import is_lasting, is_pause
from rmqkit.client.consumer.offset_store import OffsetStore
from rmqkit.client.consumer.options import GroupOptions
from rmqkit.client.consumer.pulling import Puller, PullResult, PullStatus
from rmqkit.client.consumer.queue_locker import LOCK_LIFE_S, RENEWAL_RETRY_S, RENEWAL_S, QueueLocker
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.consumer.rebalance import Changes, Rebalance, changes
from rmqkit.client.consumer.send_back import restored
from rmqkit.client.consumer.statistics import ConsumeStatistics
from rmqkit.client.instance import Instance
from rmqkit.errors import BrokerError, ClientError, ConnectFailed, ConnectionLost, NoRoute, RmqError
from rmqkit.model.names import RETRY_PREFIX
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SubscriptionData
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import ConsumerGroupRequestHeader, ConsumerListBody

log = logging.getLogger(__name__)

#: Pause between two rebalances, after one that failed (doubled for each further one), and the shortest one.
REBALANCE_S = 20.0
FAILED_REBALANCE_S = 1.0
SHORTEST_REBALANCE_S = 0.2
#: The former owner of a queue rebalances at the same time and commits its offset within this time. Without
#: the pause the new owner would repeat the messages since the last regular commit.
HANDOVER_S = 0.5
COMMIT_S = 5.0
#: Queues whose start offsets are asked for at a time: thousands at once would time out at a busy broker.
MAX_STARTING = 64
HOLD_MS = 15_000
PULL_TIMEOUT_MS = 30_000
#: A queue whose pull has not ended in this time is given up and taken anew. No pull takes so long unless its
#: answer is lost within this process, by a hook for example.
PULL_EXPIRY_S = 120.0
#: Pause after a failed pull, and after one that the broker throttled.
PULL_RETRY_S = 1.0
THROTTLED_S = 0.02


class Engine:
    """Keeps the share of one member: assigns queues, pulls them, commits their offsets.

    assigned    the queues that belong to this member now
    distributor  hands out their messages
    statistics  how fast they are pulled and consumed
    """

    def __init__(
        self,
        instance: Instance,
        subscriptions: Mapping[str, SubscriptionData],
        options: GroupOptions,
        rebalance: Rebalance,
        store: OffsetStore,
        distributor: Distributor[Assigned],
        putting_away: PuttingAway,
        *,
        lite: bool = False,
    ) -> None:
        self.assigned: dict[MessageQueue, Assigned] = {}
        self.distributor = distributor
        self.statistics = ConsumeStatistics()
        self._instance = instance
        self._group = rebalance.group
        self._subscriptions = subscriptions
        self._options = options
        self._rebalance = rebalance
        self._store = store
        self._putting_away = putting_away
        self._offsets = QueueOffsets(instance)
        self._puller = Puller(instance, self._group, lite=lite)
        self._locker = QueueLocker(instance, self._group) if self._locks else None
        #: Queues that were lost and are not committed or unlocked yet.
        self._releasing: dict[MessageQueue, Assigned] = {}
        #: Queues whose locks have been requested and that are not assigned yet.
        self._claimed: set[MessageQueue] = set()
        #: Whether the group has other members.
        self._shared = False
        self._wanted = anyio.Event()
        self._passes_begun = self._passes_ended = 0
        self._pass_ended = anyio.Event()
        self._feeding = anyio.CancelScope()
        self._tasks: TaskGroup | None = None

    @property
    def _locks(self) -> bool:
        return self._options.queue_order != "none" and not self._options.broadcast

    @property
    def _commits_with_pulls(self) -> bool:
        """Whether pulls carry the offset to commit."""
        return self._options.commits and not self._options.broadcast

    # --- life -----------------------------------------------------------------------------------------------

    async def run(self, tasks: TaskGroup) -> None:
        """Run the loops in `tasks` until they are cancelled. Raises errors that time does not cure; so does
        the group."""
        self._tasks = tasks
        tasks.start_soon(self._commit_loop)
        if self._locker is not None:
            tasks.start_soon(self._renew_locks, self._locker)
        with self._feeding:
            await self._rebalance_loop()

    def stop_pulling(self) -> None:
        """Assign and pull nothing more. Commits and lock renewals go on."""
        self._feeding.cancel()
        self._end_of_pass()
        for assigned in self.assigned.values():
            assigned.pulls.cancel()

    async def leave(self) -> None:
        """Commit the finished prefixes and release the locks. Failures are logged."""
        held = [*self.assigned.values(), *self._releasing.values()]
        try:
            await self._commit_if_wanted(held)
        except RmqError as error:
            log.warning("group %s is left with offsets that are not committed: %s", self._group, error)
        if self._locker is not None:
            await self._locker.unlock(self._claimed.union(assigned.queue for assigned in held))

    # --- rebalance ------------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance before the interval has passed."""
        self._wanted.set()

    async def rebalance_now(self) -> None:
        """Rebalance, and return when a pass that began after this call has ended, or when pulling has been
        stopped. Queues that cannot be started yet follow later."""
        awaited = self._passes_begun + 1
        self._wanted.set()
        while self._passes_ended < awaited and not self._feeding.cancel_called:
            await self._pass_ended.wait()

    async def _rebalance_loop(self) -> None:
        failing_s = FAILED_REBALANCE_S
        while True:
            self._wanted = anyio.Event()
            began_s = anyio.current_time()
            self._passes_begun += 1
            if await self._rebalance_once():
                failing_s = FAILED_REBALANCE_S
                pause_s = REBALANCE_S
            else:
                pause_s, failing_s = failing_s, min(failing_s * 2, REBALANCE_S)
            self._passes_ended = self._passes_begun
            self._end_of_pass()
            with anyio.move_on_after(pause_s):
                await self._wanted.wait()
            # A burst of notifications causes one rebalance.
            await anyio.sleep_until(began_s + SHORTEST_REBALANCE_S)

    def _end_of_pass(self) -> None:
        self._pass_ended.set()
        self._pass_ended = anyio.Event()

    async def _rebalance_once(self) -> bool:
        """Compute the share and change to it. Returns False when a part of it must be tried again."""
        shares = {topic: await self._share(topic) for topic in list(self._subscriptions)}
        change = changes(self.assigned, shares)
        for queue in change.lost:
            self._lose(self.assigned[queue])
        expired = self._expired()
        for assigned in expired:
            log.warning("%s had no pull for %.0f s and is taken anew", assigned.queue, PULL_EXPIRY_S)
            self._lose(assigned)
        gained = await self._gain([queue for queue in change.gained if queue not in self._releasing])
        if change.gained or change.lost:
            log.info(
                "group %s: %d queues; gained %s, lost %s",
                self._group,
                len(self.assigned),
                ", ".join(map(str, gained)) or "none",
                ", ".join(map(str, change.lost)) or "none",
            )
        if gained or change.lost:
            self._tell(Changes(gained=tuple(gained), lost=change.lost))
        return None not in shares.values() and len(gained) == len(change.gained) and not expired

    def _expired(self) -> list[Assigned]:
        latest_s = anyio.current_time() - PULL_EXPIRY_S
        return [
            assigned
            for assigned in self.assigned.values()
            if not assigned.waiting and assigned.pulled_s < latest_s
        ]

    def _tell(self, change: Changes) -> None:
        if self._options.on_rebalance is not None:
            try:
                names = self._instance.names
                shown = Changes(gained=names.outward(change.gained), lost=names.outward(change.lost))
                self._options.on_rebalance(shown)
            except Exception:
                log.exception("on_rebalance of group %s fails", self._group)

    async def _share(self, topic: str) -> list[MessageQueue] | None:
        """The share of a topic; None when it cannot be computed now."""
        try:
            route = await self._instance.routes.for_reading(topic)
            members = await self._members(topic) if self._rebalance.needs_members else []
        except RmqError as error:
            if is_lasting(error):
                raise
            # A broker creates the retry topic after the first heartbeat.
            expected = isinstance(error, NoRoute) and topic.startswith(RETRY_PREFIX)
            level = logging.DEBUG if expected else logging.WARNING
            log.log(level, "%s is not assigned yet: %s", topic, error)
            return None
        try:
            return self._rebalance.share(topic, route.read_queues, members)
        except Exception:
            log.exception("the allocation strategy fails for %s; its queues stay as they are", topic)
            return None

    async def _members(self, topic: str) -> list[str]:
        """The client ids of the group as one broker of the topic knows them. If this client is missing, the
        broker has not got its heartbeat yet, or has forgotten it."""
        members = await self._ask_members(topic)
        if self._rebalance.client_id not in members:
            await self._instance.heartbeat()
            members = await self._ask_members(topic)
        if not members:
            raise ClientError(f"the brokers know no member of group {self._group!r} yet")
        self._shared = len(members) > 1
        return members

    async def _ask_members(self, topic: str) -> list[str]:
        addresses = [
            broker.master or next(iter(broker.broker_addrs.values()))
            for broker in self._instance.routes.brokers(topic)
            if broker.broker_addrs
        ]
        if not addresses:
            raise ClientError(f"the route of {topic} names no broker")
        header = ConsumerGroupRequestHeader(consumer_group=self._group)
        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        doing = f"asking for the members of group {self._group!r}"
        try:
            response = await self._instance.call(random.choice(addresses), command, doing)
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR:
                return []
            raise
        return response.decode_body(ConsumerListBody).consumer_id_list

    async def _gain(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Lock the queues if they are ordered, and start to pull them. Returns those that were started."""
        if not queues:
            return []
        now_s = anyio.current_time()
        if self._locker is not None:
            self._claimed.update(queues)
            queues = (await self._locker.lock(queues)).granted
        elif self._shared:
            await anyio.sleep(HANDOVER_S)
        started: list[MessageQueue] = []
        starting = anyio.CapacityLimiter(MAX_STARTING)

        async def start(queue: MessageQueue) -> None:
            try:
                async with starting:
                    offset = await self._start_offset(queue)
            except RmqError as error:
                if is_lasting(error):
                    raise
                log.warning("%s is not started yet: %s", queue, error)
                return
            if self._feeding.cancel_called:
                return
            assigned = self._assigned_at(queue, offset)
            assigned.locked_s = now_s
            self.assigned[queue] = assigned
            started.append(queue)
            assert self._tasks is not None
            self._tasks.start_soon(self._pull_loop, assigned)

        async with anyio.create_task_group() as group:
            for queue in queues:
                group.start_soon(start, queue)
        if self._locker is not None:
            await self._locker.unlock(set(queues).difference(started))
            self._claimed.clear()
        return sorted(started)

    def _assigned_at(self, queue: MessageQueue, offset: int) -> Assigned:
        bad_aside = self._options.bad_records == "dead_letter"
        return Assigned(queue, offset, order=self._options.queue_order, bad_aside=bad_aside)

    async def _start_offset(self, queue: MessageQueue) -> int:
        """Where to start a queue: the committed offset, else as the settings say."""
        start = self._options.start
        retries = queue.topic.startswith(RETRY_PREFIX)
        found = await self._store.read(queue, young_is_zero=start == "last")
        if found is not None:
            return found
        if retries or start == "first":
            return await self._offsets.min_offset(queue)
        if isinstance(start, datetime):
            return await self._offsets.offset_for_time(queue, int(start.timestamp() * 1000))
        return await self._offsets.max_offset(queue)

    # --- losing queues --------------------------------------------------------------------------------------

    def _lose(self, assigned: Assigned) -> None:
        """Drop a queue: its handlers are cancelled, then its offset is committed and its lock released."""
        assert self._tasks is not None
        del self.assigned[assigned.queue]
        assigned.drop()
        self._puller.forget(assigned.queue)
        self._releasing[assigned.queue] = assigned
        self._tasks.start_soon(self._release, assigned)

    async def _release(self, assigned: Assigned) -> None:
        try:
            await self._commit_if_wanted([assigned])
            if self._locker is not None:
                # The next owner must not begin before the handler here has ended.
                await assigned.await_idle()
                await self._locker.unlock([assigned.queue])
        finally:
            del self._releasing[assigned.queue]

    def restart(self, assigned: Assigned, offset: int, *, commit: bool) -> None:
        """Continue a queue at another offset, and commit it at once if `commit` is set. What was pulled is
        dropped, and its handlers are cancelled."""
        assert self._tasks is not None
        assigned.drop()
        fresh = self._assigned_at(assigned.queue, offset)
        fresh.locked_s = assigned.locked_s
        fresh.paused = assigned.paused
        self.assigned[assigned.queue] = fresh
        self._tasks.start_soon(self._restart, assigned, fresh, commit)

    async def _restart(self, old: Assigned, fresh: Assigned, commit: bool) -> None:
        if old.ordered:
            await old.await_idle()
        if commit:
            await self.commit([fresh])
        await self._pull_loop(fresh)

    # --- pulls ----------------------------------------------------------------------------------------------

    async def _pull_loop(self, assigned: Assigned) -> None:
        """Pull one queue until it is dropped or the consumer is left."""
        lost_connection = paused = False
        with assigned.pulls:
            # A queue dropped by its own answer must not pull once more: the broker would hold that pull, and
            # give it the offset of the next reset.
            while not assigned.dropped:
                await assigned.await_room(self._options.prefetch)
                try:
                    result = await self._pull(assigned)
                except RmqError as error:
                    if self._ends(error, assigned.queue):
                        raise
                    throttled = isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
                    if not throttled and not (paused and is_pause(error)):
                        log.warning("pulling %s failed: %s", assigned.queue, error)
                    paused = is_pause(error)
                    lost_connection = lost_connection or isinstance(error, (ConnectFailed, ConnectionLost))
                    await anyio.sleep(THROTTLED_S if throttled else PULL_RETRY_S)
                    continue
                if lost_connection:
                    # A restarted broker does not know the members of the group.
                    lost_connection = False
                    self._instance.heartbeat_soon()
                    self.rebalance_soon()
                self._received(assigned, result)
                if self._options.pull_interval_ms:
                    await anyio.sleep(self._options.pull_interval_ms / 1000)

    def _ends(self, error: RmqError, queue: MessageQueue) -> bool:
        """Whether a failed pull ends the consumer. Slaves and filter servers are not believed: the next pull
        goes to the master."""
        if isinstance(error, BrokerError) and error.address != self._instance.routes.master(
            queue.broker_name
        ):
            return False
        return is_lasting(error)

    async def _pull(self, assigned: Assigned) -> PullResult:
        began_s = anyio.current_time()
        result = await self._puller.pull(
            assigned.queue,
            assigned.messages.pulled_to,
            self._subscriptions[assigned.queue.topic],
            max_messages=self._options.pull_messages,
            hold_ms=HOLD_MS,
            timeout_ms=PULL_TIMEOUT_MS,
            commit_offset=assigned.messages.commit_offset if self._commits_with_pulls else 0,
            room_bytes=self._options.prefetch.room_bytes(assigned.messages),
        )
        now_s = anyio.current_time()
        self.statistics.pulled(assigned.queue.topic, len(result.messages), now_s - began_s, now_s)
        return result

    def _received(self, assigned: Assigned, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset %d of %s is out of range, continuing at %d",
                assigned.messages.pulled_to,
                assigned.queue,
                result.next_offset,
            )
            if result.next_offset < assigned.messages.pulled_to:
                self.restart(assigned, result.next_offset, commit=self._options.commits)
                return
        names, codec = self._instance.names, self._options.codec
        messages = [restored(message, self._group, names) for message in result.messages]
        if codec is not None:
            messages = [with_value(message, codec) for message in messages]
        assert self._tasks is not None
        for bad in assigned.messages.put(messages, result.next_offset):
            self._tasks.start_soon(self._putting_away.put_away, assigned, bad)
        self.distributor.offer(assigned)

    # --- commits and locks ----------------------------------------------------------------------------------

    async def commit(self, queues: Iterable[Assigned]) -> list[MessageQueue]:
        """Commit the finished prefixes that have changed. Returns the queues where it failed, which is
        logged. Raises as `OffsetStore.commit`."""
        moved = {
            assigned: assigned.messages.commit_offset
            for assigned in queues
            if assigned.messages.commit_offset != assigned.committed
        }
        if not moved:
            return []
        done = await self._store.commit({assigned.queue: offset for assigned, offset in moved.items()})
        for assigned, offset in moved.items():
            if assigned.queue in done:
                assigned.committed = offset
        return sorted(assigned.queue for assigned in moved if assigned.queue not in done)

    async def _commit_loop(self) -> None:
        while True:
            await anyio.sleep(COMMIT_S)
            await self._commit_if_wanted(list(self.assigned.values()))

    async def _commit_if_wanted(self, queues: Iterable[Assigned]) -> None:
        if self._options.commits:
            await self.commit(queues)

    async def _renew_locks(self, locker: QueueLocker) -> None:
        pause_s = RENEWAL_S
        while True:
            await anyio.sleep(pause_s)
            now_s = anyio.current_time()
            outcome = await locker.lock(list(self.assigned))
            unanswered = False
            for queue, assigned in list(self.assigned.items()):
                if queue in outcome.granted:
                    assigned.locked_s = now_s
                elif queue in outcome.refused or anyio.current_time() - assigned.locked_s > LOCK_LIFE_S:
                    log.warning("the lock of %s is lost", queue)
                    self._lose(assigned)
                    self.rebalance_soon()
                elif assigned.locked_s < now_s:
                    unanswered = True
            pause_s = RENEWAL_RETRY_S if unanswered else RENEWAL_S
