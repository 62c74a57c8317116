"""Options of the command line that verbs of the kernel and of plugins share: settings and log lines."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError

from rmqkit import log_lines


def key_value(text: str) -> tuple[str, str]:
    """An argparse type for `--set KEY=VALUE`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ArgumentTypeError(
            f"{text!r} does not have the form KEY=VALUE, for example flushDiskType=SYNC_FLUSH"
        )
    return key.strip(), value.strip()


def add_pairs(parser: ArgumentParser, name: str, text: str) -> None:
    """A repeatable option whose values are pairs."""
    parser.add_argument(name, metavar="KEY=VALUE", type=key_value, action="append", default=[], help=text)


def add_config(parser: ArgumentParser) -> None:
    """`--config` and `--set`."""
    parser.add_argument(
        "--config", metavar="FILE", help="settings: TOML, or Java properties such as broker.conf"
    )
    add_pairs(parser, "--set", "a setting, as in broker.conf; repeatable")


def add_logging(parser: ArgumentParser) -> None:
    """`--log-level` and `--log-format`."""
    level = (
        f"log level on standard error: {', '.join(log_lines.LEVELS)}; with others of single loggers, as in"
        " INFO,rmqkit.broker=DEBUG (default: the variable RMQKIT_LOG_LEVEL, else INFO)"
    )
    parser.add_argument("--log-level", metavar="LEVEL", type=_levels, help=level)
    form = "form of log lines (default: the variable RMQKIT_LOG_FORMAT, else text)"
    parser.add_argument("--log-format", choices=log_lines.FORMS, help=form)


def _levels(text: str) -> str:
    """An argparse type for `--log-level`."""
    try:
        log_lines.levels_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


__all__ = ["add_config", "add_logging", "add_pairs", "key_value"]
