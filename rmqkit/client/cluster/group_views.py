"""Consumer groups as values: what commands, pages and gauges show of them, and what a change of one did.

The functions raise as `Admin` and `GroupAdmin` do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs
import msgspec
from attrs import frozen

from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.group_admin import GroupAdmin, GroupConnections, Progress
from rmqkit.client.cluster.message_views import queue_dict
from rmqkit.client.cluster.side_by_side import side_by_side
from rmqkit.errors import ClientError, NoRoute
from rmqkit.model.attributes import PAUSED, AttributeFault, parse
from rmqkit.model.names import PRESET_GROUPS, dlq_topic, is_system_group, retry_topic
from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import GroupRetryPolicy, SubscriptionGroupConfig
from rmqkit.protocol.codes import version_text


@frozen(kw_only=True)
class GroupSummary:
    """One group of a list.

    members        number of its online members
    message_model  of its members; None when none are online
    topics         that it has offsets in, sorted
    lag            number of messages that are not consumed
    brokers        names of the brokers that have its settings
    """

    group: str
    members: int
    message_model: str | None
    topics: tuple[str, ...]
    lag: int
    brokers: tuple[str, ...]


@frozen(kw_only=True)
class GroupChange:
    """What a change did: the names of the brokers that created the group, changed it, or had it as it should
    be."""

    group: str
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


@frozen(kw_only=True)
class GroupView:
    """One group: its settings by broker name (None when no broker has the group), its progress, and its
    online members (None when there are none)."""

    group: str
    settings: Mapping[str, SubscriptionGroupConfig] | None
    progress: Mapping[MessageQueue, Progress]
    online: GroupConnections | None

    @property
    def lag(self) -> int:
        """Number of messages that are not consumed."""
        return total_lag(self.progress)

    @property
    def lag_by_topic(self) -> dict[str, int]:
        """The lag in messages by topic."""
        found: dict[str, int] = {}
        for queue, each in self.progress.items():
            found[queue.topic] = found.get(queue.topic, 0) + each.lag
        return found


@frozen(kw_only=True)
class GroupLag:
    """How far a group is behind in each queue, with the ages that the brokers tell."""

    group: str
    queues: Mapping[MessageQueue, Progress]

    @property
    def total(self) -> int:
        """Number of messages that are not consumed."""
        return total_lag(self.queues)

    @property
    def queues_beyond_end(self) -> int:
        """Number of queues that end before the group's offset."""
        return sum(each.beyond > 0 for each in self.queues.values())

    @property
    def behind_ms(self) -> int:
        """Age of the oldest message that is not consumed; 0 when there is none."""
        return max((each.behind_ms or 0 for each in self.queues.values()), default=0)


@frozen
class OffsetMove:
    """Where a group continued in a queue (None: it had no offset), and where it continues now."""

    queue: MessageQueue
    before: int | None
    after: int


@frozen(kw_only=True)
class DeletedGroup:
    """The names of the brokers that had the group, and the topics that were deleted with it."""

    group: str
    brokers: tuple[str, ...]
    topics: tuple[str, ...]


def total_lag(progress: Mapping[MessageQueue, Progress]) -> int:
    """Number of messages that are not consumed in these queues."""
    return sum(each.lag for each in progress.values())


def lag_dict(lag: GroupLag) -> dict[str, Any]:
    """How far a group is behind in JSON."""
    return {
        "group": lag.group,
        "lag": lag.total,
        "queuesBeyondEnd": lag.queues_beyond_end,
        "behindMs": lag.behind_ms,
        "queues": [
            queue_dict(queue)
            | {
                "committed": each.committed,
                "pulled": each.pulled,
                "end": each.end,
                "lag": each.lag,
                "inFlight": each.in_flight,
                "ready": each.ready,
                "beyondEnd": each.beyond,
                "behindMs": each.behind_ms,
                "lastConsumedTimestamp": each.last_consumed_ms,
            }
            for queue, each in lag.queues.items()
        ],
    }


def connections_dict(online: GroupConnections | None) -> dict[str, Any]:
    """The online members of a group and its subscriptions in JSON."""
    if online is None:
        return {"members": [], "subscriptions": {}}
    return {
        "consumeType": online.consume_type,
        "messageModel": online.message_model,
        "consumeFromWhere": online.consume_from_where,
        "members": [
            {
                "clientId": each.client_id,
                "address": each.address,
                "language": each.language,
                "version": each.version,
                "versionName": version_text(each.version),
                "brokers": list(each.brokers),
            }
            for each in online.members
        ],
        "subscriptions": {
            topic: {"expression": each.sub_string, "type": each.expression_type or "TAG"}
            for topic, each in online.subscriptions.items()
        },
    }


async def group_names(groups: GroupAdmin, *, system: bool = False) -> list[str]:
    """The names of all groups, sorted; with `system` also those of RocketMQ itself."""
    return [group for group in await groups.configs() if system or not _is_preset(group)]


async def group_summaries(
    groups: GroupAdmin, *, system: bool = False, only: Collection[str] | None = None
) -> list[GroupSummary]:
    """All groups, sorted, or those named in `only`; with `system` also those of RocketMQ itself."""
    known = {
        group: tuple(configs)
        for group, configs in (await groups.configs()).items()
        if (group in only if only is not None else system or not _is_preset(group))
    }

    async def summary(group: str) -> GroupSummary:
        progress, online = await groups.progress(group), await groups.connections(group)
        return GroupSummary(
            group=group,
            members=len(online.members) if online else 0,
            message_model=online.message_model if online else None,
            topics=tuple(sorted({queue.topic for queue in progress})),
            lag=total_lag(progress),
            brokers=known[group],
        )

    return await side_by_side(summary, known)


async def group_view(groups: GroupAdmin, group: str) -> GroupView:
    """The settings, progress and members of a group. Raises ClientError when no broker knows it."""
    settings = (await groups.configs()).get(group)
    progress, online = await groups.progress(group), await groups.connections(group)
    if settings is None and online is None and not progress:
        raise _unknown(group)
    return GroupView(group=group, settings=settings, progress=progress, online=online)


async def group_lag(groups: GroupAdmin, group: str, topic: str | None = None) -> GroupLag:
    """By default in all topics that the group consumes. Raises ClientError when it has no offsets there."""
    progress = await groups.progress(group, topic)
    if not progress:
        where = f" in topic {topic!r}" if topic else ""
        raise ClientError(f"group {group!r} has no offsets{where}; `rmqkit group list` lists the groups")
    behind: dict[MessageQueue, int] = {}
    for name in sorted({queue.topic for queue in progress}):
        try:
            behind |= await groups.behind(group, name)
        except NoRoute:
            # Deleted on the name servers, but not on every broker.
            continue
    queues = {queue: attrs.evolve(each, behind_ms=behind.get(queue)) for queue, each in progress.items()}
    return GroupLag(group=group, queues=queues)


async def move_to_time(
    groups: GroupAdmin, group: str, topic: str, time_ms: int, *, dry_run: bool = False
) -> list[OffsetMove]:
    """Let the group continue at a time, as `GroupAdmin.reset_to_time`; `dry_run` changes nothing."""
    before = await groups.progress(group, topic)
    if dry_run:
        after = await groups.offsets_at(topic, time_ms)
    else:
        after = await groups.reset_to_time(group, topic, time_ms)
    return _moves(before, after)


async def move_to_offset(
    groups: GroupAdmin, group: str, queue: MessageQueue, offset: int, *, dry_run: bool = False
) -> list[OffsetMove]:
    """Let the group continue at an offset, as `GroupAdmin.reset_to_offset`; `dry_run` changes nothing."""
    before = await groups.progress(group, queue.topic)
    if not dry_run:
        await groups.reset_to_offset(group, queue, offset)
    return _moves(before, {queue: offset})


async def change_group(
    groups: GroupAdmin,
    group: str,
    *,
    retries: int | None = None,
    retry: GroupRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET,
    consumes: bool | None = None,
    ordered: bool | None = None,
    paused: bool | None = None,
    attributes: str | None = None,
) -> GroupChange:
    """Change settings of a group on each broker, and create it where it is missing; what is not given stays.

    retries   deliveries after the first one, until a message is a dead letter (retryMaxTimes)
    retry     when a failed message is delivered again; None: as the client says, or by delay levels
    consumes  whether the group may consume (consumeEnable); members of one that may not end with an error
    paused    whether the members wait: consumeEnable is off, and the attribute `paused` says that it is for a
              while. Brokers of Apache refuse the attribute
    ordered   whether its 5.x clients get the messages of a queue in order (consumeMessageOrderly)
    attributes  changes of its attributes: `+key=value`, `-key`, joined by commas

    Raises ClientError when nothing is to be changed, a number is negative, or the changes of attributes are
    malformed. When cancelled, some brokers
    may have the new settings.
    """
    if paused is not None:
        consumes = not paused
    if retries is not None and retries < 0:
        raise ClientError(f"retries={retries}: must not be negative")
    given: dict[str, object] = {"retry_max_times": retries, "consume_enable": consumes}
    given["consume_message_orderly"] = ordered
    changes = {name: value for name, value in given.items() if value is not None}
    if not isinstance(retry, msgspec.UnsetType):
        changes["group_retry_policy"] = retry
    try:
        altered = parse(attributes)
    except AttributeFault as fault:
        raise ClientError(f"attributes={attributes!r}: {fault}") from fault
    if not changes and not altered:
        raise ClientError(f"nothing is to be changed of group {group!r}")
    before = (await groups.configs()).get(group, {})
    base = next(iter(before.values()), SubscriptionGroupConfig(group_name=group))
    if paused is None and consumes and any(PAUSED in config.attributes for config in before.values()):
        paused = False
    # A request names changes of attributes, not the attributes.
    changes["attributes"] = altered | ({} if paused is None else {f"+{PAUSED}": str(paused).lower()})
    brokers = await groups.put(group, msgspec.structs.replace(base, **changes))
    for broker, config in before.items():
        if config != base:
            await groups.put(group, msgspec.structs.replace(config, **changes), broker=broker)
    after = (await groups.configs()).get(group, {})
    existing = [name for name in brokers if name in before]
    return GroupChange(
        group=group,
        created=tuple(name for name in brokers if name not in before),
        updated=tuple(name for name in existing if before[name] != after.get(name)),
        unchanged=tuple(name for name in existing if before[name] == after.get(name)),
    )


async def delete_group(
    admin: Admin, groups: GroupAdmin, group: str, *, dead_letters: bool = False
) -> DeletedGroup:
    """Delete the group, its offsets and its retry topic; with `dead_letters` also its dead-letter topic.
    Raises ClientError when the group has online members, and when no broker knows it. When cancelled, a part
    may be deleted."""
    online = await groups.connections(group)
    if online is not None:
        members = ", ".join(each.client_id for each in online.members)
        raise ClientError(f"group {group!r} has online members, which would create it again: {members}")
    if group not in await groups.configs() and not await groups.progress(group):
        raise _unknown(group)
    brokers = await groups.delete(group)
    topics = set(await admin.topics())
    wanted = [retry_topic(group), *([dlq_topic(group)] if dead_letters else [])]
    deleted = [topic for topic in wanted if topic in topics]
    for topic in deleted:
        await admin.delete_topic(topic)
    return DeletedGroup(group=group, brokers=tuple(brokers), topics=tuple(deleted))


def _moves(before: Mapping[MessageQueue, Progress], after: Mapping[MessageQueue, int]) -> list[OffsetMove]:
    return [
        OffsetMove(queue, before[queue].committed if queue in before else None, offset)
        for queue, offset in after.items()
    ]


def _unknown(group: str) -> ClientError:
    return ClientError(f"no broker knows group {group!r}; `rmqkit group list` lists the groups")


def _is_preset(group: str) -> bool:
    return is_system_group(group) or group in PRESET_GROUPS
