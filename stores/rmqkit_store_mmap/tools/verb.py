"""`rmqkit store inspect|verify|export`. Exit code 0 good, 1 damaged or no store, 2 the words or settings are wrong."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from rmqkit.cli import options, output
from rmqkit.cli.verbs import Verb
from rmqkit.config import Config
from rmqkit.errors import ConfigError


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    looking = actions.add_parser("inspect", help="files, offsets, checkpoint and message counts of a store directory")
    verify = actions.add_parser("verify", help="check every record, queue unit and index entry; names the first bad place")
    for action in (looking, verify):
        action.add_argument("directory", metavar="DIR", type=Path, help="RocketMQ's storePathRootDir, of rmqkit or of a Java broker")
        options.add_json(action)
    export = actions.add_parser("export", help="messages of a topic as lines of JSON")
    export.add_argument("directory", metavar="DIR", type=Path, help="RocketMQ's storePathRootDir, of rmqkit or of a Java broker")
    export.add_argument("topic", metavar="TOPIC")
    export.add_argument("--queue", type=_natural, action="append", default=[], metavar="N", help="only this queue; repeatable")
    export.add_argument("--from", dest="start", type=_natural, default=0, metavar="OFFSET", help="first queue offset")
    export.add_argument("--to", dest="stop", type=_natural, metavar="OFFSET", help="queue offset behind the last")
    export.add_argument("--tag", help="only messages with this tag")
    export.add_argument("--no-decompress", dest="decompress", action="store_false", help="leave compressed bodies as they are stored")
    for action in actions.choices.values():
        options.add_settings(action)


def _natural(text: str) -> int:
    """An argparse type: its ValueError becomes a usage error that names the option."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _run(arguments: Namespace) -> int:
    directory: Path = arguments.directory
    if not directory.is_dir():
        raise ConfigError(f"{directory} is no directory")
    return _ACTIONS[arguments.action](arguments, options.load_config(arguments))


def _log_directory(config: Config) -> Path | None:
    if "," in config.store_path_commit_log:
        raise ConfigError(f"storePathCommitLog = {config.store_path_commit_log!r}: a log spread over several paths is not supported")
    return Path(config.store_path_commit_log) if config.store_path_commit_log else None


def _inspect(arguments: Namespace, config: Config) -> int:
    from rmqkit_store_mmap.readonly import StoreReader
    from rmqkit_store_mmap.tools.report import show_survey
    from rmqkit_store_mmap.tools.survey import survey

    with StoreReader(arguments.directory, _log_directory(config)) as store:
        found = survey(store)
    (output.as_json if arguments.json else show_survey)(found)
    return 0


def _verify(arguments: Namespace, config: Config) -> int:
    from rmqkit.model.delay import parse_levels
    from rmqkit_store_mmap.readonly import StoreReader
    from rmqkit_store_mmap.tools.report import ProgressBar, show_verdict, verdict
    from rmqkit_store_mmap.tools.verify import Verifier

    began = time.monotonic()
    bar = ProgressBar()
    with StoreReader(arguments.directory, _log_directory(config)) as store:
        try:
            outcome = Verifier(store, parse_levels(config.message_delay_level), config.max_hash_slot_num, bar).run()
        finally:
            bar.end()
    found = verdict(arguments.directory, outcome, time.monotonic() - began)
    (output.as_json if arguments.json else show_verdict)(found)
    return 0 if outcome.damage is None else 1


def _export(arguments: Namespace, config: Config) -> int:
    from rmqkit_store_mmap.readonly import StoreReader
    from rmqkit_store_mmap.tools.export import export

    faults = 0
    with StoreReader(arguments.directory, _log_directory(config)) as store:
        for document in export(
            store, arguments.topic, arguments.queue, arguments.start, arguments.stop, arguments.tag, arguments.decompress
        ):
            faults += "fault" in document
            output.json_line(document)
    if faults:
        output.error(f"{faults} bodies could not be decompressed and are given as they are stored; their `fault` says why")
    return 1 if faults else 0


_ACTIONS: dict[str, Callable[[Namespace, Config], int]] = {"inspect": _inspect, "verify": _verify, "export": _export}

STORE = Verb("look into a store directory: inspect, verify, export; changes nothing", _arguments, _run)
