"""One source per place and process, because workers are reused for several tasks and connections are worth
keeping."""

from __future__ import annotations

import os
import threading

from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.source import Source

_sources: dict[tuple[object, ...], Source] = {}
_lock = threading.Lock()


def open_source(options: ReadOptions) -> Source:
    """The source given by the options; the same object for the same options in the same process. It stays
    open for later calls.

    A forked child opens its own. Raises SourceError when there is nothing to read from.
    """
    key = _key(options)
    with _lock:
        source = _sources.get(key)
        if source is None:
            source = _sources[key] = _open(options)
        return source


def close_source(options: ReadOptions) -> None:
    """Close the source that `open_source` opened for these options, if any."""
    with _lock:
        source = _sources.pop(_key(options), None)
    if source is not None:
        source.close()


def _key(options: ReadOptions) -> tuple[object, ...]:
    return (
        os.getpid(),
        options.name_server,
        options.store_path,
        options.tls,
        options.group_id,
        options.fetch_num_retries,
        options.fetch_retry_interval_ms,
        options.streaming,
        options.outage_timeout_ms,
        options.pull_timeout_ms,
        options.pull_pipelining,
        options.pull_batch_size,
        options.bad_records,
    )


def _open(options: ReadOptions) -> Source:
    if options.store_path is not None:
        from pyspark_rocketmq.files.source import FilesSource

        return FilesSource(options.store_path)
    from pyspark_rocketmq.read.cluster import ClusterSource

    return ClusterSource(options)
