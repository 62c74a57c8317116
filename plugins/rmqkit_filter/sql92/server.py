"""The filter server for SQL92 (Java: SqlFilter, ExpressionMessageFilter)."""

from __future__ import annotations

from rmqkit.config import Config
from rmqkit.errors import DecodeError
from rmqkit.model.buffer import Buffer
from rmqkit.model.subscription import SQL92, SubscriptionData
from rmqkit.plugin.filter import CompiledFilter, FilterServer, RecordsFilter
from rmqkit.protocol.record import peek_properties
from rmqkit.speedups import IN_USE
from rmqkit_filter.limits import MAX_EVALUATED_OPERANDS, MAX_RECORDS_PER_CALL
from rmqkit_filter.settings import ExpressionSettings
from rmqkit_filter.sql92.expressions import Node
from rmqkit_filter.sql92.parser import parse


def pure_records_filter(condition: Node) -> RecordsFilter:
    """Whether each of some records matches a parsed expression."""
    evaluate = condition.evaluate

    def matches(record: Buffer) -> bool:
        try:
            return evaluate(peek_properties(record)) is True
        except (ValueError, DecodeError):
            return False

    return lambda records: list(map(matches, records))


def compiled_records_filter(condition: Node) -> RecordsFilter:
    """A filter of records for a condition, by compiled code where it has a form of the condition. Only called
    where the compiled part is there, in use or not."""
    from rmqkit_filter.sql92._matching import Matching

    pure = pure_records_filter(condition)
    if condition.form is None:
        return pure
    try:
        return Matching(condition.form, lambda record: pure((record,))[0]).verdicts
    except ValueError:  # too large for compiled code
        return pure


class Sql92Filter(FilterServer):
    """Expression type "SQL92". `strict` refuses what Apache's parser ignores (`parser.parse`)."""

    expression_type = SQL92

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._config: Config | None = None
        self._is_on = False

    def refusal(self, config: Config) -> str:
        if config is not self._config:
            self._is_on = config.owned(ExpressionSettings).enable_property_filter
            self._config = config
        if self._is_on:
            return ""
        return "The broker does not support consumer to filter message by SQL92 (enablePropertyFilter)"

    def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        if subscription.expression_type != SQL92:
            raise ValueError(f"{subscription.expression_type!r} is not the expression type SQL92")
        try:
            condition = parse(subscription.sub_string, strict=self._strict)
        except ValueError as error:
            raise ValueError(f"Invalid MessageSelector. {error}") from error

        per_call = max(1, min(MAX_RECORDS_PER_CALL, MAX_EVALUATED_OPERANDS // condition.operands))
        return CompiledFilter(records=records_filter(condition), records_per_call=per_call)

    def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
        """The subscription to an expression. Raises ValueError when the expression is empty; the rest is
        found by `compile`."""
        found = SubscriptionData(
            topic=topic, sub_string=expression, sub_version=version, expression_type=SQL92
        )
        self.compile(found, "")
        return found


records_filter = compiled_records_filter if IN_USE else pure_records_filter
