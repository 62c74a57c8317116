"""The service that asks for the outcome of transactions (Java: TransactionalMessageCheckService)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import trio

from rmqkit.errors import PluginError, StoreError
from rmqkit.log_limit import limited_logger
from rmqkit.model import properties as props
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.metrics import Metric
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.toolkit.interval import sleep_interval
from rmqkit_transaction import metrics
from rmqkit_transaction.asking import Asking
from rmqkit_transaction.half_topics.store import HalfTopics
from rmqkit_transaction.settings import HALF_TOPICS, STATE_TABLE, TransactionSettings, options
from rmqkit_transaction.state_table.follower import StateFollower
from rmqkit_transaction.state_table.store import StateTables
from rmqkit_transaction.transaction_store import Half, TransactionStore

_log: Final[logging.Logger] = limited_logger(__name__)

#: The name of the follower of the state table.
DISPATCHER = "transaction-states"


class TransactionService(Service):
    """Loads the open transactions and runs rounds over them while the broker is a master.

    store      where transactions are kept; set by `begin`
    loaded     set while the open transactions are known
    committed, rolled_back  topic -> transactions that producers have ended so
    """

    name = "transaction"
    roles = frozenset({Role.MASTER})
    store: TransactionStore

    def __init__(self) -> None:
        self.loaded = trio.Event()
        self.committed, self.rolled_back = Counter[str](), Counter[str]()
        self._asking: Asking | None = None
        self._topics: Mapping[str, TopicConfig] = {}

    def begin(self, broker: RequestBroker) -> None:
        """Prepare for a broker whose parts exist."""
        self.loaded = trio.Event()
        self.committed.clear()
        self.rolled_back.clear()
        self._topics = broker.topics.configs
        self.store = _store(broker)
        self._asking = Asking(broker)

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        await self.store.load()
        self.loaded.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.store.run)
            task_status.started()
            while True:
                await sleep_interval(
                    broker.on_config_change,
                    lambda: broker.config.owned(TransactionSettings).transaction_check_interval,
                )
                await self.check()

    async def check(self) -> None:
        """Run one round; a failure is logged, and the next round goes on."""
        assert self._asking is not None, "it has begun"
        self._asking.begin_round()
        try:
            await self.store.check(self._asking.ask)
        except (OSError, StoreError) as error:
            _log.error("the half messages cannot be looked at, trying again: %s", error)

    def end(self, half: Half, *, commit: bool) -> None:
        """Note that a transaction has ended, in the turn in which its outcome was appended."""
        self.store.end(half)
        ended = self.committed if commit else self.rolled_back
        ended[half.message.properties.get(props.REAL_TOPIC, half.message.topic)] += 1

    async def stop(self, broker: Broker) -> None:
        self.loaded = trio.Event()
        await self.store.stop()

    def figures(self) -> Mapping[str, object]:
        if self._asking is None:
            return {}
        return {
            **self.store.figures(),
            "transactionsCommitted": self.committed.total(),
            "transactionsRolledBack": self.rolled_back.total(),
            "transactionsAsked": self._asking.asked,
            "transactionsUnheard": self._asking.unheard,
        }

    def metrics(self) -> Iterable[Metric]:
        if self._asking is None:
            return
        figures = self.store.figures()
        yield Metric(metrics.OPEN, [((), figures["transactionsOpen"])])
        for family, ended in ((metrics.COMMITTED, self.committed), (metrics.ROLLED_BACK, self.rolled_back)):
            topics = sorted(ended.keys() & self._topics.keys())
            yield Metric(family, [((topic,), ended[topic]) for topic in topics])
        yield Metric(metrics.ASKED, [((), self._asking.asked)])
        yield Metric(metrics.UNHEARD, [((), self._asking.unheard)])
        yield Metric(metrics.GIVEN_UP, [((), figures["transactionsGivenUp"])])


def _store(broker: RequestBroker) -> TransactionStore:
    """What the setting chooses. Raises PluginError when the dispatcher that it needs is off."""
    if options(broker.config).store == HALF_TOPICS:
        return HalfTopics(broker)
    follower = broker.registry.dispatchers.get(DISPATCHER)
    chosen = {each.name for each in broker.dispatching.progress()}
    if isinstance(follower, StateFollower) and DISPATCHER in chosen:
        return StateTables(broker, follower)
    raise PluginError(
        f"plugins.transaction.store = {STATE_TABLE} needs the dispatcher {DISPATCHER}: add it to the setting"
        " dispatchers"
    )
