"""`rmqkit console` within the test's process."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest
import trio

from rmqkit.errors import ConfigError, MissingExtra
from rmqkit.plugin.command import Verb
from rmqkit.testing.command import CommandContract
from rmqkit_console import settings
from rmqkit_console.commands import CONSOLE, run

WHERE = ("--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0")


async def _at_once(task_status: trio.TaskStatus[None]) -> None:
    """The console stops as soon as it is ready."""
    task_status.started()


def _parsed(*words: str) -> Namespace:
    parser = ArgumentParser()
    CONSOLE.arguments(parser)
    return parser.parse_args(list(words))


class TestConsoleVerb(CommandContract):
    """A console that is stopped as soon as it serves."""

    verb = Verb(CONSOLE.help, CONSOLE.arguments, lambda arguments: run(arguments, _at_once))
    good = (
        WHERE,
        [*WHERE, "--allow-writes", "--hide-bodies", "--host", "console.example"],
        [*WHERE, "--log-level", "INFO,rmqkit_console=DEBUG", "--log-format", "json"],
        [*WHERE, "--cluster-login", "--audit-topic", "Audit", "--audit-file", "/none"],
        [*WHERE, "--set", "accessKey=a", "--set", "secretKey=b", "--tls"],
    )
    bad = (
        ["--listen", "127.0.0.1:0"],
        ["--namesrv", "127.0.0.1:1", "--listen", "10.0.0.1:80"],
        ["--namesrv", "127.0.0.1:1", "--listen", "8080"],
        [*WHERE, "--user", "ann", "--password-file", "/none"],
        [*WHERE, "--user", "ann", "--cluster-login"],
        [*WHERE, "--set", "accessKey"],
        [*WHERE, "--log-level", "LOUD"],
        [*WHERE, "--no-such-option"],
    )


def test_settings_of_a_file(tmp_path: Path) -> None:
    """A table of the settings says the same as options."""
    file = tmp_path / "console.toml"
    file.write_text('namesrvAddr = "127.0.0.1:1"\n[plugins.console]\nlisten = "127.0.0.1:0"\nuser = "ann"\n')
    with pytest.raises(ConfigError, match="needs a password"):
        CONSOLE.run(_parsed("--config", str(file)))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to install."""
    monkeypatch.setattr(settings, "_LIBRARIES", ("no_such_library",))
    with pytest.raises(MissingExtra, match=r"\[console\]"):
        CONSOLE.run(_parsed(*WHERE))
