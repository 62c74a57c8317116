"""Finds the stores in a directory, by broker name, and their readable topics.

    the directory is a store (has commitlog/)        one broker, named "store": a store does not contain its
                                                     broker's name, and a copy keeps this name
    the directory contains stores (the data of       one broker per store, named as its directory
    `rmqkit serve --brokers`, or a parent directory)

Stores and topics that cannot be read completely are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark_rocketmq.read.source import FinalError, SourceError
from rmqkit.errors import DecodeError, RmqError
from rmqkit.limits import MAX_QUEUES_PER_TOPIC
from rmqkit.model.names import is_made_by_brokers
from rmqkit.model.topic import TopicConfig, TopicConfigTable
from rmqkit.protocol import loose_json
from rmqkit_store_mmap.readonly.readonly import StoreReader

#: Broker name for a directory that is itself a store.
ONLY_BROKER = "store"
#: Name prefix of queues that are views of other topics' records.
_LIGHT_PREFIX = "%LMQ%"
_MAX_STORES = 1024
#: A file system has it at its root, and only root can read it.
_VOLUME_DIRECTORY = "lost+found"


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """Raise errors of the store and the system as SourceError with the location."""
    try:
        yield
    except (OSError, RmqError) as error:
        named = error.filename if isinstance(error, OSError) and error.filename else place
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        kind = FinalError if isinstance(error, PermissionError) else SourceError
        raise kind(
            f"{named} cannot be read: {why}. Every worker needs the directory under the same path, and the"
            " right to read it"
        ) from error


class Store:
    """A store directory."""

    def __init__(self, broker: str, reader: StoreReader) -> None:
        """Read the settings of a store. Raises FinalError when the store's settings are damaged."""
        self.broker = broker
        self.reader = reader
        self._read_at: tuple[int, int] | None = None
        self._configs: Mapping[str, TopicConfig] = {}
        self._configured()

    @property
    def root(self) -> Path:
        return self.reader.root

    def topics(self) -> set[str]:
        """Names of topics that have or will have queues, without the topics of consumers' retries. Raises
        OSError."""
        names = {name for name, config in self._configured().items() if config.readable} | set(
            self.reader.topics()
        )
        return {name for name in names if not is_made_by_brokers(name) and not name.startswith(_LIGHT_PREFIX)}

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic, in order; empty when the topic does not exist. Raises FinalError when the
        topic is of an unsupported kind, OSError."""
        config = self._configured().get(topic)
        self._refuse(topic, config.attributes if config is not None else {})
        configured = (
            range(min(config.read_queue_nums, MAX_QUEUES_PER_TOPIC))
            if config is not None and config.readable
            else ()
        )
        return sorted({*configured, *self._found(topic)})

    def _found(self, topic: str) -> Iterator[int]:
        """The queues of a topic that have files."""
        directory = self.reader.queue_directory / topic
        if "/" not in topic and directory.is_dir():
            for path in directory.iterdir():
                if path.name.isascii() and path.name.isdigit() and path.is_dir():
                    yield int(path.name)

    def _configured(self) -> Mapping[str, TopicConfig]:
        """The topics of the current config/topics.json; empty when there is no file."""
        path = self.root / "config" / "topics.json"
        try:
            status = path.stat()
        except FileNotFoundError:
            return {}
        if self._read_at != (status.st_ino, status.st_mtime_ns):
            self._configs = _topic_configs(path)
            self._read_at = status.st_ino, status.st_mtime_ns
        return self._configs

    def _refuse(self, topic: str, attributes: Mapping[str, str]) -> None:
        kind = ""
        if topic.startswith(_LIGHT_PREFIX):
            kind = "is a light queue"
        elif (
            _attribute(attributes, "cleanup.policy") == "COMPACTION"
            or (self.root / "compaction" / "compactionLog" / topic).is_dir()
        ):
            kind = "is compacted, its messages are in compaction/"
        elif (
            _attribute(attributes, "queue.type") == "BatchCQ"
            or (self.root / "batchconsumequeue" / topic).is_dir()
        ):
            kind = "has batch consume queues"
        if kind:
            raise FinalError(
                f"{self.root}: topic {topic} {kind}, which cannot be read from files; read it from the"
                " cluster: nameServer"
            )


def open_stores(path: Path) -> dict[str, Store]:
    """Broker name -> store. Raises FinalError when there is none, or one of an unsupported kind."""
    with reading(path):
        if not path.is_dir():
            raise FinalError(
                f"storePath {path} is not a directory; use the one of `rmqkit serve --data`, or a"
                " broker's storePathRootDir"
            )
        if _is_store(path):
            roots = {ONLY_BROKER: path}
        else:
            roots = {
                child.name: child
                for child in sorted(path.iterdir())
                if child.name != _VOLUME_DIRECTORY and child.is_dir() and _is_store(child)
            }
        if not roots:
            raise FinalError(
                f"storePath {path} contains no message store: neither it nor a directory in it has a"
                " commitlog directory"
            )
        if len(roots) > _MAX_STORES:
            raise FinalError(
                f"storePath {path} has {len(roots)} stores, at most {_MAX_STORES} are read at a time"
            )
        return {broker: _open(broker, root) for broker, root in roots.items()}


def _is_store(path: Path) -> bool:
    _refuse_other_kinds(path)
    return (path / "commitlog").is_dir()


def _refuse_other_kinds(root: Path) -> None:
    remedy = "read it from the cluster: nameServer"
    if (root / "lmdb" / "data.mdb").is_file():
        raise FinalError(
            f"{root} is a store in LMDB, whose files cannot be read; {remedy}, or make a copy with `rmqkit"
            " store copy`"
        )
    if any(name.startswith("dledger-") for name in os.listdir(root)):
        raise FinalError(f"{root} is a store in DLedger mode, whose files cannot be read; {remedy}")
    if (root / "config" / "tieredStoreMetadata.json").is_file():
        raise FinalError(f"{root} is a tiered store, whose older messages are stored elsewhere; {remedy}")


def _open(broker: str, root: Path) -> Store:
    reader = StoreReader(root)
    if reader.log.record(reader.log.min_offset, 8) is not None and not reader.topics():
        reader.close()
        raise FinalError(
            f"{root} has messages but no consume queues: they are in RocksDB (storeType defaultRocksDB) or"
            " kept by a plugin; read it from the cluster: nameServer"
        )
    return Store(broker, reader)


def _topic_configs(path: Path) -> Mapping[str, TopicConfig]:
    try:
        return loose_json.decode(path.read_bytes(), TopicConfigTable).topic_config_table
    except DecodeError as error:
        raise FinalError(
            f"{path} is damaged: {error}. Without it compacted topics cannot be recognised; restore it"
            f" from {path.name}.bak"
        ) from error


def _attribute(attributes: Mapping[str, str], name: str) -> str:
    """An attribute's value. Java writes the names of attributes set by a client with a `+`."""
    return attributes.get(name) or attributes.get("+" + name) or ""
