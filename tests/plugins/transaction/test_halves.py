"""Half messages: no consumer sees them before they are committed, and none ever when they are rolled back."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from rmqkit.model import names
from rmqkit.model.sysflag import MULTI_TAGS, TRANSACTION_COMMIT
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import EndTransactionRequestHeader
from tests.broker.desk import bodies, open_desk
from tests.plugins.transaction.conftest import Opened
from tests.plugins.transaction.kit import COMMIT, ROLLBACK, UNKNOWN, producing


@pytest.mark.row("S141", "S142", "S145", "S025")
async def test_a_committed_message_is_delivered_once(over_each_store: Opened) -> None:
    """Nobody sees the half message; the real one comes at the commit, in its own queue."""
    async with over_each_store() as producer:
        sent = await producer.half(b"order", queue_id=2, TAGS="A")
        assert producer.delivered(2) == []
        assert bodies(await producer.desk.pull(queue_id=2)) == []
        await producer.ended(sent)
        assert producer.delivered(2) == [b"order"]
        assert bodies(await producer.desk.pull(queue_id=2, subscription="A")) == [b"order"]


async def test_a_message_that_is_rolled_back_is_never_delivered(over_each_store: Opened) -> None:
    """Neither at once nor after rounds of questions, which do not ask for it."""
    async with over_each_store() as producer:
        await producer.ended(await producer.half(), ROLLBACK)
        assert await producer.questions() == []
        assert producer.delivered() == []


@pytest.mark.row("S246")
async def test_the_forms_of_a_message_are_those_of_java(tmp_path: Path) -> None:
    """The half message is an ordinary one of its topic. The real message has body, flag, birth and properties
    of the producer, names its half message, and its system flag says that it was committed."""
    async with producing(tmp_path) as producer:
        desk = producer.desk
        await desk.sent(
            queue_id=3,
            body=b"order",
            flag=77,
            sys_flag=4,
            born_timestamp=5_000,
            properties={"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K", "KEYS": "k1", "own": "x"},
        )
        (half,) = producer.halves()
        assert (half.queue_id, half.queue_offset, half.flag, half.sys_flag) == (0, 0, 77, 0)
        assert (half.body, half.born_timestamp_ms, half.prepared_offset) == (b"order", 5_000, 0)
        added = {"REAL_TOPIC": "T", "REAL_QID": "3", "__transactionId__": "K"}
        assert added.items() <= half.properties.items()
        header = EndTransactionRequestHeader(
            producer_group="pg",
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            commit_or_rollback=COMMIT,
            from_transaction_check=True,
        )
        assert (await desk.ask(RequestCode.END_TRANSACTION, header)).code == 0
        (real,) = desk.stored("T", 3)
        assert (real.body, real.flag, real.born_timestamp_ms) == (b"order", 77, 5_000)
        assert (real.sys_flag, real.prepared_offset) == (TRANSACTION_COMMIT, half.physical_offset)
        assert real.properties == half.properties
        assert real.born_host == half.born_host


async def test_the_answer_to_a_half_message_names_its_real_queue(over_each_store: Opened) -> None:
    """With the offset of the half message in its own queue, by which the producer ends it."""
    async with over_each_store() as producer:
        await producer.half(key="first")
        answer = await producer.desk.sent(
            queue_id=3, properties={"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "second"}
        )
        assert (answer.queue_id, answer.queue_offset, answer.transaction_id) == (3, 1, "second")


async def test_an_unknown_outcome_changes_nothing(over_each_store: Opened) -> None:
    """The transaction stays open, and can be committed later."""
    async with over_each_store() as producer:
        sent = await producer.half()
        assert (await producer.end(sent, UNKNOWN)).code == ResponseCode.SUCCESS
        assert producer.delivered() == []
        await producer.ended(sent)
        assert producer.delivered() == [b"body"]


async def test_many_ends_that_arrive_together(over_each_store: Opened) -> None:
    """Those of one connection are ended with one append, in order; a wrong one among them has its own
    answer."""
    async with over_each_store() as producer:
        sent = [await producer.half(b"%d" % number, f"K{number}") for number in range(10)]
        requests = [each.end_request(ROLLBACK if at == 3 else COMMIT) for at, each in enumerate(sent)]
        requests[5] = sent[5].end_request(producer_group="others")
        requests.append(sent[0].end_request())
        processor = producer.desk.router.processors[RequestCode.END_TRANSACTION]
        outcomes = processor.process(requests, producer.desk.peer)
        await producer.desk.peer.all_answered()
        assert len(outcomes) == 11
        assert producer.delivered() == [b"%d" % number for number in range(10) if number not in (3, 5)]
        assert producer.open_count == 1


async def test_a_delayed_transaction_waits_from_its_commit_on(over_each_store: Opened) -> None:
    """A delay level does not park the half message, but the real one."""
    async with over_each_store() as producer:
        sent = await producer.half(b"later", queue_id=1, DELAY="3")
        assert producer.desk.stored(names.SCHEDULE_TOPIC, 2) == []
        await producer.ended(sent)
        assert producer.delivered(1) == []
        (parked,) = producer.desk.stored(names.SCHEDULE_TOPIC, 2)
        assert (parked.properties["REAL_TOPIC"], parked.properties["REAL_QID"]) == ("T", "1")


async def test_a_delay_that_no_plugin_brings_is_refused_with_the_half_message(
    over_each_store: Opened,
) -> None:
    """Not only at the commit, which could then never succeed."""
    async with over_each_store(disabledServices="delay") as producer:
        answer = await producer.desk.send(properties={"TRAN_MSG": "true", "PGROUP": "pg", "DELAY": "1"})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert producer.halves() == []


async def test_what_became_of_a_half_message_is_none(over_each_store: Opened) -> None:
    """A committed message that its consumer sends back, or sends again itself, is stored for its retry,
    although it still has the property of a prepared one."""
    async with over_each_store() as producer:
        desk = producer.desk
        await producer.ended(await producer.half())
        (real,) = desk.stored("T")
        assert (await desk.send_back(real.physical_offset)).code == 0
        await desk.sent(
            topic="%RETRY%g",
            reconsume_times=1,
            properties={"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K", "DELAY": "3"},
        )
        assert len(producer.halves()) == 1
        assert len(desk.stored(names.SCHEDULE_TOPIC, 2)) == 2


async def test_a_client_cannot_set_the_notes_of_a_broker(over_each_store: Opened) -> None:
    """The count of questions, and the place of a first copy."""
    async with over_each_store() as producer:
        await producer.half(TRANSACTION_CHECK_TIMES="99", TRAN_PREPARED_QUEUE_OFFSET="0")
        (question,) = await producer.questions()
        assert question.message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert "TRAN_PREPARED_QUEUE_OFFSET" not in question.message.properties


async def test_the_bits_of_the_topic_stay(over_each_store: Opened) -> None:
    """Those besides the transaction's, as of a topic with several tags in one message."""
    async with over_each_store() as producer:
        topic = producer.desk.broker.topics.get("T")
        assert topic is not None
        await producer.desk.broker.topics.put(replace(topic, topic_filter_type="MULTI_TAG"))
        await producer.ended(await producer.half())
        assert producer.desk.stored("T")[0].sys_flag == MULTI_TAGS | TRANSACTION_COMMIT


@pytest.mark.row("S086", "S096")
async def test_rejected_transactions(over_each_store: Opened) -> None:
    """`rejectTransactionMessage` refuses half messages, and no others."""
    async with over_each_store(rejectTransactionMessage=True) as producer:
        answer = await producer.desk.send(properties={"TRAN_MSG": "true", "PGROUP": "pg"})
        assert (answer.code, "rejectTransactionMessage" in (answer.remark or "")) == (
            ResponseCode.NO_PERMISSION,
            True,
        )
        await producer.desk.sent(properties={"TRAN_MSG": "false"})
        assert (len(producer.halves()), producer.delivered()) == (0, [b"body"])


async def test_without_the_service_prepared_messages_are_refused(tmp_path: Path) -> None:
    """And the codes are not supported; a broker would otherwise deliver them at once."""
    async with open_desk(tmp_path, disabledServices="transaction") as desk:
        answer = await desk.send(properties={"TRAN_MSG": "true", "PGROUP": "pg"})
        assert (answer.code, "transactional" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        assert desk.is_empty()
        for code in (RequestCode.END_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE):
            assert (await desk.ask(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
