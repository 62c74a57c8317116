"""Calling hooks: one that breaks, is slow or is no hook harms nobody, and the log says once whose it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from attrs import define

from rmqkit import hook_calls
from rmqkit.errors import PluginError, RequestRefused
from rmqkit.hook_calls import HookEntry, Hooks


@define
class Hook:
    """Does what it is told."""

    act: Callable[[str], object]

    def after(self, context: str) -> object:
        return self.act(context)


class Base:
    """An interface."""

    def after(self, context: str) -> None: ...


def hooks(*acts: Callable[[str], object]) -> Hooks[Hook]:
    """Hooks of plugin p, named a, b and so on."""
    return Hooks("send message hook", [HookEntry("send message hook", chr(97 + at), "p", Hook(act)) for at, act in enumerate(acts)])


def broken(context: str) -> None:
    raise ValueError("boom")


Tell = Callable[[Hooks[Hook]], None]


def _tell(several: Hooks[Hook]) -> None:
    several.tell("after", "x")


def _tell_often(several: Hooks[Hook]) -> None:
    teller = several.teller("after")
    assert teller is not None
    teller("x")


#: `tell`, and what is made of it once for what is called often, which must do the same.
both_ways = pytest.mark.parametrize("tell", [_tell, _tell_often])


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@both_ways
def test_tell_goes_on_behind_a_hook_that_breaks(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    """The others are called; the log names hook, plugin and method."""
    seen: list[str] = []
    tell(hooks(seen.append, broken, seen.append))
    assert seen == ["x", "x"]
    assert messages(caplog) == ["send message hook 'b' of plugin 'p' failed in after"]
    assert "boom" in caplog.text


@both_ways
def test_failures_are_counted_and_logged_ever_more_rarely(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    """A hook that fails for every message must not fill the disk: the first failure, then each power of two."""
    several = hooks(broken)
    for _ in range(100):
        tell(several)
    assert several.entries[0].failures == 100
    assert len(messages(caplog)) == 7
    assert "has failed 64 times" in messages(caplog)[-1]


def test_demand_turns_what_is_raised_into_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal comes out as it is; anything else with SYSTEM_ERROR and the name of the hook, and is logged."""

    def refuse(context: str) -> None:
        raise RequestRefused(16, "no")

    with pytest.raises(RequestRefused, match=r"^no$") as refusal:
        hooks(refuse).entries[0].demand("after", "x")
    assert (refusal.value.code, messages(caplog)) == (16, [])
    with pytest.raises(RequestRefused, match="send message hook 'a' of plugin 'p' failed: ValueError: boom") as refusal:
        hooks(broken).entries[0].demand("after", "x")
    assert (refusal.value.code, len(messages(caplog))) == (1, 1)


@both_ways
def test_a_slow_hook_is_named_once(tell: Tell, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time it took."""

    def ticks() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += 0.05

    clock = ticks()
    monkeypatch.setattr(hook_calls, "perf_counter", lambda: next(clock))
    several = hooks(lambda context: None)
    tell(several)
    tell(several)
    assert messages(caplog) == ["send message hook 'a' of plugin 'p' took 50 ms in after; everything else waits for it meanwhile"]


@both_ways
def test_what_a_hook_returns_is_named_once_and_dropped(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine is closed: the warning that nobody awaited it would come from elsewhere and name nobody."""

    async def later() -> None:
        raise AssertionError("never run")

    several = hooks(lambda context: later(), lambda context: 7)
    tell(several)
    tell(several)
    assert messages(caplog) == [
        "send message hook 'a' of plugin 'p' returned something (coroutine) from after; a hook returns nothing",
        "send message hook 'b' of plugin 'p' returned something (int) from after; a hook returns nothing",
    ]


def test_what_is_no_hook_stops_the_start() -> None:
    """A thing without the interface, and methods that are coroutine functions, which nobody would await."""

    class Late(Base):
        async def after(self, context: str) -> None:  # type: ignore[override]
            raise AssertionError("never run")

    with pytest.raises(PluginError, match="send message hook 'a' of plugin 'p' is no Base, but Hook"):
        hooks(broken).checked(Base, ["after"])
    with pytest.raises(PluginError, match="rpc hook 'Late': after is a coroutine function"):
        Hooks.of("rpc hook", [Late()]).checked(Base, ["after"])


def test_hooks_of_hooks_stay_as_they_are() -> None:
    """What a registry compiled keeps its names; a plain list is named by its classes; no hooks are no trouble."""
    several = hooks(broken, broken)
    assert Hooks.of("other", several) is several
    assert [entry.title for entry in Hooks.of("kind", [Base()]).entries] == ["kind 'Base'"]
    assert (len(several), [hook.act for hook in several]) == (2, [broken, broken])
    Hooks[Hook]("kind").tell("after", "x")
    assert Hooks[Hook]("kind").teller("after") is None
