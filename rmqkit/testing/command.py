"""The contract of a verb of the command line, as tests: subclass `CommandContract`, say which words are right and wrong, and pytest runs them over it.

class TestHello(CommandContract):
    verb = HELLO
    good = [["world"], ["world", "--json"]]
    bad = [["--unknown"]]
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import ClassVar

import pytest
from attrs import frozen

from rmqkit.cli import faults
from rmqkit.cli.verbs import Verb


@frozen
class Ran:
    """What a verb did: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


class CommandContract:
    """Tests of every verb. `good` and `bad` are lists of words behind the verb; bad ones are refused before anything is done."""

    verb: ClassVar[Verb]
    good: ClassVar[Sequence[Sequence[str]]]
    bad: ClassVar[Sequence[Sequence[str]]] = [["--no-such-option"]]

    @pytest.fixture(autouse=True)
    def _take_output(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capture = capsys

    def run(self, *words: str) -> Ran:
        """As `rmqkit VERB ...` would run it: errors of the kit become lines on standard error."""
        parser = ArgumentParser(prog="rmqkit verb")
        self.verb.arguments(parser)
        self._capture.readouterr()
        lines: list[str] = []
        try:
            code = self.verb.run(parser.parse_args(list(words)))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        except Exception as error:
            told = faults.told(error)
            if told is None:
                raise
            lines, code = told
        written = self._capture.readouterr()
        return Ran(code, written.out, written.err + "".join(f"{line}\n" for line in lines))

    def test_it_has_one_line_of_help(self) -> None:
        """That is what `rmqkit --help` shows; `--help` of its own lists its words."""
        assert self.verb.help.strip()
        assert "\n" not in self.verb.help
        helped = self.run("--help")
        assert (helped.code, helped.err) == (0, "")
        assert helped.out.startswith("usage: rmqkit verb")

    def test_good_words(self) -> None:
        """Exit code 0, and nothing of it is left behind that would disturb a second time."""
        assert self.good, "a verb has words that are right"
        for words in [*self.good, *self.good]:
            ran = self.run(*words)
            assert ran.code == 0, f"{words}: {ran.err}"

    def test_bad_words(self) -> None:
        """Exit code 1 or 2, a reason on standard error, nothing on standard output."""
        for words in self.bad:
            ran = self.run(*words)
            assert ran.code in (1, 2), f"{words} are taken"
            assert ran.err, f"{words} are refused without a reason"
            assert ran.out == ""
