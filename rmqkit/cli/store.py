"""`rmqkit store inspect|verify|export|copy`. Exit code 0: good; 1: damaged or no store; 2: wrong arguments or
settings."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from rmqkit.cli import options, running
from rmqkit.config import Config, with_values
from rmqkit.errors import ConfigError, DecodeError, StoreCorrupt, StoreError
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.plugin import loader
from rmqkit.plugin.command import Verb
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.store_tools import LogSource, PutRecords, StoreTools
from rmqkit.protocol.record import unpack
from rmqkit.toolkit import output
from rmqkit.toolkit.directory_lock import DirectoryLock

#: Records of these transaction types have no place in a queue.
_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    looking = actions.add_parser("inspect", help="files, offsets, checkpoint and message counts of a store")
    verify = actions.add_parser(
        "verify", help="check every record, queue unit and index entry; report the first damaged position"
    )
    export = actions.add_parser("export", help="messages of a topic as lines of JSON")
    for action in (looking, verify, export):
        action.add_argument(
            "directory", metavar="DIR", type=Path, help="storePathRootDir, of rmqkit or of a Java broker"
        )
    for action in (looking, verify):
        options.add_json(action)
    add = export.add_argument
    add("topic", metavar="TOPIC")
    add("--queue", type=_natural, action="append", default=[], metavar="N", help="only this one; repeatable")
    add("--from", dest="start", type=_natural, default=0, metavar="OFFSET", help="first queue offset")
    add("--to", dest="stop", type=_natural, metavar="OFFSET", help="queue offset after the last")
    add("--tag", help="only messages with this tag")
    raw = "leave compressed bodies as they are stored"
    add("--no-decompress", dest="decompress", action="store_false", help=raw)
    copy = actions.add_parser(
        "copy", help="create a store of another kind with the same messages and offsets"
    )
    add = copy.add_argument
    add("directory", metavar="SRC", type=Path, help="storePathRootDir of a store that no broker is using")
    add("target", metavar="DST", type=Path, help="a new or empty directory")
    add("--to", required=True, metavar="STORE", help="kind of the new store, as in the setting store")
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
        raise ConfigError(f"{directory} is not a directory")
    config = options.load_config(arguments, storePathRootDir=str(directory))
    registry = loader.load(config)
    for tools in registry.store_tools.values():
        tools.queue_codes = registry.queue_codes
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
    """The tools for the store in the directory. Raises StoreError when there is no store, or more than
    one."""
    found = {name: tools for name, tools in registry.store_tools.items() if tools.has(directory, config)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise StoreError(f"{directory} holds several stores: {', '.join(found)}")
    raise StoreError(f"{directory} is not a message store of a known kind: {', '.join(registry.store_tools)}")


def _copy(tools: StoreTools, arguments: Namespace, config: Config, registry: Registry) -> int:
    target: Path = arguments.target
    target_tools: StoreTools = registry.chosen("store_tools", arguments.to)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not empty")
    running.keep_private(config)
    lock = DirectoryLock(arguments.directory)
    lock.take()
    try:
        with tools.read_log(arguments.directory, config) as source:
            target.mkdir(parents=True, exist_ok=True)
            target_config = with_values(config, store_path_root_dir=str(target))
            with target_tools.write_log(target, target_config, source) as put:
                _put_all(source, put)
        if (arguments.directory / "config").is_dir():
            shutil.copytree(arguments.directory / "config", target / "config")
    finally:
        lock.release()
    output.line(
        f"{target}: a store of kind {arguments.to} with the log offsets {source.start} to {source.end} and"
        f" {len(source.queues)} queues"
    )
    return 0


def _put_all(source: LogSource, put: PutRecords) -> None:
    bar = output.ProgressBar()
    try:
        for offset, records in source.pieces:
            for at, kept in _kept(source, offset, records):
                put(at, kept)
            bar(offset + len(records) - source.start, source.end - source.start)
    finally:
        bar.end()


def _kept(source: LogSource, offset: int, records: bytes) -> Iterator[tuple[int, bytes]]:
    """The records without those of deleted queues, whose messages would otherwise reappear. Raises
    StoreCorrupt."""
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


STORE = Verb(
    "inspect, verify or export a store directory, or copy it into another kind of store", _arguments, _run
)
