"""Books orders along with messages, or answers questions for them, in processes that kill themselves: the
first at the first step, the next one at the second, until one reaches its end.

    python booking_program.py book|check FACE NUMBER URL

FACE is the engine, `blocking` or `asynchronous`; the steps are those before and after each statement, each
commit and each request of the producer. NUMBER is that of the first order. Prints how many orders there were.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import count
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, insert, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rmqkit.client import Client, Producer
from rmqkit.client.outbox import Outbox
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.toolkit import output

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


async def work(job: str, face: str, fatal: int, number: int, url: str) -> None:
    steps = Steps(fatal)
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
            await book(producer, outbox, engine, number)
        else:
            async with producer.transaction(TOPIC, b"%d" % number) as tx:
                await tx.unknown()
            steps.armed = True
            await asked.wait()
    if isinstance(engine, AsyncEngine):
        await engine.dispose()


def main() -> None:
    job, face, first, url = sys.argv[1:]
    for step in count():
        pid = os.fork()
        if pid == 0:
            asyncio.run(work(job, face, step, int(first) + step, url))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            output.line(str(step + 1))
            return
        assert code == -signal.SIGKILL, code


if __name__ == "__main__":
    main()
