"""Books an order along with a message, or answers a question for one, and kills itself at a step.

    python booking_program.py book|check FACE STEP NUMBER URL

FACE is the engine, `blocking` or `asynchronous`; the steps are those before and after each statement, each
commit and each request of the producer. The exit code is 0 when the step does not exist.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import count
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, insert, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from rmqkit.client import Client, Producer
from rmqkit.client.outbox import Outbox
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.remoting.pool import ConnectionPool

GROUP, TOPIC = "booking", "Orders"
_WATCHED = (RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION)

orders = Table("orders", MetaData(), Column("number", Integer, primary_key=True))


class Steps:
    """Counts steps, and kills the process at one of them."""

    def __init__(self, fatal: int) -> None:
        self.armed = False
        self._fatal = fatal
        self._numbers = count()

    def step(self, *_details: object) -> None:
        if self.armed and next(self._numbers) == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_engine(self, engine: Any) -> None:
        event.listen(engine, "before_cursor_execute", self.step)
        event.listen(engine, "after_cursor_execute", self.step)
        commit = engine.dialect.do_commit

        def do_commit(connection: Any) -> None:
            self.step()
            commit(connection)
            self.step()

        engine.dialect.do_commit = do_commit

    def watch_requests(self) -> None:
        for name in ("call", "oneway"):
            setattr(ConnectionPool, name, self._around(getattr(ConnectionPool, name)))

    def _around(self, method: Any) -> Any:
        async def request(pool: ConnectionPool, address: str, command: Command, timeout_ms: int) -> Any:
            if command.code not in _WATCHED:
                return await method(pool, address, command, timeout_ms)
            self.step()
            result = await method(pool, address, command, timeout_ms)
            self.step()
            return result

        return request


async def book(producer: Producer, outbox: Outbox, engine: Any, number: int) -> None:
    async with producer.transaction(TOPIC, b"%d" % number) as tx:
        statements = insert(orders).values(number=number), outbox.proof(tx)
        if isinstance(engine, Engine):
            with engine.begin() as blocking:
                for statement in statements:
                    blocking.execute(statement)
        else:
            async with engine.begin() as connection:
                for statement in statements:
                    await connection.execute(statement)


async def main() -> None:
    job, face, fatal, number, url = sys.argv[1:]
    steps = Steps(int(fatal))
    engine: Any
    if face == "asynchronous":
        parts = make_url(url)
        driver = "sqlite+aiosqlite" if parts.drivername == "sqlite" else parts.drivername
        engine = create_async_engine(parts.set(drivername=driver))
        steps.watch_engine(engine.sync_engine)
    else:
        engine = create_engine(url)
        steps.watch_engine(engine)
    steps.watch_requests()
    outbox = Outbox(engine, patience_ms=0)
    asked = asyncio.Event()

    async def check(half: Any) -> bool | None:
        verdict = await outbox.check(half)
        asyncio.get_running_loop().call_soon(asked.set)
        return verdict

    async with Client() as client, client.producer(GROUP, check=check) as producer:
        if job == "book":
            steps.armed = True
            await book(producer, outbox, engine, int(number))
        else:
            async with producer.transaction(TOPIC, number.encode()) as tx:
                await tx.unknown()
            steps.armed = True
            await asked.wait()


if __name__ == "__main__":
    asyncio.run(main())
