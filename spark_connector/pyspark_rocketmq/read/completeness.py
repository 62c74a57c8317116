"""What a read must not lack: every queue that the route lists, and every broker that the options name.

Name servers list a broker that lost its master as long as a slave of it is registered, and forget a broker
without slaves. Bounds come from masters. Both are outages here, never fewer rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark_rocketmq.read.source import Bounds, NoSuchTopic, QueueKey, Source, Unanswered, named


def queues_of(source: Source, topic: str, brokers: Collection[str]) -> Sequence[QueueKey]:
    """The readable queues of a topic. Raises NoSuchTopic; Unanswered when the topic has no queue on one of
    the named brokers, unless that broker says that it does not have the topic."""
    try:
        queues = source.queues(topic)
    except NoSuchTopic:
        demand_answer(source, [QueueKey(topic, broker, 0) for broker in brokers])
        raise
    listed = {queue.broker for queue in queues}
    demand_answer(source, [QueueKey(topic, broker, 0) for broker in brokers if broker not in listed])
    return queues


def complete_bounds(source: Source, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
    """The bounds of all these queues, except those that brokers report as missing. Raises Unanswered for
    other queues without bounds."""
    found = source.bounds(queues)
    demand_answer(source, [queue for queue in queues if queue not in found])
    return found


def demand_answer(source: Source, absent: Collection[QueueKey]) -> None:
    """Demand that queues without an answer are gone. Raises Unanswered unless brokers report all these queues
    as missing."""
    away = sorted(set(absent) - set(source.gone(absent))) if absent else []
    if away:
        brokers = ", ".join(sorted({queue.broker for queue in away}))
        more = f" and {len(away) - 1} more queues" if len(away) > 1 else ""
        raise Unanswered(
            f"{brokers}: no answer for {named(away[0])}{more}. The name servers know no such broker, or no"
            " master of it answers (slaves are not asked): start the broker, or make a slave its master."
        )
