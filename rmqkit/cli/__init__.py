"""The command line: `rmqkit VERB ...`. Exit code 0 success, 1 the work failed, 2 the words or the settings are wrong, 130 interrupted."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module

from rmqkit import __version__
from rmqkit.cli import faults, output
from rmqkit.cli.verbs import Verb

#: Verb -> where it is. Modules are imported when their verb is used, so that `rmqkit serve` does not wait for what it does not need.
_BUILT_IN = {
    "serve": "rmqkit.cli.serve:SERVE",
    "namesrv": "rmqkit.cli.serve:NAMESRV",
    "broker": "rmqkit.cli.serve:BROKER",
    "send": "rmqkit.cli.messages:SEND",
    "consume": "rmqkit.cli.messages:CONSUME",
    "topic": "rmqkit.cli.topic:TOPIC",
    "status": "rmqkit.cli.status:STATUS",
    "store": "rmqkit.cli.store:STORE",
    "plugins": "rmqkit.cli.info:PLUGINS",
    "plugin": "rmqkit.cli.plugin_new:PLUGIN",
    "config": "rmqkit.cli.info:CONFIG",
    "demo": "rmqkit.cli.demo:DEMO",
    "demo-spark": "rmqkit.cli.spark_demo.verb:DEMO_SPARK",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        parser, verbs = _parser(words)
        arguments = parser.parse_args(words)
        return verbs[arguments.verb].run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        return 1
    except Exception as error:
        told = faults.told(error)
        if told is None:
            raise
        lines, code = told
        for line in lines:
            output.error(line)
        return code


def _parser(words: Sequence[str]) -> tuple[ArgumentParser, dict[str, Verb]]:
    parser = ArgumentParser(prog="rmqkit", description="Apache RocketMQ as a kit of Python plugins.")
    parser.add_argument("--version", action="version", version=f"rmqkit {__version__}")
    parser.set_defaults(verb=None)
    choices = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs = _verbs(words)
    for name, verb in verbs.items():
        verb.arguments(choices.add_parser(name, help=verb.help, description=verb.help))
    return parser, verbs


def _verbs(words: Sequence[str]) -> dict[str, Verb]:
    """The one verb that is asked for when it is built in; else all, plugins' verbs included."""
    if words and words[0] in _BUILT_IN:
        return {words[0]: _load(_BUILT_IN[words[0]])}
    verbs = {name: _load(where) for name, where in _BUILT_IN.items()}
    from rmqkit import config, plugins

    return verbs | dict(plugins.load(config.load()).commands)


def _load(where: str) -> Verb:
    module, _, name = where.partition(":")
    verb: Verb = getattr(import_module(module), name)
    return verb


__all__ = ["Verb", "main"]
