"""The limit on unfinished frames: which frames count, and which connection is closed."""

from __future__ import annotations

import pytest

from rmqkit.remoting import unfinished
from rmqkit.remoting.unfinished import UnfinishedFrames


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> UnfinishedFrames[str]:
    """A limit of 100 000 bytes."""
    monkeypatch.setattr(unfinished, "MAX_UNFINISHED_BYTES", 100_000)
    return UnfinishedFrames()


def test_the_frame_that_is_under_way_longest_goes(frames: UnfinishedFrames[str]) -> None:
    """The connection whose unfinished frame is oldest is closed, however large the other frames are."""
    assert frames.note("first", 30_000, False) is None
    assert frames.note("second", 60_000, False) is None
    assert frames.note("third", 30_000, False) == "first"
    frames.forget("first")
    assert (frames.total, "first" in frames) == (90_000, False)


def test_growing_does_not_make_a_frame_younger(frames: UnfinishedFrames[str]) -> None:
    """A frame that arrives slowly keeps its age; a frame that follows a finished one is new."""
    frames.note("trickles", 10_000, False)
    frames.note("busy", 10_000, False)
    frames.note("trickles", 20_000, False)
    assert frames.total == 30_000
    assert frames.note("busy", 90_000, False) == "trickles"
    frames.note("trickles", 20_000, True)
    assert frames.note("busy", 95_000, False) == "busy"


def test_what_was_finished_is_counted_no_longer(frames: UnfinishedFrames[str]) -> None:
    """Finished frames do not count, and neither do very small ones."""
    frames.note("a", 50_000, False)
    frames.note("a", 0, True)
    assert frames.total == 0
    frames.note("b", 100, False)
    assert (frames.total, "b" in frames) == (0, False)
