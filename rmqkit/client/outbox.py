"""Transactions with a database: a message is delivered if the database's transaction has committed, and only
then. Needs the extra `outbox` (SQLAlchemy 2).

    outbox = Outbox(engine)
    async with client.producer("orders", check=outbox.check) as producer:
        async with producer.transaction("Orders", body) as tx:
            async with sessions.begin() as session:
                session.add(order)
                await session.execute(outbox.proof(tx))

The proof is a row with the id of the message, written by the application's own transaction. Whoever wants to
know the outcome reads it; who finds none writes a row that refuses it, so that a transaction that comes later
fails. There is one row for an id, so all of them see the same outcome, at whatever point a process dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from rmqkit.client.blocking import BlockingTransaction
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.instance import wall_clock_ms
from rmqkit.client.producing.transactions import Transaction
from rmqkit.errors import ClientError, MissingExtra
from rmqkit.log_limit import limited_logger

try:
    from sqlalchemy import (
        BigInteger,
        Boolean,
        Column,
        Connection,
        Engine,
        Insert,
        MetaData,
        String,
        Table,
        delete,
        insert,
        select,
        text,
    )
    from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine
except ImportError:
    raise MissingExtra("the outbox needs the package SQLAlchemy", "outbox") from None

log = limited_logger(__name__)

DAY_MS = 86_400_000
#: How long a refusal waits for a transaction that has written the proof and not ended, on PostgreSQL. Other
#: databases wait as they are configured.
LOCK_MS = 2_000
#: Old rows are deleted so often, by whoever reads or refuses, and so many at a time.
CLEAN_MS = 3_600_000
CLEANED_ROWS = 1_000
#: How long statements that run may take to end when their task is cancelled.
LET_END_S = 5.0
P = ParamSpec("P")
T = TypeVar("T")


class Outbox:
    """Proofs of an application's bookings, in a table of its database.

    engine       of SQLAlchemy. An `Engine` is used in threads, with clients of any kind; an `AsyncEngine`
                 with clients under asyncio. Where reads may lag behind writes, it is that of the primary
    metadata     that gets the table, so that migrations and `create_all` make it; default one of its own,
                 `outbox.table.metadata`
    name         of the table
    patience_ms  a half message without a proof is refused when it is older; until then a check says that the
                 outcome is unknown, because a transaction may still run
    keep_ms      older rows are deleted. Longer than brokers ask: they keep messages for 72 h by default
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        metadata: MetaData | None = None,
        name: str = "rmqkit_outbox",
        patience_ms: int = 60_000,
        keep_ms: int = 7 * DAY_MS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.table = Table(
            name,
            MetaData() if metadata is None else metadata,
            Column("message_id", String(64), primary_key=True),
            Column("booked", Boolean, nullable=False),
            Column("written_ms", BigInteger, nullable=False, index=True),
        )
        self._engine = engine
        self._patience_ms = patience_ms
        self._keep_ms = keep_ms
        self._now_ms = now_ms
        self._clean_at_ms = now_ms()

    def proof(self, transaction: Transaction | BlockingTransaction) -> Insert:
        """The statement that writes the proof, to be executed by the application's transaction, which must
        commit within the block of the message's. At the end of that block the row decides (`decide`),
        whatever the block raises.

        Executing it raises IntegrityError when a check has refused the transaction meanwhile.
        Raises ClientError when the message's transaction has not begun, or has ended.
        """
        message_id = transaction.message_id
        transaction.settle_by(partial(self.decide, message_id))
        return insert(self.table).values(message_id=message_id, booked=True, written_ms=self._now_ms())

    async def check(self, half: ReceivedMessage) -> bool | None:
        """The check of the producer: True with a proof; False once it is refused; None while it may still
        come, and for messages so old that their proof may be deleted. Raises as `decide`."""
        booked = await self._run(self._read, half.message_id)
        age_ms = self._now_ms() - half.born_timestamp_ms
        if booked is None and self._patience_ms <= age_ms < self._keep_ms:
            booked = await self._refused(half.message_id)
        await self._tidy()
        return booked

    async def decide(self, message_id: str) -> bool | None:
        """Whether there is a proof; where there is none, it is refused from now on. None when the row is
        deleted meanwhile.

        Raises ClientError when the proof is written, but its transaction does not end, and the errors of
        SQLAlchemy. When cancelled, it may be refused.
        """
        booked = await self._run(self._read, message_id)
        if booked is None:
            booked = await self._refused(message_id)
        await self._tidy()
        return booked

    async def clean(self) -> int:
        """Delete all rows older than `keep_ms`; returns their number. `check` and `decide` delete some once
        an hour, so that nobody needs to call it. Raises the errors of SQLAlchemy."""
        count = 0
        while (deleted := await self._run(self._deleted)) == CLEANED_ROWS:
            count += deleted
        return count + deleted

    async def _refused(self, message_id: str) -> bool | None:
        try:
            await self._run(self._refuse, message_id)
        except IntegrityError:
            return await self._run(self._read, message_id)
        except OperationalError as error:
            raise ClientError(
                f"whether {message_id} is booked cannot be told now: the database cannot be reached, or a"
                " transaction with the proof has not ended; end it within the block of producer.transaction()"
            ) from error
        return False

    async def _tidy(self) -> None:
        now_ms = self._now_ms()
        if now_ms < self._clean_at_ms:
            return
        self._clean_at_ms = now_ms + CLEAN_MS
        try:
            if await self._run(self._deleted) == CLEANED_ROWS:
                self._clean_at_ms = now_ms
        except SQLAlchemyError as error:
            log.warning("old rows of %s could not be deleted: %s", self.table.name, error)

    async def _run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run statements in a transaction of their own. Cancelled: those of an asynchronous engine end, for
        LET_END_S at most; some drivers leave connections that can never be closed."""
        engine = self._engine
        if isinstance(engine, AsyncEngine):
            running = asyncio.ensure_future(_in_transaction(engine, lambda each: work(each, *args, **kwargs)))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([running], timeout=LET_END_S)
                running.cancel()
                raise

        def in_thread() -> T:
            with engine.begin() as connection:
                return work(connection, *args, **kwargs)

        return await anyio.to_thread.run_sync(in_thread, abandon_on_cancel=True)

    # --- statements -----------------------------------------------------------------------------------------

    def _read(self, connection: Connection, message_id: str) -> bool | None:
        columns = self.table.c
        return connection.scalar(select(columns.booked).where(columns.message_id == message_id))

    def _refuse(self, connection: Connection, message_id: str) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_MS}"))
        row = {"message_id": message_id, "booked": False, "written_ms": self._now_ms()}
        connection.execute(insert(self.table).values(**row))

    def _deleted(self, connection: Connection) -> int:
        columns = self.table.c
        old = select(columns.message_id).where(columns.written_ms < self._now_ms() - self._keep_ms)
        ids = connection.scalars(old.limit(CLEANED_ROWS)).all()
        if ids:
            connection.execute(delete(self.table).where(columns.message_id.in_(ids)))
        return len(ids)


async def _in_transaction(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    async with engine.begin() as connection:
        return await connection.run_sync(work)
