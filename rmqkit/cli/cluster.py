"""`rmqkit cluster settings|set|backup|restore`: settings of running servers, and their messages and tables in
a directory, and back."""

from __future__ import annotations

import os
import shutil
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec

from rmqkit import __version__, log_lines
from rmqkit import config as settings
from rmqkit.cli import options, running
from rmqkit.config import Config
from rmqkit.errors import ConfigError, StoreError
from rmqkit.model.backup import MANIFEST, NONE, SIZES, TAKEN, WITHHELD, BrokerBackup, Manifest
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output
from rmqkit.toolkit.directory_lock import DirectoryLock
from rmqkit.toolkit.options import key_value

_MS = 1000
_PIECE_BYTES = 256 * 1024


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = actions.add_parser("settings", help="the settings of running masters, or of name servers")
    shown.add_argument("keys", nargs="*", metavar="KEY", help="only these")
    changed = actions.add_parser("set", help="change settings of running masters, or of name servers")
    pair = "as in broker.conf; docs/configuration.md lists those that may be changed"
    changed.add_argument("pairs", nargs="+", type=key_value, metavar="KEY=VALUE", help=pair)
    for action in (shown, changed):
        which = action.add_mutually_exclusive_group()
        which.add_argument("--broker", metavar="NAME", help="only of this broker")
        which.add_argument("--cluster", metavar="NAME", help="only of the brokers of this cluster")
        which.add_argument("--name-servers", action="store_true", help="of the name servers")
        options.add_client(action)
        options.add_json(action)
    backup = actions.add_parser(
        "backup", help="copy messages, topics, groups and offsets of running masters into a directory"
    )
    where = "a new directory, or that of an earlier backup, which gets what is new"
    backup.add_argument("directory", metavar="DIR", type=Path, help=where)
    add = backup.add_argument
    add("--broker", action="append", default=[], metavar="NAME", help="only this broker; repeatable")
    add("--cluster", metavar="NAME", help="only the brokers of this cluster")
    stalled = "give up when nothing comes for so long (default: 60 s)"
    add("--patience", type=options.positive, default=60.0, metavar="SECONDS", help=stalled)
    options.add_client(backup)
    options.add_json(backup)
    restore = actions.add_parser("restore", help="make the directory for a broker from a backup")
    add = restore.add_argument
    add("directory", metavar="DIR", type=Path, help="directory of the backup")
    add("--broker", metavar="NAME", help="whose messages; not needed when the backup has one broker")
    add("--to", required=True, metavar="DIR", type=Path, help="a new or empty directory: storePathRootDir")
    options.add_json(restore)


def _run(arguments: Namespace) -> int:
    match arguments.action:
        case "restore":
            return _restore(arguments)
        case "backup":
            return anyio.run(_back_up, arguments, backend="trio")
        case "settings":
            return anyio.run(_settings, arguments, backend="trio")
    return anyio.run(_set, arguments, backend="trio")


async def _settings(arguments: Namespace) -> int:
    async with options.client_of(arguments) as client:
        admin = client.admin
        if arguments.name_servers:
            found = await admin.name_server_settings()
        else:
            masters = await admin.masters(broker=arguments.broker, cluster=arguments.cluster)
            found = {name: await admin.broker_settings(address) for name, address in masters.items()}
    wanted = set(arguments.keys)
    unknown = sorted(wanted.difference(*found.values()))
    if unknown:
        raise ConfigError(f"no server has a setting {unknown[0]!r}")
    chosen = {
        name: {key: value for key, value in sorted(values.items()) if not wanted or key in wanted}
        for name, values in found.items()
    }
    if arguments.json:
        output.as_json(chosen)
    else:
        rows = [(name, key, value) for name, values in chosen.items() for key, value in values.items()]
        output.table(("SERVER", "SETTING", "VALUE"), rows)
    return 0


async def _set(arguments: Namespace) -> int:
    """Change the settings, one server after the other; the first that refuses ends it."""
    values = dict(arguments.pairs)
    async with options.client_of(arguments) as client:
        if arguments.name_servers:
            found = await client.admin.change_name_server_settings(values)
        else:
            found = await client.admin.change_broker_settings(
                values, broker=arguments.broker, cluster=arguments.cluster
            )
    if arguments.json:
        output.as_json([{"server": name, "remark": remark} for name, remark in found.items()])
    else:
        for name, remark in found.items():
            output.line(f"{name}: changed, {remark}" if remark else f"{name}: changed, also in its file")
    return 0


async def _back_up(arguments: Namespace) -> int:
    """Back up one broker after the other. The first error ends it; what was copied stays."""
    # Imported here so that `restore` starts without the broker.
    from rmqkit.cli.backup import back_up

    directory: Path = arguments.directory
    log_lines.start_logging("WARNING", None)

    def settings_of(values: Mapping[str, str]) -> Config:
        return settings.load(arguments.config, flags=dict(arguments.set) | dict(values))

    running.keep_private(settings_of({}))
    found: dict[str, BrokerBackup] = {}
    if (directory / MANIFEST).exists():
        found = {each.broker: each for each in _manifest(directory).brokers}
    async with options.client_of(arguments) as client:
        masters = await client.admin.masters(cluster=arguments.cluster)
        unknown = sorted({*arguments.broker} - masters.keys())
        if unknown:
            raise ConfigError(f"no master is called {unknown[0]}: there are {', '.join(masters)}")
        for name in arguments.broker or masters:
            bar = output.ProgressBar()
            try:
                found[name] = await back_up(
                    client, name, masters[name], directory / name, settings_of, arguments.patience, bar
                )
            finally:
                bar.end()
            done = Manifest(finished_at=int(time.time() * _MS), rmqkit=__version__, brokers=[*found.values()])
            (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(done)))
    if arguments.json:
        output.as_json([msgspec.structs.replace(each, settings={}) for each in done.brokers])
    else:
        rows = [
            (
                each.broker,
                each.store,
                each.start,
                each.end,
                each.new_bytes,
                each.topics,
                each.groups,
                each.users if each.accounts == TAKEN else each.accounts or WITHHELD,
            )
            for each in done.brokers
        ]
        output.table(("BROKER", "STORE", "FROM", "TO", "NEW BYTES", "TOPICS", "GROUPS", "USERS"), rows)
    return 0


def _manifest(directory: Path) -> Manifest:
    """What a backup has. Raises ConfigError for a directory without one."""
    path = directory / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{directory} holds no backup, its {path.name} cannot be read: {error}") from error


def _restore(arguments: Namespace) -> int:
    """Copy the store of one broker. The backup stays as it is."""
    source, target = arguments.directory, arguments.to
    found = {each.broker: each for each in _manifest(source).brokers}
    name = arguments.broker or (next(iter(found)) if len(found) == 1 else None)
    if name not in found:
        raise ConfigError(f"name one of its brokers with --broker: {', '.join(sorted(found))}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not empty")
    running.keep_private(settings.load(None, flags={}))
    lock = DirectoryLock(source / name)
    lock.take()
    try:
        shutil.copytree(
            source / name,
            target,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("lock"),
            copy_function=_copy_file,
        )
    except shutil.Error as error:
        raise StoreError(f"{target} is not complete: {error}") from error
    finally:
        lock.release()
    one = found[name]
    if one.accounts not in (TAKEN, NONE):
        output.error(
            f"the backup has no users and policies of {name}, or those of an earlier one: where its brokers"
            f" have access control, copy acl.json of their directory to {target / 'config'}, or make them"
            " again with `rmqkit acl`"
        )
    if arguments.json:
        output.as_json({"broker": name, "directory": str(target), "from": one.start, "to": one.end})
    else:
        output.line(f"{target}: {name} with its log from {one.start} to {one.end}. Start it with")
        output.line(
            f"rmqkit broker --set brokerName={name} --set brokerClusterName={one.cluster}"
            f" --set store={one.store} --set storePathRootDir={target}"
            + "".join(f" --set {key}={one.settings[key]}" for key in SIZES if key in one.settings)
        )
    return 0


def _for_the_owner(path: str, flags: int) -> int:
    """Open a file that others may not read before it has the mode of the one that it is a copy of."""
    return os.open(path, flags, 0o600)


def _copy_file(source: str, target: str) -> None:
    """Copy a file and leave its holes: the last file of a log is as long as a full one."""
    with open(source, "rb") as reading, open(target, "wb", opener=_for_the_owner) as writing:
        while piece := reading.read(_PIECE_BYTES):
            if piece.count(0) == len(piece):
                writing.seek(len(piece), os.SEEK_CUR)
            else:
                writing.write(piece)
        writing.truncate()
    shutil.copystat(source, target)


CLUSTER = Verb("settings of running servers; back up running brokers, and restore them", _arguments, _run)
