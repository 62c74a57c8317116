"""What a broker asks of clients, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import ConsumerClientRequestHeader
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.testing.broker import dialer, running_broker
from rmqkit.testing.listening import CONNECT_TIMEOUT_MS, caller
from rmqkit_grpc.framing import framed
from rmqkit_grpc.relaying import answer_of
from tests.plugins.grpc.client import CODES, Client, M, connected, consuming, message, sending

Answering = Callable[[Any], Any]


async def _answered(
    running: Any, client: Client, stream: int, asked: Command, answering: Answering
) -> tuple[Command, Any]:
    """What an administrator gets, and the command that the client had to answer."""
    seen: list[Any] = []
    got: list[Command] = []

    async def administrator(call: Callable[[Command, int], Awaitable[Command]]) -> None:
        got.append(await call(asked, CONNECT_TIMEOUT_MS))

    async with (
        caller(await dialer()(running.address, CONNECT_TIMEOUT_MS)) as connection,
        trio.open_nursery() as nursery,
    ):
        count = len(client.replies[stream].data)
        nursery.start_soon(administrator, connection.call)
        command = M["TelemetryCommand"].FromString((await client.until_messages(stream, count + 1))[-1])
        seen.append(command)
        await client.send_data(stream, framed(answering(command).SerializeToString()))
    return got[0], seen[0]


async def test_a_thread_dump(tmp_path: Path) -> None:
    """What the client prints is the jstack of its state, as administrators ask for it."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream, _ = await client.settle(consuming("G", "T"))
        header = ConsumerClientRequestHeader(consumer_group="G", client_id="client-1")

        def answering(command: Any) -> Any:
            nonce = command.print_thread_stack_trace_command.nonce
            trace = M["ThreadStackTrace"](nonce=nonce, thread_stack_trace="main: waits")
            return M["TelemetryCommand"](thread_stack_trace=trace)

        asked = request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        found, _ = await _answered(running, client, stream, asked, answering)
        assert found.code == ResponseCode.SUCCESS
        assert json.loads(found.body)["jstack"] == "main: waits"


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("OK", "CR_SUCCESS"),
        ("FAILED_TO_CONSUME_MESSAGE", "CR_LATER"),
        ("VERIFY_FIFO_MESSAGE_UNSUPPORTED", "CR_THROW_EXCEPTION"),
    ],
)
async def test_the_trial_of_a_message(tmp_path: Path, code: str, result: str) -> None:
    """The client gets the message, and what becomes of it is what the administrator reads."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream, _ = await client.settle(consuming("G", "T"))
        await client.call("SendMessage", sending(message("T", b"try", tag="t")))
        store = running.context.store
        header = ConsumerClientRequestHeader(
            consumer_group="G",
            client_id="client-1",
            topic="T",
            msg_id=offset_message_id(running.context.store_host, store.start_offset),
        )

        def answering(command: Any) -> Any:
            answer = M["TelemetryCommand"](status=M["Status"](code=CODES[code], message="tried"))
            answer.verify_message_result.nonce = command.verify_message_command.nonce
            return answer

        asked = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        found, command = await _answered(running, client, stream, asked, answering)
        tried = command.verify_message_command.message
        assert (tried.topic.name, tried.body, tried.system_properties.tag) == ("T", b"try", "t")
        assert found.code == ResponseCode.SUCCESS
        body = json.loads(found.body)
        assert (body["consumeResult"], body["remark"]) == (result, "tried")


@pytest.mark.parametrize("nonce", ["", "x", "-1", "12345678901", "١"])
def test_answers_to_no_question(nonce: str) -> None:
    """A number that the broker cannot have given is ignored, as is what is not an answer."""
    trace = M["ThreadStackTrace"](nonce=nonce)
    assert answer_of(M["TelemetryCommand"](thread_stack_trace=trace)) is None
    assert answer_of(M["TelemetryCommand"]()) is None


async def test_an_answer_that_nobody_waits_for(tmp_path: Path) -> None:
    """It changes nothing."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream, _ = await client.settle(consuming("G", "T"))
        trace = M["ThreadStackTrace"](nonce="4711")
        said = M["TelemetryCommand"](thread_stack_trace=trace)
        await client.send_data(stream, framed(said.SerializeToString()))
        beat = await client.call("Heartbeat", M["HeartbeatRequest"]())
        assert beat.status.code == CODES["OK"]
