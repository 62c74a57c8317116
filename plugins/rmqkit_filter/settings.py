"""The settings of the filters: RocketMQ's, and the table [plugins.filter]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import IntervalMs, KeptMs, Live


class FilterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Table [plugins.filter].

    strict             refuse SQL92 expressions of which Apache ignores a part
    python_timeout_ms  time of a filter in Python for the messages that it gets at once
    """

    strict: bool = False
    python_timeout_ms: IntervalMs = 1_000


class ExpressionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """RocketMQ's settings of filters by expressions. `filter_data_clean_time_span` is in ms."""

    enable_property_filter: Live[bool] = False
    filter_support_retry: bool = False
    enable_calc_filter_bit_map: Live[bool] = False
    filter_data_clean_time_span: Live[KeptMs] = 24 * 3_600_000
    expect_consumer_num_use_filter: Annotated[int, msgspec.Meta(ge=1)] = 32
    max_error_rate_of_bloom_filter: Annotated[int, msgspec.Meta(ge=1, le=99)] = 20
