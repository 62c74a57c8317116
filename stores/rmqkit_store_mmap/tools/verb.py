"""`rmqkit store` for directories in RocketMQ's format. Each action imports its modules when it runs."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import AbstractContextManager
from pathlib import Path

from rmqkit.config import Config
from rmqkit.plugin.store_tools import LogSource, PutRecords, StoreTools
from rmqkit.toolkit import output
from rmqkit.toolkit.output import ProgressBar
from rmqkit_store_mmap.settings import MmapSettings


def _log_directory(config: Config) -> Path | None:
    return Path(config.store_path_commit_log) if config.store_path_commit_log else None


class MmapTools(StoreTools):
    """The offline tools of the store mmap."""

    def has(self, directory: Path, config: Config) -> bool:
        return (_log_directory(config) or directory / "commitlog").is_dir()

    def inspect(self, arguments: Namespace, config: Config) -> int:
        from rmqkit_store_mmap.readonly.readonly import StoreReader
        from rmqkit_store_mmap.tools.report import show_survey
        from rmqkit_store_mmap.tools.survey import survey

        with StoreReader(arguments.directory, _log_directory(config)) as store:
            found = survey(store)
        (output.as_json if arguments.json else show_survey)(found)
        return 0

    def verify(self, arguments: Namespace, config: Config) -> int:
        from rmqkit_store_mmap.readonly.readonly import StoreReader
        from rmqkit_store_mmap.tools.report import show_verdict, verdict
        from rmqkit_store_mmap.tools.verify import Verifier

        began = time.monotonic()
        bar = ProgressBar()
        with StoreReader(arguments.directory, _log_directory(config)) as store:
            try:
                slots = config.owned(MmapSettings).max_hash_slot_num
                outcome = Verifier(store, self.queue_codes, slots, bar, config.unindexed_topics).run()
            finally:
                bar.end()
        found = verdict(arguments.directory, outcome, time.monotonic() - began)
        (output.as_json if arguments.json else show_verdict)(found)
        return 0 if outcome.damage is None else 1

    def export(self, arguments: Namespace, config: Config) -> int:
        from rmqkit_store_mmap.readonly.readonly import StoreReader
        from rmqkit_store_mmap.tools.export import export

        faults = 0
        with StoreReader(arguments.directory, _log_directory(config)) as store:
            for document in export(
                store,
                arguments.topic,
                arguments.queue,
                arguments.start,
                arguments.stop,
                arguments.tag,
                arguments.decompress,
            ):
                faults += "fault" in document
                output.json_line(document)
        if faults:
            output.error(
                f"{faults} messages could not be decoded and are given as they are stored; their `fault` says"
                " why"
            )
        return 1 if faults else 0

    def read_log(self, directory: Path, config: Config) -> AbstractContextManager[LogSource]:
        from rmqkit_store_mmap.tools.copying import read_log

        return read_log(directory, _log_directory(config))

    def write_log(
        self, directory: Path, config: Config, source: LogSource
    ) -> AbstractContextManager[PutRecords]:
        from rmqkit_store_mmap.tools.copying import write_log

        return write_log(config, source)
