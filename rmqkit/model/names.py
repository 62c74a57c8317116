"""Names of topics, groups and queues: legal, derived and reserved ones (wire-protocol sheet, section 6; Java:
TopicValidator, MixAll)."""

from __future__ import annotations

import re

from rmqkit.limits import MAX_DERIVED_TOPIC_LENGTH, MAX_GROUP_LENGTH, MAX_TOPIC_LENGTH

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
#: Of queues of lite topics; no topic has such a name.
LITE_PREFIX = "%LMQ%$"
SYSTEM_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

TEMPLATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
#: Records that a broker could not pass on (`rmqkit.toolkit.set_aside`); no topic of RocketMQ's.
SET_ASIDE_TOPIC = "rmq_sys_SET_ASIDE"

SYSTEM_TOPICS = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
#: Put hooks keep messages here that are meant for other topics.
PARKING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})
#: Clients may not send to these topics, and others that `takes_no_sends` tells.
NO_SEND_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
        SET_ASIDE_TOPIC,
    }
)
PRESET_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

MAX_QUEUE_ID = 0x7FFFFFFF
MAX_LITE_TOPIC_LENGTH = 64
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_LEGAL_LITE = re.compile(r"[a-zA-Z0-9_-]+")
_LEGAL_NAMESPACE = re.compile(r"[|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


#: Between group and topic in the names of pop consumption's retry topics, of either version. No other name
#: has the second.
POP_RETRY_V1, POP_RETRY_V2 = "_", "+"
_REVIVE_PREFIX = SYSTEM_PREFIX + "REVIVE_LOG_"


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Where messages of a topic go that a group popped and did not acknowledge (Java: KeyBuilder)."""
    return f"{RETRY_PREFIX}{group}{POP_RETRY_V2 if v2 else POP_RETRY_V1}{topic}"


def revive_topic(cluster: str) -> str:
    """The internal topic with the leases of pop consumption (Java: PopAckConstants)."""
    return f"{_REVIVE_PREFIX}{cluster}"[:MAX_TOPIC_LENGTH]


def lite_queue(topic: str, lite_topic: str) -> str:
    """The queue with the messages of a lite topic, by the name that stands for a topic in the store and in
    offsets (Java: LiteUtil.toLmqName)."""
    return f"{LITE_PREFIX}{topic}${lite_topic}"


def lite_parts(name: str) -> tuple[str, str] | None:
    """The topic and the lite topic of such a queue; None for any other name."""
    if not name.startswith(LITE_PREFIX):
        return None
    topic, _, lite_topic = name.removeprefix(LITE_PREFIX).partition("$")
    return (topic, lite_topic) if topic and lite_topic and "$" not in lite_topic else None


def owning_topic(name: str) -> str:
    """The topic to which a queue of this name belongs: of a lite topic's, the one that has it."""
    parts = lite_parts(name)
    return name if parts is None else parts[0]


def lite_topic_fault(lite_topic: str) -> str | None:
    """The reason why the name of a lite topic is illegal, or None."""
    if len(lite_topic) > MAX_LITE_TOPIC_LENGTH:
        return f"the lite topic has {len(lite_topic)} characters, at most {MAX_LITE_TOPIC_LENGTH} are allowed"
    if not _LEGAL_LITE.fullmatch(lite_topic):
        return f"a lite topic has letters, digits, _ and -, and is not empty: {lite_topic!r}"
    return None


def takes_no_sends(topic: str) -> bool:
    """Whether clients may not send to a topic: what is in it is believed."""
    return topic in NO_SEND_TOPICS or topic.startswith(_REVIVE_PREFIX)


def reply_topic(cluster: str) -> str:
    return cluster + "_REPLY_TOPIC"


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_made_by_brokers(topic: str) -> bool:
    """Whether the name shows that brokers create the topic, for themselves or for a group. Topics named after
    clusters and brokers cannot be recognized."""
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def is_system_group(group: str) -> bool:
    return group.upper().startswith(SYSTEM_GROUP_PREFIX)


def namespace_of(name: str) -> str:
    """The namespace in the name of a topic or group, empty when there is none (Java:
    NamespaceUtil.getNamespaceFromResource)."""
    if is_system_topic(name) or is_system_group(name):
        return ""
    namespace, separator, _ = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX).partition("%")
    return namespace if separator else ""


def without_namespace(name: str) -> str:
    """`ns%name` -> `name`; the prefix of a retry or dead-letter topic stays (Java:
    NamespaceUtil.withoutNamespace)."""
    namespace = namespace_of(name)
    if not namespace:
        return name
    prefix = next((prefix for prefix in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(prefix)), "")
    return prefix + name.removeprefix(prefix)[len(namespace) + 1 :]


def with_namespace(name: str, namespace: str) -> str:
    """`name` -> `ns%name`, after the prefix of a retry or dead-letter topic. System topics, system groups and
    names that are in the namespace already stay as they are (Java: NamespaceUtil.wrapNamespace)."""
    if not name or not namespace or is_system_topic(name) or is_system_group(name):
        return name
    prefix = next((prefix for prefix in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(prefix)), "")
    own = name.removeprefix(prefix)
    return name if own.startswith(namespace + "%") else f"{prefix}{namespace}%{own}"


def namespace_fault(namespace: str) -> str | None:
    """The reason why a namespace is illegal, or None; an empty one means no namespace."""
    if namespace and not _LEGAL_NAMESPACE.fullmatch(namespace):
        return f"the namespace {namespace!r} has characters besides letters, digits, |, _ and -"
    return None


def queue_fault(topic: str, queue_id: int) -> str | None:
    """The reason why a queue with this topic and id is illegal, or None."""
    fault = stored_fault(topic)
    if fault is None and not 0 <= queue_id <= MAX_QUEUE_ID:
        fault = f"the queue id {queue_id} is out of range"
    return fault


def stored_fault(topic: str) -> str | None:
    """The reason why a store has no queues under this name, or None: it is neither a legal topic nor a queue
    of a lite topic."""
    parts = lite_parts(topic)
    return topic_fault(topic) if parts is None else topic_fault(parts[0]) or lite_topic_fault(parts[1])


def topic_fault(topic: str) -> str | None:
    """The reason why a topic name is illegal, or None. The legal characters exclude path separators, dots and
    control characters."""
    if not topic or topic.isspace():
        return "the topic is blank"
    limit = MAX_DERIVED_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    if len(topic) > limit:
        return f"the topic has {len(topic)} characters, at most {limit} are allowed"
    legal = topic.replace(POP_RETRY_V2, "", 1) if topic.startswith(RETRY_PREFIX) else topic
    if not _LEGAL.fullmatch(legal):
        return f"the topic {topic!r} has characters besides letters, digits, %, |, _ and -"
    return None


def group_fault(group: str) -> str | None:
    """The reason why a group name is illegal, or None."""
    if not group or group.isspace():
        return "the group is blank"
    if len(group) > MAX_GROUP_LENGTH:
        return f"the group has {len(group)} characters, at most {MAX_GROUP_LENGTH} are allowed"
    if not _LEGAL.fullmatch(group):
        return f"the group {group!r} has characters besides letters, digits, %, |, _ and -"
    return None
