"""Calling hooks: a hook that fails, is slow or is invalid harms no other, and the log names it once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from attrs import define

from rmqkit.errors import PluginError
from rmqkit.plugin import hook_runner as hook_calls
from rmqkit.plugin.hook_runner import HookEntry, Hooks


@define
class Hook:
    """A hook that runs what the test gives it."""

    act: Callable[[str], object]

    def after(self, context: str) -> object:
        return self.act(context)


class Base:
    """An interface."""

    def after(self, context: str) -> None: ...


def hooks(*acts: Callable[[str], object]) -> Hooks[Hook]:
    """Hooks of the plugin p, named a, b and so on."""
    return Hooks(
        "send message hook",
        [HookEntry("send message hook", chr(97 + at), "p", Hook(act)) for at, act in enumerate(acts)],
    )


def broken(context: str) -> None:
    raise ValueError("boom")


Tell = Callable[[Hooks[Hook]], None]


def _tell(several: Hooks[Hook]) -> None:
    several.notify("after", "x")


def _tell_often(several: Hooks[Hook]) -> None:
    teller = several.teller("after")
    assert teller is not None
    teller("x")


#: `tell` and its compiled form for frequent calls, which must behave alike.
both_ways = pytest.mark.parametrize("tell", [_tell, _tell_often])


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@both_ways
def test_tell_goes_on_behind_a_hook_that_breaks(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    """The other hooks are called; the log names hook, plugin and method of the one that failed."""
    seen: list[str] = []
    tell(hooks(seen.append, broken, seen.append))
    assert seen == ["x", "x"]
    assert messages(caplog) == ["send message hook 'b' of plugin 'p' failed in after"]
    assert "boom" in caplog.text


@both_ways
def test_failures_are_counted_and_logged_ever_more_rarely(
    tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that fails for every message must not fill the disk: the first failure is logged, then each
    power of two."""
    several = hooks(broken)
    for _ in range(100):
        tell(several)
    assert several.entries[0].failures == 100
    assert len(messages(caplog)) == 7
    assert "has failed 64 times" in messages(caplog)[-1]


@both_ways
def test_a_slow_hook_is_named_once(
    tell: Tell, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow hook is logged once, with the time it took."""

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
    assert messages(caplog) == [
        "send message hook 'a' of plugin 'p' took 50 ms in after; everything else waits for it meanwhile"
    ]


@both_ways
def test_what_a_hook_returns_is_named_once_and_dropped(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    """A returned coroutine is closed, because Python's own warning about it would not name the hook."""

    async def later() -> None:
        raise AssertionError("never run")

    several = hooks(lambda context: later(), lambda context: 7)
    tell(several)
    tell(several)
    assert messages(caplog) == [
        (
            "send message hook 'a' of plugin 'p' returned something (coroutine) from after; a hook returns"
            " nothing"
        ),
        "send message hook 'b' of plugin 'p' returned something (int) from after; a hook returns nothing",
    ]


def test_what_is_no_hook_stops_the_start() -> None:
    """A thing without the interface, and methods that are coroutine functions, which nobody would await."""

    class Late(Base):
        async def after(self, context: str) -> None:  # type: ignore[override]
            raise AssertionError("never run")

    with pytest.raises(PluginError, match="send message hook 'a' of plugin 'p' must be a Base, not Hook"):
        hooks(broken).checked(Base, ["after"])
    with pytest.raises(PluginError, match="rpc hook 'Late': after is a coroutine function"):
        Hooks.of("rpc hook", [Late()]).checked(Base, ["after"])


def test_hooks_of_hooks_stay_as_they_are() -> None:
    """Hooks compiled by a registry keep their names; those of a plain list are named by their classes; an
    empty list is allowed."""
    several = hooks(broken, broken)
    assert Hooks.of("other", several) is several
    assert [entry.title for entry in Hooks.of("kind", [Base()]).entries] == ["kind 'Base'"]
    assert (len(several), [hook.act for hook in several]) == (2, [broken, broken])
    Hooks[Hook]("kind").notify("after", "x")
    assert Hooks[Hook]("kind").teller("after") is None
