"""The filter server for SQL92 (Java: SqlFilter, ExpressionMessageFilter)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.errors import DecodeError
from rmqkit.limits import FIRST_FILTERED_RECORDS, MAX_EVALUATED_OPERANDS
from rmqkit.model.buffer import Buffer
from rmqkit.model.subscription import SQL92, SubscriptionData
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.protocol.record import peek_properties
from rmqkit_filter.sql92.parser import parse


class Sql92Filter(FilterServer):
    """Expression type "SQL92". `strict` refuses what Apache's parser ignores (`parser.parse`)."""

    expression_type = SQL92

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        if subscription.expression_type != SQL92:
            raise ValueError(f"{subscription.expression_type!r} is not the expression type SQL92")
        try:
            condition = parse(subscription.sub_string, strict=self._strict)
        except ValueError as error:
            raise ValueError(f"Invalid MessageSelector. {error}") from error

        evaluate = condition.evaluate

        def matches(record: Buffer) -> bool:
            try:
                return evaluate(peek_properties(record)) is True
            except (ValueError, DecodeError):
                return False

        def records(batch: Sequence[Buffer]) -> list[bool]:
            return list(map(matches, batch))

        per_call = max(1, min(FIRST_FILTERED_RECORDS, MAX_EVALUATED_OPERANDS // condition.operands))
        return CompiledFilter(records=records, records_per_call=per_call)

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        """Raises ValueError when the expression is empty; the rest is found by `compile`."""
        found = SubscriptionData(
            topic=topic, sub_string=expression, sub_version=version, expression_type=SQL92
        )
        self.compile(found, "")
        return found
