"""The nodes of an expression by themselves: their types, their nulls, and what they say of hopeless ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqkit.model import properties as props
from rmqkit_filter.limits import MAX_FILTER_DEPTH
from rmqkit_filter.sql92 import expressions as sql
from rmqkit_filter.sql92.expressions import NULL, Kind, Node

A, B = sql.named("a"), sql.named("b")
ONE, TWO = sql.integer("1"), sql.integer("2")
TRUE = sql.constant(Kind.BOOLEAN, True, "TRUE")
FALSE = sql.constant(Kind.BOOLEAN, False, "FALSE")


def text(value: str) -> Node:
    return sql.constant(Kind.TEXT, value, f"'{value}'")


def value_of(node: Node, **properties: str) -> object:
    """What a node is for a message with these properties."""
    return node.evaluate(props.encode({"before": "0", **properties}).encode().join((b"\x02", b"")))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: sql.condition(text("x")), "'x' is not a condition"),
        (lambda: sql.all_of([TRUE, ONE]), "1 is not a condition"),
        (lambda: sql.ordered("<", A, text("x")), "'x' cannot be compared by <"),
        (lambda: sql.ordered(">", TRUE, A), "TRUE cannot be compared by >"),
        (lambda: sql.equal(A, NULL), "NULL cannot be compared, write IS NULL"),
        (lambda: sql.equal(TRUE, text("x")), "TRUE cannot be compared with 'x'"),
        (lambda: sql.between(A, TWO, ONE, inside=True), "the first is the lower one"),
        (lambda: sql.within(ONE, ["1"], inside=True), "the left side of IN is the name of a property"),
        (lambda: sql.floating("0.0"), "is not between the smallest and the largest double"),
        (lambda: sql.integer("9223372036854775808"), "does not fit 64 bits"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Node], reason: str) -> None:
    """The error names the part of the expression."""
    with pytest.raises(ValueError, match=reason):
        make()


def test_a_missing_property_is_null() -> None:
    """AND and OR follow the three values; NOT of null is null."""
    null = sql.equal(A, text("x"))
    assert value_of(null) is None
    assert value_of(sql.inverted(null)) is None
    assert [value_of(sql.all_of([null, each])) for each in (TRUE, FALSE)] == [None, False]
    assert [value_of(sql.any_of([null, each])) for each in (TRUE, FALSE)] == [True, None]
    assert value_of(sql.is_null(A)) is True
    assert value_of(sql.is_null(A), a="x") is False
    assert value_of(sql.searched("CONTAINS", A, "x", inside=False)) is False


def test_a_constant_on_the_left_is_the_same_comparison() -> None:
    """`1 < a` is `a > 1`, for the compiled form too."""
    for sign, mirrored in (("<", ">"), ("<=", ">="), (">", "<"), (">=", "<=")):
        left, right = sql.ordered(sign, ONE, A), sql.ordered(mirrored, A, ONE)
        assert left.form == right.form == ("ordered", "a", mirrored, "INT", 1)
        for number in ("0", "1", "2"):
            assert value_of(left, a=number) == value_of(right, a=number)


def test_the_last_of_equal_names_counts() -> None:
    """A property whose name ends another one's is not that one."""
    encoded = b"\x02xa\x010\x02a\x011\x02a\x012\x02xa\x013\x02"
    assert A.evaluate(encoded) == "2"
    assert B.evaluate(encoded) is None
    assert sql.named("a", in_table=True).evaluate({"a": "1"}) == "1"


def test_a_condition_over_a_table_has_the_same_verdict() -> None:
    """It looks the names up in decoded properties, and compiled code leaves it alone."""
    plain = sql.ordered(">", A, ONE)
    table = sql.tabled(sql.ordered(">", sql.named("a", in_table=True), ONE))
    assert table.form is None
    for properties in ({}, {"a": "1"}, {"a": "2"}):
        assert value_of(table, **properties) == value_of(plain, **properties)


def test_an_expression_that_matches_nothing_says_why() -> None:
    """The reason passes on to what is made of it."""
    bare = sql.condition(A)
    assert "write a = TRUE or a IS NOT NULL" in bare.hopeless
    assert sql.all_of([TRUE, bare]).hopeless == bare.hopeless
    assert "nothing to search" in sql.searched("ENDSWITH", A, "", inside=True).hopeless
    assert "minus is for numbers only" in sql.negated(A).hopeless
    assert sql.negated(ONE).value == -1


def test_a_condition_on_the_left_of_a_text_does_not_match() -> None:
    """It raises where Java's raises; a property on the left is read as a truth value."""
    with pytest.raises(ValueError, match="cannot be compared with a text"):
        value_of(sql.equal(sql.is_null(B), A), a="x")
    assert value_of(sql.equal(A, TRUE), a="TruE") is True
    assert value_of(sql.equal(A, FALSE), a="yes") is True


def test_the_depth_is_limited_and_long_texts_are_shortened() -> None:
    """A chain of operations ends at the limit; a node's text stays short enough for a log line."""
    node = TRUE
    while node.depth < MAX_FILTER_DEPTH:
        node = sql.inverted(node)
    with pytest.raises(ValueError, match=f"nested deeper than {MAX_FILTER_DEPTH}"):
        sql.inverted(node)
    assert len(node.text) == 60
