"""What `rmqkit store` does with the directory of one kind of store, without opening it as a broker does. A plugin that brings a store brings these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from attrs import frozen

from rmqkit.config import Config

#: Takes a log offset and whole records that stand side by side from there on; offsets only go up.
PutRecords = Callable[[int, bytes], None]


@frozen
class LogSource:
    """A log that is read from its beginning to its end. Offsets are physical, in bytes.

    queues  (topic, queue id) -> first queue offset and the one behind the last; records of other queues belong to topics that were deleted
    pieces  offset and whole records side by side from there on; between two pieces there may be a gap
    """

    start: int
    end: int
    queues: Mapping[tuple[str, int], tuple[int, int]]
    pieces: Iterator[tuple[int, bytes]]


class StoreTools(ABC):
    """The words of the command line come as `arguments`, whose `directory` is there. Methods that return an int return the exit code. What they raise:
    ConfigError, StoreError, OSError."""

    @abstractmethod
    def has(self, directory: Path, config: Config) -> bool:
        """Whether the directory holds a store of this kind."""

    @abstractmethod
    def inspect(self, arguments: Namespace, config: Config) -> int:
        """Print what there is (`json`)."""

    @abstractmethod
    def verify(self, arguments: Namespace, config: Config) -> int:
        """Check everything and print the first bad place (`json`)."""

    @abstractmethod
    def export(self, arguments: Namespace, config: Config) -> int:
        """Print messages (`topic`, `queue`, `start`, `stop`, `tag`, `decompress`)."""

    @abstractmethod
    def read_log(self, directory: Path, config: Config) -> AbstractContextManager[LogSource]:
        """The whole log of a store that nobody has open, for a copy. Raises StoreError when it has to be repaired by a start first."""

    @abstractmethod
    def write_log(self, directory: Path, config: Config, source: LogSource) -> AbstractContextManager[PutRecords]:
        """Make a store with the log of another one, in an empty directory; it is whole when the context ends without an error."""
