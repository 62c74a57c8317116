"""The interface of a coordinator: a consistent store of keys with leases, such as etcd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from attrs import frozen

from rmqkit.errors import RmqError


class CoordinatorError(RmqError):
    """The coordinator was not reached, did not answer in time, or refused. A transaction may have happened,
    or may still happen."""


class LeaseLost(CoordinatorError):
    """The lease does not exist any more. Nothing was written."""


@frozen
class Entry:
    """The value of a key, the revision of its last write, and the lease that removes it; 0 without one."""

    value: bytes
    revision: int
    lease: int = 0


@frozen
class Snapshot:
    """All keys at one revision, which each change of any key increases."""

    revision: int
    entries: Mapping[str, Entry]


@frozen
class Put:
    """Set a key. With a lease, which is not 0, the key is removed when the lease is over."""

    key: str
    value: bytes
    lease: int = 0


class Coordinator(ABC):
    """The keys with one prefix, which the names of keys here do not have.

    Each method raises CoordinatorError when it does not succeed within a few seconds. A cancelled one may
    have been carried out.
    """

    @abstractmethod
    async def grant(self, time_s: int) -> int:
        """A new lease, which is over after this time unless it is renewed."""

    @abstractmethod
    async def renew(self, lease: int) -> None:
        """Let a lease begin again. Raises LeaseLost."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End a lease, and remove its keys; nothing happens when it is over."""

    @abstractmethod
    async def read(self) -> Snapshot:
        """All keys, after every change that was answered before."""

    @abstractmethod
    async def write(self, conditions: Mapping[str, int], changes: Sequence[Put]) -> int | None:
        """Make all changes at once if each key of `conditions` has its revision, 0 for a key that does not
        exist. Returns the revision after the change; None when a condition does not hold: nothing is changed.
        Raises LeaseLost when the lease of a change is over: nothing is changed."""

    @abstractmethod
    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Snapshot]]:
        """The keys as they are, then again after changes; a snapshot may stand for several. Goes on after
        failures, which it logs, and raises none. One task may iterate."""

    async def aclose(self) -> None:
        """Close connections. Leases stay."""
        return


__all__ = ["Coordinator", "CoordinatorError", "Entry", "LeaseLost", "Put", "Snapshot"]
