"""The six allocation strategies, with the golden values of the behaviour sheet, section B5."""

from __future__ import annotations

import pytest

from rmqkit.config import Config
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin import loader
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit.testing.allocation import check_allocation_strategy
from rmqkit_allocation import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    plugin,
)
from rmqkit_allocation.consistent_hash import ring_hash


def make_queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, number) for number in range(count)]


def shares(strategy: AllocationStrategy, queues: list[MessageQueue], clients: list[str]) -> str:
    """Queue ids of every client: "0 1 | 2"."""
    allocated = (strategy.allocate("G", client, queues, clients) for client in clients)
    return " | ".join(" ".join(str(queue.queue_id) for queue in share) or "-" for share in allocated)


GOLDEN = [
    (8, 3, "0 1 2 | 3 4 5 | 6 7", "0 3 6 | 1 4 7 | 2 5", "0 1 6 | 2 3 7 | 4 5"),
    (10, 4, "0 1 2 | 3 4 5 | 6 7 | 8 9", "0 4 8 | 1 5 9 | 2 6 | 3 7", "0 1 8 | 2 3 9 | 4 5 | 6 7"),
    (5, 3, "0 1 | 2 3 | 4", "0 3 | 1 4 | 2", "0 3 | 1 4 | 2"),
    (2, 4, "0 | 1 | - | -", "0 | 1 | - | -", "0 | 1 | - | -"),
]


@pytest.mark.parametrize(("queue_count", "client_count", "average", "circle", "machine_room"), GOLDEN)
def test_golden_values(
    queue_count: int, client_count: int, average: str, circle: str, machine_room: str
) -> None:
    """The results are those of Java's classes."""
    clients = [f"client-{number}" for number in range(client_count)]
    assert shares(Averagely(), make_queues(queue_count), clients) == average
    assert shares(AveragelyByCircle(), make_queues(queue_count), clients) == circle
    assert shares(ByMachineRoom(["room"]), make_queues(queue_count, "room@broker-a"), clients) == machine_room


def test_consistent_hash_golden_values() -> None:
    """The ring is Java's: MD5, 10 points per client. Without the third client only its own queue moves."""
    clients = ["10.0.0.1@A", "10.0.0.2@A", "10.0.0.3@A"]
    assert shares(ConsistentHash(), make_queues(8), clients) == "3 4 5 | 1 2 6 7 | 0"
    assert shares(ConsistentHash(), make_queues(8), clients[:2]) == "0 3 4 5 | 1 2 6 7"
    assert ring_hash("10.0.0.1@A-0") == 2601033215
    assert ring_hash(make_queues(1)[0].java_text()) == 1987926524


class Rooms:
    """A queue's room is the capital letter of its broker name, a client's room that of its own name."""

    def broker_room(self, queue: MessageQueue) -> str:
        return queue.broker_name[:1]

    def client_room(self, client_id: str) -> str:
        return client_id[:1]


def test_nearby_golden_values() -> None:
    """Room A has two clients, room B one, room C none: its queues are shared by all."""
    queues = sorted(make_queues(4, "A") + make_queues(4, "B") + make_queues(3, "C"))
    clients = ["A-x", "A-y", "B-z"]
    strategy = MachineRoomNearby(Averagely(), Rooms())
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    allocated = [
        " ".join(f"{q.broker_name}{q.queue_id}" for q in strategy.allocate("G", client, queues, clients))
        for client in clients
    ]
    assert allocated == ["A0 A1 C0", "A2 A3 C1", "B0 B1 B2 B3 C2"]


def test_nearby_refuses_a_blank_room() -> None:
    strategy = MachineRoomNearby(Averagely(), Rooms())
    with pytest.raises(ValueError, match="blank"):
        strategy.allocate("G", "A-x", make_queues(1, " b"), ["A-x"])
    with pytest.raises(ValueError, match="blank"):
        strategy.allocate("G", "A-x", make_queues(1, "A"), ["A-x", " y"])


def test_by_config_gives_what_it_was_given() -> None:
    """The result is the given list for any arguments, unchecked, as in Java."""
    fixed = make_queues(2, "elsewhere")
    strategy = ByConfig(fixed)
    assert strategy.allocate("G", "anybody", make_queues(1), ["somebody"]) == fixed
    assert strategy.allocate("G", "", [], []) == fixed


def test_machine_room_leaves_other_rooms_alone() -> None:
    """Only queues of brokers named room@name with a known room are assigned."""
    queues = sorted(
        make_queues(2, "x@b") + make_queues(2, "y@b") + make_queues(2, "plain") + make_queues(2, "x@y@z")
    )
    allocated = ByMachineRoom(["x"]).allocate("G", "c", queues, ["c"])
    assert {queue.broker_name for queue in allocated} == {"x@b"}


def test_a_client_needs_a_point_on_the_ring() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        ConsistentHash(0)


@pytest.mark.parametrize(
    "strategy", [Averagely(), AveragelyByCircle(), ConsistentHash()], ids=lambda strategy: strategy.name
)
def test_contract(strategy: AllocationStrategy) -> None:
    check_allocation_strategy(strategy)


def test_contract_of_the_strategies_with_rooms() -> None:
    """The contract holds for brokers and clients whose rooms the strategies know."""
    check_allocation_strategy(ByMachineRoom(["x", "y"]), brokers=["x@a", "x@b", "y@a"])
    for inner in (Averagely(), AveragelyByCircle(), ConsistentHash()):
        check_allocation_strategy(
            MachineRoomNearby(inner, Rooms()),
            brokers=["A", "B", "C"],
            client_ids=["A-x", "A-y", "B-z", "D-w"],
        )


def test_contract_finds_a_strategy_that_gives_all_to_everybody() -> None:
    """The contract test fails for a wrong strategy."""
    with pytest.raises(AssertionError):
        check_allocation_strategy(ByConfig(make_queues(1)))


def test_the_plugin_registers_what_needs_no_settings() -> None:
    registry = loader.load(Config(), extra=[("allocation", plugin)], entry_points=False)
    assert set(registry.allocation_strategies) == {"AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"}
    assert all(strategy.name == name for name, strategy in registry.allocation_strategies.items())
