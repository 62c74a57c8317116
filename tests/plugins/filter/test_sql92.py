"""The SQL92 filter: Apache's verdicts, limits, and the strict mode."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage
from rmqkit.model.subscription import SubscriptionData
from rmqkit.protocol import record
from rmqkit.speedups import IN_USE
from rmqkit.testing.filter import check_filter_server
from rmqkit_filter.limits import MAX_FILTER_DEPTH, MAX_FILTER_EXPRESSION_LENGTH, MAX_FILTER_OPERANDS
from rmqkit_filter.sql92.parser import parse
from rmqkit_filter.sql92.server import Sql92Filter
from tests.plugins.filter.sql92_cases import MATCHES, REFUSED, Case, cases, recorded


def stored(properties: Mapping[str, str]) -> bytes:
    """A record with these properties."""
    encoded = props.encode(properties).encode()
    message = PutMessage("T", 0, b"body", dict(properties), encoded)
    size = record.message_size(message)
    return record.pack(message, size, 0, 0, 0, b"\x7f\0\0\1\0\0\x2a\x9f")


def verdict(case: Case) -> str:
    """As Apache's: refused, matching or rejected."""
    server = Sql92Filter()
    subscription = SubscriptionData(topic="T", sub_string=case.expression, expression_type="SQL92")
    try:
        compiled = server.compile(subscription, "G")
    except ValueError:
        return REFUSED
    assert compiled.records is not None
    (matches,) = compiled.records([stored(case.properties)])
    return "1" if matches else "0"


def matches(expression: str, **properties: str) -> bool:
    return verdict(Case(expression, properties)) == MATCHES


def test_the_verdicts_are_those_that_apache_has_given() -> None:
    """Recorded from rocketmq-filter 5.5.0 for random expressions and properties."""
    different = [case for case, expected in recorded() if verdict(case) != expected]
    assert different == []


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a > 5", {"a": "6"}, True),
        ("a > 5", {"a": "5.5"}, False),
        ("a > 5.0", {"a": "5.5"}, True),
        ("a > 5", {"a": "3000000000"}, False),
        ("a > 5.0", {"a": "3000000000"}, True),
        ("a", {"a": "true"}, False),
        ("a = TRUE", {"a": "TrUe"}, True),
        ("TRUE = a", {"a": "true"}, False),
        ("NOT a = 1", {"a": "2"}, False),
        ("NOT (a = 1)", {"a": "2"}, True),
        ("a <> 1", {}, False),
        ("a = b", {}, True),
        ("a IS NULL", {}, True),
        ("a NOT CONTAINS 'x'", {}, False),
        ("a NOT IN ('x')", {}, False),
        ("a NOT IN ('x')", {"a": "y"}, True),
        ("a < b", {"a": "9", "b": "10"}, True),
        ("a BETWEEN -1 AND 1", {"a": "0"}, True),
        ("TAGS = 'new' AND KEYS IN ('k')", {"TAGS": "new", "KEYS": "k"}, True),
        ("a = 1 more", {"a": "1"}, True),
        ("a IS NULL > 5", {}, True),
        ("a = 'it''s'", {"a": "it's"}, True),
    ],
)
def test_quirks(expression: str, properties: dict[str, str], expected: bool) -> None:
    """The quirks of section E4 of the behaviour sheet."""
    assert matches(expression, **properties) is expected


def test_contract() -> None:
    check_filter_server(
        Sql92Filter(),
        good=["a > 1", "TRUE", "a IS NOT NULL OR b IN ('x', 'y')", "a = 1 ignored"],
        bad=["", "a >", "a > 'x'", "5", "'x'", "a = NULL", "a BETWEEN 3 AND 1", "a != 1", "0.0 < a"],
    )


@pytest.mark.parametrize(
    "expression",
    [
        "a = '" + "x" * 1_048_576 + "'",
        "(" * 10_000 + "a" + ")" * 10_000,
        "NOT " * 4_000 + "a",
        "-" * 10_000 + "1 < a",
        " OR ".join(["a=1"] * (MAX_FILTER_OPERANDS // 2 + 1)),
        "a" + "=1" * (MAX_FILTER_DEPTH + 1),
        "/*" + "*" * (MAX_FILTER_EXPRESSION_LENGTH - 2),
        "1" * MAX_FILTER_EXPRESSION_LENGTH,
        "'" * (MAX_FILTER_EXPRESSION_LENGTH - 1),
    ],
    ids=["1 MiB", "brackets", "NOT", "minus", "operands", "chain", "comment", "digits", "quotes"],
)
def test_what_is_too_large_is_refused(expression: str) -> None:
    """With a reason, and without an overflow of the stack."""
    with pytest.raises(ValueError, match=r"\w") as refused:
        parse(expression)
    assert len(str(refused.value)) < 4 * 1024 or len(expression) <= MAX_FILTER_EXPRESSION_LENGTH


def test_the_largest_expressions_are_evaluated() -> None:
    """As deep and as long as the limits allow."""
    deep = "(" * (MAX_FILTER_DEPTH - 1) + "a = 1" + ")" * (MAX_FILTER_DEPTH - 1)
    assert matches(deep, a="1")
    assert matches(" OR ".join(["a=1"] * (MAX_FILTER_OPERANDS // 2)), a="1")
    assert matches("a" + "=TRUE" * (MAX_FILTER_DEPTH - 2), a="true")


@pytest.mark.parametrize("subject", ["1" * 30_000, "9" * 30_000 + "x", " " * 30_000 + "x", "1." * 15_000])
def test_a_long_subject_is_no_number(subject: str) -> None:
    """A property of 30 000 characters does not match, whatever it is compared with."""
    for constant in ("5", "5000000000", "5.5"):
        assert not matches(f"a > {constant} OR NOT (a > {constant})", a=subject)


@given(st.text(alphabet="ab1.'()=<>-+ \n/*NOTINSULABEWCDRv,é0eEL_$", max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert verdict(Case(text, {"a": "1", "b": "x"})) in (REFUSED, MATCHES, "0")


@given(
    st.integers(0, 1_000_000),
    st.dictionaries(
        st.sampled_from("abc"), st.text(st.characters(exclude_characters="\x01\x02"), min_size=1)
    ),
)
def test_any_properties_are_evaluated(seed: int, properties: dict[str, str]) -> None:
    """Texts that are not numbers, that are empty or of any script raise nothing."""
    (case,) = cases(Random(seed), 1)
    assert verdict(Case(case.expression, properties)) in (REFUSED, MATCHES, "0")


@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_damaged_record_does_not_match(damage: bytes, at: int) -> None:
    whole = stored({"a": "1"})
    compiled = Sql92Filter().compile(
        SubscriptionData(topic="T", sub_string="a = 1 OR TRUE", expression_type="SQL92"), "G"
    )
    assert compiled.records is not None
    broken = whole[:at] + damage + whole[at + len(damage) :]
    (result,) = compiled.records([memoryview(broken)])
    assert result in (True, False)
    assert compiled.records([whole[:at]])[0] is (at >= len(whole))


def test_the_last_of_equal_names_counts() -> None:
    """And one without a value does not."""
    evaluate = parse("a = 'two'").evaluate
    assert evaluate(b"\x02a\x01one\x02a\x01two\x02b\x01three") is True
    assert evaluate(b"\x02a\x01two\x02a\x01\x02") is True
    assert evaluate(b"\x02a\x01two\x02a\x01one\x02") is False


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a = 1 garbage", "'garbage' at position 6 follows the end"),
        ("a = 1 )", "follows the end"),
        ("a", "alone is not a condition"),
        ("NOT a = 1", "alone is not a condition"),
        ("b = 1 OR -a = 1", "minus is for numbers only"),
        ("a CONTAINS ''", "nothing to search"),
        ("(b = 1) CONTAINS 'x'", "not text"),
    ],
)
def test_the_strict_mode_refuses_what_apache_ignores(expression: str, reason: str) -> None:
    parse(expression)
    with pytest.raises(ValueError, match=reason):
        parse(expression, strict=True)


def test_the_strict_mode_takes_what_is_complete() -> None:
    for expression in ("a = 1", "NOT (a = 1) AND b IS NULL -- all\n", "a BETWEEN -1 AND b", "TRUE"):
        parse(expression, strict=True)


@given(st.integers(0, 1_000_000))
def test_long_expressions_have_the_verdicts_of_short_ones(seed: int) -> None:
    """Whether the properties are searched in the record or read into a table."""
    (case,) = cases(Random(seed), 1)
    # A part that is FALSE for every message, and long enough for the table.
    long = Case(f"({case.expression}) OR ({' OR '.join(['TRUE = FALSE'] * 9)})", case.properties)
    short = Case(f"({case.expression}) OR TRUE = FALSE", case.properties)
    assert verdict(long) == verdict(short)


def test_the_work_between_two_looks_at_the_time_is_bounded() -> None:
    """A filter with many operands takes fewer records at once."""
    taken = []
    for terms in (1, 50, 500):
        expression = " OR ".join(f"a={number}" for number in range(terms))
        subscription = SubscriptionData(topic="T", sub_string=expression, expression_type="SQL92")
        taken.append(Sql92Filter().compile(subscription, "G").records_per_call)
    assert taken == [64, 2, 1]


@pytest.mark.skipif(not IN_USE, reason="the compiled part is not in use")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("amount > 5 AND amount <= 7", True),
        ("7 < amount", False),
        ("amount = 7 AND price = 2.5 AND price BETWEEN 1.5 AND 3.0", True),
        ("region = 'eu' OR missing = 1", True),
        ("region <> 'eu'", False),
        ("NOT (region IN ('us', 'asia'))", True),
        ("missing IS NULL AND region IS NOT NULL", True),
        ("region STARTSWITH 'e' AND region ENDSWITH 'u' AND region CONTAINS 'eu'", True),
        ("region NOT CONTAINS 'x' AND paid = TRUE", True),
        ("region > 5", False),
    ],
)
def test_common_conditions_are_compiled(expression: str, expected: bool) -> None:
    """Python is not asked for a verdict on common values."""
    from rmqkit_filter.sql92._matching import Matching

    def asked(record: Buffer) -> bool:
        raise AssertionError("the compiled condition was not sure")

    form = parse(expression).form
    assert form is not None
    properties = {"amount": "7", "price": "2.5", "region": "eu", "paid": "true"}
    assert Matching(form, asked).verdicts([stored(properties)]) == [expected]
