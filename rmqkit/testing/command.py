"""Contract of a command line verb as tests. Subclass `CommandContract` and list correct and wrong arguments;
pytest then runs the tests.

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

from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output


@frozen
class Ran:
    """The exit code of a run, and its output."""

    code: int
    out: str
    err: str


class CommandContract:
    """Tests of a verb. `good` and `bad` are lists of arguments; bad ones must be refused before any work is
    done."""

    verb: ClassVar[Verb]
    good: ClassVar[Sequence[Sequence[str]]]
    bad: ClassVar[Sequence[Sequence[str]]] = [["--no-such-option"]]

    @pytest.fixture(autouse=True)
    def _take_output(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capture = capsys

    def run(self, *words: str) -> Ran:
        """Run the verb as `rmqkit VERB ...` does: errors of the kit become lines on standard error."""
        parser = ArgumentParser(prog="rmqkit verb")
        self.verb.arguments(parser)
        self._capture.readouterr()
        lines: list[str] = []
        try:
            code = self.verb.run(parser.parse_args(list(words)))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        except Exception as error:
            told = output.fault_lines(error)
            if told is None:
                raise
            lines, code = told
        written = self._capture.readouterr()
        return Ran(code, written.out, written.err + "".join(f"{line}\n" for line in lines))

    def test_it_has_one_line_of_help(self) -> None:
        """The verb has one line of help for `rmqkit --help`, and its own `--help` lists its arguments."""
        assert self.verb.help.strip()
        assert "\n" not in self.verb.help
        helped = self.run("--help")
        assert (helped.code, helped.err) == (0, "")
        assert helped.out.startswith("usage: rmqkit verb")

    def test_good_words(self) -> None:
        """Correct arguments give exit code 0, also when the verb runs a second time."""
        assert self.good, "a verb has words that are right"
        for words in [*self.good, *self.good]:
            ran = self.run(*words)
            assert ran.code == 0, f"{words}: {ran.err}"

    def test_bad_words(self) -> None:
        """Wrong arguments give exit code 1 or 2, a reason on standard error, and no standard output."""
        for words in self.bad:
            ran = self.run(*words)
            assert ran.code in (1, 2), f"{words} are taken"
            assert ran.err, f"{words} are refused without a reason"
            assert ran.out == ""
