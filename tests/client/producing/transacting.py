"""A fake cluster whose broker asks for the outcome of transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from attrs import define

from rmqkit.client import Client
from rmqkit.model import properties as props
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.frame import encode
from rmqkit.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageRequestHeaderV2,
)
from tests.client.fake_cluster import FakeBroker, FakeCluster, cluster
from tests.client.fakes import settled

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


@define
class Asking:
    """A cluster of fakes with an open client, and what its first broker sees and asks."""

    fake: FakeCluster
    client: Client

    @property
    def broker(self) -> FakeBroker:
        return self.fake.brokers["broker-a"]

    def halves(self) -> list[SendMessageRequestHeaderV2]:
        """The headers of the sends that have arrived."""
        seen = self.broker.server.seen(RequestCode.SEND_MESSAGE_V2)
        return [command.header(SendMessageRequestHeaderV2) for command in seen]

    def ids(self) -> list[str]:
        """The message ids of these sends."""
        return [props.decode(header.properties or "")[props.UNIQ_KEY] for header in self.halves()]

    async def ends(self) -> list[EndTransactionRequestHeader]:
        """The ends of transactions that have arrived."""
        await settled()
        seen = self.broker.server.seen(RequestCode.END_TRANSACTION)
        assert all(command.is_oneway for command in seen)
        return [command.header(EndTransactionRequestHeader) for command in seen]

    def half(self, group: str = "pg", message_id: str = "EARLIER", **properties: str) -> bytes:
        """The record of a half message that an earlier process has sent."""
        named = {props.PRODUCER_GROUP: group, props.TRANSACTION_PREPARED: "true", props.UNIQ_KEY: message_id}
        self.broker.put("T", 0, b"earlier", {**named, **properties})
        return self.broker.log["T", 0][-1]

    def stored(self) -> bytes:
        """The record of the last message that was stored."""
        return next(queue[-1] for queue in reversed(self.broker.log.values()))

    async def ask(self, half: bytes, *, oneway: bool = True, **fields: Any) -> None:
        """Ask for the outcome of a half message, as brokers do."""
        header = CheckTransactionStateRequestHeader(
            **{
                "tran_state_table_offset": 5,
                "commit_log_offset": 77,
                "msg_id": "M",
                "transaction_id": "TX",
                "topic": HALF_TOPIC,
                "bname": "broker-a",
                **fields,
            }
        )
        command = request(RequestCode.CHECK_TRANSACTION_STATE, header, half, opaque=77, oneway=oneway)
        await self.broker.server.streams[-1].send(encode(command))
        await settled()

    async def asked(self, half: bytes) -> int:
        """What the client says about a half message; it must say something."""
        before = len(await self.ends())
        await self.ask(half)
        await self.arrived(RequestCode.END_TRANSACTION, before + 1)
        (said,) = (await self.ends())[before:]
        assert said.from_transaction_check
        return said.commit_or_rollback

    async def arrived(self, code: int, count: int = 1) -> None:
        """Wait until so many requests, or answers, with a code have arrived."""
        server = self.broker.server
        while len(server.seen(code)) < count:
            await server.await_requests(len(server.requests) + 1)
        await settled()

    def answers(self) -> list[Command]:
        """The client's answers to two-way questions."""
        return [command for command in self.broker.server.requests if command.is_response]


@asynccontextmanager
async def asking(names: str = "a", **options: Any) -> AsyncIterator[Asking]:
    """A cluster with the topic T, one queue on the first broker, and an open client of it."""
    async with cluster(names, {"T": {"broker-a": 1}}, **options) as (fake, client):
        # Answers of the client arrive at the fake server as requests.
        for code in (0, 1, 3):
            fake.brokers["broker-a"].overrides[code] = lambda command: None
        yield Asking(fake, client)
