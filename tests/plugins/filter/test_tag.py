"""The filter by tag."""

from __future__ import annotations

import pytest

from rmqkit.config import Config
from rmqkit.model.subscription import SubscriptionData, tag_subscription
from rmqkit.plugin import loader
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.protocol.tags import java_hash
from rmqkit.testing.filter import check_filter_server
from rmqkit_filter import plugin
from rmqkit_filter.tag import TagFilter


def passes(compiled: CompiledFilter, tags_code: int) -> bool:
    assert not compiled.needs_records, "a tag filter reads no record"
    return compiled.unit is None or compiled.unit(tags_code)


@pytest.mark.parametrize("expression", ["*", "", " * "])
def test_a_star_takes_everything(expression: str) -> None:
    """These expressions need no filter, so that the store does not call one."""
    server = TagFilter()
    assert server.compile(server.subscription("T", expression, 0), "G") == CompiledFilter(None, None)


def test_tags_are_compared_by_hash() -> None:
    server = TagFilter()
    compiled = server.compile(server.subscription("T", "TagA || TagB", 0), "G")
    assert [passes(compiled, java_hash(tag)) for tag in ("TagA", "TagB", "TagC")] == [True, True, False]
    assert not passes(compiled, 0), "a message without tags"


def test_only_the_low_32_bits_count_signed() -> None:
    """Only the low 32 bits are compared (Java: tagsCode.intValue()). A store keeps 64 bits, sign-extended,
    but a foreign one may not."""
    code = java_hash("polygenelubricants")
    assert code == -(2**31)
    compiled = TagFilter().compile(tag_subscription("T", "polygenelubricants"), "G")
    assert passes(compiled, code)
    assert passes(compiled, 0x80000000)
    assert passes(compiled, code + (1 << 40))
    assert not passes(compiled, 0x7FFFFFFF)


def test_an_address_in_the_extension_of_a_queue_passes() -> None:
    """Apache's brokers with enableConsumeQueueExt leave addresses where the hash was; consumers compare the
    tag's text themselves."""
    compiled = TagFilter().compile(tag_subscription("T", "TagA"), "G")
    assert passes(compiled, -(1 << 63))
    assert passes(compiled, -(1 << 31) - 1)
    assert not passes(compiled, -(1 << 31))


def test_codes_that_are_missing_are_computed() -> None:
    """Codes are computed from the tags, or from the text when a heartbeat has no tags either."""
    for subscription in (
        SubscriptionData(topic="T", sub_string="TagA", tags_set=["TagA"]),
        SubscriptionData(topic="T", sub_string="TagA"),
        SubscriptionData(topic="T", sub_string="TagA", expression_type=None),
    ):
        compiled = TagFilter().compile(subscription, "G")
        assert passes(compiled, java_hash("TagA"))
        assert not passes(compiled, java_hash("TagB"))
    assert TagFilter().compile(SubscriptionData(topic="T", sub_string=""), "G").unit is None


def test_the_codes_of_the_subscription_win() -> None:
    """As in Java the broker compares the codes of the subscription, not its text."""
    compiled = TagFilter().compile(
        SubscriptionData(topic="T", sub_string="TagA", tags_set=["TagA"], code_set=[7]), "G"
    )
    assert passes(compiled, 7)
    assert not passes(compiled, java_hash("TagA"))


def test_class_filter_mode_lets_everything_pass() -> None:
    assert (
        TagFilter().compile(SubscriptionData(topic="T", sub_string="x.Y", class_filter_mode=True), "G").unit
        is None
    )


def test_another_expression_type_is_refused() -> None:
    with pytest.raises(ValueError, match="SQL92"):
        TagFilter().compile(SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92"), "G")


def test_contract() -> None:
    check_filter_server(
        TagFilter(), good=["*", "TagA", "TagA || TagB", " TagA ", "标签", "||TagA"], bad=["||", " || || "]
    )


def test_contract_finds_a_filter_that_takes_everything() -> None:
    """The contract test fails for a wrong filter."""

    class Lax(TagFilter):
        def compile(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
            return CompiledFilter()

        def subscription(self, topic: str, expression: str, version: int) -> SubscriptionData:
            return SubscriptionData(topic=topic, sub_string=expression, sub_version=version)

    with pytest.raises(AssertionError, match="should be refused"):
        check_filter_server(Lax(), good=["*"], bad=["||"])


def test_the_plugin_registers_tag() -> None:
    registry = loader.load(Config(), extra=[("filter", plugin)], entry_points=False)
    assert set(registry.filter_servers) == {"TAG", "SQL92", "PYTHON"}
    server: FilterServer = registry.filter_servers["TAG"]
    assert server.expression_type == "TAG"
