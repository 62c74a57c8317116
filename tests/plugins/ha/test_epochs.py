"""The epochs of a log, by which two logs find the end of their common history."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import ConfigError, StaleEpoch, StoreError
from rmqkit_ha.epochs import (
    UNELECTED,
    Epochs,
    EpochStart,
    after_trim,
    common_end,
    is_rising,
    with_history,
    within,
)


def starts(*pairs: tuple[int, int]) -> list[EpochStart]:
    return [EpochStart(*pair) for pair in pairs]


@pytest.mark.parametrize(
    ("own", "own_end", "theirs", "their_end", "common"),
    [
        (starts((1, 0)), 150, starts((1, 0)), 200, ((1, 0), 150)),
        (starts((1, 0), (3, 100)), 150, starts((1, 0), (3, 100), (5, 120)), 200, ((3, 100), 120)),
        (starts((1, 0), (3, 100)), 150, starts((1, 0), (4, 80)), 200, ((1, 0), 80)),
        (starts((1, 0), (4, 80)), 200, starts((1, 0), (3, 100)), 150, ((1, 0), 80)),
        (starts((1, 0), (5, 150)), 150, starts((1, 0), (6, 150)), 300, ((1, 0), 150)),
        (starts((3, 0)), 10, starts((4, 0)), 10, None),
        (starts((3, 10)), 50, starts((3, 20)), 50, None),
        ([], 100, [], 90, ((0, 0), 90)),
        ([], 100, starts((0, 0), (1, 70)), 90, ((0, 0), 70)),
        ([], 100, starts((1, 0)), 90, None),
    ],
    ids=[
        "the slave is behind",
        "the slave has records that the next master lacks",
        "a master in between",
        "and seen from the other side",
        "an epoch without records does not count",
        "different masters from the beginning",
        "one epoch cannot begin at two places",
        "before the first election",
        "the slave has unelected records that the first master lacks",
        "a log from before the election does not follow one that began with it",
    ],
)
def test_logs_are_equal_up_to_the_last_common_epoch(
    own: list[EpochStart],
    own_end: int,
    theirs: list[EpochStart],
    their_end: int,
    common: tuple[tuple[int, int], int] | None,
) -> None:
    """The end of the last epoch that both have, in the log where it is shorter."""
    found = common_end(own, own_end, theirs, their_end)
    assert found == (None if common is None else (EpochStart(*common[0]), common[1]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[list[EpochStart]], list[int]]:
    """The logs of three members, each record the number of its epoch, their epochs, and where the logs begin
    after trims: masters of rising epochs append, and their slaves copy a part."""
    logs: list[list[int]] = [[], [], []]
    epochs: list[list[EpochStart]] = [[], [], []]
    begins = [0, 0, 0]
    terms = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 30), st.booleans(), st.integers(0, 20)), max_size=12
        )
    )
    for epoch, (master, count, copies, trimmed) in enumerate(terms, 1):
        log = logs[master]
        began = [*within(epochs[master], len(log)), EpochStart(epoch, len(log))]
        epochs[master] = after_trim(began, begins[master])
        log += [epoch] * count
        if copies:
            slave = (master + 1) % 3
            own, theirs = epochs[slave], epochs[master]
            if not logs[slave] or (found := common_end(own, len(logs[slave]), theirs, len(log))) is None:
                epochs[slave], begins[slave] = list(theirs), begins[master]
            else:
                epochs[slave] = after_trim(with_history(own, theirs), begins[slave])
                begins[slave] = min(begins[slave], found[1])
            logs[slave] = log[: max(begins[slave], len(log) - 5)]
        begins[master] = min(len(log), begins[master] + trimmed)
    return logs, epochs, begins


@given(histories(), st.integers(0, 2), st.integers(0, 2))
def test_the_common_end_is_that_of_the_contents(
    made: tuple[list[list[int]], list[list[EpochStart]], list[int]], one: int, other: int
) -> None:
    """Whatever happened, the end that the epochs give is the one up to which the contents are equal. Where
    that is before the beginning of a log that was trimmed, they give the same or none: never a later one."""
    logs, epochs, begins = made
    found = common_end(epochs[one], len(logs[one]), epochs[other], len(logs[other]))
    equal = 0
    for mine, its in zip(logs[one], logs[other], strict=False):
        if mine != its:
            break
        equal += 1
    if found is not None or max(begins[one], begins[other]) <= equal:
        assert (found[1] if found else 0) == equal
    assert all(is_rising(each) for each in epochs)


@pytest.mark.parametrize(
    ("begin", "left"),
    [
        (0, starts((1, 0), (3, 100), (4, 250))),
        (100, starts((1, 0), (3, 100), (4, 250))),
        (101, starts((3, 100), (4, 250))),
        (251, starts((4, 250))),
        (900, starts((4, 250))),
    ],
)
def test_epochs_that_end_before_the_log_begins_are_dropped(begin: int, left: list[EpochStart]) -> None:
    """One that ends where the log begins stays, for the log of a slave may end there; the last one stays."""
    assert after_trim(starts((1, 0), (3, 100), (4, 250)), begin) == left


@pytest.mark.parametrize(
    ("own", "theirs", "history"),
    [
        (starts((1, 0), (3, 50)), starts((3, 50), (5, 90)), starts((1, 0), (3, 50), (5, 90))),
        (starts((1, 0), (3, 50)), starts((1, 0), (5, 40)), starts((1, 0), (5, 40))),
        (starts((1, 0), (4, 70)), starts((5, 60)), starts((1, 0), (5, 60))),
        (starts((1, 0)), [], starts((1, 0))),
    ],
    ids=["a master that has forgotten the first", "a master that has all", "offsets rise", "none"],
)
def test_a_slave_keeps_the_epochs_that_its_master_has_forgotten(
    own: list[EpochStart], theirs: list[EpochStart], history: list[EpochStart]
) -> None:
    """Its log may begin earlier, and another slave may need them when it is the master."""
    assert with_history(own, theirs) == history


def test_a_log_without_epochs_is_from_before_the_elections() -> None:
    """Its records are those of epoch 0, and an empty log has none."""
    assert within([], 1) == [UNELECTED]
    assert within([], 0) == []
    assert within(starts((1, 0), (2, 5)), 5) == starts((1, 0))


@pytest.mark.parametrize(
    ("epochs", "rises"),
    [
        ([], True),
        (starts((1, 0), (2, 0)), True),
        (starts((2, 0), (2, 5)), False),
        (starts((1, 9), (2, 5)), False),
        (starts((-1, 0)), False),
        (starts((1, -1)), False),
    ],
)
def test_epochs_and_offsets_rise(epochs: list[EpochStart], rises: bool) -> None:
    """Anything else is not a history of a log."""
    assert is_rising(epochs) == rises


async def test_an_epoch_is_on_the_device_when_it_has_begun(tmp_path: Path) -> None:
    """Another reader of the file has it; epochs without records are dropped, and no epoch begins again."""
    epochs = Epochs(tmp_path)
    epochs.load()
    assert (epochs.last, epochs.of_log(100)) == (0, 0)
    for epoch, start in ((1, 0), (4, 100), (6, 100), (7, 250)):
        await epochs.begin(epoch, start)
        again = Epochs(tmp_path)
        again.load()
        assert again.known == epochs.known
    assert epochs.known == starts((1, 0), (6, 100), (7, 250))
    assert [epochs.of_log(end) for end in (0, 1, 100, 101, 250, 251)] == [0, 1, 1, 6, 6, 7]
    with pytest.raises(StaleEpoch, match="epoch 7 cannot begin"):
        await epochs.begin(7, 300)
    await epochs.begin(8, 300, log_begin=200)
    again.load()
    assert again.known == epochs.known == starts((6, 100), (7, 250), (8, 300))


async def test_an_epoch_that_cannot_be_written_does_not_begin(tmp_path: Path) -> None:
    """The error of the disk is a store's error, and nothing has changed."""
    epochs = Epochs(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"no directory")
    with pytest.raises(StoreError, match="cannot be written"):
        await epochs.begin(1, 0)
    assert epochs.known == []


@pytest.mark.parametrize("text", ['{"epochs": [[2, 0], [1, 5]]}', '{"epochs": 7}'])
def test_a_damaged_file_stops_the_start(tmp_path: Path, text: str) -> None:
    """A history that cannot be must not decide which records are removed."""
    (tmp_path / "replicaEpochs.json").write_text(text)
    with pytest.raises(ConfigError, match=r"replicaEpochs\.json"):
        Epochs(tmp_path).load()
