"""The Pratt parser of SQL92 (behaviour sheet, E2; Java: SelectorParser)."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from rmqkit_filter.limits import (
    MAX_FILTER_DEPTH,
    MAX_FILTER_EXPRESSION_LENGTH,
    MAX_FILTER_OPERANDS,
    MAX_SEARCHED_OPERANDS,
)
from rmqkit_filter.sql92 import expressions
from rmqkit_filter.sql92.expressions import Kind, Node
from rmqkit_filter.sql92.tokens import END, FLOAT, INTEGER, NAME, TEXT, Token, tokens

_OR, _AND, _EQUALITY, _COMPARISON = range(1, 5)
#: How tightly an operator between operands binds.
_POWERS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "IS"), _EQUALITY),
    **dict.fromkeys(("<", "<=", ">", ">=", "NOT", "BETWEEN", "IN"), _COMPARISON),
    **dict.fromkeys(("CONTAINS", "STARTSWITH", "ENDSWITH"), _COMPARISON),
}
_CONSTANTS = {
    "TRUE": expressions.constant(Kind.BOOLEAN, True, "TRUE"),
    "FALSE": expressions.constant(Kind.BOOLEAN, False, "FALSE"),
    "NULL": expressions.NULL,
}


def parse(expression: str, *, strict: bool = False) -> Node:
    """The condition of an expression. Raises ValueError with the reason when it does not parse or is too
    large; with `strict` also when text follows the condition, which Apache ignores, and when a part of it can
    be true for no message."""
    if len(expression) > MAX_FILTER_EXPRESSION_LENGTH:
        raise ValueError(
            f"the expression has {len(expression)} characters, at most {MAX_FILTER_EXPRESSION_LENGTH} are"
            " allowed"
        )
    parser = _Parser(expression)
    node = expressions.condition(parser.operand(_OR))
    if parser.operands > MAX_SEARCHED_OPERANDS:
        in_table = _Parser(expression, in_table=True)
        node = expressions.tabled(expressions.condition(in_table.operand(_OR)))
    node = evolve(node, operands=parser.operands)
    if strict:
        rest = parser.peek()
        if rest.kind != END:
            raise ValueError(f"{rest.text!r} at position {rest.at} follows the end of the condition")
        if node.hopeless:
            raise ValueError(node.hopeless)
    return node


class _Parser:
    """Looks one token ahead; what follows the condition is not read. `operands` counts names and literals."""

    def __init__(self, expression: str, *, in_table: bool = False) -> None:
        self._in_table = in_table
        self._next: Callable[[], Token] = tokens(expression).__next__
        self._ahead: Token | None = None
        self._depth = 0
        self.operands = 0

    def peek(self) -> Token:
        if self._ahead is None:
            self._ahead = self._next()
        return self._ahead

    def _take(self, *kinds: str) -> Token:
        """The next token, which must be of one of these kinds."""
        token = self.peek()
        if token.kind not in kinds:
            found = repr(token.text) if token.text else "the end"
            raise ValueError(f"{found} at position {token.at} where {' or '.join(kinds)} is expected")
        self._ahead = None
        return token

    def operand(self, power: int) -> Node:
        """An operand with the operators behind it that bind at least so tightly. An operator does not follow
        one that binds less: `a IS NULL > 5` ends before the sign."""
        left, highest = self._unary(), _COMPARISON
        while True:
            kind = self.peek().kind
            binds = _POWERS.get(kind, 0)
            if not power <= binds <= highest:
                return left
            highest = binds
            left = self._chain(kind, left) if binds <= _AND else self._operation(kind, left)

    def _chain(self, kind: str, first: Node) -> Node:
        """`a AND b AND c` is one operation."""
        nodes = [first]
        while self.peek().kind == kind:
            self._take(kind)
            nodes.append(self.operand(_POWERS[kind] + 1))
        return expressions.all_of(nodes) if kind == "AND" else expressions.any_of(nodes)

    def _operation(self, kind: str, left: Node) -> Node:
        self._take(kind)
        if kind == "=":
            return expressions.equal(left, self.operand(_COMPARISON))
        if kind == "<>":
            return expressions.unequal(left, self.operand(_COMPARISON))
        if kind == "IS":
            wanted = self._take("NULL", "NOT").kind
            if wanted == "NULL":
                return expressions.is_null(left)
            self._take("NULL")
            return expressions.inverted(expressions.is_null(left))
        inside = kind != "NOT"
        if not inside:
            kind = self._take("CONTAINS", "STARTSWITH", "ENDSWITH", "BETWEEN", "IN").kind
        if kind == "BETWEEN":
            low = self._unary()
            self._take("AND")
            return expressions.between(left, low, self._unary(), inside=inside)
        if kind == "IN":
            return expressions.within(left, self._texts(), inside=inside)
        if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
            return expressions.searched(kind, left, self._text(), inside=inside)
        return expressions.ordered(kind, left, self._unary())

    def _texts(self) -> list[str]:
        self._take("(")
        found = [self._text()]
        while self._take(",", ")").kind == ",":
            found.append(self._text())
        return found

    def _text(self) -> str:
        return self._take(TEXT).text[1:-1].replace("''", "'")

    def _unary(self) -> Node:
        """A sign or NOT with its operand, or a primary."""
        self._depth += 1
        if self._depth > MAX_FILTER_DEPTH:
            raise ValueError(f"operations are nested deeper than {MAX_FILTER_DEPTH}")
        kind = self.peek().kind
        if kind in ("+", "-", "NOT"):
            self._take(kind)
            node = self._unary()
            if kind == "-":
                node = expressions.negated(node)
            elif kind == "NOT":
                node = expressions.inverted(node)
        else:
            node = self._primary()
        self._depth -= 1
        return node

    def _primary(self) -> Node:
        self.operands += 1
        if self.operands > MAX_FILTER_OPERANDS:
            raise ValueError(f"the expression has more than {MAX_FILTER_OPERANDS} operands")
        token = self.peek()
        if token.kind == TEXT:
            text = self._text()
            return expressions.constant(Kind.TEXT, text, token.text)
        self._take(NAME, INTEGER, FLOAT, "(", *_CONSTANTS)
        if token.kind == NAME:
            return expressions.named(token.text, in_table=self._in_table)
        if token.kind == INTEGER:
            return expressions.integer(token.text)
        if token.kind == FLOAT:
            return expressions.floating(token.text)
        if token.kind == "(":
            node = self.operand(_OR)
            self._take(")")
            return node
        return _CONSTANTS[token.kind]
