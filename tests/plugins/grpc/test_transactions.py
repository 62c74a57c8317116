"""Transactions: their end, and the broker's questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumerGroupRequestHeader,
    EndTransactionRequestHeader,
)
from rmqkit.testing.broker import running_broker
from rmqkit_grpc.session import Exchange, Session
from rmqkit_grpc.statuses import Refusal
from rmqkit_grpc.transaction_id import Transaction, text_of
from rmqkit_grpc.transactions import end_transaction
from tests.plugins.grpc.client import CODES, ENUMS, M, connected, message, producing, resource, sending
from tests.plugins.grpc.test_producing import stored
from tests.plugins.grpc.test_session import Nowhere

RESOLUTIONS = ENUMS["TransactionResolution"]
OPEN = Transaction(3, 4_711, "broker-a", "01AB")


def ending(resolution: str, transaction_id: str = text_of(OPEN), source: str = "SOURCE_CLIENT") -> Any:
    return M["EndTransactionRequest"](
        topic=resource("T", "shop"),
        transaction_id=transaction_id,
        resolution=RESOLUTIONS[resolution],
        source=ENUMS["TransactionSource"][source],
    )


@pytest.mark.parametrize(
    ("resolution", "flag"), [("COMMIT", TRANSACTION_COMMIT), ("ROLLBACK", TRANSACTION_ROLLBACK)]
)
@pytest.mark.parametrize("source", ["SOURCE_CLIENT", "SOURCE_SERVER_CHECK"])
def test_the_end_of_a_transaction(resolution: str, flag: int, source: str) -> None:
    """The id says which half message it is; the producer's group is its topic."""
    exchange = Exchange(Session("c", Nowhere()), 1, {}, 0, None)
    steps = end_transaction(exchange, ending(resolution, source=source))
    (asked,) = next(steps)
    assert asked.code == RequestCode.END_TRANSACTION
    assert asked.header(EndTransactionRequestHeader) == EndTransactionRequestHeader(
        producer_group="shop%T",
        tran_state_table_offset=3,
        commit_log_offset=4_711,
        commit_or_rollback=flag,
        msg_id="01AB",
        transaction_id="01AB",
        from_transaction_check=source == "SOURCE_SERVER_CHECK",
        topic="shop%T",
        bname="broker-a",
    )
    with pytest.raises(StopIteration) as done:
        steps.send([answer(asked)])
    assert done.value.value.status.code == CODES["OK"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (ending("COMMIT", ""), "INVALID_TRANSACTION_ID"),
        (ending("COMMIT", "other"), "INVALID_TRANSACTION_ID"),
        (ending("TRANSACTION_RESOLUTION_UNSPECIFIED"), "BAD_REQUEST"),
    ],
)
def test_ends_that_are_refused(asked: Any, code: str) -> None:
    """Nothing is asked of the broker."""
    exchange = Exchange(Session("c", Nowhere()), 1, {}, 0, None)
    with pytest.raises(Refusal) as caught:
        next(end_transaction(exchange, asked))
    assert caught.value.status_code == CODES[code]


@pytest.mark.parametrize(("resolution", "count"), [("COMMIT", 1), ("ROLLBACK", 0)])
async def test_a_transaction_of_the_broker(tmp_path: Path, resolution: str, count: int) -> None:
    """A half message is stored aside; once its transaction ends, it is there or it is not. Another client may
    end it, and nobody ends it twice."""
    async with (
        running_broker(tmp_path) as running,
        connected(running) as client,
        connected(running, "other") as other,
    ):
        half = message("T", b"half", "01AB", message_type=ENUMS["MessageType"]["TRANSACTION"])
        answer = await client.call("SendMessage", sending(half))
        assert answer.status.code == CODES["OK"], answer
        (entry,) = answer.entries
        assert entry.transaction_id
        assert not stored(running, "T")
        asked = ending(resolution, entry.transaction_id)
        asked.topic.resource_namespace = ""
        assert (await other.call("EndTransaction", asked)).status.code == CODES["OK"]
        assert [each.body for each in stored(running, "T")] == [b"half"] * count
        again = await client.call("EndTransaction", asked)
        assert again.status.code != CODES["OK"]
        assert len(stored(running, "T")) == count


async def test_a_question_of_the_broker(tmp_path: Path) -> None:
    """It reaches a producer of the topic over its Telemetry, with the message and the id to answer by; a
    client without Telemetry cannot be asked."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        settings = producing()
        settings.publishing.topics.add(name="T", resource_namespace="shop")
        stream, _ = await client.settle(settings)
        sent = message("T", b"half", "01AB", tag="t")
        sent.topic.resource_namespace = "shop"
        await client.call("SendMessage", sending(sent))
        (peer,) = running.context.clients.producers["shop%T"]
        store = running.context.store
        (queue_id,) = [each for each in range(4) if store.max_offset("shop%T", each)]
        (unit,) = store.read_units("shop%T", queue_id, 0, 1)
        record = store.read_record(unit.physical_offset)
        assert record is not None
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=3,
            commit_log_offset=4_711,
            msg_id="01AB",
            transaction_id="01AB",
            bname="broker-a",
        )
        question = request(RequestCode.CHECK_TRANSACTION_STATE, header, bytes(record), oneway=True)
        assert peer.push(question)
        _, data = await client.until_messages(stream, 2)
        asked = M["TelemetryCommand"].FromString(data).recover_orphaned_transaction_command
        assert asked.transaction_id == text_of(OPEN)
        assert (asked.message.topic.name, asked.message.topic.resource_namespace) == ("T", "shop")
        assert (asked.message.body, asked.message.system_properties.tag) == (b"half", "t")
        client.h2.end_stream(stream)
        await client.flush()
        await client.until_ended(stream)
        assert not peer.push(question)


async def test_other_requests_of_the_broker(tmp_path: Path) -> None:
    """Clients of gRPC share no queues, so changes of their group are nothing to them; they cannot be asked
    for anything else."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await client.settle(producing("T"))
        (peer,) = running.context.clients.producers["T"]
        changed = request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroupRequestHeader(consumer_group="G")
        )
        assert peer.push(changed)
        assert not peer.push(Command(code=int(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)))
