"""`rmqkit store` for directories of this store."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from attrs import asdict

from rmqkit.config import Config
from rmqkit.errors import ConfigError, DecodeError, StoreError
from rmqkit.model import properties as props
from rmqkit.plugin.store_tools import LogSource, PutRecords, StoreTools
from rmqkit.protocol.record import unpack
from rmqkit.toolkit import output
from rmqkit.toolkit.directory_lock import lock_holder
from rmqkit.toolkit.document import broken_document, document
from rmqkit.toolkit.output import ProgressBar
from rmqkit_store_lmdb.journal.journal import journal_files
from rmqkit_store_lmdb.read.readonly import EnvironmentReader
from rmqkit_store_lmdb.tools.copying import read_log, write_log
from rmqkit_store_lmdb.tools.verify import verify


class LmdbTools(StoreTools):
    """The offline tools of the store lmdb."""

    def has(self, directory: Path, config: Config) -> bool:
        return (directory / "lmdb" / "data.mdb").is_file()

    def inspect(self, arguments: Namespace, config: Config) -> int:
        with EnvironmentReader(arguments.directory) as store:
            found = _survey(arguments.directory, store)
        (output.as_json if arguments.json else _show)(found)
        return 0

    def verify(self, arguments: Namespace, config: Config) -> int:
        began = time.monotonic()
        bar = ProgressBar()
        with EnvironmentReader(arguments.directory) as store:
            try:
                outcome = verify(store, bar)
            finally:
                bar.end()
        if arguments.json:
            output.as_json(
                {"directory": str(arguments.directory), "ok": outcome.damage is None} | asdict(outcome)
            )
            return 0 if outcome.damage is None else 1
        output.line(
            f"checked {outcome.records} records ({outcome.log_bytes} bytes), {outcome.units} queue units,"
            f" {outcome.keys} keys in {time.monotonic() - began:.1f} s"
        )
        for note in outcome.notes:
            output.line(f"note: {note}")
        if outcome.damage is not None:
            output.error(f"damaged: {arguments.directory}: {outcome.damage}")
            return 1
        output.line("no damage found")
        return 0

    def export(self, arguments: Namespace, config: Config) -> int:
        faults = 0
        with EnvironmentReader(arguments.directory) as store:
            queues = {
                queue_id: row for (topic, queue_id), row in store.queues().items() if topic == arguments.topic
            }
            if not queues:
                raise StoreError(f"{arguments.directory} has no topic {arguments.topic!r}")
            for queue_id in arguments.queue or queues:
                if queue_id not in queues:
                    raise StoreError(
                        f"{arguments.directory} has no queue {queue_id} of the topic {arguments.topic!r}"
                    )
                number, first, stop = queues[queue_id]
                stop = stop if arguments.stop is None else min(stop, arguments.stop)
                for offset, unit in store.units(number, max(first, arguments.start), stop):
                    record = store.record(unit[0])
                    if record is None:
                        continue
                    found = _document(arguments, queue_id, offset, unit[0], record)
                    if found is not None:
                        faults += "fault" in found
                        output.json_line(found)
        if faults:
            output.error(
                f"{faults} messages could not be decoded and are given as they are stored; their `fault` says"
                " why"
            )
        return 1 if faults else 0

    def read_log(self, directory: Path, config: Config) -> AbstractContextManager[LogSource]:
        return read_log(directory)

    def write_log(
        self, directory: Path, config: Config, source: LogSource
    ) -> AbstractContextManager[PutRecords]:
        if config.root_path != directory:
            raise ConfigError(f"the settings are about {config.root_path}, not {directory}")
        return write_log(config, source, self.queue_codes)


def _document(
    arguments: Namespace, queue_id: int, offset: int, physical_offset: int, record: memoryview
) -> dict[str, Any] | None:
    """The document of a record; None when its tag is not wanted."""
    try:
        message = unpack(record)
    except DecodeError as error:
        return broken_document(arguments.topic, queue_id, offset, physical_offset, record, str(error))
    if arguments.tag is None or message.properties.get(props.TAGS) == arguments.tag:
        return document(message, arguments.decompress)
    return None


def _survey(root: Path, store: EnvironmentReader) -> dict[str, Any]:
    holder = lock_holder(root)
    state, status = store.state, (store.directory / "data.mdb").stat()
    info, page_bytes = store.env.info(), store.env.stat()["psize"]
    return {
        "directory": str(root),
        "inUse": holder is not None,
        "lockHolder": holder,
        "synced": (store.directory / "synced").exists(),
        "journalBytes": sum(file.path.stat().st_blocks for file in journal_files(store.directory)) * 512,
        "log": {"minOffset": state.start, "maxOffset": state.end, "indexedTo": state.indexed_to},
        "file": {
            "bytes": status.st_size,
            "allocatedBytes": status.st_blocks * 512,
            "everUsedBytes": (info["last_pgno"] + 1) * page_bytes,
        },
        "readers": {"used": info["num_readers"], "max": info["max_readers"]},
        "entries": store.entries(),
        "topics": [
            {
                "topic": topic,
                "queueId": queue_id,
                "minOffset": first,
                "maxOffset": stop,
                "messages": stop - first,
            }
            for (topic, queue_id), (_, first, stop) in store.queues().items()
        ],
    }


def _show(found: dict[str, Any]) -> None:
    log, file = found["log"], found["file"]
    if found["inUse"]:
        use = f"in use by process {found['lockHolder']}"
    else:
        use = "not closed cleanly: the next start puts it in order" if found["synced"] else "closed"
    output.line(f"{found['directory']}: {use}")
    output.line(f"log offsets {log['minOffset']} to {log['maxOffset']}")
    output.line(f"data.mdb has {file['bytes']} bytes, {file['allocatedBytes']} on the disk")
    output.line(f"the journal has {found['journalBytes']} bytes on the disk")
    output.line(f"readers: {found['readers']['used']} of {found['readers']['max']}")
    output.line()
    output.table(("DATABASE", "ENTRIES"), list(found["entries"].items()))
    output.line()
    output.table(
        ("TOPIC", "QUEUE", "FIRST", "NEXT", "MESSAGES"),
        [
            (queue["topic"], queue["queueId"], queue["minOffset"], queue["maxOffset"], queue["messages"])
            for queue in found["topics"]
        ],
    )
