"""`tests.seeded_runs`: a run for each seed, sums at the end, and the words that replay a failure."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seeded_runs import repeat


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def test_each_seed_runs_and_what_was_done_is_summed(capsys: pytest.CaptureFixture[str]) -> None:
    """The seeds follow one another from the first; each run has a directory of its own."""
    seen: list[tuple[int, Path]] = []

    def run(directory: Path, seed: int) -> dict[str, int]:
        assert directory.is_dir()
        seen.append((seed, directory))
        return {"kills": seed, "messages": 10}

    assert repeat("tests.some", "Some runs.", run, ["--runs", "3", "--seed", "5"]) == 0
    assert [seed for seed, _ in seen] == [5, 6, 7]
    assert len({directory for _, directory in seen}) == 3
    assert not any(directory.exists() for _, directory in seen)
    assert capsys.readouterr().out.startswith("3 runs, 18 kills, 30 messages, ")


def test_the_first_failure_ends_the_runs_with_the_words_that_replay_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error of the run comes out, and no further seed runs."""
    seen: list[int] = []

    def run(directory: Path, seed: int) -> dict[str, int]:
        seen.append(seed)
        assert seed < 2
        return {}

    with pytest.raises(AssertionError):
        repeat("tests.some", "Some runs.", run, [])
    assert seen == [1, 2]
    assert capsys.readouterr().out == "FAILED: replay with --runs 1 --seed 2\n"


def test_an_option_with_choices_is_given_to_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The first value is the default, and the words that replay a failure have it."""
    seen: list[str] = []

    def run(directory: Path, seed: int, network: str) -> dict[str, int]:
        seen.append(network)
        assert network == "near"
        return {}

    assert repeat("tests.some", "Some runs.", run, ["--runs", "1"], network=("near", "far")) == 0
    with pytest.raises(AssertionError):
        repeat("tests.some", "Some runs.", run, ["--network", "far"], network=("near", "far"))
    assert seen == ["near", "far"]
    assert capsys.readouterr().out.endswith("FAILED: replay with --runs 1 --seed 1 --network far\n")
