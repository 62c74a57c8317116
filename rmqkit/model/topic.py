"""Topic and group configuration in the form of RocketMQ's JSON files and bodies (wire-protocol sheet, section
4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rmqkit.model.attributes import PAUSED
from rmqkit.model.sysflag import PERM_READ, PERM_RW, PERM_WRITE


class DataVersion(msgspec.Struct, kw_only=True, rename="camel"):
    """Mutable: `next` increments it. A table whose version differs from the stored one is newer (Java:
    DataVersion)."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> None:
        self.timestamp = now_ms
        self.counter += 1

    def same(self, other: DataVersion) -> bool:
        return (self.state_version, self.timestamp, self.counter) == (
            other.state_version,
            other.timestamp,
            other.counter,
        )


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """A topic's queues and permissions on one broker (Java: TopicConfig)."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_RW
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def writable(self) -> bool:
        return self.perm & PERM_WRITE != 0


class TopicConfigTable(msgspec.Struct, kw_only=True, rename="camel"):
    """topics.json and the body of GET_ALL_TOPIC_CONFIG (Java: TopicConfigSerializeWrapper).

    deletions  of each topic that was deleted lately, the log offset before which its records are dead; left
               out without one. Java ignores it
    """

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}
    deletions: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class TopicConfigAndMappingTable(TopicConfigTable, kw_only=True, rename="camel"):
    """TopicConfigTable with the static-topic mappings of 5.x, which are empty here (Java:
    TopicConfigAndMappingSerializeWrapper)."""

    mapping_data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_queue_mapping_detail_map: dict[str, Any] = {}
    topic_queue_mapping_info_map: dict[str, Any] = {}


class CreateTopicListRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST; attributes have signed keys."""

    topic_config_list: list[TopicConfig]


class ExponentialRetryPolicy(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """Times in ms."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2


class CustomizedRetryPolicy(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """Delays in ms; the first retry waits for the third, as delay levels do."""

    next: tuple[int, ...] = ()


#: The first retry waits for the third of the customized delays (Java: CustomizedRetryPolicy).
_FIRST_RETRY = 2
_MOST_DOUBLINGS = 40


class GroupRetryPolicy(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """When a failed message is delivered again (Java: GroupRetryPolicy); `type` is CUSTOMIZED or
    EXPONENTIAL. Java's tools give each group one that says nothing."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None

    @classmethod
    def of_delays(cls, delays_ms: Sequence[int]) -> GroupRetryPolicy:
        """One with these delays, the last one for all further failures."""
        levels = (*[delays_ms[0]] * _FIRST_RETRY, *delays_ms)
        return cls(customized_retry_policy=CustomizedRetryPolicy(next=levels))

    def delay_ms(self, failed: int) -> int:
        """The delay of the delivery after this many failed ones before the one that failed last; 0 when the
        policy says nothing."""
        if self.type == "EXPONENTIAL":
            growing = self.exponential_retry_policy or ExponentialRetryPolicy()
            factor = int(max(1, growing.multiplier) ** min(failed, _MOST_DOUBLINGS))
            return min(growing.max, growing.initial * factor)
        levels = self.customized_retry_policy.next if self.customized_retry_policy else ()
        return levels[min(failed + _FIRST_RETRY, len(levels) - 1)] if levels else 0


#: How the remark to NO_PERMISSION begins while a group is paused: its members wait, and do not end.
PAUSED_REMARK = "paused"


class SubscriptionGroupConfig(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """A consumer group's settings (Java: SubscriptionGroupConfig)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    group_retry_policy: GroupRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET
    attributes: dict[str, str] = {}

    @property
    def consume_refusal(self) -> str:
        """Why the group gets no messages while `consume_enable` is off."""
        if self.attributes.get(PAUSED) == "true":
            return f"{PAUSED_REMARK}: consumer group {self.group_name} waits for `rmqkit group resume`"
        return f"consumer group {self.group_name} may not consume (consumeEnable)"

    @property
    def chosen_retry_policy(self) -> GroupRetryPolicy | None:
        """The retry policy that was chosen for the group; None when there is none, or one that says
        nothing."""
        policy = self.group_retry_policy
        if not isinstance(policy, GroupRetryPolicy):
            return None
        return policy if policy.type == "EXPONENTIAL" or policy.customized_retry_policy else None


class SubscriptionGroupList(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig]


class SubscriptionGroupTable(msgspec.Struct, kw_only=True, rename="camel"):
    """subscriptionGroup.json and the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG (Java:
    SubscriptionGroupWrapper). `deletions` as in TopicConfigTable."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] = {}
    deletions: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class ConsumerOffsetFile(msgspec.Struct, kw_only=True, rename="camel"):
    """consumerOffset.json: `topic@group` -> {queue id: offset}."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    offset_table: dict[str, dict[int, int]] = {}


class DelayOffsetFile(msgspec.Struct, kw_only=True, rename="camel"):
    """delayOffset.json: level -> offset in the queue of that level."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    offset_table: dict[int, int] = {}
