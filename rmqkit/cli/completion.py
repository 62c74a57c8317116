"""`rmqkit completion bash|zsh|fish`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from importlib.util import find_spec

from rmqkit.errors import MissingExtra
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

_SHELLS = ("bash", "zsh", "fish")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS)


def _run(arguments: Namespace) -> int:
    """Print a script that completes all verbs and options, those of plugins included."""
    if find_spec("shtab") is None:
        raise MissingExtra("shell completion needs the package shtab", "cli")
    import shtab

    from rmqkit.cli import whole_parser

    output.line(shtab.complete(whole_parser(), shell=arguments.shell))
    return 0


COMPLETION = Verb("print a script for completion in bash, zsh or fish", _arguments, _run)
