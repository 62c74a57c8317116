"""How the clients of a group share the queues of a topic (behaviour sheet, B5).

Averagely, AveragelyByCircle and ConsistentHash come by name ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"); ByConfig, ByMachineRoom and
MachineRoomNearby need to be told something first, so make one and give it to the consumer.
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
