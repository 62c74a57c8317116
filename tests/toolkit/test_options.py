"""Options that verbs share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import pytest

from rmqkit.toolkit import options


def _parsed(*words: str) -> Namespace:
    parser = ArgumentParser()
    options.add_config(parser)
    options.add_logging(parser)
    return parser.parse_args(words)


def test_pairs() -> None:
    """They may be repeated, have no spaces around them, and values with an equals sign."""
    found = _parsed("--set", " a = 1 ", "--set", "b=c=d", "--set", "e=", "--config", "x.toml")
    assert found.set == [("a", "1"), ("b", "c=d"), ("e", "")]
    assert found.config == "x.toml"


def test_levels() -> None:
    """One for all loggers, and others for single ones."""
    found = _parsed("--log-level", "INFO,rmqkit_ha=DEBUG", "--log-format", "json")
    assert (found.log_level, found.log_format) == ("INFO,rmqkit_ha=DEBUG", "json")
    assert _parsed().log_level is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--set", "a"), "KEY=VALUE"),
        (("--set", "=1"), "KEY=VALUE"),
        (("--log-level", "LOUD"), "WARNING"),
        (("--log-level", "=INFO"), "names no logger"),
    ],
)
def test_what_is_wrong(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says what may be written."""
    with pytest.raises(SystemExit):
        _parsed(*words)
    assert text in capsys.readouterr().err
