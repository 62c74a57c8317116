"""Pops of the load generator, against a broker in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.popping import GROUP, Popped, bits_of, found_in
from rmqkit.protocol.headers import PopMessageResponseHeader
from rmqkit.protocol.receipt import BatchAck, QueueOffsets, offset_infos, parse_offset_infos
from rmqkit.testing.broker import running_cluster
from rmqkit_pop.service import PopService
from tests.benchmarks.test_load import load

MESSAGES = 120


@pytest.mark.parametrize("most", [1, 32])
async def test_everything_is_popped_and_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    """Once, one by one and in batches; nothing stays leased."""
    async with running_cluster(tmp_path) as cluster:
        where = ["--namesrv", cluster.namesrv_text, "--topic", "Pops"]
        await load(capsys, "send", *where, "--messages", str(MESSAGES), "--connections", "1")
        name = cluster.broker.context.config.broker_name
        words = ["pop", *where, "--broker-name", name, "--connections", "2", "--max-messages", str(most)]
        report = await load(capsys, *words)
        service = cluster.broker.context.registry.services["pop"]
        assert isinstance(service, PopService)
        assert service.figures() == {"popLeasedMessages": 0}
        done = cluster.broker.context.offsets.queues(GROUP, "Pops")
    # The topic was created by a send that does not count.
    assert report["messages"] == sum(done.values()) == MESSAGES + 1
    assert report["requests"] >= 2 * report["messages"] / most


@given(st.lists(st.integers(0, 63), min_size=1, unique=True).map(sorted), st.integers(0, 2**40))
def test_offsets_are_read_and_named_as_the_broker_does(distances: list[int], start: int) -> None:
    """The places of an answer, and the bits of its acknowledgement."""
    offsets = [start + each for each in distances]
    starts, places = offset_infos([QueueOffsets("0", 3, start, offsets), QueueOffsets("1", 0, 7, [9])])
    found = found_in({"startOffsetInfo": starts, "msgOffsetInfo": places})
    header = PopMessageResponseHeader(
        pop_time=1,
        invisible_time=1,
        revive_qid=0,
        rest_num=0,
        start_offset_info=starts,
        msg_offset_info=places,
    )
    read = parse_offset_infos(header)
    assert found == [Popped(each[0], each[1], each[2], [*each[3]]) for each in read]
    ack = BatchAck(
        group="g",
        topic="T",
        start_offset=start,
        queue_id=3,
        revive_queue=0,
        pop_time_ms=1,
        bits=bits_of(found[0]),
    )
    assert ack.offsets() == offsets
