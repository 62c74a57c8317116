"""Expressions of consumers: tags, and conditions given by mistake."""

from __future__ import annotations

from urllib.parse import parse_qsl

import msgspec
import pytest

from rmqkit.client import ClientError, MessageQueue, filter_class, python_filter
from rmqkit.client.consumer.options import Expression, subscriptions
from rmqkit.client.consumer.pulling import pull_command, subscription
from rmqkit.model.sysflag import PULL_CLASS_FILTER, PULL_SUSPEND
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import answer
from tests.client.fake_cluster import cluster
from tests.client.fakes import run

CONDITIONS = [
    "a > 3",
    "a>3",
    "a = 'x'",
    "a <> 2",
    "A || b >= 1",
    "a IS NULL",
    "a is not null",
    "a IN ('x', 'y')",
    "a not in('x')",
    "a BETWEEN 1 AND 3",
    "a LIKE '%x'",
    "a && b",
    "A | B",
]
TAGS = [
    "*",
    "",
    "A",
    "A||B",
    "A || B || C",
    "new order",
    "rock and roll",
    "is",
    "Bestellung-7",
    "größer",
    "a.b/c",
    "in stock",
    "between",
    "(x)",
    "a,b",
    "100%",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_is_not_taken_for_tags(text: str) -> None:
    """The error names the mark of a condition and the correct form."""
    with pytest.raises(ClientError, match=r'joined by \|\|.*expression_type="SQL92".*expression_type="TAG"'):
        subscription("T", text, None, 0)
    assert subscription("T", text, "TAG", 0).is_tag
    assert subscription("T", text, "SQL92", 0).sub_string == text


@pytest.mark.parametrize("text", TAGS)
def test_tags_are_taken_as_java_takes_them(text: str) -> None:
    """Spaces and signs within a tag belong to the tag, as in Java."""
    assert subscription("T", text, None, 0).is_tag


def test_every_way_to_read_refuses_a_condition() -> None:
    """Every method refuses a condition at once and sends nothing."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            queue = MessageQueue("T", "broker-a", 0)
            with pytest.raises(ClientError, match="looks like a condition"):
                client.lite_pull_consumer("lite", subscribe={"T": "a > 3"})
            with pytest.raises(ClientError, match="looks like a condition"):
                await consumer.pull(queue, 0, expression="a > 3")
            with pytest.raises(ClientError, match="looks like a condition"):
                await client.raw_reader("r").pull(queue, 0, expression="a > 3")
            with pytest.raises(TypeError, match="expression is a str"):
                await consumer.pull(queue, 0, expression=["A"])
            assert fake.brokers["broker-a"].server.seen(RequestCode.PULL_MESSAGE) == []

    run("trio", body)


def test_a_pull_with_a_condition_fails_when_the_broker_has_no_filter() -> None:
    """The broker's error is raised instead of waiting for messages."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            broker = fake.brokers["broker-a"]
            broker.overrides[RequestCode.PULL_MESSAGE] = lambda command: answer(
                command, ResponseCode.FILTER_DATA_NOT_EXIST, "the broker does not filter by SQL92"
            )
            queue = MessageQueue("T", "broker-a", 0)
            with pytest.raises(ClientError, match="does not filter by SQL92"):
                await consumer.pull(queue, 0, expression="a > 3", expression_type="SQL92", block=True)

    run("trio", body)


@pytest.mark.parametrize(
    ("wanted", "text", "parameters"),
    [
        (python_filter("cheap"), "cheap", {}),
        (python_filter("cheap", below=5), "cheap?below=5", {"below": "5"}),
        (
            python_filter("near", place="a&b=c d", name="é"),
            "near?place=a%26b%3Dc+d&name=%C3%A9",
            {"place": "a&b=c d", "name": "é"},
        ),
    ],
)
def test_a_filter_in_python_is_named_with_its_parameters(
    wanted: Expression, text: str, parameters: dict[str, str]
) -> None:
    """The parameters are encoded as a query string, which the broker decodes."""
    (subscription,) = subscriptions({"T": wanted}, 7).values()
    assert (subscription.expression_type, subscription.sub_string) == ("PYTHON", text)
    assert dict(parse_qsl(text.partition("?")[2])) == parameters


def test_a_filter_class_is_a_flag_of_a_tag_subscription() -> None:
    """The heartbeat has the class name and Java's flag; the pull has neither the name nor a subscription,
    because the filter server knows it, and is never a lite pull, which filter servers do not take."""
    (wanted,) = subscriptions({"T": filter_class("cheap?below=5")}, 7).values()
    encoded = msgspec.to_builtins(wanted)
    assert (encoded["subString"], encoded["classFilterMode"], encoded["expressionType"]) == (
        "cheap?below=5",
        True,
        "TAG",
    )
    queue = MessageQueue("T", "broker-a", 0)
    for lite in (False, True):
        command = pull_command("g", queue, 5, wanted, 32, 1000, lite=lite)
        fields = command.fields()
        assert command.code == RequestCode.PULL_MESSAGE
        assert fields["sysFlag"] == str(PULL_CLASS_FILTER | PULL_SUSPEND)
        assert "subscription" not in fields
