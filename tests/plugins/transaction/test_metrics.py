"""The metrics of transactions."""

from __future__ import annotations

from rmqkit_transaction.service import TransactionService
from tests.plugins.transaction.conftest import Opened
from tests.plugins.transaction.kit import ROLLBACK

Samples = dict[str, dict[tuple[str, ...], float]]


def samples(service: TransactionService) -> Samples:
    return {family.name: dict(values) for family, values in service.metrics()}


async def test_what_becomes_of_transactions_is_counted(opened: Opened) -> None:
    """Open ones by number, ended ones by their topics, and the questions; a deleted topic is not named."""
    async with opened(transactionCheckMax=1) as producer:
        await producer.ended(await producer.half(key="a"))
        await producer.ended(await producer.half(key="b"))
        await producer.ended(await producer.half(key="c"), ROLLBACK)
        await producer.half(key="d")
        await producer.half(key="e", group="nobody")
        assert samples(producer.service) == {
            "rmqkit_open_transactions": {(): 2},
            "rocketmq_commit_messages_total": {("T",): 2},
            "rocketmq_rollback_messages_total": {("T",): 1},
            "rmqkit_transaction_checks_total": {(): 0},
            "rmqkit_transaction_checks_unheard_total": {(): 0},
            "rmqkit_transactions_given_up_total": {(): 0},
        }
        assert len(await producer.questions()) == 1
        await producer.questions(30_000)
        await producer.desk.broker.topics.delete("T")
        found = samples(producer.service)
        assert found["rmqkit_open_transactions"] == {(): 0}
        assert found["rocketmq_commit_messages_total"] == found["rocketmq_rollback_messages_total"] == {}
        assert found["rmqkit_transaction_checks_total"] == {(): 1}
        assert found["rmqkit_transaction_checks_unheard_total"] == {(): 1}
        assert found["rmqkit_transactions_given_up_total"] == {(): 2}


def test_a_service_that_has_not_begun_has_none() -> None:
    """As on a broker whose processors are not there yet."""
    assert samples(TransactionService()) == {}
