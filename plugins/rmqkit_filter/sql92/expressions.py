"""The nodes of an SQL92 expression: static checks, and their functions over the properties of a record
(behaviour sheet, E3 and E4; Java: ComparisonExpression, LogicExpression, UnaryExpression).

Properties are the bytes of a record, `0x02` before each: `0x02 name 0x01 value ...`. A function returns a
text, a number, True, False or None (null); it raises ValueError where Java's raises, and then the message
does not match. Except for properties, which are texts, the type of each node is known without a message.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from attrs import evolve, frozen

from rmqkit.model import properties as props
from rmqkit.model.text import text_of
from rmqkit_filter.limits import MAX_FILTER_DEPTH
from rmqkit_filter.sql92.numbers import INT_MAX, INT_MIN, compare_doubles, to_double, to_int, to_long

#: Of the bytes of properties; within `tabled` of a mapping.
Evaluate = Callable[[Any], Any]
#: A node for compiled code (`_matching.Matching`): the name of a test or an operation, and what it needs:
#: ("and" | "or" | "not", FORM...), ("constant", True | False | None), ("null", NAME),
#: ("ordered", NAME, SIGN, KIND, VALUE), ("same", NAME, KIND, VALUE, whether the name is on the left),
#: ("in", NAME, TEXTS, INSIDE), ("search", NAME, HOW, TEXT, INSIDE).
Form = tuple[Any, ...]
_ENTRY = b"\x02"
#: Texts of IN that are compared one by one; more are looked up in a set, by the Python below.
_MAX_COMPARED_TEXTS = 32


class Kind(Enum):
    """What a node's function returns besides None. NOTHING: always None."""

    TEXT = "text"
    INT = "32-bit integer"
    LONG = "64-bit integer"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    NOTHING = "null"


_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, search: search in text,
    "STARTSWITH": lambda text, search: text.startswith(search),
    "ENDSWITH": lambda text, search: text.endswith(search),
}
_READERS: dict[Kind, Callable[[str], float]] = {Kind.INT: to_int, Kind.LONG: to_long, Kind.DOUBLE: to_double}
_MIRRORED = {operator.lt: operator.gt, operator.gt: operator.lt, operator.le: operator.ge}
_MIRRORED[operator.ge] = operator.le
_MIRRORED_SIGNS = str.maketrans("<>", "><")


@frozen(eq=False)
class Node:
    """constant    a literal, for which Java checks more than for a signed number
    is_boolean  stands where a condition is required: a condition or one of TRUE, FALSE, NULL
    value       of a literal or a signed number
    name        of a property
    hopeless    why no message can match, if that is known
    operands    number of the names and literals that it is made of
    form        the same for compiled code; None when it leaves the node to `evaluate`
    """

    kind: Kind
    evaluate: Evaluate
    text: str
    constant: bool = False
    is_boolean: bool = False
    value: Any = None
    name: str | None = None
    depth: int = 1
    hopeless: str = ""
    operands: int = 1
    form: Form | None = None

    @property
    def is_number(self) -> bool:
        return self.kind in _READERS


def constant(kind: Kind, value: Any, text: str) -> Node:
    is_boolean = kind in (Kind.BOOLEAN, Kind.NOTHING)
    form = ("constant", value) if is_boolean else None
    return Node(kind, lambda _: value, text, constant=True, is_boolean=is_boolean, value=value, form=form)


NULL = constant(Kind.NOTHING, None, "NULL")


def integer(text: str) -> Node:
    """An integer constant. Raises ValueError when it does not fit 64 bits."""
    value = to_long(text.rstrip("lL"))
    return constant(Kind.INT if INT_MIN <= value <= INT_MAX else Kind.LONG, value, text)


def floating(text: str) -> Node:
    """A floating-point constant. Raises ValueError beyond the range of doubles, and for zero."""
    value = to_double(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text} is not between the smallest and the largest double")
    return constant(Kind.DOUBLE, value, text)


def tabled(node: Node) -> Node:
    """A condition whose names are looked up in a table (`named`), over the bytes of properties."""
    evaluate = node.evaluate
    return evolve(node, evaluate=lambda properties: evaluate(props.decode_bytes(properties)), form=None)


def named(name: str, *, in_table: bool = False) -> Node:
    """The last property of this name with a value (`rmqkit.model.properties.decode`). With `in_table` the
    function takes a mapping of decoded properties."""
    if in_table:
        return Node(Kind.TEXT, lambda table: table.get(name), name, name=name)
    key = _ENTRY + name.encode() + b"\x01"
    length = len(key)

    def evaluate(properties: bytes) -> str | None:
        at = properties.rfind(key)
        if at < 0:
            return None
        at += length
        end = properties.find(_ENTRY, at)
        value = properties[at:] if end < 0 else properties[at:end]
        if value:
            return text_of(value)
        return props.decode_bytes(properties).get(name)

    return Node(Kind.TEXT, evaluate, name, name=name)


def condition(node: Node) -> Node:
    """A node as condition; a bare name is true for no message. Raises ValueError for other texts and
    numbers."""
    if node.is_boolean:
        return node
    if node.name is None:
        raise ValueError(f"{node.text} is not a condition")
    read = node.evaluate
    return _made(
        lambda properties: None if read(properties) is None else False,
        node.text,
        [node],
        f"{node.name} alone is not a condition: write {node.name} = TRUE or {node.name} IS NOT NULL",
    )


def negated(node: Node) -> Node:
    """Minus of a number; of anything else it is null."""
    text = f"-{node.text}"
    depth = _deeper([node])
    if node.is_number:
        value = -node.value
        return Node(node.kind, lambda _: value, text, value=value, depth=depth)
    read = node.evaluate

    def evaluate(properties: bytes) -> None:
        read(properties)

    return Node(Kind.NOTHING, evaluate, text, depth=depth, hopeless=f"{text}: minus is for numbers only")


def inverted(node: Node) -> Node:
    """NOT. Raises ValueError as `condition`."""
    node = condition(node)
    read = node.evaluate

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        return None if value is None else not value

    return _made(evaluate, f"NOT {node.text}", [node], form=_joined("not", [node]))


def all_of(nodes: Sequence[Node]) -> Node:
    """AND. Raises ValueError as `condition`."""
    nodes = [condition(node) for node in nodes]
    reads = [node.evaluate for node in nodes]

    def evaluate(properties: bytes) -> bool | None:
        result: bool | None = True
        for read in reads:
            value = read(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return _made(evaluate, " AND ".join(node.text for node in nodes), nodes, form=_joined("and", nodes))


def any_of(nodes: Sequence[Node]) -> Node:
    """OR. Raises ValueError as `condition`."""
    nodes = [condition(node) for node in nodes]
    reads = [node.evaluate for node in nodes]

    def evaluate(properties: bytes) -> bool | None:
        result: bool | None = False
        for read in reads:
            value = read(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return _made(evaluate, " OR ".join(node.text for node in nodes), nodes, form=_joined("or", nodes))


def _joined(operation: str, nodes: Sequence[Node]) -> Form | None:
    forms = [node.form for node in nodes]
    return None if None in forms else (operation, *forms)


def ordered(sign: str, left: Node, right: Node) -> Node:
    """`<`, `<=`, `>` or `>=`. Raises ValueError for texts, conditions and NULL as operands."""
    for node in (left, right):
        if (node.constant and not node.is_number) or node.kind is Kind.BOOLEAN:
            raise ValueError(f"{node.text} cannot be compared by {sign}")
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[sign]
    text = f"{left.text} {sign} {right.text}"
    if left.name and right.is_number:
        form = "ordered", left.name, sign, right.kind.name, right.value
        return _made(_against_number(left, compare, right), text, [left, right], form=form)
    if left.is_number and right.name:
        form = "ordered", right.name, sign.translate(_MIRRORED_SIGNS), left.kind.name, left.value
        return _made(_against_number(right, _MIRRORED[compare], left), text, [left, right], form=form)
    get_left, get_right = left.evaluate, right.evaluate
    if left.is_number and right.is_number:
        result = compare(_compare_numbers(left, right), 0)
        return _made(lambda _: result, text, [left, right])

    def evaluate(properties: bytes) -> bool | None:
        first = get_left(properties)
        if first is None:
            return None
        second = get_right(properties)
        if second is None:
            return None
        return bool(compare(compare_doubles(to_double(first), to_double(second)), 0))

    return _made(evaluate, text, [left, right])


def _against_number(
    name: Node, compare: Callable[[Any, Any], bool], number: Node
) -> Callable[[bytes], bool | None]:
    """A property is read as a number of the constant's type."""
    get, read, value = name.evaluate, _READERS[number.kind], number.value
    if number.kind is Kind.DOUBLE:

        def evaluate(properties: bytes) -> bool | None:
            text = get(properties)
            return None if text is None else compare(compare_doubles(to_double(text), value), 0)

    else:

        def evaluate(properties: bytes) -> bool | None:
            text = get(properties)
            return None if text is None else compare(read(text), value)

    return evaluate


def _compare_numbers(left: Node, right: Node) -> int:
    if Kind.DOUBLE in (left.kind, right.kind):
        return compare_doubles(float(left.value), float(right.value))
    return int(left.value > right.value) - int(left.value < right.value)


def equal(left: Node, right: Node) -> Node:
    """`left = right`. Raises ValueError for NULL, and for a boolean constant before a constant of another
    type."""
    for node in (left, right):
        if node.constant and node.value is None:
            raise ValueError("NULL cannot be compared, write IS NULL or IS NOT NULL")
    if left.constant and right.constant and left.is_boolean and not right.is_boolean:
        raise ValueError(f"{left.text} cannot be compared with {right.text}")
    return _same(left, right)


def unequal(left: Node, right: Node) -> Node:
    """`left <> right`. Raises what `equal` raises."""
    return inverted(equal(left, right))


def is_null(node: Node) -> Node:
    return _same(node, NULL)


def _same(left: Node, right: Node) -> Node:
    get_left, get_right, same = left.evaluate, right.evaluate, _sameness(left, right)

    def evaluate(properties: bytes) -> bool | None:
        first, second = get_left(properties), get_right(properties)
        if first is None:
            return True if second is None else None
        return second is not None and same(first, second)

    return _made(evaluate, f"{left.text} = {right.text}", [left, right], form=_form_of_sameness(left, right))


def _form_of_sameness(left: Node, right: Node) -> Form | None:
    """A property beside a constant or a signed number."""
    if left.name and right is NULL:
        return "null", left.name
    name, other = (left.name, right) if left.name else (right.name, left)
    comparable = other.is_number or (other.constant and other.kind is Kind.TEXT)
    if name and (comparable or (other.constant and other.kind is Kind.BOOLEAN and name == left.name)):
        return "same", name, other.kind.name, other.value, name == left.name
    return None


def _sameness(left: Node, right: Node) -> Callable[[Any, Any], bool]:
    """How two values that are not null are compared."""
    if left.kind is right.kind and left.kind is not Kind.DOUBLE:
        return operator.eq
    if left.is_number and right.is_number:
        result = _compare_numbers(left, right) == 0
        return lambda first, second: result
    if left.kind is Kind.TEXT and right.kind is Kind.BOOLEAN:
        return lambda first, second: (len(first) == 4 and first.lower() == "true") is second
    if left.kind is Kind.BOOLEAN and right.kind is Kind.TEXT:
        return _unlike
    if Kind.TEXT in (left.kind, right.kind) and (left.is_number or right.is_number):
        return _text_and_number(left, right)
    return lambda first, second: False


def _text_and_number(left: Node, right: Node) -> Callable[[Any, Any], bool]:
    if left.is_number:
        other = _text_and_number(right, left)
        return lambda first, second: other(second, first)
    read = _READERS[right.kind]
    if right.kind is Kind.DOUBLE:
        return lambda first, second: compare_doubles(to_double(first), second) == 0
    return lambda first, second: read(first) == second


def _unlike(first: object, second: object) -> bool:
    raise ValueError("a condition cannot be compared with a text on its right side")


def between(node: Node, low: Node, high: Node, *, inside: bool) -> Node:
    """`node BETWEEN low AND high`, or its opposite. Raises what `ordered` raises, and ValueError for BETWEEN
    with constants in the wrong order."""
    numbers = low.constant and high.constant and low.is_number and high.is_number
    if inside and numbers and _compare_numbers(high, low) < 0:
        raise ValueError(f"BETWEEN {low.text} AND {high.text}: the first is the lower one")
    if inside:
        return all_of([ordered(">=", node, low), ordered("<=", node, high)])
    return any_of([ordered("<", node, low), ordered(">", node, high)])


def within(node: Node, texts: Sequence[str], *, inside: bool) -> Node:
    """IN and NOT IN. Raises ValueError when the left side is not a property."""
    if node.name is None:
        raise ValueError(f"{node.text}: the left side of IN is the name of a property")
    read, known = node.evaluate, frozenset(texts)

    def evaluate(properties: bytes) -> bool | None:
        value = read(properties)
        return None if value is None else (value in known) is inside

    form = ("in", node.name, tuple(texts), inside) if len(texts) <= _MAX_COMPARED_TEXTS else None
    return _made(evaluate, f"{node.text} IN (...)", [node], form=form)


def searched(how: str, node: Node, search: str, *, inside: bool) -> Node:
    """CONTAINS, STARTSWITH and ENDSWITH: False, also with NOT, when there is no text or nothing to search."""
    found = _SEARCHES[how]
    text = f"{node.text} {how} '{search}'"
    read = node.evaluate
    if not search:
        return _made(lambda _: False, text, [node], f"{text}: there is nothing to search")
    if node.kind is Kind.TEXT:

        def evaluate(properties: bytes) -> bool:
            value = read(properties)
            return value is not None and found(value, search) is inside

        form = ("search", node.name, how, search, inside) if node.name else None
        return _made(evaluate, text, [node], form=form)

    def no_text(properties: bytes) -> bool:
        read(properties)
        return False

    return _made(no_text, text, [node], f"{text}: the left side is not text")


def _made(
    evaluate: Evaluate, text: str, operands: Sequence[Node], hopeless: str = "", form: Form | None = None
) -> Node:
    """A condition over these operands."""
    hopeless = hopeless or next((node.hopeless for node in operands if node.hopeless), "")
    return Node(
        Kind.BOOLEAN,
        evaluate,
        text if len(text) <= 60 else f"{text[:57]}...",
        is_boolean=True,
        depth=_deeper(operands),
        hopeless=hopeless,
        form=form,
    )


def _deeper(operands: Sequence[Node]) -> int:
    depth = 1 + max(node.depth for node in operands)
    if depth > MAX_FILTER_DEPTH:
        raise ValueError(f"operations are nested deeper than {MAX_FILTER_DEPTH}")
    return depth
