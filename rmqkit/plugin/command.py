"""Verbs of the command line."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from attrs import frozen


@frozen
class Verb:
    """`arguments` adds a verb's options to its parser; `run` does the work and returns the exit code.
    Errors of the kit become one line on stderr."""

    help: str
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
