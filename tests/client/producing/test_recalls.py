"""Recalls by the client."""

from __future__ import annotations

import pytest

from rmqkit.client import BrokerError, BrokerUnknown, ClientError
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqkit.protocol.recall_handle import RecallHandle
from tests.client.fake_cluster import FakeBroker, cluster
from tests.client.fakes import on_both_backends, run


def handle(broker: str = "broker-b", topic: str = "T") -> str:
    text = RecallHandle(topic, broker, 1_700_000_000_001, "ID").encode()
    assert text is not None
    return text


def recalls(broker: FakeBroker) -> list[RecallMessageRequestHeader]:
    return [
        command.header(RecallMessageRequestHeader)
        for command in broker.server.seen(RequestCode.RECALL_MESSAGE)
    ]


def recalled(command: Command) -> Command:
    return answer(command, header=RecallMessageResponseHeader(msg_id="ID"))


@on_both_backends
def test_the_broker_that_keeps_the_message_is_asked(backend: str) -> None:
    """The request has group, topic and handle; the result is the id."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("g") as producer:
            a, b = fake.brokers.values()
            b.overrides[RequestCode.RECALL_MESSAGE] = recalled
            assert await producer.recall("T", handle()) == "ID"
            (header,) = recalls(b)
            assert (header.producer_group, header.topic, header.recall_handle) == ("g", "T", handle())
            assert header.bname == "broker-b"
            assert not recalls(a)

    run(backend, body)


@on_both_backends
def test_what_is_no_handle_is_not_sent(backend: str) -> None:
    """The error says what to pass; a broker that does not have the topic is named."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("g") as producer:
            with pytest.raises(ClientError, match="recall handle is invalid: pass `recall_handle`"):
                await producer.recall("T", "none")
            with pytest.raises(ClientError, match="retries or dead letters"):
                await producer.recall("%RETRY%g", handle("broker-a", "%RETRY%g"))
            with pytest.raises(ClientError, match="a recall names the topic"):
                await producer.recall("", handle("broker-a"))
            with pytest.raises(BrokerUnknown, match="'broker-z', which the handle names"):
                await producer.recall("T", handle("broker-z"))
            assert not recalls(fake.brokers["broker-a"])
        with pytest.raises(ClientError, match="is not open"):
            await producer.recall("T", handle("broker-a"))

    run(backend, body)


@on_both_backends
def test_a_refusal_is_raised_at_once(backend: str) -> None:
    """It has the broker's code and remark."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("g") as producer:
            broker = fake.brokers["broker-a"]
            broker.overrides[RequestCode.RECALL_MESSAGE] = lambda command: answer(
                command, ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid"
            )
            with pytest.raises(BrokerError, match=r"recalling message ID: .*timestamp invalid") as caught:
                await producer.recall("T", handle("broker-a"))
            assert caught.value.code == ResponseCode.ILLEGAL_OPERATION
            assert len(recalls(broker)) == 1

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("code", [ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_a_broker_that_is_no_master_is_asked_again(backend: str, code: int) -> None:
    """It may become the master within the time-out; after that its last answer is the error."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("g", timeout_ms=2_000) as producer:
            broker = fake.brokers["broker-a"]
            answers = iter([code, code])
            broker.overrides[RequestCode.RECALL_MESSAGE] = lambda command: (
                answer(command, refused, "no") if (refused := next(answers, 0)) else recalled(command)
            )
            assert await producer.recall("T", handle("broker-a")) == "ID"
            assert len(recalls(broker)) == 3
            broker.overrides[RequestCode.RECALL_MESSAGE] = lambda command: answer(command, code, "still no")
            with pytest.raises(BrokerError, match="still no"):
                await producer.recall("T", handle("broker-a"), timeout_ms=500)

    run(backend, body)


def test_a_namespace_goes_before_the_topic() -> None:
    """The topic is that of the brokers, as in the handle."""

    async def body() -> None:
        async with cluster("a", namespace="shop") as (fake, client), client.producer("g") as producer:
            fake.topics["shop%T"] = {"broker-a": 6}
            broker = fake.brokers["broker-a"]
            broker.overrides[RequestCode.RECALL_MESSAGE] = recalled
            await producer.recall("T", handle("broker-a", "shop%T"))
            assert recalls(broker)[0].topic == "shop%T"

    run("trio", body)
