"""Keeps the leases of a pop consumer: renews those in hand, gives back what waits for too long, and sends
acknowledgements."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.lease import Lease
from rmqkit.client.consumer.popping import Popper
from rmqkit.client.consumer.process_queue import LaneOf
from rmqkit.errors import BrokerError, RmqError
from rmqkit.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

#: A message that waits so long for a handler of this member is given back: others may be idle.
PATIENCE_S: Final = 1.0
#: Leases are looked at this often, and renewed when this part of them has passed.
LOOK_S: Final = 0.25
RENEWED_AT: Final = 0.5
#: Acknowledgements of one request, and the pause after one that failed.
_MAX_ACKS: Final = 1_024
_AGAIN_S: Final = 1.0
#: Leases that are renewed or given back at a time.
_MAX_CHANGING: Final = 64
#: The broker does not know the lease any more.
_ENDED = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL})


class Leases:
    """The leases of one member whose messages wait for handlers or are in their hands.

    Messages of one lane are handled one after the other: the next one when the one before it is finished. If
    that fails, those behind it are given back, for the broker delivers it before them.

    waiting   messages that wait for a handler
    stalled   whether one has waited for too long and none was taken since
    """

    def __init__(
        self,
        popper: Popper,
        distributor: Distributor[Lease],
        tasks: TaskGroup,
        lease_ms: int,
        lane_of: LaneOf | None,
        on_room: Callable[[], None],
    ) -> None:
        self.waiting = 0
        self.stalled = False
        self._popper = popper
        self._distributor = distributor
        self._tasks = tasks
        self._lease_ms = lease_ms
        self._lane_of = lane_of
        self._on_room = on_room
        #: The leases of each lane, in order.
        self._lanes: dict[Hashable, deque[Lease]] = {}
        self._held: dict[Lease, None] = {}
        #: Set when there is a lease to look at.
        self._some = anyio.Event()
        self._renewing: set[Lease] = set()
        self._changing = anyio.CapacityLimiter(_MAX_CHANGING)
        #: Finished messages by broker, while something sends their acknowledgements.
        self._finished: dict[str, deque[Lease]] = {}
        self._flushed = anyio.Event()

    def offer(self, lease: Lease) -> None:
        """Let handlers take the message of a new lease."""
        self._hold(lease)
        self.waiting += 1
        lease.on_move = self._moved
        lane = self._lane(lease)
        if lane is not None:
            before = self._lanes.setdefault(lane, deque())
            lease.is_queued = bool(before)
            before.append(lease)
        self._distributor.offer(lease)

    def _lane(self, lease: Lease) -> Hashable:
        lane = None if self._lane_of is None else self._lane_of(lease.message)
        if lane is None:
            return None
        queue = lease.message.queue
        return queue if lane is True else (queue.topic, queue.broker_name, lane)

    def keep(self, lease: Lease) -> None:
        """Renew a new lease whose message goes to no handler."""
        lease.take()
        self._hold(lease)

    def _hold(self, lease: Lease) -> None:
        self._held[lease] = None
        self._some.set()

    def _moved(self, lease: Lease) -> None:
        if lease.in_hand:
            self.waiting -= 1
            self.stalled = False
        else:
            self.waiting += 1
        self._on_room()

    def finish(self, lease: Lease) -> None:
        """Acknowledge a message, soon and together with others, and let the next one of its lane go on."""
        self._let_go(lease)
        for following in self._behind(lease)[:1]:
            following.is_queued = False
            following.since_s = anyio.current_time()
            self._distributor.offer(following)
        queue = self._finished.get(lease.broker_name)
        if queue is None:
            queue = self._finished[lease.broker_name] = deque()
            self._tasks.start_soon(self._send_acks, lease.broker_name, queue)
        queue.append(lease)

    def returned(self, lease: Lease) -> None:
        """Take an unfinished message back from a handler, for another one of this member."""
        if lease in self._held:
            lease.give_back(lease.message)
            self._distributor.offer(lease)

    def let_end(self, lease: Lease) -> None:
        """Renew a lease no more: it has been changed, or has ended. What is behind it in its lane is given
        back."""
        self._let_go(lease)
        for following in self._behind(lease):
            self._tasks.start_soon(self.give_back, following)

    def _let_go(self, lease: Lease) -> None:
        if lease in self._held:
            del self._held[lease]
            if not lease.in_hand:
                self.waiting -= 1
        lease.on_move = None

    def _behind(self, lease: Lease) -> list[Lease]:
        """The leases behind one that leaves its lane."""
        lane = self._lane(lease)
        queue = self._lanes.get(lane)
        if queue is None or lease not in queue:
            return []
        is_first = queue[0] is lease
        queue.remove(lease)
        if not queue:
            del self._lanes[lane]
        return list(queue) if is_first else []

    @property
    def held(self) -> list[Lease]:
        """The leases, in order of their beginning."""
        return list(self._held)

    # --- loops ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew leases and give back what waits, until cancelled."""
        while True:
            if not self._held:
                self._some = anyio.Event()
                await self._some.wait()
            await anyio.sleep(LOOK_S)
            now_s = anyio.current_time()
            for lease in self.held:
                if not lease.in_hand and not lease.is_queued:
                    if now_s - lease.since_s > PATIENCE_S:
                        self.stalled = True
                        self._tasks.start_soon(self.give_back, lease)
                elif now_s >= lease.ends_s:
                    self._lost(lease, "it was not renewed in time")
                elif lease.ends_s - now_s < self._lease_ms / 1000 * RENEWED_AT:
                    self._renew_soon(lease)

    def _renew_soon(self, lease: Lease) -> None:
        if lease not in self._renewing:
            self._renewing.add(lease)
            self._tasks.start_soon(self._renew, lease)

    async def _renew(self, lease: Lease) -> None:
        try:
            async with self._changing:
                await self._popper.change(lease, self._lease_ms)
        except RmqError as error:
            if isinstance(error, BrokerError) and error.code in _ENDED:
                self._lost(lease, str(error))
            else:
                log.warning("%s; it is tried again", error)
        finally:
            self._renewing.discard(lease)

    def _lost(self, lease: Lease, why: str) -> None:
        if lease not in self._held:
            return
        log.warning("the lease of message %s is lost: %s", lease.message.message_id, why)
        self.let_end(lease)
        lease.drop()

    async def give_back(self, lease: Lease) -> None:
        """Let others have a message that waits; does nothing for one that has been taken meanwhile."""
        if lease.in_hand or lease not in self._held:
            return
        self.let_end(lease)
        lease.drop()
        self._distributor.offer(lease)
        await self.release(lease)

    async def release(self, lease: Lease) -> None:
        """Let others have a message at once, and do not count an attempt. A failure is logged: it comes after
        its lease then."""
        try:
            async with self._changing:
                await self._popper.change(lease, 0, suspend=True)
        except RmqError as error:
            log.warning("message %s comes after its lease: %s", lease.message.message_id, error)

    async def _send_acks(self, broker_name: str, queue: deque[Lease]) -> None:
        """Send the acknowledgements of one broker until there are none."""
        try:
            await anyio.lowlevel.checkpoint()
            while queue:
                some = [queue.popleft() for _ in range(min(len(queue), _MAX_ACKS))]
                for lease in some:
                    # Its handle may be changing.
                    async with lease.changing:
                        pass
                if not await self._acked(some):
                    now_s = anyio.current_time()
                    queue.extendleft(reversed([lease for lease in some if lease.ends_s > now_s]))
                    await anyio.sleep(_AGAIN_S)
        finally:
            del self._finished[broker_name]
            if not self._finished:
                self._flushed.set()
                self._flushed = anyio.Event()

    async def _acked(self, leases: list[Lease]) -> bool:
        """Whether acknowledgements need not be sent again."""
        try:
            await self._popper.ack(leases)
        except BrokerError as error:
            if error.code not in _ENDED:
                log.warning("%s; it is tried again", error)
                return False
            log.warning("%s: it is delivered again", error)
        except RmqError as error:
            log.warning("%s; it is tried again", error)
            return False
        return True

    async def flush(self) -> None:
        """Wait until all acknowledgements are sent."""
        while self._finished:
            await self._flushed.wait()
