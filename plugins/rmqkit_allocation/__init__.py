"""Strategies that assign the queues of a topic to the clients of a group (behaviour sheet, B5).

Averagely, AveragelyByCircle and ConsistentHash are registered by name ("AVG", "AVG_BY_CIRCLE",
"CONSISTENT_HASH"). ByConfig, ByMachineRoom and MachineRoomNearby need arguments, so an application creates
one and passes it to the consumer.
"""

from rmqkit_allocation.averagely import Averagely, AveragelyByCircle
from rmqkit_allocation.consistent_hash import ConsistentHash
from rmqkit_allocation.fixed import ByConfig
from rmqkit_allocation.machine_room import ByMachineRoom, MachineRoomNearby, MachineRoomResolver

__all__ = [
    "Averagely",
    "AveragelyByCircle",
    "ByConfig",
    "ByMachineRoom",
    "ConsistentHash",
    "MachineRoomNearby",
    "MachineRoomResolver",
]
