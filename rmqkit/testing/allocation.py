"""Contract of AllocationStrategy, for implementations that distribute all queues that they are given.

def test_contract() -> None:
    check_allocation_strategy(MyStrategy())
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.allocation import AllocationStrategy

#: All phases except the slow search for an explanation; the assertions describe the fault.
#: Strategies are checked under several loops, and on machines that are busy with other things.
_CHECKS = [HealthCheck.differing_executors, HealthCheck.too_slow]
_PHASES = (Phase.generate, Phase.shrink)
_GROUP = "group"
_CLIENTS = ("10.0.0.1@1", "10.0.0.2@2", "10.0.0.3@3", "10.0.0.4@4", "10.0.0.4@5")


def check_allocation_strategy(
    strategy: AllocationStrategy,
    *,
    brokers: Sequence[str] = ("broker-a", "broker-b"),
    client_ids: Sequence[str] = _CLIENTS,
) -> None:
    """Check an allocation strategy against the rules of `AllocationStrategy`. Raises AssertionError at the
    first broken rule. The test cases use names from `brokers` and `client_ids`, which the strategy must
    accept."""
    queue = st.builds(MessageQueue, st.just("Topic"), st.sampled_from(brokers), st.integers(0, 40))
    queues = st.lists(queue, min_size=1, unique=True).map(sorted)
    clients = st.lists(st.sampled_from(client_ids), min_size=1, unique=True).map(sorted)

    @settings(deadline=None, database=None, phases=_PHASES, suppress_health_check=_CHECKS)
    @given(queues, clients)
    def check(queues: list[MessageQueue], clients: list[str]) -> None:
        _check_shares(strategy, queues, clients)
        _check_stranger(strategy, queues, clients)

    assert strategy.name, "a strategy has a name"
    check()
    _check_empty(strategy, [MessageQueue("Topic", brokers[0], 0)], list(client_ids))


def _check_shares(strategy: AllocationStrategy, queues: list[MessageQueue], clients: list[str]) -> None:
    """Every queue goes to exactly one client, the result is the same for every client and every call, and the
    arguments are not changed."""
    before = (list(queues), list(clients))
    shares = [strategy.allocate(_GROUP, client, queues, clients) for client in clients]
    assert (queues, clients) == before, "allocate changes its inputs"
    given_out = Counter(queue for share in shares for queue in share)
    assert set(given_out) == set(queues), (
        f"queues without a client, or from nowhere: {set(given_out) ^ set(queues)}"
    )
    assert max(given_out.values()) == 1, (
        f"queues given twice: {[queue for queue, times in given_out.items() if times > 1]}"
    )
    again = [strategy.allocate(_GROUP, client, tuple(queues), tuple(clients)) for client in clients]
    assert again == shares, "a second computation gives other shares"


def _check_stranger(strategy: AllocationStrategy, queues: list[MessageQueue], clients: list[str]) -> None:
    assert strategy.allocate(_GROUP, "nobody@0", queues, clients) == [], (
        "a client that is not in the group gets queues"
    )


def _check_empty(strategy: AllocationStrategy, queues: list[MessageQueue], clients: list[str]) -> None:
    for arguments in (
        (_GROUP, "", queues, clients),
        (_GROUP, clients[0], [], clients),
        (_GROUP, clients[0], queues, []),
    ):
        try:
            result = strategy.allocate(*arguments)
        except ValueError:
            continue
        raise AssertionError(f"empty input gives {result} instead of ValueError: {arguments}")
