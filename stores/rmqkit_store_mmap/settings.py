"""RocketMQ's settings of the store's files."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import CONSUME_QUEUE, Config
from rmqkit.errors import ConfigError, Fault

_Positive = Annotated[int, msgspec.Meta(ge=1)]


class MmapSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sizes of files in bytes, numbers of slots and entries of an index file, and whether consume queues have
    extensions."""

    mapped_file_size_consume_queue: _Positive = 6_000_000
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: _Positive = 50_331_648
    max_hash_slot_num: _Positive = 5_000_000
    max_index_num: Annotated[int, msgspec.Meta(ge=2)] = 20_000_000


def check_extensions(config: Config) -> None:
    """Check that the broker has the extensions that are asked for. Raises ConfigError when its consume queues
    are other ones."""
    try:
        wanted = config.owned(MmapSettings).enable_consume_queue_ext
    except ConfigError:
        return  # the check of the settings reports the values
    if wanted and (config.store != "mmap" or CONSUME_QUEUE not in config.dispatchers):
        key = "enableConsumeQueueExt"
        text = f"{key} = true: only the consume queues of the store mmap have extensions; leave it out"
        raise ConfigError(text, [Fault(key, text)])
