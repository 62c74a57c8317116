"""A broker with the audit switched on, a connection to it, and the events it wrote."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from rmqkit.broker.run.running import RunningBroker
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer, running_broker

FILE = "audit/audit.jsonl"
CALL_MS = 30_000


def events_in(directory: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The events in the file; each line must be a whole event."""
    events = [json.loads(line) for line in (directory / FILE).read_text().splitlines()]
    return [event for event in events if kind in (None, event["event"])]


class Asker:
    """One connection to a broker."""

    def __init__(self, pool: ConnectionPool, running: RunningBroker) -> None:
        self._pool = pool
        self.address = str(running.address)
        self.running = running

    async def ask(
        self, code: int, header: msgspec.Struct | None = None, body: bytes = b"", **fields: str
    ) -> Command:
        command = request(code, header, body)
        command.ext = {**command.fields(), **fields}
        return await self._pool.call(self.address, command, CALL_MS)

    async def send(
        self, key: str, topic: str = "T", body: bytes = b"body", properties: str = "", **fields: str
    ) -> Command:
        text = f"UNIQ_KEY\x01{key}\x02{properties}"
        header = SendMessageRequestHeaderV2(producer_group="p", topic=topic, queue_id=0, properties=text)
        return await self.ask(RequestCode.SEND_MESSAGE_V2, header, body, **fields)

    async def pull(self, topic: str = "T", offset: int = 0, queue_id: int = 0) -> Command:
        header = PullMessageRequestHeader(
            consumer_group="g",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=4,
            subscription="*",
        )
        return await self.ask(RequestCode.PULL_MESSAGE, header)


@asynccontextmanager
async def audited(directory: Path, **keys: Any) -> AsyncIterator[Asker]:
    """A broker with the audit switched on; leaving the block writes all events."""
    async with (
        running_broker(directory, hooks="audit", **({"plugins.audit.lingerMs": "0"} | keys)) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        yield Asker(pool, running)
