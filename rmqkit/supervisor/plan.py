"""Plans the brokers of `--brokers N`: names, ports and directories. Starts nothing and writes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from attrs import evolve

from rmqkit.config import PORT, Config, Kinds, has_mark, setting_fields, with_tables, with_texts, with_values
from rmqkit.errors import ConfigError
from rmqkit.plugin.transport import Address

#: Each broker is meant to use one core, and machines with more cores than this are rare.
MAX_BROKERS = 128
#: Distance between the ports of two brokers. A broker also uses the port two below its own, and RocketMQ
#: replicates on the port above it.
PORT_STEP = 10
_FAST_PORT_BELOW = 2
_LETTERED = re.compile(r"(.*[-_])([A-Za-z])")
_LOG_DIRECTORY = "commitlog"
_ANY_HOST = {"0.0.0.0", "::"}


def several(config: Config, count: int, others: Sequence[Address] = (), kinds: Kinds = ()) -> list[Config]:
    """Settings of each broker. The first has the configured name and port; each has a directory below the
    configured one.

    `others` are the addresses of this machine's name server, `kinds` the structs of settings that plugins
    own. Raises ConfigError, with a text that says what to do, when there are not enough names or ports, when
    a port belongs to the name server, or when the directory contains the store of a single broker.
    """
    names = broker_names(config.broker_name, count)
    if _LOG_DIRECTORY in names:
        raise ConfigError(
            f"brokerName {_LOG_DIRECTORY!r} is what a store calls its own directory; with --brokers choose"
            " another name"
        )
    if is_store(config.root_path):
        raise ConfigError(_used_alone(config, f"--brokers {count}"))
    ports = _ports(config, count, "--brokers")
    for other in others:
        _check_free(config, names, ports, other)
    return [
        _one_of(config, kinds, name, port, PORT_STEP * at)
        for at, (name, port) in enumerate(zip(names, ports, strict=True))
    ]


def replicated(
    config: Config, slaves: int, others: Sequence[Address] = (), kinds: Kinds = (), coordinator: str = ""
) -> list[Config]:
    """Settings of a master and its slaves, as of `--replicas`: the broker with the configured name and port,
    under SYNC_MASTER unless brokerRole says otherwise, and slaves of the same name. Each has a directory
    below the configured one. `others`, `kinds` and errors as of `several`. With the address of a coordinator,
    as of `--failover`, they elect the master among themselves."""
    role = config.setting("brokerRole", kinds)
    if config.broker_id or role == "SLAVE":
        raise ConfigError(
            "--replicas runs a master with its slaves: leave brokerId out, and brokerRole = SLAVE as well"
        )
    if is_store(config.root_path):
        raise ConfigError(_used_alone(config, f"--replicas {slaves}"))
    name, ports = config.broker_name, _ports(config, 1 + slaves, "--replicas")
    labels = [f"{name}-{number + 1}" if coordinator else _label(name, number) for number in range(1 + slaves)]
    for other in others:
        _check_free(config, labels, ports, other)
    found = []
    for number, (where, port) in enumerate(zip(labels, ports, strict=True)):
        one = with_values(_one_of(config, kinds, where, port, PORT_STEP * number), broker_name=name)
        if coordinator:
            one = _elected(one, where, coordinator)
            texts = {"brokerRole": role or "SYNC_MASTER"}
        else:
            texts = {"brokerRole": "SLAVE" if number else role or "SYNC_MASTER", "brokerId": str(number)}
        found.append(with_texts(one, texts, dict.fromkeys(texts, "--replicas"), kinds))
    return found


def _elected(config: Config, member: str, coordinator: str) -> Config:
    """Settings of a member of a group that elects its master."""
    tables: dict[str, dict[str, Any]] = {
        "ha": {"elected": True, "memberName": member},
        "failover": {"coordinator": coordinator},
    }
    return with_tables(config, tables, "--failover")


def label(config: Config) -> str:
    """What distinguishes a broker from the others of its parent: its name, with a slave's id, or that of the
    member of an elected group."""
    member: str = config.plugins.get("ha", {}).get("memberName", "")
    return member or _label(config.broker_name, config.broker_id)


def _label(name: str, broker_id: int) -> str:
    return f"{name}-slave-{broker_id}" if broker_id else name


def single(config: Config) -> Config:
    """Settings of a single broker: unchanged, except that in a directory used with `--brokers` before, it
    continues in its own subdirectory."""
    if is_store(config.root_path) or not is_store(config.root_path / config.broker_name):
        return config
    return _placed(config, config.broker_name)


def not_started(config: Config, started: Sequence[Config]) -> list[Path]:
    """Directories of brokers in the configured directory that none of the started brokers uses; empty when
    the directory itself is a store."""
    root = config.root_path
    used = {broker.root_path for broker in started}
    if is_store(root) or not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path not in used and is_store(path))


def is_store(path: Path) -> bool:
    """Whether a broker has stored messages or tables directly in this directory. False when it cannot be
    read."""
    return os.path.isdir(path / _LOG_DIRECTORY) or os.path.isfile(path / "config" / "topics.json")


def broker_names(first: str, count: int) -> list[str]:
    """broker-a, broker-b, ... when the first name ends in a separate letter, else NAME, NAME-2, NAME-3, ...
    Raises ConfigError after the letter z."""
    match = _LETTERED.fullmatch(first)
    if match is None:
        return [first, *(f"{first}-{number}" for number in range(2, count + 1))]
    stem, letter = match.groups()
    letters = ascii_lowercase if letter in ascii_lowercase else ascii_uppercase
    left = letters[letters.index(letter) :]
    if len(left) < count:
        raise ConfigError(
            f"brokerName {first!r} leaves {len(left)} names up to {stem + left[-1]!r}, and --brokers asks for"
            f" {count}; choose a name that does not end in a single letter, such as {stem + '1'!r}"
        )
    return [stem + one for one in left[:count]]


def _one_of(config: Config, kinds: Kinds, name: str, port: int, above: int) -> Config:
    """Settings of the broker `name`; each of its other configured ports is `above` higher than the first
    broker's."""
    placed = with_values(
        _placed(config, name),
        broker_name=name,
        listen_port=port,
        listeners=tuple(_listener(text, name, above) for text in config.listeners),
    )
    ports = {key: port for key, port in _owned_ports(config, kinds).items() if port}
    texts = {key: str(port + above) for key, port in ports.items()}
    return _without_door(with_texts(placed, texts, dict.fromkeys(texts, "command line"), kinds))


def _without_door(config: Config) -> Config:
    """Settings without a port of the broker's own for clients of gRPC: those of several brokers go by a
    proxy."""
    return with_tables(config, {"grpc": {"listen": "none"}}, "command line")


def _owned_ports(config: Config, kinds: Kinds) -> dict[str, int]:
    """The ports among the settings that plugins own."""
    return {
        key: config.setting(key, kinds)
        for key, field in setting_fields(kinds).items()
        if has_mark(field.type, PORT)
    }


def _listener(text: str, name: str, above: int) -> str:
    """The listener's address for one broker, so that no two brokers listen on the same port or path."""
    try:
        address = Address.parse(text)
    except ValueError as error:
        raise ConfigError(f"listeners: {error}") from error
    if address.name:
        return str(evolve(address, name=f"{address.name}.{name}")) if above else text
    return str(evolve(address, port=address.port + above)) if address.port else text


def _placed(config: Config, name: str) -> Config:
    log = str(Path(config.store_path_commit_log) / name) if config.store_path_commit_log else ""
    return with_values(config, store_path_root_dir=str(config.root_path / name), store_path_commit_log=log)


def _ports(config: Config, count: int, option: str) -> list[int]:
    first = config.listen_port
    if first == 0:
        return [0] * count
    last = first + PORT_STEP * (count - 1)
    if last > 65_535:
        raise ConfigError(
            f"listenPort {first} with {option} {count} needs ports up to {last}, and 65535 is the last;"
            " choose a lower one"
        )
    return list(range(first, last + 1, PORT_STEP))


def _check_free(config: Config, names: Sequence[str], ports: Sequence[int], other: Address) -> None:
    hosts = {config.bind_address, other.host}
    if other.port == 0 or (len(hosts) > 1 and not hosts & _ANY_HOST):
        return
    for name, port in zip(names, ports, strict=True):
        if other.port in (port, port - _FAST_PORT_BELOW):
            raise ConfigError(
                f"{name} would listen on ports {port - _FAST_PORT_BELOW} and {port}, and the name server"
                f" listens on {other}; choose another listenPort: the brokers' ports are {PORT_STEP} apart"
            )


def _used_alone(config: Config, option: str) -> str:
    root, name = config.root_path, config.broker_name
    text = (
        f"{root} holds the store of a single broker, and with {option} each has a directory below"
        f" it. Start without {option.split()[0]} to go on with it; or make it the first of several: stop what"
        f" uses it, move everything in {root} into {root / name} and start again"
    )
    if config.store_path_commit_log:
        log = Path(config.store_path_commit_log)
        text += f"; its log files go from {log} into {log / name}"
    return text
