"""Strategies based on machine rooms (Java: AllocateMessageQueueByMachineRoom, AllocateMachineRoomNearby)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit_allocation.checks import position


class ByMachineRoom(AllocationStrategy):
    """Assigns only the queues of brokers named `room@name` whose room is in `rooms`; the other queues have no
    consumer in this group.

    8 queues, 3 clients: 0 1 6 | 2 3 7 | 4 5
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self.rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        mine = position(client_id, queues, client_ids)
        if mine is None:
            return []
        ours = [queue for queue in queues if self._is_ours(queue.broker_name.split("@"))]
        share, rest = divmod(len(ours), len(client_ids))
        allocated = ours[mine * share : (mine + 1) * share]
        if mine < rest:
            allocated.append(ours[len(client_ids) * share + mine])
        return allocated

    def _is_ours(self, parts: list[str]) -> bool:
        return len(parts) == 2 and parts[0] in self.rooms


class MachineRoomResolver(Protocol):
    """Returns the room of a broker and of a client; the results must be the same for all clients of a group
    (Java: MachineRoomResolver)."""

    def broker_room(self, queue: MessageQueue) -> str: ...

    def client_room(self, client_id: str) -> str: ...


class MachineRoomNearby(AllocationStrategy):
    """Assigns the queues of a room to the clients of that room, using the inner strategy. Queues of a room
    without clients are shared by all clients.

    Also raises ValueError for a blank room.
    """

    def __init__(self, inner: AllocationStrategy, resolver: MachineRoomResolver) -> None:
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"
        self._inner = inner
        self._resolver = resolver

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if position(client_id, queues, client_ids) is None:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(_room(self._resolver.broker_room(queue), f"queue {queue}"), []).append(queue)
        clients_in: dict[str, list[str]] = {}
        for client in client_ids:
            clients_in.setdefault(_room(self._resolver.client_room(client), f"client {client}"), []).append(
                client
            )
        my_room = self._resolver.client_room(client_id)
        allocated: list[MessageQueue] = []
        if my_room in queues_in:
            allocated += self._inner.allocate(group, client_id, queues_in[my_room], clients_in[my_room])
        for room in sorted(queues_in.keys() - clients_in.keys()):
            allocated += self._inner.allocate(group, client_id, queues_in[room], client_ids)
        return allocated


def _room(room: str, what: str) -> str:
    if not room or room.isspace():
        raise ValueError(f"the machine room of {what} is blank")
    return room
