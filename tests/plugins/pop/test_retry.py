"""What becomes of a message whose lease has ended."""

from __future__ import annotations

import msgspec
import pytest

from rmqkit.model import properties as props
from rmqkit.model.topic import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from rmqkit.protocol import record
from rmqkit.testing.store import message
from rmqkit_pop.retry import Next, Step, copy_for_dead_letters, copy_for_retry, next_step, origin_topic

EXPONENTIAL = GroupRetryPolicy(
    type="EXPONENTIAL",
    exponential_retry_policy=ExponentialRetryPolicy(initial=1_000, max=60_000, multiplier=3),
)


@pytest.mark.parametrize(
    ("policy", "failed", "expected"),
    [
        (GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=(1, 2, 3, 4))), 0, 3),
        (GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=(1, 2, 3, 4))), 7, 4),
        (EXPONENTIAL, 0, 1_000),
        (EXPONENTIAL, 2, 9_000),
        (EXPONENTIAL, 1_000_000, 60_000),
        (GroupRetryPolicy(type="EXPONENTIAL"), 1, 10_000),
    ],
)
def test_the_delay_of_a_policy(policy: GroupRetryPolicy, failed: int, expected: int) -> None:
    """Levels begin at the third, as Java's do; exponential delays have a limit."""
    assert policy.delay_ms(failed) == expected


def test_a_message_is_hidden_until_its_policy_lets_it_come_again() -> None:
    """The delay counts from its delivery, so that a lease that was as long adds nothing; it is waited for
    once."""
    assert next_step(0, 16, EXPONENTIAL, 1_000, 1_400, waited=False) == Step(Next.WAIT, 600)
    assert next_step(0, 16, EXPONENTIAL, 1_000, 2_000, waited=False) == Step(Next.AGAIN)
    assert next_step(0, 16, EXPONENTIAL, 1_000, 1_400, waited=True) == Step(Next.AGAIN)
    assert next_step(0, 16, None, 1_000, 1_000, waited=False) == Step(Next.AGAIN)


def test_after_the_last_delivery_it_is_a_dead_letter() -> None:
    """A group that allows n failed deliveries gets n + 1 in all."""
    assert next_step(15, 16, None, 0, 0, waited=False) == Step(Next.AGAIN)
    assert next_step(16, 16, None, 0, 0, waited=False) == Step(Next.DEAD)


def test_a_copy_says_whose_it_is_and_what_it_was() -> None:
    """Body, flag, birth and properties stay, also those that are not UTF-8; put hooks do not keep it back."""
    sent = message("T", 2, b"body")
    sent.set_properties({"a": "b", props.DELAY: "3", props.TIMER_DELIVER_MS: "9"})
    sent.properties_bytes += b"odd\x01\xff\xfe\x02"
    sent.flag, sent.reconsume_times = 7, 2
    host = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    stored = record.unpack(record.pack(sent, record.message_size(sent), 5, 900, 1_234, host))
    again = copy_for_retry(stored, "%RETRY%g_T", "g", 55, suspended=False)
    assert (again.topic, again.queue_id, again.body, again.flag) == ("%RETRY%g_T", 0, b"body", 7)
    assert again.reconsume_times == 3
    assert b"odd\x01\xff\xfe\x02" in again.properties_bytes
    assert f"{props.DELAY}\x013\x02".encode() in again.properties_bytes
    assert not {props.DELAY, props.TIMER_DELIVER_MS} & again.properties.keys()
    kept = props.decode_bytes(again.properties_bytes)
    assert (kept[props.POP_GROUP], kept[props.FIRST_POP_TIME]) == ("g", "55")
    assert copy_for_retry(stored, "%RETRY%g_T", "g", 55, suspended=True).reconsume_times == 2
    dead = copy_for_dead_letters(stored, "g", "T")
    assert (dead.topic, dead.properties[props.DLQ_ORIGIN_TOPIC]) == ("%DLQ%g", "T")
    assert dead.properties[props.DLQ_ORIGIN_MESSAGE_ID] == dead.properties[props.ORIGIN_MESSAGE_ID]


@pytest.mark.parametrize(
    ("topic", "group", "expected"),
    [
        ("T", "g", "T"),
        ("%RETRY%g_T", "g", "T"),
        ("%RETRY%g+T", "g", "T"),
        ("%RETRY%a_b_c", "a_b", "c"),
        ("%RETRY%a_b_c", "a", "b_c"),
        ("%RETRY%other_T", "g", "%RETRY%other_T"),
    ],
)
def test_the_topic_of_a_retry_topic(topic: str, group: str, expected: str) -> None:
    """The group's name tells where the topic's begins."""
    assert origin_topic(topic, group) == expected


def test_a_groups_policy_is_javas_json() -> None:
    """A group without one has no such field, as before."""
    text = (
        b'{"groupName":"g","groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":'
        b'{"initial":7,"max":8,"multiplier":9}}}'
    )
    found = msgspec.json.decode(text, type=SubscriptionGroupConfig)
    assert isinstance(found.group_retry_policy, GroupRetryPolicy)
    assert found.group_retry_policy.delay_ms(0) == 7
    assert b"groupRetryPolicy" not in msgspec.json.encode(SubscriptionGroupConfig(group_name="g"))
