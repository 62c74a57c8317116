"""Messages that are taken back before their time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit import hookimpl
from rmqkit.errors import RequestRefused
from rmqkit.plugin.hookspecs import RegisterProcessor
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqkit.testing.broker import running_broker
from tests.plugins.grpc.client import CODES, M, connected, resource


class Recalls(EachRequest):
    """Takes back what has the handle `known`."""

    @hookimpl
    def rmqkit_register_processors(self, register: RegisterProcessor, broker: RequestBroker) -> None:
        register(RequestCode.RECALL_MESSAGE, self)

    def handle(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(RecallMessageRequestHeader)
        if header.recall_handle != "known":
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        return answer(request, header=RecallMessageResponseHeader(msg_id=f"id of {header.topic}"))


def recalling(handle: str) -> Any:
    return M["RecallMessageRequest"](topic=resource("T"), recall_handle=handle)


async def test_a_recall(tmp_path: Path) -> None:
    """The broker answers the id of the message, or why it cannot be taken back."""
    async with (
        running_broker(tmp_path, extra=[("recalls", Recalls())]) as running,
        connected(running) as client,
    ):
        found = await client.call("RecallMessage", recalling("known"))
        assert (found.status.code, found.message_id) == (CODES["OK"], "id of T")
        for handle in ("", "other"):
            refused = await client.call("RecallMessage", recalling(handle))
            assert refused.status.code == CODES["BAD_REQUEST"]
            assert refused.status.message
