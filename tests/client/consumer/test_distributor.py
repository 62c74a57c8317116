"""Which queue's message is handed out next."""

from __future__ import annotations

from typing import get_args

import trio
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.client import MessageQueue
from rmqkit.client.consumer.assigned import Assigned, Order
from rmqkit.client.consumer.delivery import InHand
from rmqkit.client.consumer.distributor import Distributor
from tests.client.consumer.messages import message


def buffered(number: int, count: int, order: Order = "none") -> Assigned:
    """Queue `number` with so many messages to give out."""
    queue = MessageQueue("T", "broker-a", number)
    assigned = Assigned(queue, 0, order=order)
    assigned.messages.put([message(offset, queue=queue) for offset in range(count)], count)
    return assigned


def offering(*queues: Assigned) -> Distributor[Assigned]:
    distributor = Distributor[Assigned]()
    for assigned in queues:
        distributor.offer(assigned)
    return distributor


def finish(distributor: Distributor[Assigned], held: InHand[Assigned]) -> None:
    assigned, done = held
    assigned.finish(done)
    distributor.offer(assigned)


async def test_a_slow_queue_takes_its_share_of_the_handlers_alone() -> None:
    """While the messages of one queue never end, all handlers beyond its share serve the other queue."""
    slow, fast = buffered(0, 100), buffered(1, 100)
    distributor = offering(slow, fast)
    in_hand = [(await distributor.take())[0] for _ in range(4)]
    for _ in range(90):
        ended = next(held for held in in_hand if held[0] is fast)
        in_hand.remove(ended)
        finish(distributor, ended)
        in_hand += await distributor.take()
    assert (slow.messages.in_hand, fast.messages.in_hand) == (2, 2)
    assert (slow.messages.commit_offset, fast.messages.commit_offset) == (0, 90)


async def test_an_idle_queue_leaves_its_share_to_the_others() -> None:
    """A queue alone takes every handler. When another one has messages, freed handlers are its own until both
    have equally many."""
    first, second = buffered(0, 100), buffered(1, 100)
    distributor = offering(first)
    in_hand = await distributor.take(6)
    assert first.messages.in_hand == 6
    distributor.offer(second)
    shares = []
    for held in in_hand[:4]:
        finish(distributor, held)
        await distributor.take()
        shares.append((first.messages.in_hand, second.messages.in_hand))
    assert shares[:3] == [(5, 1), (4, 2), (3, 3)]
    assert sum(shares[3]) == 6


async def test_equal_queues_take_turns() -> None:
    """With one handler the queues are served one after the other, ordered ones as well."""
    for order in get_args(Order):
        distributor = offering(*(buffered(number, 3, order) for number in range(3)))
        served = []
        for _ in range(9):
            [held] = await distributor.take()
            served.append((held[0].queue.queue_id, held[1].queue_offset))
            finish(distributor, held)
        assert served == [(number, offset) for offset in range(3) for number in range(3)]


async def test_a_dropped_queue_gives_out_nothing() -> None:
    """A queue that is lost after it was offered is passed over."""
    dropped, kept = (buffered(number, 2) for number in range(2))
    distributor = offering(dropped, kept)
    dropped.drop()
    taken = await distributor.take(6)
    assert [(assigned, each.queue_offset) for assigned, each in taken] == [(kept, 0), (kept, 1)]


async def test_a_lane_waits_for_a_message_that_is_held_back() -> None:
    """An ordered queue whose first message is held back gives out nothing until its release."""
    assigned = buffered(0, 2, "queue")
    distributor = offering(assigned)
    [(_, first)] = await distributor.take(6)
    assigned.messages.defer(first)
    distributor.offer(assigned)
    assert not assigned.has_more
    assigned.messages.release(first)
    distributor.offer(assigned)
    [held] = await distributor.take(6)
    assert held == (assigned, first)
    finish(distributor, held)
    assert [each.queue_offset for _, each in await distributor.take(6)] == [1]


@given(
    counts=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=40),
)
def test_the_queue_with_the_fewest_in_hand_is_next(counts: list[int], steps: list[tuple[bool, int]]) -> None:
    """In every order of takes, ends and returns, a message comes from a queue with the fewest in hand of
    those that have a message."""

    async def body() -> None:
        queues = [buffered(number, count) for number, count in enumerate(counts)]
        in_hand: list[InHand[Assigned]] = []
        distributor = offering(*queues)
        for taking, number in steps:
            able = [assigned.messages.in_hand for assigned in queues if assigned.has_more]
            if taking and able:
                [held] = await distributor.take()
                assert held[0].messages.in_hand - 1 == min(able)
                in_hand.append(held)
            elif in_hand:
                assigned, ended = in_hand.pop(number % len(in_hand))
                if number % 2:
                    assigned.finish(ended)
                else:
                    assigned.give_back(ended)
                distributor.offer(assigned)

    trio.run(body)
