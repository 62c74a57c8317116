"""Gauges that are computed when somebody asks, but for the lag."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from functools import partial

import trio

from rmqkit.abc import Level, MessageStore, NotInMemory
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.warming import again_when_warm
from rmqkit.model import names
from rmqkit.model.subscription import CONSUME_ACTIVELY, CONSUME_PASSIVELY
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit_hook_metrics.text import Labels
from rmqkit_hook_metrics.watching import flag

_REMOTING = "remoting"
_MODES = {CONSUME_ACTIVELY: "pull", CONSUME_PASSIVELY: "push"}
#: Ordinal of 4.0.0-SNAPSHOT in MQVersion; from there on each number has a snapshot and a release, 3.x is irregular.
_VERSION_4 = 212


def version_label(ordinal: int) -> str:
    """MQVersion's name in lower case, as Java labels connections."""
    if ordinal < _VERSION_4:
        return f"v3_ordinal_{ordinal}"
    number, release = divmod(ordinal - _VERSION_4, 2)
    return f"v{4 + number // 100}_{number // 10 % 10}_{number % 10}{'' if release else '_snapshot'}"


def producers(broker: BrokerContext) -> Mapping[Labels, int]:
    """(language, version, protocol) -> connections of producers; one of several groups counts for each."""
    found: Counter[Labels] = Counter()
    for clients in broker.clients.producers.values():
        found.update((_language(client.language), version_label(client.version), _REMOTING) for client in clients.values())
    return found


def consumers(broker: BrokerContext) -> Mapping[Labels, int]:
    """(group, language, version, mode, protocol, is_system) -> connections of consumers."""
    found: Counter[Labels] = Counter()
    for group in broker.clients.consumers.values():
        mode, system = _MODES.get(group.consume_type, group.consume_type.lower()), flag(names.is_system_group(group.name))
        found.update(
            (group.name, _language(client.language), version_label(client.version), mode, _REMOTING, system)
            for client in group.members.values()
        )
    return found


def _language(name: str | None) -> str:
    return (name or "OTHER").lower()


def flush_behind_bytes(store: MessageStore) -> int:
    """Bytes of the log that are not on the device. The contract tells only whether an offset is; that is asked until the border is found."""
    start, end = store.start_offset, store.end_offset
    low, high = start, end
    while low < high:
        middle = (low + high + 1) // 2
        if store.is_settled(middle, Level.FLUSHED):
            low = middle
        else:
            high = middle - 1
    return end - low


def dispatch_behind_bytes(broker: BrokerContext) -> int:
    """Bytes of the log that the slowest dispatcher has not taken."""
    return max((progress.behind_bytes for progress in broker.dispatching.progress()), default=0)


async def disk_used_bytes(store: MessageStore) -> int | None:
    """What is used of the file system of the log, by whomever (Java: total less free); None for a store without files."""
    if not store.disk_paths:
        return None
    return (await trio.to_thread.run_sync(shutil.disk_usage, store.disk_paths[0])).used


async def reserve_ms(broker: BrokerContext) -> int | None:
    """The age of the oldest message in the log; None when there is none."""
    read = partial(broker.store.read_record, broker.store.start_offset)
    try:
        found = read(False)
    except NotInMemory as missed:
        found = await again_when_warm(broker.store, read, missed)
    return None if found is None else max(0, broker.clock.now_ms() - peek_store_timestamp(found))
