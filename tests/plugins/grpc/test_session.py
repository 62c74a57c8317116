"""What a call says of its client, its topic and its group."""

from __future__ import annotations

import pytest

from rmqkit.protocol.command import Command
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Exchange, Session, group_of, language_of, name_of, topic_of
from rmqkit_grpc.statuses import Refusal
from tests.plugins.grpc.client import resource


class Nowhere:
    """A wire on which no stream is open."""

    def tell(self, stream: int, message: object) -> bool:
        return False

    def respond(self, session: Session, answer: Command) -> None:
        raise AssertionError("nobody was asked")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("JAVA", "JAVA"),
        ("python", "PYTHON"),
        ("GOLANG", "GO"),
        ("GO", "GO"),
        ("DOTNET", "DOTNET"),
        ("CSHARP", "DOTNET"),
        ("NODE_JS", "NODE_JS"),
        ("KLINGON", None),
        ("", None),
    ],
)
def test_languages(given: str, wanted: str | None) -> None:
    """Any is taken; those that remoting knows have its names."""
    assert language_of({"x-mq-language": given}) == wanted
    assert language_of({}) is None


def test_names_with_namespaces() -> None:
    """They are those which remoting clients use; a name that has the namespace already stays."""
    assert name_of(resource("Orders")) == "Orders"
    assert name_of(resource("Orders", "shop")) == "shop%Orders"
    assert name_of(resource("shop%Orders", "shop")) == "shop%Orders"
    assert name_of(resource("%RETRY%g", "shop")) == "%RETRY%shop%g"


@pytest.mark.parametrize("name", ["", "a b", "TBW102", "rmq_sys_x", "x" * 128, "ä"])
def test_illegal_topics(name: str) -> None:
    """The refusal has the code of topics."""
    with pytest.raises(Refusal) as caught:
        topic_of(resource(name))
    assert caught.value.status_code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", " ", "CID_RMQ_SYS_x", "x" * 121])
def test_illegal_groups(name: str) -> None:
    """The refusal has the code of groups."""
    with pytest.raises(Refusal) as caught:
        group_of(resource(name))
    assert caught.value.status_code == Code.ILLEGAL_CONSUMER_GROUP


def test_deadlines_and_a_broker_that_is_not_there_yet() -> None:
    """The deadline is that of the metadata, from the beginning of the call on."""
    session = Session("c", Nowhere(), "JAVA")
    exchange = Exchange(session, 1, {"grpc-timeout": "3S"}, 1_000.0, None)
    assert exchange.deadline_ms == 4_000.0
    assert Exchange(session, 1, {}, 1_000.0, None).deadline_ms is None
    assert exchange.command(34).language == "JAVA"
    with pytest.raises(Refusal, match="still starting"):
        _ = exchange.backend


def test_kinds_of_clients() -> None:
    """A consumer is known by its settings."""
    session = Session("c", Nowhere())
    assert not session.is_consumer
    session.settings = V2.messages["Settings"]()
    assert not session.is_consumer
    session.settings.subscription.group.name = "G"
    assert session.is_consumer
