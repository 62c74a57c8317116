"""The keys of a window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.model import properties as props
from rmqkit.plugin.store import Appended
from rmqkit_dedup.windows import MAX_KEY_CHARACTERS, Seen, Window, seen_at, window_of

WINDOW_MS = 100


def window(key: str = props.UNIQ_KEY) -> Window:
    return Window("T", WINDOW_MS, key)


def seen(key: str, at_ms: int, offset: int = 0) -> Seen:
    return seen_at(key, 0, Appended(offset, offset * 100, 100, at_ms))


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=60)


@given(STEPS)
def test_a_key_counts_within_the_window_after_its_first_message(steps: list[tuple[str, int]]) -> None:
    """Beside a model that keeps all: what is stored, and where a repeated message is, also after a fill from
    what is stored, and by one that forgets."""
    tested, now_ms, stored = window(), 1_000, list[Seen]()
    for key, later_ms in steps:
        now_ms += later_ms
        known = [each for each in stored if each.key == key and each.stored_ms > now_ms - WINDOW_MS]
        found = tested.find(key, now_ms)
        assert ([found] if found else []) == known
        if not known:
            stored.append(seen(key, now_ms, len(stored)))
            tested.add(stored[-1])
    again = window()
    again.fill(reversed(stored), now_ms)
    assert again.is_complete
    for key in "abc":
        assert again.find(key, now_ms) == tested.find(key, now_ms)
    assert len(again) == len(tested) <= 3


def test_the_first_of_equal_messages_counts_when_the_log_is_read() -> None:
    """As when they were stored before the topic had a window."""
    tested = window()
    tested.fill([seen("a", 30, 3), seen("a", 10, 1), seen("a", 20, 2)], 50)
    found = tested.find("a", 50)
    assert found is not None
    assert found.place == Appended(1, 100, 100, 10)
    assert tested.find("a", 10 + WINDOW_MS) is None


def test_a_limit_forgets_the_oldest() -> None:
    tested = window()
    for number, key in enumerate("abc"):
        tested.add(seen(key, number, number))
    tested.limit(2)
    assert (len(tested), tested.forgotten) == (2, 1)
    assert [key for key in "abc" if tested.find(key, 5)] == ["b", "c"]


def test_keys() -> None:
    """The unique key, or a property that the topic names; a long one is kept by its hash, a missing one is
    none."""
    assert window().key_of({props.UNIQ_KEY: "k", "order": "1"}) == "k"
    assert window("order").key_of({props.UNIQ_KEY: "k", "order": "1"}) == "1"
    assert window("order").key_of({props.UNIQ_KEY: "k", "order": ""}) is None
    long = "x" * (MAX_KEY_CHARACTERS + 1)
    kept, other = (window("order").key_of({"order": key}) for key in (long, long + "y"))
    assert isinstance(kept, bytes)
    assert len(kept) == 32
    assert kept != other


def test_the_window_of_a_topic() -> None:
    found = window_of("T", {"dedup.window": "10m", "dedup.key": "order"})
    assert found is not None
    assert (found.window_ms, found.key_of({"order": "1"}), found.is_complete) == (600_000, "1", False)
    assert window_of("T", {"message.type": "NORMAL"}) is None
