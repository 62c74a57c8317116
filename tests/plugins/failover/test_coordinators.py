"""What every coordinator does: the one in memory, and etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from rmqkit_failover.coordinator import Coordinator, LeaseLost, Put, Snapshot
from rmqkit_failover.etcd import EtcdCoordinator
from rmqkit_failover.memory import MemoryCoordinator, MemoryLedger
from tests.plugins.failover import etcd
from tests.plugins.ha.pair import PATIENCE_S

OTHER = "other/"
PREFIX = "test/"


class Keys:
    """The coordinators of one store of keys, by prefix."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ledger = MemoryLedger()
        self._opened: list[Coordinator] = []

    def opened(self, prefix: str = PREFIX) -> Coordinator:
        found: Coordinator
        if self._address:
            found = EtcdCoordinator([f"http://{self._address}"], prefix, timeout_s=30)
        else:
            found = MemoryCoordinator(self._ledger, prefix)
        self._opened.append(found)
        return found

    async def aclose(self) -> None:
        for each in self._opened:
            await each.aclose()


@pytest.fixture(scope="module", params=["memory", "etcd"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the keys are: etcd's address, or nothing for the memory."""
    if request.param == "memory":
        yield ""
        return
    if etcd.PROGRAM is None:
        pytest.skip(etcd.ABSENT)
    with etcd.running_etcd(tmp_path_factory.mktemp("etcd")) as found:
        yield found


@asynccontextmanager
async def fresh(address: str) -> AsyncIterator[Keys]:
    """Keys of which none exists."""
    keys = Keys(address)
    try:
        for prefix in (PREFIX, OTHER):
            coordinator = keys.opened(prefix)
            found = await coordinator.read()
            if found.entries:
                # A key goes with its lease.
                lease = await coordinator.grant(60)
                await coordinator.write({}, [Put(key, b"", lease) for key in found.entries])
                await coordinator.revoke(lease)
        yield keys
    finally:
        with trio.CancelScope(shield=True):
            await keys.aclose()


async def until(snapshots: AsyncIterator[Snapshot], key: str, value: bytes | None) -> Snapshot:
    """Watch until a key has a value, or is gone."""
    with trio.fail_after(PATIENCE_S):
        async for snapshot in snapshots:
            entry = snapshot.entries.get(key)
            if (entry.value if entry is not None else None) == value:
                return snapshot
    raise AssertionError("the watch ended")


async def test_what_is_written_is_read(address: str) -> None:
    """By every coordinator of the prefix, with the revision of the write; other prefixes have other keys."""
    async with fresh(address) as keys:
        one, other = keys.opened(), keys.opened()
        before = await one.read()
        revision = await one.write({"a": 0}, [Put("a", b"\0\xff"), Put("b/c", b"x" * 10_000)])
        assert revision is not None
        assert revision > before.revision
        found = await other.read()
        assert found.revision >= revision
        assert {key: entry.value for key, entry in found.entries.items()} == {
            "a": b"\0\xff",
            "b/c": b"x" * 10_000,
        }
        assert {entry.revision for entry in found.entries.values()} == {revision}
        assert (await keys.opened(OTHER).read()).entries == {}


async def test_a_write_needs_all_of_its_conditions(address: str) -> None:
    """A key that must not exist, or that must have its revision; nothing is changed otherwise."""
    async with fresh(address) as keys:
        one = keys.opened()
        first = await one.write({"a": 0, "b": 0}, [Put("a", b"1")])
        assert first is not None
        assert await one.write({"a": 0}, [Put("a", b"2")]) is None
        assert await one.write({"a": first, "b": first}, [Put("a", b"2"), Put("b", b"2")]) is None
        assert (await one.read()).entries["a"].value == b"1"
        assert "b" not in (await one.read()).entries
        second = await one.write({"a": first, "b": 0}, [Put("a", b"3")])
        assert second is not None
        assert await one.write({"a": first}, [Put("a", b"4")]) is None
        assert (await one.read()).entries["a"].revision == second


async def test_a_revoked_lease_takes_its_keys(address: str) -> None:
    """And no others; revoking it again does nothing."""
    async with fresh(address) as keys:
        one = keys.opened()
        lease = await one.grant(60)
        await one.write({}, [Put("mine", b"1", lease), Put("stays", b"1")])
        assert (await one.read()).entries["mine"].lease == lease
        await one.renew(lease)
        await one.revoke(lease)
        assert set((await one.read()).entries) == {"stays"}
        await one.revoke(lease)


async def test_a_lease_that_is_over_is_refused(address: str) -> None:
    """By a renewal, and by a write, which changes nothing."""
    async with fresh(address) as keys:
        one = keys.opened()
        lease = await one.grant(60)
        await one.revoke(lease)
        with pytest.raises(LeaseLost):
            await one.renew(lease)
        with pytest.raises(LeaseLost):
            await one.write({}, [Put("a", b"1"), Put("b", b"1", lease)])
        assert (await one.read()).entries == {}


async def test_a_lease_ends_by_itself(address: str) -> None:
    """The watch sees its key go."""
    async with fresh(address) as keys:
        one = keys.opened()
        lease = await one.grant(1)
        async with one.watch() as snapshots:
            await one.write({}, [Put("a", b"1", lease)])
            await until(snapshots, "a", b"1")
            await until(snapshots, "a", None)
        with pytest.raises(LeaseLost):
            await one.renew(lease)


async def test_a_watch_sees_changes(address: str) -> None:
    """Of every coordinator, beginning with the keys as they are; revisions grow."""
    async with fresh(address) as keys:
        one, other = keys.opened(), keys.opened()
        await one.write({}, [Put("a", b"1")])
        async with one.watch() as snapshots:
            revisions = [(await until(snapshots, "a", b"1")).revision]
            for value in (b"2", b"3"):
                await other.write({}, [Put("a", value)])
                revisions.append((await until(snapshots, "a", value)).revision)
        assert revisions == sorted(set(revisions))
