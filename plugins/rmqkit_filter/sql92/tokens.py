"""The lexer of SQL92 (behaviour sheet, E1; Java: SelectorParserTokenManager): longest match, ASCII letters in
any case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
#: Kinds of tokens besides keywords and signs, which are their own kind.
NAME, TEXT, INTEGER, FLOAT, END = "name", "text", "integer", "float", "end"

_EXPONENT = r"[eE][+-]?[0-9]+"
_BLANK = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)+")
_TOKEN = re.compile(
    rf"""
    (?P<float>[0-9]+\.[0-9]*(?:{_EXPONENT})?|\.[0-9]+(?:{_EXPONENT})?|[0-9]+{_EXPONENT})
    |(?P<integer>0|[1-9][0-9]*[lL]?)
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<text>'(?:''|[^'])*')
    |(?P<sign><>|<=|>=|[=<>(),+-])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """`at` is the position of its first character."""

    kind: str
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """The tokens of an expression one by one, at the end END again and again. Raises ValueError at a
    character that begins no token; what follows the last token that is asked for is not looked at."""
    at = 0
    while True:
        blank = _BLANK.match(expression, at)
        if blank is not None:
            at = blank.end()
        found = _TOKEN.match(expression, at)
        if found is None:
            if at == len(expression):
                break
            raise ValueError(f"character {expression[at]!r} at position {at} begins no name, number or sign")
        kind, text = found.lastgroup or "", found.group()
        if kind == "sign":
            kind = text
        elif kind == NAME and text.upper() in KEYWORDS:
            kind = text.upper()
        yield Token(kind, text, at)
        at = found.end()
    while True:
        yield Token(END, "", at)
