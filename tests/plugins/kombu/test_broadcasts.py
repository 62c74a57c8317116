"""What waits for a queue that is bound to exchanges that broadcast."""

from __future__ import annotations

import anyio
import pytest

from rmqkit_kombu import broadcasts
from rmqkit_kombu.broadcasts import Inbox


async def test_bindings_decide() -> None:
    """A message comes once, however many bindings take it, and from exchanges that are bound alone."""
    inbox = Inbox("paper")
    inbox.bind("news", lambda key: key.startswith("a"))
    inbox.bind("news", lambda key: key.endswith("z"))
    inbox.bind("mail", lambda _: True)
    for exchange, key in (("news", "az"), ("news", "b"), ("other", "a"), ("mail", "")):
        inbox.offer(exchange, key, f"{exchange} {key}".encode())
    assert (inbox.is_bound("news"), inbox.is_bound("other")) == (True, False)
    assert [await inbox.take() for _ in range(len(inbox))] == [b"news az", b"mail "]


async def test_a_wait_that_is_cancelled_takes_nothing() -> None:
    """What comes later is there for the next one who asks."""
    inbox = Inbox("paper")
    inbox.bind("news", lambda _: True)
    with anyio.move_on_after(0) as scope:
        await inbox.take()
    assert scope.cancelled_caught
    inbox.offer("news", "", b"one")
    with anyio.move_on_after(0):
        assert await inbox.take() == b"one"
    assert len(inbox) == 0


async def test_there_is_room_for_so_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the oldest is dropped, and the log names the queue."""
    monkeypatch.setattr(broadcasts, "_MOST_WAITING", 2)
    inbox = Inbox("paper")
    inbox.bind("news", lambda _: True)
    for body in (b"1", b"2", b"3"):
        inbox.offer("news", "", body)
    assert "queue paper has 2 messages waiting" in caplog.text
    assert await inbox.take() == b"2"
    assert await inbox.clear() == 1
