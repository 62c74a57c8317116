"""The end of `rmqkit`: exit codes that do not depend on the verb."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rmqkit.cli import main
from tests.programs import PROGRAM, clean_environment


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["plugins"], ["completion", "bash"]])
def test_a_reader_that_has_gone_is_a_failure(words: list[str]) -> None:
    """When nobody reads standard output, `rmqkit ... | head` for example, the exit code is 1 and nothing is
    reported, also if the output is small enough to stay in the buffer until the end."""
    environment = clean_environment()
    environment.pop("PYTHONUNBUFFERED", None)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [PROGRAM, *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["conusme", "x"], "consume"),
        (["topc"], "topic"),
        (["topic", "stat", "x"], "stats"),
        (["serve", "--log-level", "inof"], "INFO"),
    ],
)
def test_a_misspelt_verb_has_the_nearest_in_its_error(
    capsys: pytest.CaptureFixture[str], words: list[str], near: str
) -> None:
    """Verbs, their actions and choices of options; where nothing is near, all are listed."""
    with pytest.raises(SystemExit):
        main(words)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"did you mean {near!r}?")
    with pytest.raises(SystemExit):
        main(["qqqqqq"])
    assert "choose from 'serve', 'namesrv'" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["rmqkit", "rmqkit.cli"])
def test_the_package_runs_as_a_module(module: str) -> None:
    """`python -m` with it does what the program does, with its exit code, and calls itself `rmqkit`."""
    for words in (["--version"], ["nothing-such"]):
        ended, expected = (
            subprocess.run(
                [*program, *words], capture_output=True, env=clean_environment(), timeout=60, check=False
            )
            for program in ([sys.executable, "-m", module], [PROGRAM])
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (
            expected.returncode,
            expected.stdout,
            expected.stderr,
        )
