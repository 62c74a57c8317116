"""Limits of transactions, each with its reason."""

from __future__ import annotations

#: A transaction that is asked for more often would be asked for until its message is removed with the log.
MAX_CHECKS = 1_000_000
#: The text of one op message; a larger one would not fit into a small segment of the log.
MAX_OP_BYTES = 1_048_576
#: A hundred years.
MAX_RESERVED_HOURS = 876_000
#: Half messages that are looked at between two looks of the event loop at other tasks.
MAX_LOOKS = 64
#: Former places of half messages that are remembered, 200 bytes each: an outcome that names an older one is
#: refused, and the next round asks for it.
MAX_MOVED = 100_000
#: Bytes of the log that are searched between two looks of the event loop at other tasks.
MAX_SEARCHED_BYTES = 1_048_576
#: Producers that are tried for one question.
MAX_TRIES = 3
#: Messages that were resumed and are remembered, so that none is resumed twice.
MAX_RESUMED = 10_000
#: 480 MB of a state table: larger files are removed too late.
MAX_ROWS_PER_FILE = 20_000_000
