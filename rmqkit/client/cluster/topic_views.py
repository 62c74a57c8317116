"""Topics as values: where they are, what is set for them, and what a change of one did on which brokers.

The functions raise as `Admin` does.
"""

from __future__ import annotations

from attrs import frozen

from rmqkit.client.cluster.admin import Admin, masters_of
from rmqkit.errors import NoRoute
from rmqkit.model.route import TopicRouteData
from rmqkit.model.sysflag import PERM_RW
from rmqkit.model.topic import TopicConfig


@frozen(kw_only=True)
class TopicChange:
    """What a change did: the names of the brokers that created the topic, changed it, had it as it should
    be, or deleted it."""

    topic: str
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


async def put_topic(
    admin: Admin,
    topic: str,
    *,
    queues: int = 8,
    perm: int = PERM_RW,
    broker: str | None = None,
    cluster: str | None = None,
    order: bool = False,
    message_type: str | None = None,
    attributes: str | None = None,
) -> TopicChange:
    """Create or change a topic, as `Admin.create_topic`."""
    masters = await admin.masters(broker=broker, cluster=cluster)
    before = {name: await admin.topic_config(topic, address) for name, address in masters.items()}
    brokers = await admin.create_topic(
        topic,
        queues=queues,
        perm=perm,
        broker=broker,
        cluster=cluster,
        order=order,
        message_type=message_type,
        attributes=attributes,
    )
    after = {name: await admin.topic_config(topic, masters[name]) for name in brokers}
    existing = [name for name in brokers if before[name] is not None]
    return TopicChange(
        topic=topic,
        created=tuple(name for name in brokers if before[name] is None),
        updated=tuple(name for name in existing if before[name] != after[name]),
        unchanged=tuple(name for name in existing if before[name] == after[name]),
    )


async def topic_settings(admin: Admin, topic: str) -> dict[str, TopicConfig]:
    """The settings of a topic on each broker that has it, by broker name. Raises NoRoute when none has it."""
    found = {}
    for broker, address in masters_of(await topic_route(admin, topic)).items():
        config = await admin.topic_config(topic, address)
        if config is not None:
            found[broker] = config
    return dict(sorted(found.items()))


async def delete_topic(admin: Admin, topic: str, *, cluster: str | None = None) -> TopicChange:
    """Delete a topic, as `Admin.delete_topic`. Raises NoRoute when no broker has it."""
    if await admin.route(topic) is None:
        raise NoRoute(topic, "the topic does not exist; see `rmqkit topic list`")
    return TopicChange(topic=topic, deleted=tuple(await admin.delete_topic(topic, cluster=cluster)))


async def topic_route(admin: Admin, topic: str) -> TopicRouteData:
    """The brokers and queues of a topic. Raises NoRoute when no broker has it."""
    route = await admin.route(topic)
    if route is None:
        raise NoRoute(
            topic,
            f"no broker has it; create it with `rmqkit topic create {topic}`, or send to it while"
            " autoCreateTopicEnable is on",
        )
    return route
