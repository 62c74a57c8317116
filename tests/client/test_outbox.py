"""Proofs of bookings in a database: what they decide, who refuses them, and when they are deleted."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from attrs import define, evolve
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rmqkit.client import ClientError, Producer, ReceivedMessage, TransactionState
from rmqkit.client import outbox as outbox_module
from rmqkit.client.consumer.received import received
from rmqkit.client.outbox import DAY_MS, Outbox
from rmqkit.errors import MissingExtra
from tests.client.fakes import run
from tests.client.producing.transacting import COMMIT, ROLLBACK, Asking, asking

NOW_MS = 1_800_000_000_000


def asynchronous(url: str) -> str:
    """The same database, with a driver for asyncio."""
    parts = make_url(url)
    return str(parts.set(drivername="sqlite+aiosqlite")) if parts.drivername == "sqlite" else url


@define
class Shop:
    """Orders in a database, with an outbox whose clock stands still."""

    engine: Engine | AsyncEngine
    outbox: Outbox
    orders: Table
    now_ms: int = NOW_MS

    async def run(self, *statements: Any) -> Any:
        """Execute statements in a transaction; the result of the last one."""
        if isinstance(self.engine, AsyncEngine):
            async with self.engine.begin() as connection:
                for statement in statements:
                    result = await connection.execute(statement)
                return result.scalar() if result.returns_rows else None
        return await anyio.to_thread.run_sync(self.run_now, *statements)

    def run_now(self, *statements: Any) -> Any:
        """The same in this thread."""
        assert isinstance(self.engine, Engine)
        with self.engine.begin() as connection:
            for statement in statements:
                result = connection.execute(statement)
            return result.scalar() if result.returns_rows else None

    async def count(self) -> int:
        return int(await self.run(select(func.count()).select_from(self.orders)))

    async def row(self, message_id: str) -> bool | None:
        """The row of a message."""
        columns = self.outbox.table.c
        value: bool | None = await self.run(select(columns.booked).where(columns.message_id == message_id))
        return value

    async def write(self, message_id: str, *, days: float = 0, booked: bool = True) -> None:
        """Write a row of an age."""
        row = {"message_id": message_id, "booked": booked, "written_ms": NOW_MS - int(days * DAY_MS)}
        await self.run(insert(self.outbox.table).values(**row))


def shop_of(engine: Engine | AsyncEngine, **options: Any) -> Shop:
    metadata = MetaData()
    orders = Table("orders", metadata, Column("number", Integer, primary_key=True))
    shop = Shop(engine, None, orders)  # type: ignore[arg-type]
    shop.outbox = Outbox(engine, metadata=metadata, now_ms=lambda: shop.now_ms, **options)
    return shop


@asynccontextmanager
async def opened(url: str, face: str, **options: Any) -> AsyncIterator[Shop]:
    """A shop with its tables; `face` is the kind of engine."""
    if face == "asynchronous":
        engine = create_async_engine(asynchronous(url))
        shop = shop_of(engine, **options)
        async with engine.begin() as connection:
            await connection.run_sync(shop.outbox.table.metadata.create_all)
        yield shop
        await engine.dispose()
    else:
        blocking = create_engine(url)
        shop = shop_of(blocking, **options)
        shop.outbox.table.metadata.create_all(blocking)
        yield shop
        blocking.dispose()


@asynccontextmanager
async def selling(url: str, face: str, **options: Any) -> AsyncIterator[tuple[Asking, Shop, Producer]]:
    """A shop and a producer of its outbox."""
    async with (
        opened(url, face, **options) as shop,
        asking() as peer,
        peer.client.producer("pg", check=shop.outbox.check) as producer,
    ):
        yield peer, shop, producer


faces = pytest.mark.parametrize(
    ("backend", "face"), [("trio", "blocking"), ("asyncio", "blocking"), ("asyncio", "asynchronous")]
)


async def half_of(peer: Asking, *, age_ms: int, message_id: str = "EARLIER") -> ReceivedMessage:
    """The half message of an earlier process."""
    (message,) = (await received(peer.half(message_id=message_id), "broker-a")).messages
    return evolve(message, born_timestamp_ms=NOW_MS - age_ms)


@faces
def test_what_is_booked_is_delivered(database_url: str, backend: str, face: str) -> None:
    """The proof commits with the order, and the message with it."""

    async def body() -> None:
        async with selling(database_url, face) as (peer, shop, producer):
            async with producer.transaction("T", b"order") as tx:
                await shop.run(insert(shop.orders).values(number=7), shop.outbox.proof(tx))
                assert await peer.ends() == []
            assert [end.commit_or_rollback for end in await peer.ends()] == [COMMIT]
            assert (await shop.row(tx.message_id), await shop.count()) == (True, 1)
            assert await peer.asked(peer.stored()) == COMMIT

    run(backend, body)


@faces
def test_what_is_not_booked_is_refused(database_url: str, backend: str, face: str) -> None:
    """The order's transaction fails: the message is rolled back, and its id cannot be booked any more."""

    async def body() -> None:
        async with selling(database_url, face) as (peer, shop, producer):
            transaction = producer.transaction("T", b"order")
            again = insert(shop.orders).values(number=7)
            with pytest.raises(IntegrityError):
                async with transaction as tx:
                    await shop.run(shop.outbox.proof(tx), again, again)
            assert [end.commit_or_rollback for end in await peer.ends()] == [ROLLBACK]
            assert (await shop.row(transaction.message_id), await shop.count()) == (False, 0)
            with pytest.raises(IntegrityError):
                await shop.write(transaction.message_id)

    run(backend, body)


@faces
def test_the_row_decides_whatever_the_block_raises(database_url: str, backend: str, face: str) -> None:
    """An exception after the commit of the database does not roll the message back; a transaction that the
    application gave up in silence does not deliver it."""

    async def body() -> None:
        async with selling(database_url, face) as (_peer, shop, producer):
            transaction = producer.transaction("T", b"order")

            async def stumble() -> None:
                async with transaction as tx:
                    await shop.run(insert(shop.orders).values(number=7), shop.outbox.proof(tx))
                    raise LookupError

            with pytest.raises(LookupError):
                await stumble()
            assert transaction.state is TransactionState.COMMIT
            async with producer.transaction("T", b"order") as tx:
                shop.outbox.proof(tx)
            assert tx.state is TransactionState.ROLLBACK
            assert await shop.row(tx.message_id) is False

    run(backend, body)


def test_a_check_that_is_cancelled_lets_its_statement_end(database_url: str) -> None:
    """Whatever a driver does with connections whose statements are cut short, nothing is left of the check:
    the loop can be closed."""

    async def body() -> None:
        async with opened(database_url, "asynchronous") as shop:
            own = asyncio.all_tasks()
            assert isinstance(shop.engine, AsyncEngine)
            for step in ("before_cursor_execute", "after_cursor_execute"):
                with anyio.CancelScope() as scope:
                    event.listen(shop.engine.sync_engine, step, lambda *_: scope.cancel(), once=True)
                    await shop.outbox.decide("ID")
                assert scope.cancelled_caught
                assert asyncio.all_tasks() == own

    run("asyncio", body)


@faces
def test_a_cancelled_booking_is_told_by_its_row(database_url: str, backend: str, face: str) -> None:
    """The check of another process finds the proof, or waits until a booking cannot be expected any more."""

    async def body() -> None:
        async with selling(database_url, face) as (peer, shop, producer):
            for booked in (True, False):
                with anyio.CancelScope() as scope:
                    async with producer.transaction("T", b"order") as tx:
                        proof = shop.outbox.proof(tx)
                        if booked:
                            await shop.run(insert(shop.orders).values(number=7), proof)
                        scope.cancel()
                        await anyio.lowlevel.checkpoint()
                assert tx.state is TransactionState.UNKNOWN
                half = await half_of(peer, age_ms=59_999, message_id=tx.message_id)
                assert await shop.outbox.check(half) is (True if booked else None)
                half = evolve(half, born_timestamp_ms=NOW_MS - 60_000)
                assert await shop.outbox.check(half) is booked
            with pytest.raises(IntegrityError):
                await shop.run(insert(shop.orders).values(number=8), proof)
            assert await shop.count() == 1

    run(backend, body)


@faces
def test_a_transaction_that_runs_is_not_refused(database_url: str, backend: str, face: str) -> None:
    """The proof is written and not committed: nobody can tell, and the error says why; after the commit the
    message is delivered."""

    async def body() -> None:
        async with selling(database_url, face) as (_peer, shop, producer):
            async with producer.transaction("T", b"order") as tx:
                proof = shop.outbox.proof(tx)
                tx_id = tx.message_id
                await tx.unknown()
            async with running(database_url, proof):
                with pytest.raises(ClientError, match="end it within the block"):
                    await shop.outbox.decide(tx_id)
            assert await shop.outbox.decide(tx_id) is True

    run(backend, body)


@asynccontextmanager
async def running(url: str, statement: Any) -> AsyncIterator[None]:
    """A transaction that has executed a statement, and commits at the end."""
    other = create_engine(url)
    connection = other.connect()
    await anyio.to_thread.run_sync(connection.execute, statement)
    yield
    await anyio.to_thread.run_sync(connection.commit)
    connection.close()
    other.dispose()


def test_bookings_and_refusals_at_the_same_time(database_url: str) -> None:
    """Of a booking and a check, one comes first: what the check says is what happened. Of 60 pairs a third
    races; in the others one ends before the other begins."""
    engine = create_engine(database_url)
    shop = shop_of(engine, patience_ms=0)
    shop.outbox.table.metadata.create_all(engine)
    rng = random.Random(7)
    happened = set()
    for number in range(60):
        message_id, early, racing = f"M{number}", rng.random() < 0.5, number % 3 == 0
        start = threading.Barrier(2 if racing else 1)
        said: list[bool | None] = []

        def book(message_id: str = message_id, early: bool = early, start: Any = start) -> None:
            row = {"message_id": message_id, "booked": True, "written_ms": NOW_MS}
            order = insert(shop.orders).values(number=int(message_id[1:]))
            proof = insert(shop.outbox.table).values(**row)
            start.wait()
            try:
                shop.run_now(*((proof, order) if early else (order, proof)))
            except (IntegrityError, OperationalError):
                return

        async def decide(message_id: str = message_id, start: Any = start) -> bool | None:
            start.wait()
            return await shop.outbox.decide(message_id)

        def check(said: Any = said, decide: Any = decide) -> None:
            said.append(anyio.run(decide))

        threads = [threading.Thread(target=book), threading.Thread(target=check)]
        for thread in threads if number % 3 < 2 else reversed(threads):
            thread.start()
            if not racing:
                thread.join()
        for thread in threads:
            thread.join()
        booked = shop.run_now(
            select(func.count()).select_from(shop.orders).where(shop.orders.c.number == number)
        )
        assert said == [bool(booked)]
        happened.add(said[0])
    engine.dispose()
    assert happened == {True, False}


@faces
def test_old_rows_are_deleted(
    database_url: str, backend: str, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them by `clean`, some by the decisions of each hour. What is younger stays."""
    monkeypatch.setattr(outbox_module, "CLEANED_ROWS", 3)

    async def body() -> None:
        async with opened(database_url, face) as shop:
            for number in range(8):
                await shop.write(f"OLD{number}", days=7.1)
            await shop.write("YOUNG", days=6.9)
            assert await shop.outbox.clean() == 8
            assert await shop.outbox.clean() == 0
            assert await shop.row("YOUNG") is True
            for number in range(5):
                await shop.write(f"OLD{number}", days=7.1)
            left = select(func.count()).select_from(shop.outbox.table)
            assert await shop.outbox.decide("YOUNG") is True
            assert await shop.run(left) == 3
            assert await shop.outbox.decide("YOUNG") is True
            assert await shop.run(left) == 1
            await shop.write("OLD", days=7.1)
            assert await shop.outbox.decide("YOUNG") is True
            assert await shop.run(left) == 2
            shop.now_ms += outbox_module.CLEAN_MS
            assert await shop.outbox.decide("YOUNG") is True
            assert await shop.run(left) == 1

    run(backend, body)


@faces
def test_a_message_whose_row_may_be_deleted_is_unknown(database_url: str, backend: str, face: str) -> None:
    """It is not refused, because it may have been booked."""

    async def body() -> None:
        async with opened(database_url, face) as shop, asking() as peer:
            half = await half_of(peer, age_ms=7 * DAY_MS)
            assert await shop.outbox.check(half) is None
            assert await shop.row(half.message_id) is None
            half = await half_of(peer, age_ms=7 * DAY_MS - 1)
            assert await shop.outbox.check(half) is False
            assert await shop.outbox.check(half) is False

    run(backend, body)


@faces
def test_a_failing_clean_up_changes_no_decision(
    database_url: str, backend: str, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged."""

    async def body() -> None:
        async with opened(database_url, face) as shop:
            await shop.write("M")
            await shop.write("OLD", days=8)
            engine = shop.engine.sync_engine if isinstance(shop.engine, AsyncEngine) else shop.engine

            @event.listens_for(engine, "before_cursor_execute")
            def fail(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
                if statement.startswith("DELETE"):
                    raise OperationalError(statement, {}, Exception("full"))

            assert await shop.outbox.decide("M") is True
            assert "old rows of rmqkit_outbox could not be deleted" in caplog.text

    run(backend, body)


@faces
def test_a_database_that_is_away(database_url: str, backend: str, face: str) -> None:
    """A decision fails, the transaction is unknown, and the block's own result stands."""

    async def body() -> None:
        async with selling(database_url, face) as (_peer, shop, producer):
            async with producer.transaction("T", b"order") as tx:
                await shop.run(shop.outbox.proof(tx))
                await shop.run(text("DROP TABLE rmqkit_outbox"))
            assert tx.state is TransactionState.UNKNOWN

    run(backend, body)


def test_a_proof_needs_a_transaction_that_runs() -> None:
    """Before and after the block the statement is refused."""

    async def body() -> None:
        shop = shop_of(create_engine("sqlite://"))
        async with asking() as peer, peer.client.producer("pg", check=shop.outbox.check) as producer:
            transaction = producer.transaction("T", b"order")
            with pytest.raises(ClientError, match="has not begun"):
                shop.outbox.proof(transaction)
            async with transaction as tx:
                await tx.rollback()
            with pytest.raises(ClientError, match="has ended already"):
                shop.outbox.proof(transaction)

    run("trio", body)


def test_the_table_is_the_applications() -> None:
    """It joins the metadata of the application under any name; without metadata it has its own."""
    metadata = MetaData()
    engine = create_engine("sqlite://")
    assert Outbox(engine, metadata=metadata, name="proofs").table is metadata.tables["proofs"]
    assert list(Outbox(engine).table.metadata.tables) == ["rmqkit_outbox"]


def test_without_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.delitem(sys.modules, "rmqkit.client.outbox")
    with pytest.raises(MissingExtra, match=r"rmqkit\[outbox\]|outbox"):
        import rmqkit.client.outbox  # noqa: F401
