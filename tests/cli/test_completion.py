"""`rmqkit completion`, and progress bars."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from rmqkit.toolkit.output import ProgressBar
from tests.cli.conftest import Run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(rmqkit: Run, shell: str) -> None:
    """It contains verbs, actions and options."""
    ended = rmqkit("completion", shell)
    assert ended.returncode == 0, ended.stderr
    for word in ("doctor", "connections", "fail-above"):
        assert word in ended.stdout


def test_the_script_completes(rmqkit: Run, tmp_path: Path) -> None:
    """In bash: the actions of `rmqkit group`."""
    (tmp_path / "rmqkit.bash").write_text(rmqkit("completion", "bash").stdout)
    asked = (
        "source ./rmqkit.bash; COMP_WORDS=(rmqkit group re); COMP_CWORD=2; "
        'COMP_LINE="rmqkit group re"; COMP_POINT=15; _shtab_rmqkit; echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert sorted(ended.stdout.split()) == ["reset", "resume"], ended.stderr


def test_a_missing_extra(rmqkit: Run, tmp_path: Path) -> None:
    """The error names the extra."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\nimportlib.util.find_spec = lambda name,"
        " package=None: None if name == 'shtab' else find(name, package)\n"
    )
    ended = rmqkit("completion", "bash", env={"PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, "pip install '.[cli]'" in ended.stderr) == (2, True)


def test_a_bar_at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar is drawn on a terminal and removed at the end; nothing is drawn elsewhere."""
    hidden = ProgressBar()
    hidden(1, 2)
    hidden.end()
    assert capsys.readouterr().err == ""
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = ProgressBar(" messages")
    bar(5, 10)
    bar(10, 10)
    bar.end()
    assert "/10 [" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


class _Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True
