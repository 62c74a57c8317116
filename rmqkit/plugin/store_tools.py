"""The work of `rmqkit store` on the directory of one kind of store, without opening it as a broker does.
Provided by the plugin that provides the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from attrs import frozen

from rmqkit.config import Config
from rmqkit.plugin.queue_code import NO_QUEUE_CODES, QueueCodes

#: Takes a log offset and consecutive whole records from there on; offsets only increase.
PutRecords = Callable[[int, bytes], None]


@frozen
class LogSource:
    """A log that is read from its beginning to its end. Offsets are physical, in bytes.

    queues  (topic, queue id) -> first queue offset and the one after the last; records of other queues belong
            to deleted topics
    pieces  offset and consecutive whole records from there on; there may be gaps between pieces
    """

    start: int
    end: int
    queues: Mapping[tuple[str, int], tuple[int, int]]
    pieces: Iterator[tuple[int, bytes]]


class StoreTools(ABC):
    """Operations on a store directory. `arguments` are the parsed arguments of the command line; their
    `directory` exists. Methods that return an int return the exit code. Every method may raise ConfigError,
    StoreError, OSError."""

    #: Set by the caller, as `MessageStore.queue_codes`.
    queue_codes: QueueCodes = NO_QUEUE_CODES

    @abstractmethod
    def has(self, directory: Path, config: Config) -> bool:
        """Whether the directory holds a store of this kind."""

    @abstractmethod
    def inspect(self, arguments: Namespace, config: Config) -> int:
        """Print a description of the store (`json`)."""

    @abstractmethod
    def verify(self, arguments: Namespace, config: Config) -> int:
        """Check everything and print the first bad place (`json`)."""

    @abstractmethod
    def export(self, arguments: Namespace, config: Config) -> int:
        """Print messages (`topic`, `queue`, `start`, `stop`, `tag`, `decompress`)."""

    @abstractmethod
    def read_log(self, directory: Path, config: Config) -> AbstractContextManager[LogSource]:
        """The whole log of a store that is not open, for a copy. Raises StoreError when it must first be
        repaired by a start."""

    @abstractmethod
    def write_log(
        self, directory: Path, config: Config, source: LogSource
    ) -> AbstractContextManager[PutRecords]:
        """Create a store with the log of another one, in an empty directory; it is complete when the context
        ends without an error."""
