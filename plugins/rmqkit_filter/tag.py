"""Filters by tag with the hash in the consume queue, without reading the record (Java:
ExpressionMessageFilter, FilterAPI).

Different tags may have the same hash, so consumers compare the tag's text as well.
"""

from __future__ import annotations

from rmqkit.model.subscription import TAG, SubscriptionData, tag_subscription
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.plugin.queue_code import LOWEST_CODE
from rmqkit.protocol.tags import java_hash


class TagCodes:
    """The unit filter of a set of tags. `low_codes` has the low 32 bits of the tags codes that pass; codes
    below LOWEST_CODE pass as well, because they say nothing about the tags. A store may compare them
    itself."""

    __slots__ = ("low_codes",)

    def __init__(self, low_codes: frozenset[int]) -> None:
        self.low_codes = low_codes

    def __call__(self, tags_code: int) -> bool:
        return tags_code & 0xFFFFFFFF in self.low_codes or tags_code < LOWEST_CODE


class TagFilter(FilterServer):
    """Expression type "TAG"."""

    expression_type = TAG

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        """A unit passes when the low 32 bits of its tags code, signed, are among the subscription's codes.
        With `*` and in class filter mode every unit passes. If the subscription has no codes, they are
        computed from its tags, or from its text."""
        if not subscription.is_tag:
            raise ValueError(f"{subscription.expression_type!r} is not the expression type TAG")
        if subscription.takes_all or subscription.class_filter_mode:
            return CompiledFilter()
        given = subscription.code_set or [java_hash(tag) for tag in subscription.tags_set]
        if not given:
            parsed = self.subscription(subscription.topic, subscription.sub_string, subscription.sub_version)
            if parsed.takes_all:
                return CompiledFilter()
            given = parsed.code_set
        return CompiledFilter(unit=TagCodes(frozenset(code & 0xFFFFFFFF for code in given)))

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        return tag_subscription(topic, expression, version)
