"""What clients are asked over the Admin service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from rmqkit.client import Client as RemotingClient
from rmqkit.model.topic import TopicConfig
from rmqkit.testing.broker import running_broker, running_cluster
from rmqkit_grpc.framing import framed
from tests.plugins.grpc.admin.kit import administer, administered
from tests.plugins.grpc.client import CODES, M, connected, consuming, message, resource, sending
from tests.plugins.grpc.test_consuming import GROUP, TOPIC


async def test_the_threads_of_a_client(tmp_path: Path) -> None:
    """As it says over Telemetry; a client that is not there is refused."""
    async with running_broker(tmp_path) as running, connected(running, "asked") as asked:
        stream, _ = await asked.settle(consuming(GROUP, TOPIC))
        async with connected(running, "admin") as admin, trio.open_nursery() as nursery:
            found = []

            async def ask() -> None:
                found.append(
                    await administered(
                        admin, "PrintThreadStackTrace", group=resource(GROUP), client_id="asked"
                    )
                )

            nursery.start_soon(ask)
            command = M["TelemetryCommand"].FromString((await asked.until_messages(stream, 2))[1])
            reply = M["TelemetryCommand"]()
            reply.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
            reply.thread_stack_trace.thread_stack_trace = "main: waiting"
            await asked.send_data(stream, framed(reply.SerializeToString()))
        assert [each.thread_stack_trace for each in found] == ["main: waiting"]
        async with connected(running, "other") as other:
            answer = await administer(
                other, "PrintThreadStackTrace", group=resource(GROUP), client_id="nobody"
            )
            assert "not online" in answer.status.message


async def test_a_client_tries_a_message(tmp_path: Path) -> None:
    """Its outcome is the status; a message that is not there is not found."""
    async with running_broker(tmp_path) as running, connected(running, "asked") as asked:
        await running.context.topics.put(TopicConfig(topic_name=TOPIC))
        stream, _ = await asked.settle(consuming(GROUP, TOPIC))
        async with connected(running, "admin") as admin:
            await admin.call("SendMessage", sending(message(TOPIC, b"tried", "01FF")))
            fields = {"group": resource(GROUP), "topic": resource(TOPIC), "client_id": "asked"}
            answer = await administer(admin, "VerifyMessage", message_id="0000", **fields)
            assert answer.status.code == CODES["MESSAGE_NOT_FOUND"]
            for number, outcome in enumerate(("OK", "FAILED_TO_CONSUME_MESSAGE"), 2):
                found: list[Any] = []

                async def ask(found: list[Any] = found) -> None:
                    found.append(await administer(admin, "VerifyMessage", message_id="01FF", **fields))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    data = (await asked.until_messages(stream, number))[number - 1]
                    command = M["TelemetryCommand"].FromString(data).verify_message_command
                    assert command.message.body == b"tried"
                    reply = M["TelemetryCommand"](status=M["Status"](code=CODES[outcome]))
                    reply.verify_message_result.nonce = command.nonce
                    await asked.send_data(stream, framed(reply.SerializeToString()))
                assert [each.status.code for each in found] == [CODES[outcome]]


async def test_what_a_remoting_client_says_of_itself(tmp_path: Path) -> None:
    """Its properties, subscriptions, queues and rates."""
    async with (
        running_cluster(tmp_path) as running,
        RemotingClient(running.namesrv_text, connect=running.connect) as client,
    ):
        await client.admin.create_topic(TOPIC, queues=1)
        async with (
            client.lite_pull_consumer(GROUP, subscribe=TOPIC),
            connected(running.broker, "admin") as admin,
        ):
            fields: dict[str, Any] = {"group": resource(GROUP)}
            with trio.fail_after(60):
                while not (
                    found := await administered(admin, "ListConsumerConnection", **fields)
                ).client_info:
                    await trio.lowlevel.checkpoint()
            fields["client_id"] = found.client_info[0].client_id
            info = (await administered(admin, "GetConsumerRunningInfo", **fields)).consumer_running_info
            assert TOPIC in info.subscriptions
            assert info.properties
