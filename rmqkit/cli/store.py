"""`rmqkit store inspect|verify|export|copy`. Exit code 0 good, 1 damaged or no store, 2 the words or settings are wrong."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from rmqkit import plugins
from rmqkit.cli import options, output
from rmqkit.cli.progress import ProgressBar
from rmqkit.cli.verbs import Verb
from rmqkit.config import Config
from rmqkit.directory_lock import DirectoryLock
from rmqkit.errors import ConfigError, DecodeError, StoreCorrupt, StoreError
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.plugins import Registry
from rmqkit.protocol.record import unpack
from rmqkit.store_tools import LogSource, PutRecords, StoreTools

#: Kinds of record that have no place in a queue.
_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    looking = actions.add_parser("inspect", help="files, offsets, checkpoint and message counts of a store directory")
    verify = actions.add_parser("verify", help="check every record, queue unit and index entry; names the first bad place")
    for action in (looking, verify):
        action.add_argument("directory", metavar="DIR", type=Path, help="storePathRootDir, of rmqkit or of a Java broker")
        options.add_json(action)
    export = actions.add_parser("export", help="messages of a topic as lines of JSON")
    export.add_argument("directory", metavar="DIR", type=Path, help="storePathRootDir, of rmqkit or of a Java broker")
    export.add_argument("topic", metavar="TOPIC")
    export.add_argument("--queue", type=_natural, action="append", default=[], metavar="N", help="only this queue; repeatable")
    export.add_argument("--from", dest="start", type=_natural, default=0, metavar="OFFSET", help="first queue offset")
    export.add_argument("--to", dest="stop", type=_natural, metavar="OFFSET", help="queue offset behind the last")
    export.add_argument("--tag", help="only messages with this tag")
    export.add_argument("--no-decompress", dest="decompress", action="store_false", help="leave compressed bodies as they are stored")
    copy = actions.add_parser("copy", help="make a store of another kind with the same messages, at the same offsets")
    copy.add_argument("directory", metavar="SRC", type=Path, help="storePathRootDir of a store that no broker has open")
    copy.add_argument("target", metavar="DST", type=Path, help="a directory that is empty or not there yet")
    copy.add_argument("--to", required=True, metavar="STORE", help="kind of the new store, as in the setting store")
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
    config = options.load_config(arguments, storePathRootDir=str(directory))
    registry = plugins.load(config)
    tools = _tools_of(directory, config, registry)
    match arguments.action:
        case "inspect":
            return tools.inspect(arguments, config)
        case "verify":
            return tools.verify(arguments, config)
        case "export":
            return tools.export(arguments, config)
    return _copy(tools, arguments, config, registry)


def _tools_of(directory: Path, config: Config, registry: Registry) -> StoreTools:
    """The tools of the store that is there. Raises StoreError when there is none, or more than one."""
    found = {name: tools for name, tools in registry.store_tools.items() if tools.has(directory, config)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise StoreError(f"{directory} holds several stores: {', '.join(found)}")
    raise StoreError(f"{directory} is no message store of any kind there is: {', '.join(registry.store_tools)}")


def _copy(tools: StoreTools, arguments: Namespace, config: Config, registry: Registry) -> int:
    target: Path = arguments.target
    target_tools: StoreTools = registry.chosen("store_tools", arguments.to)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there and not empty")
    lock = DirectoryLock(arguments.directory)
    lock.take()
    try:
        with tools.read_log(arguments.directory, config) as source:
            target.mkdir(parents=True, exist_ok=True)
            with target_tools.write_log(target, config.with_values(store_path_root_dir=str(target)), source) as put:
                _put_all(source, put)
        if (arguments.directory / "config").is_dir():
            shutil.copytree(arguments.directory / "config", target / "config")
    finally:
        lock.release()
    output.line(
        f"{target}: a store of kind {arguments.to} with the log offsets {source.start} to {source.end} and {len(source.queues)} queues"
    )
    return 0


def _put_all(source: LogSource, put: PutRecords) -> None:
    bar = ProgressBar()
    try:
        for offset, records in source.pieces:
            for at, kept in _kept(source, offset, records):
                put(at, kept)
            bar(offset + len(records) - source.start, source.end - source.start)
    finally:
        bar.end()


def _kept(source: LogSource, offset: int, records: bytes) -> Iterator[tuple[int, bytes]]:
    """What is left of a piece without the records of queues that were deleted, whose messages would come back. Raises StoreCorrupt."""
    start = at = 0
    while at < len(records):
        try:
            found = unpack(records, at)
        except DecodeError as error:
            raise StoreCorrupt(f"log offset {offset + at}: {error}") from error
        first, stop = source.queues.get((found.topic, found.queue_id), (0, 0))
        if found.sys_flag & TRANSACTION_MASK not in _UNQUEUED and not first <= found.queue_offset < stop:
            if at > start:
                yield offset + start, records[start:at]
            start = at + found.size_bytes
        at += found.size_bytes
    if at > start:
        yield offset + start, records[start:]


STORE = Verb("look into a store directory: inspect, verify, export; or copy it into another kind of store", _arguments, _run)
