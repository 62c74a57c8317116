"""RocketMQ's settings of pop consumption, and `popOrderBy` of rmqkit's."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rmqkit.config import Live

#: Numbers of leases, or of lite topics.
Leased = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
#: In ms.
Span = Annotated[int, msgspec.Meta(ge=1_000, le=86_400_000)]


class PopSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a broker's operator sets.

    revive_queue_num                       queues of the revive topic; a store keeps what it began with
    enable_retry_topic_v2                  whether retry topics are named %RETRY%GROUP+TOPIC
    retrieve_message_from_pop_retry_topic_v1   with those, whether the older ones are read as well
    pop_from_retry_probability             percentage of pops that read the retry topic first
    pop_from_retry_probability_for_priority  the same, of pops by priority
    priority_order_asc                     whether a higher number is a higher priority
    pop_max_leases_per_group               leased messages of one group, and thereby the memory that it uses
    pop_max_leases                         leased messages of all groups
    default_message_request_mode           of groups for which none was set: PULL or POP
    default_pop_share_queue_num            members that share queues in mode POP; -1 means all
    pop_order_by                           what an ordered pop keeps in order: the whole queue as in Java, or
                                           messages with equal sharding keys
    max_lmq_consume_queue_num              lite topics of the broker
    max_lite_subscription_count            lite topics of all clients together
    lite_subscription_check_timeout_mills  a client that does not say its lite topics again in this time has
                                           none; Apache's clients say them every half minute
    lite_ttl_check_interval                between two looks for lite topics that have expired, in ms
    min_lite_ttl                           no lite topic expires sooner after its last message, in ms
    """

    revive_queue_num: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    enable_retry_topic_v2: Live[bool] = msgspec.field(default=False, name="enableRetryTopicV2")
    retrieve_message_from_pop_retry_topic_v1: Live[bool] = msgspec.field(
        default=True, name="retrieveMessageFromPopRetryTopicV1"
    )
    pop_from_retry_probability: Live[Annotated[int, msgspec.Meta(ge=0, le=100)]] = 20
    pop_from_retry_probability_for_priority: Live[Annotated[int, msgspec.Meta(ge=0, le=100)]] = 0
    priority_order_asc: Live[bool] = True
    pop_max_leases_per_group: Live[Leased] = 1_000_000
    pop_max_leases: Live[Leased] = 2_000_000
    default_message_request_mode: Live[Literal["PULL", "POP"]] = "PULL"
    default_pop_share_queue_num: Live[int] = -1
    pop_order_by: Live[Literal["queue", "key"]] = "queue"
    max_lmq_consume_queue_num: Live[Leased] = 200_000
    max_lite_subscription_count: Live[Leased] = 1_000_000
    lite_subscription_check_timeout_mills: Live[Span] = 180_000
    lite_ttl_check_interval: Live[Span] = 120_000
    min_lite_ttl: Live[Span] = msgspec.field(default=900_000, name="minLiteTTl")
