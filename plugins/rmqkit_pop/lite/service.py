"""The service "lite": wakes the subscribers of what is confirmed later than it is stored, ends subscriptions
of clients that are gone, and deletes lite topics that have expired."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from rmqkit.errors import StoreError
from rmqkit.log_limit import limited_logger
from rmqkit.model import names
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.positions import wait_moved
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit.toolkit.interval import sleep_interval
from rmqkit_pop.lite.topics import LiteTopics

_log = limited_logger(__name__)
#: Of a topic: the minutes after its last message after which a lite topic is deleted that all groups have
#: consumed; -1 for never.
EXPIRATION = "lite.topic.expiration"
MAX_EXPIRATION_MIN = 30 * 24 * 60
_MINUTE_MS = 60_000
#: Lite topics that are looked at before other tasks run.
_RUN = 256


class LiteService(Service):
    """Runs while the broker is the master."""

    name = "lite"
    roles = frozenset({Role.MASTER})

    def __init__(self) -> None:
        #: Set when the processors of the broker are made.
        self.lites: LiteTopics | None = None

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        lites = self.lites
        assert lites is not None, "the processors are made before the services run"
        lites.load()
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_follow, lites)
            nursery.start_soon(_clean, lites)

    def figures(self) -> Mapping[str, object]:
        """Lite topics and subscriptions."""
        if self.lites is None:
            return {}
        return {"liteTopics": self.lites.count, "liteSubscriptions": self.lites.subscriptions.count}


async def _follow(lites: LiteTopics) -> None:
    """Wake subscribers of messages that may be read now."""
    confirmed = lites.broker.store.positions.confirmed
    while True:
        while not lites.unread:
            lites.has_unread = trio.Event()
            await lites.has_unread.wait()
        seen = confirmed.offset
        lites.readable()
        if lites.unread:
            await wait_moved(confirmed, seen)


async def _clean(lites: LiteTopics) -> None:
    """Loop that ends what has expired."""
    broker = lites.broker
    while True:
        await sleep_interval(broker.on_config_change, lambda: lites.settings.lite_ttl_check_interval)
        now_ms = broker.clock.now_ms()
        timeout_ms = lites.settings.lite_subscription_check_timeout_mills
        for client in lites.subscriptions.expired(now_ms - timeout_ms):
            _log.info("client %s of group %s has left its lite topics", client.client_id, client.group)
            lites.subscriptions.forget(client)
        try:
            await clean_topics(lites, now_ms)
        except (OSError, StoreError) as error:
            _log.error("expired lite topics cannot be deleted, trying again: %s", error)


async def clean_topics(lites: LiteTopics, now_ms: int) -> int:
    """Delete the lite topics that have expired; returns their number. Raises OSError, StoreError; those
    before are deleted then. Cancelled: likewise."""
    deleted = looked = 0
    for topic in list(lites.queues):
        config = lites.broker.topics.configs.get(topic)
        text = "" if config is None else config.attributes.get(EXPIRATION, "")
        minutes = int(text) if text.isdigit() else 0
        if not minutes:
            continue
        before_ms = now_ms - max(minutes * _MINUTE_MS, lites.settings.min_lite_ttl)
        for name in list(lites.queues.get(topic, ())):
            looked += 1
            if looked % _RUN == 0:
                await trio.lowlevel.checkpoint()
            if await _has_expired(lites, topic, name, before_ms):
                lites.delete(topic, name)
                deleted += 1
    return deleted


async def _has_expired(lites: LiteTopics, topic: str, name: str, before_ms: int) -> bool:
    """Whether the last message is older than a time, and all groups that subscribe have consumed it."""
    store, offsets = lites.broker.store, lites.broker.offsets
    end = store.max_offset(name, 0)
    last_ms = 0
    if end > store.min_offset(name, 0):
        last_ms = await read_when_cached(store, lambda: store.store_time(name, 0, end - 1))
    if last_ms >= before_ms or name not in lites.queues.get(topic, ()):
        return False
    groups = {client.group for client in lites.subscriptions.subscribers(topic, name)}
    return all((offsets.get(group, name, 0) or 0) >= end for group in groups)


def lite_topic_of(name: str) -> str:
    """The lite topic of a queue."""
    parts = names.lite_parts(name)
    return name if parts is None else parts[1]


__all__ = ["EXPIRATION", "MAX_EXPIRATION_MIN", "LiteService", "clean_topics", "lite_topic_of"]
