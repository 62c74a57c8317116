"""RocketMQ's settings of transactions, and the table [plugins.transaction]."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rmqkit.config import LIVE, Config, IntervalMs, KeptMs, Live
from rmqkit_transaction.limits import MAX_CHECKS, MAX_OP_BYTES, MAX_RESERVED_HOURS, MAX_ROWS_PER_FILE

HALF_TOPICS: Final = "half-topics"
STATE_TABLE: Final = "state-table"


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """RocketMQ's own names. Times in ms, `transaction_op_msg_max_size` in bytes."""

    reject_transaction_message: Live[bool] = False
    transaction_time_out: Live[KeptMs] = 6_000
    transaction_check_max: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHECKS), LIVE] = 15
    transaction_check_interval: Live[IntervalMs] = 30_000
    transaction_op_msg_max_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_OP_BYTES), LIVE] = 4_096
    transaction_op_batch_interval: Live[IntervalMs] = 3_000


class Reserved(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The clean-up's setting that ends half messages as well: the hours for which log files are kept."""

    file_reserved_time: Annotated[int, msgspec.Meta(ge=0, le=MAX_RESERVED_HOURS), LIVE] = 72

    @property
    def ms(self) -> int:
        return self.file_reserved_time * 3_600_000


class TransactionOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """[plugins.transaction]

    store        where half messages and their outcomes are kept: `half-topics`, as brokers since 4.3 do, or
                 `state-table`, as those before version 3 did
    rowsPerFile  size of a file of the state table and of its redo log
    """

    store: Literal["half-topics", "state-table"] = HALF_TOPICS
    rows_per_file: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS_PER_FILE)] = 2_000_000


def options(config: Config) -> TransactionOptions:
    """The table of the plugin. Raises ConfigError."""
    return config.plugin_settings("transaction", TransactionOptions)
