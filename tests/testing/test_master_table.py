"""The contract of MasterTable passes a right copy and shows wrong ones."""

from __future__ import annotations

import pytest

from rmqkit.errors import DecodeError
from rmqkit.plugin.replication import MasterTable
from rmqkit.testing.master_table import check_master_table

BODY = b"number 5"


class Copy(MasterTable):
    code = 1

    def __init__(self) -> None:
        self.held = b""

    async def take(self, body: bytes) -> None:
        if not body.startswith(b"number ") or not body[7:].isdigit():
            raise DecodeError("no number")
        self.held = body


class Deaf(Copy):
    async def take(self, body: bytes) -> None:
        pass


class Hasty(Copy):
    """Takes before it reads."""

    async def take(self, body: bytes) -> None:
        self.held = body
        await super().take(body)


class Fragile(Copy):
    async def take(self, body: bytes) -> None:
        if body:
            int(body[7:])
        await super().take(body)


class Stuck(Copy):
    """Takes the right answer only before another one."""

    def __init__(self) -> None:
        super().__init__()
        self.is_done = False

    async def take(self, body: bytes) -> None:
        if self.is_done:
            return
        try:
            await super().take(body)
        except DecodeError:
            self.is_done = bool(self.held)
            self.held = b"another" if self.is_done else b""


async def test_a_right_copy_passes() -> None:
    copy = Copy()
    await check_master_table(copy, BODY, lambda: copy.held)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(Deaf, "takes the master's table over"), (Hasty, "refused changes nothing"), (Stuck, "after any other")],
)
async def test_a_wrong_copy_breaks_a_rule(kind: type[Copy], rule: str) -> None:
    copy = kind()
    with pytest.raises(AssertionError, match=rule):
        await check_master_table(copy, BODY, lambda: copy.held)


async def test_what_a_copy_raises_otherwise_comes_out() -> None:
    copy = Fragile()
    with pytest.raises(ValueError, match="invalid literal"):
        await check_master_table(copy, BODY, lambda: copy.held)
