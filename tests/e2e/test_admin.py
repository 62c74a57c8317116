"""Administration requests of a broker to rmqkit's own consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.client import Client, Message
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    ConsumerClientRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from rmqkit.protocol.headers.base import Header
from rmqkit.testing.broker import running_cluster

#: Longer than any operation here takes.
PATIENCE_S = 120


@pytest.mark.row("S070")
@pytest.mark.parametrize("here", [True, False], ids=["by-the-broker", "by-the-consumer"])
async def test_a_stream_goes_back_after_a_reset(tmp_path: Path, here: bool) -> None:
    """The consumer continues at the reset offsets, whether the broker sets them or asks the consumer to; the
    consumer also reports its state."""
    keys: dict[str, Any] = {"useServerSideResetOffset": here, "defaultTopicQueueNums": 1}
    with trio.fail_after(PATIENCE_S):
        async with (
            running_cluster(tmp_path, **keys) as cluster,
            Client(cluster.namesrv_text, connect=cluster.connect) as client,
            client.producer("p") as producer,
            client.lite_pull_consumer("g", subscribe="Orders", start="first") as consumer,
        ):
            broker = cluster.broker.context

            async def ask(code: RequestCode, header: Header) -> Command:
                return await broker.pool.call(broker.address, request(code, header), PATIENCE_S * 1000)

            for number in range(3):
                await producer.send(Message("Orders", b"%d" % number))
            assert [(await anext(consumer)).body for _ in range(3)] == [b"0", b"1", b"2"]
            await consumer.commit()
            while "g" not in broker.clients.consumers:  # its first heartbeat may come after the first message
                await trio.lowlevel.checkpoint()
            member = next(iter(broker.clients.consumers["g"].members.values())).client_id
            about = ConsumerClientRequestHeader(consumer_group="g", client_id=member)
            info = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, about)
            assert (info.code, "subscriptionSet" in loose_json.loads(info.body)) == (0, True)
            status = await ask(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                GetConsumerStatusRequestHeader(topic="Orders", group="g"),
            )
            assert member.encode() in status.body
            reset = ResetOffsetRequestHeader(topic="Orders", group="g", timestamp=0, is_force=True)
            answer = await ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
            assert (answer.code, answer.remark) == (0, None)
            assert [(await anext(consumer)).body for _ in range(3)] == [b"0", b"1", b"2"]
