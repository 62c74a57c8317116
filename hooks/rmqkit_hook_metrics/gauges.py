"""Gauges computed on request, except lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import trio

from rmqkit.model import names
from rmqkit.model.subscription import CONSUME_ACTIVELY, CONSUME_PASSIVELY
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.flush import Level
from rmqkit.plugin.metrics import Labels
from rmqkit.plugin.store import MessageStore
from rmqkit.toolkit.disk import DiskUsage, disk_usage
from rmqkit.toolkit.log_state import earliest_store_time_ms
from rmqkit.toolkit.request_kinds import KINDS, kind_of
from rmqkit_hook_metrics.hooks import flag

_REMOTING = "remoting"
_MODES = {CONSUME_ACTIVELY: "pull", CONSUME_PASSIVELY: "push"}
#: Ordinal of 4.0.0-SNAPSHOT in MQVersion; from there on each version has a snapshot and a release, before it
#: the numbers are irregular.
_VERSION_4 = 212


def version_label(ordinal: int) -> str:
    """MQVersion's name in lower case, as Java labels connections."""
    if ordinal < _VERSION_4:
        return f"v3_ordinal_{ordinal}"
    number, release = divmod(ordinal - _VERSION_4, 2)
    return f"v{4 + number // 100}_{number // 10 % 10}_{number % 10}{'' if release else '_snapshot'}"


def producers(broker: Broker) -> Mapping[Labels, int]:
    """(language, version, protocol) -> number of producer connections; a connection with several groups
    counts once per group."""
    found: Counter[Labels] = Counter()
    for clients in broker.clients.producers.values():
        found.update(
            (_language(client.language), version_label(client.version), _REMOTING)
            for client in clients.values()
        )
    return found


def consumers(broker: Broker) -> Mapping[Labels, int]:
    """(group, language, version, mode, protocol, is_system) -> number of consumer connections."""
    found: Counter[Labels] = Counter()
    for group in broker.clients.consumers.values():
        mode, system = (
            _MODES.get(group.consume_type, group.consume_type.lower()),
            flag(names.is_system_group(group.name)),
        )
        found.update(
            (group.name, _language(client.language), version_label(client.version), mode, _REMOTING, system)
            for client in group.members.values()
        )
    return found


def waiting(broker: Broker) -> list[tuple[Labels, int]]:
    """Kind -> number of requests that wait. Java has two kinds more, whose queues have no counterpart."""
    found = broker.waiting.by(kind_of, trio.current_time())
    return [((kind,), found[kind].count if kind in found else 0) for kind in KINDS]


def _language(name: str | None) -> str:
    return (name or "OTHER").lower()


def flush_behind_bytes(store: MessageStore) -> int:
    """Bytes of the log that have not been flushed to the device."""
    return store.end_offset - store.settled_offset(Level.FLUSHED)


async def disk(store: MessageStore) -> DiskUsage | None:
    """The usage of the log's file system (Java: total minus free); None for a store without files."""
    if not store.disk_paths:
        return None
    return await trio.to_thread.run_sync(disk_usage, store.disk_paths[0])


async def reserve_ms(broker: Broker) -> int | None:
    """The age of the oldest message in the log; None when there is none."""
    earliest_ms = await earliest_store_time_ms(broker.store)
    return None if earliest_ms is None else max(0, broker.clock.now_ms() - earliest_ms)
