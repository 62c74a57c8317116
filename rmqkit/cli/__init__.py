"""The command line: `rmqkit VERB ...`. Exit code 0: success; 1: the work failed; 2: wrong arguments or
settings; 130: interrupted."""

from __future__ import annotations

import os
import sys
from argparse import Action, ArgumentError, ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rmqkit import __version__, speedups
from rmqkit.errors import did_you_mean
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

#: Verb -> its module. Modules are imported when their verb is used, to keep the start of `rmqkit serve`
#: short.
_BUILT_IN = {
    "serve": "rmqkit.cli.serve:SERVE",
    "namesrv": "rmqkit.cli.serve:NAMESRV",
    "broker": "rmqkit.cli.serve:BROKER",
    "filter-server": "rmqkit.cli.filter_server:FILTER_SERVER",
    "proxy": "rmqkit.cli.proxy:PROXY",
    "send": "rmqkit.cli.send:SEND",
    "consume": "rmqkit.cli.messages:CONSUME",
    "tail": "rmqkit.cli.messages:TAIL",
    "replay": "rmqkit.cli.replay:REPLAY",
    "topic": "rmqkit.cli.topic:TOPIC",
    "group": "rmqkit.cli.group:GROUP",
    "acl": "rmqkit.cli.acl:ACL",
    "message": "rmqkit.cli.message:MESSAGE",
    "dlq": "rmqkit.cli.dead_letters:DLQ",
    "set-aside": "rmqkit.cli.set_aside:SET_ASIDE",
    "status": "rmqkit.cli.status:STATUS",
    "cluster": "rmqkit.cli.cluster:CLUSTER",
    "bench": "rmqkit.cli.bench:BENCH",
    "doctor": "rmqkit.cli.doctor:DOCTOR",
    "store": "rmqkit.cli.store:STORE",
    "plugins": "rmqkit.cli.info:PLUGINS",
    "plugin": "rmqkit.cli.plugin_new:PLUGIN",
    "config": "rmqkit.cli.info:CONFIG",
    "completion": "rmqkit.cli.completion:COMPLETION",
    "demo": "rmqkit.demos.messages:DEMO",
    "demo-spark": "rmqkit.demos.spark.verb:DEMO_SPARK",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            parser, verbs = _parser(words)
            arguments = parser.parse_args(words)
            return verbs[arguments.verb].run(arguments)
        finally:
            # The interpreter would flush last, and report a lost reader with an exit code of its own.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if _is_broken_pipe(error):
            # The reader of standard output has gone, so nothing can be reported.
            _discard_output()
            return 1
        told = output.fault_lines(error)
        if told is None:
            raise
        lines, code = told
        for line in lines:
            output.error(line)
        return code


def _is_broken_pipe(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(BrokenPipeError)[1] is None
    return isinstance(error, BrokenPipeError)


def _discard_output() -> None:
    """Let what is still in the buffer of standard output be written nowhere when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _Parser(ArgumentParser):
    """Accepts options by their full names only: an abbreviation could change its meaning when an option is
    added. A misspelt verb, action or choice has the nearest one in its error."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | keywords)

    def _check_value(self, action: Action, value: Any) -> None:
        """Suggest the nearest of the choices in place of listing them all."""
        near = did_you_mean(str(value), map(str, action.choices or ()))
        if near and value not in (action.choices or ()):
            raise ArgumentError(action, f"invalid choice: {value!r}{near}")
        super()._check_value(action, value)


class _Version(Action):
    """Prints the version and which code runs, as a line or as JSON, and exits."""

    def __init__(self, as_json: bool, **keywords: Any) -> None:
        super().__init__(help="print the version and which code runs, with --json as JSON", **keywords)
        self._as_json = as_json

    def __call__(self, parser: ArgumentParser, *rest: object) -> None:
        code = speedups.description()
        if self._as_json:
            output.json_line({"version": __version__, "compiled": speedups.IN_USE, "code": code})
        else:
            output.line(f"rmqkit {__version__}, {code}")
        parser.exit()


def whole_parser() -> ArgumentParser:
    """The parser with all verbs, those of plugins included."""
    return _parser(())[0]


def _parser(words: Sequence[str]) -> tuple[ArgumentParser, dict[str, Verb]]:
    parser = _Parser(prog="rmqkit", description="Apache RocketMQ as a kit of Python plugins.")
    parser.add_argument("--version", action=_Version, nargs=0, as_json="--json" in words)
    parser.set_defaults(verb=None)
    choices = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs = _verbs(words)
    for name, verb in verbs.items():
        verb.arguments(choices.add_parser(name, help=verb.help, description=verb.help))
    return parser, verbs


def _verbs(words: Sequence[str]) -> dict[str, Verb]:
    """The requested verb if it is built in; otherwise all verbs, including those of plugins."""
    if words and words[0] in _BUILT_IN:
        return {words[0]: _load(_BUILT_IN[words[0]])}
    if "--version" in words[:2]:
        return {}
    verbs = {name: _load(where) for name, where in _BUILT_IN.items()}
    from rmqkit import config
    from rmqkit.plugin import loader

    return verbs | dict(loader.load(config.load()).commands)


def _load(where: str) -> Verb:
    module, _, name = where.partition(":")
    verb: Verb = getattr(import_module(module), name)
    return verb


__all__ = ["Verb", "main", "whole_parser"]
