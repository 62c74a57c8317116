"""A message for later is kept by whoever can, and refused where nobody can."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import EachPutHook, PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.later import Due, LaterDelivery
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.store import message
from rmqkit.toolkit.later import Level, Time, deliver_later, mark_later
from tests.broker.desk import BrokerHarness, open_desk

LEVELS = "1s 5s 10s"
#: Of the plugins that keep messages these tests have the delay levels, and a wheel of their own.
LEVELS_ALONE = ["timer"]


class Wheel(EachPutHook, LaterDelivery):
    """A timer for times within a day."""

    wants = frozenset({"WHEEL"})

    def mark(self, message: PutMessage, due: Due, now_ms: int) -> bool:
        if isinstance(due, Level) or due.time_ms > now_ms + 86_400_000:
            return False
        message.set_properties(message.properties | {"WHEEL": str(due.time_ms)})
        return True

    def before_each(self, message: PutMessage) -> None:
        message.topic = "wheel"


class Plugin:
    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        register("wheel", Wheel())


def parked_at(desk: BrokerHarness) -> dict[int, list[bytes]]:
    """Level -> the bodies that wait for it."""
    found = {level: desk.stored(names.SCHEDULE_TOPIC, level - 1) for level in (1, 2, 3)}
    return {level: [one.body for one in stored] for level, stored in found.items() if stored}


@pytest.mark.parametrize(
    ("due_in", "level"), [(1, 1), (1_000, 1), (1_001, 2), (5_000, 2), (9_999, 3), (10_000, 3)]
)
async def test_a_time_waits_for_the_shortest_level_that_is_not_earlier(
    tmp_path: Path, due_in: int, level: int
) -> None:
    """With the delay plugin alone, whose levels are coarse."""
    async with open_desk(tmp_path, messageDelayLevel=LEVELS, disabledServices=LEVELS_ALONE) as desk:
        due = Time(desk.clock.now_ms() + due_in)
        appended = deliver_later(desk.broker, message("T", 3, b"later"), due)
        assert await appended.wait() == ResponseCode.SUCCESS
        assert parked_at(desk) == {level: [b"later"]}


@pytest.mark.parametrize(("asked", "level"), [(1, 1), (3, 3), (99, 3)])
async def test_a_level_is_taken_as_it_is(tmp_path: Path, asked: int, level: int) -> None:
    """One beyond the last is the last."""
    async with open_desk(tmp_path, messageDelayLevel=LEVELS, disabledServices=LEVELS_ALONE) as desk:
        await deliver_later(desk.broker, message("T", 3, b"later"), Level(asked)).wait()
        assert parked_at(desk) == {level: [b"later"]}


async def test_levels_need_not_ascend(tmp_path: Path) -> None:
    """The shortest level that is long enough is chosen wherever it stands in the table."""
    async with open_desk(tmp_path, messageDelayLevel="10s 1s 5s", disabledServices=LEVELS_ALONE) as desk:
        deliver_later(desk.broker, message("T", 0, b"later"), Time(desk.clock.now_ms() + 2_000))
        assert parked_at(desk) == {3: [b"later"]}


async def test_a_time_that_has_passed_is_now(tmp_path: Path) -> None:
    """The message is delivered at once, also where no plugin keeps messages."""
    async with open_desk(tmp_path, disabledServices=["delay", "timer"]) as desk:
        for due_in in (0, -1):
            deliver_later(desk.broker, message("T", 3, b"now"), Time(desk.clock.now_ms() + due_in))
        assert [one.body for one in desk.stored("T", 3)] == [b"now"] * 2


@pytest.mark.parametrize("disabled", [(), ("delay",)])
async def test_what_nobody_can_deliver_then_is_refused(tmp_path: Path, disabled: tuple[str, ...]) -> None:
    """A time beyond the last level, and everything on a broker without a plugin that keeps messages. The
    message is unchanged, and nothing is stored."""
    async with open_desk(
        tmp_path, disabledServices=[*LEVELS_ALONE, *disabled], messageDelayLevel=LEVELS
    ) as desk:
        now_ms = desk.clock.now_ms()
        refused: list[tuple[Due, str]] = [(Time(now_ms + 10_001), "in 10001 ms"), (Level(0), "delay level 0")]
        if disabled:
            refused += [(Level(1), "delay level 1"), (Time(now_ms + 1), "in 1 ms")]
        for due, text in refused:
            sent, same = message("T", 3, b"later"), message("T", 3, b"later")
            with pytest.raises(RequestRefused, match=f"{text}: enable a plugin that does") as caught:
                deliver_later(desk.broker, sent, due)
            assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
            assert sent == same
        assert desk.is_empty()


async def test_plugins_are_asked_in_their_order(tmp_path: Path) -> None:
    """A timer in front of the delay levels takes the times that it can; the levels take the rest."""
    async with open_desk(
        tmp_path, messageDelayLevel="1s 2d", extra=[("wheel", Plugin())], disabledServices=LEVELS_ALONE
    ) as desk:
        now_ms = desk.clock.now_ms()
        for due in (Time(now_ms + 7), Time(now_ms + 86_400_001), Level(1)):
            deliver_later(desk.broker, message("T", 3, repr(due).encode()), due)
        assert len(desk.stored("wheel", 3)) == 1
        assert {level: len(bodies) for level, bodies in parked_at(desk).items()} == {1: 1, 2: 1}


async def test_a_marked_message_is_appended_by_its_owner(tmp_path: Path) -> None:
    """`mark_later` alone stores nothing: the caller appends the message, in a run with others for example."""
    async with open_desk(tmp_path, messageDelayLevel=LEVELS, disabledServices=LEVELS_ALONE) as desk:
        sent = message("T", 3, b"later")
        mark_later(desk.broker, sent, Level(2))
        assert desk.is_empty()
        assert sent.properties["DELAY"] == "2"
