"""What a broker finds out from the half topics: transactions that have ended stay ended, whatever was not
written when it died, and the others are open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio.testing

from rmqkit.model import names
from tests.plugins.transaction.kit import ROLLBACK, producing

DISKS = pytest.mark.parametrize("store", ["mmap", "lmdb"])


@DISKS
async def test_a_commit_whose_op_message_was_not_written(tmp_path: Path, store: str) -> None:
    """The real message in the log tells of it: it is not committed twice, and the op message is written
    now."""
    keys: dict[str, Any] = {"store": store, "transactionOpBatchInterval": 60_000}
    async with producing(tmp_path, graceful=False, **keys) as producer:
        await producer.half(key="open")
        # The first end is written at once.
        await producer.ended(await producer.half(key="written"), ROLLBACK)
        await trio.testing.wait_all_tasks_blocked()
        sent = await producer.half()
        await producer.ended(sent)
        assert producer.ops() == [b"1,"]
    async with producing(tmp_path, **keys) as producer:
        assert "has ended" in ((await producer.end(sent)).remark or "")
        assert [each.header.msg_id for each in await producer.questions()] == ["open"]
    async with producing(tmp_path, **keys) as producer:
        assert producer.ops()[1].startswith(b"2,")
        assert producer.delivered() == [b"body"]


@pytest.mark.parametrize("ended", [True, False])
@DISKS
async def test_a_round_whose_progress_was_not_saved(tmp_path: Path, store: str, ended: bool) -> None:
    """The half message is there twice, as it was sent and as the round stored it: it is one transaction."""
    async with producing(tmp_path, store=store, graceful=False) as producer:
        sent = await producer.half()
        (question,) = await producer.questions()
        if ended:
            await producer.ended(question.sent)
    async with producing(tmp_path, store=store) as producer:
        assert producer.open_count == (0 if ended else 1)
        assert len(await producer.questions()) == (0 if ended else 1)
        if not ended:
            await producer.ended(sent)
        assert "has ended" in ((await producer.end(question.sent)).remark or "")
        assert producer.delivered() == [b"body"]


@DISKS
async def test_the_first_place_of_an_immune_half_message_is_kept(tmp_path: Path, store: str) -> None:
    """Its producer knows no other, also after the broker has died and the progress is behind it."""
    async with producing(tmp_path, store=store, graceful=False) as producer:
        sent = await producer.half(CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        producer.desk.clock.advance(1)
        assert await producer.questions() == []
        await producer.desk.broker.offsets.persist()
    async with producing(tmp_path, store=store) as producer:
        await producer.ended(sent)
        assert producer.delivered() == [b"body"]


@pytest.mark.parametrize("progress", [(99, 99), (-5, -1), (0, 3)])
@DISKS
async def test_a_progress_that_is_wrong(tmp_path: Path, store: str, progress: tuple[int, int]) -> None:
    """As after a lost, older or foreign table of offsets: it is moved into its queue, and nothing is
    committed twice."""
    async with producing(tmp_path, store=store) as producer:
        sent = await producer.half()
        await producer.ended(sent)
        offsets = producer.desk.broker.offsets
        for topic, offset in zip((names.HALF_TOPIC, names.OP_HALF_TOPIC), progress, strict=True):
            offsets.commit("CID_RMQ_SYS_TRANS", topic, 0, offset)
        await offsets.persist()
    async with producing(tmp_path, store=store) as producer:
        assert "has ended" in ((await producer.end(sent)).remark or "")
        assert await producer.questions() == []
        later = await producer.half(b"later", "L")
        await producer.ended(later)
        assert producer.delivered() == [b"body", b"later"]


@DISKS
async def test_a_rollback_whose_op_message_was_not_written(tmp_path: Path, store: str) -> None:
    """The broker asks, and the producer says it again."""
    async with producing(tmp_path, store=store, graceful=False) as producer:
        await producer.ended(await producer.half(), ROLLBACK)
    async with producing(tmp_path, store=store) as producer:
        (question,) = await producer.questions()
        await producer.ended(question.sent, ROLLBACK, from_transaction_check=True)
        assert producer.delivered() == []
