"""Random SQL92 expressions and properties, and the recorded verdicts of Apache's filter.

`python -m tests.plugins.filter.sql92_cases` writes `tests/vectors/sql92.jsonl` anew; it needs Java and Maven.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

VECTORS = Path(__file__).parents[2] / "vectors" / "sql92.jsonl"
RECORDED = 1_500
#: Verdicts.
MATCHES, REJECTED, REFUSED = "1", "0", "E"

_NAMES = ("a", "b", "c", "TAGS", "_x", "$y9")
_VALUES = (
    *(
        "1",
        "5",
        "-5",
        "+5",
        "05",
        "5.0",
        "5.5",
        " 5",
        "5 ",
        "5d",
        "5f",
        "5L",
        "0x10",
        "0x1p3",
        "1e3",
        "1E400",
    ),
    *("NaN", "Infinity", "-Infinity", "-0.0", "0.0", "0", "2147483647", "2147483648", "-2147483648"),
    *("3000000000", "9223372036854775807", "9223372036854775808", "true", "TRUE", "false", "abc", "ab", "b"),
    *("it's", "NULL", "x y", "٣", "５", "日本", "😀", "1_000", ".5", "5.", ".", "-", "1e", "0x", "--1"),
)
_NUMBERS = (
    *("0", "1", "5", "10", "5L", "5l", "2147483647", "2147483648", "9223372036854775807", "3000000000"),
    *("5.0", "5.5", "5.", ".5", "5E1", "5e-1", "1E3", "16.0", "8.0"),
)
_ODD_NUMBERS = ("1.0E400", "0.0", "007", "0L", "1Lx", "9223372036854775808", "1E-400")
_TEXTS = (
    "'abc'",
    "'b'",
    "''",
    "'it''s'",
    "'5'",
    "'true'",
    "'x y'",
    "'日本'",
    "'a\nb'",
    "'5.0'",
    "'TRUE'",
    "'a'",
)
_COMPARISONS = ("=", "=", "=", "<>", "<", "<=", ">", ">=")
_GARBAGE = (
    " garbage",
    " 1",
    " 'x'",
    " )",
    " #",
    " NOT x",
    " IS x",
    " -- to the end",
    " /* open",
    " ,",
    " = ",
)
_BLANKS = (" ", " ", " ", "  ", "\t", "\n", " /* note */ ", " -- note\n", " /***/ ", "\f")


class Case(NamedTuple):
    expression: str
    properties: Mapping[str, str]


def cases(rng: Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        expression = _or(rng, rng.randrange(4))
        roll = rng.random()
        if roll < 0.06:
            expression += rng.choice(_GARBAGE)
        elif roll < 0.12:
            expression = _damaged(rng, expression)
        names = rng.sample(_NAMES, rng.randrange(len(_NAMES) + 1))
        yield Case(expression, {name: rng.choice(_VALUES) for name in names})


def recorded() -> Iterator[tuple[Case, str]]:
    for line in VECTORS.read_text().splitlines():
        expression, properties, verdict = json.loads(line)
        yield Case(expression, properties), verdict


def _damaged(rng: Random, expression: str) -> str:
    at = rng.randrange(len(expression) + 1)
    if rng.random() < 0.5:
        return expression[:at] + expression[at + rng.randrange(1, 4) :]
    return (
        expression[:at] + rng.choice(("'", "(", ")", "!", "-", ".", "=", "not ", " ", "9")) + expression[at:]
    )


def _joined(rng: Random, *parts: str) -> str:
    return "".join(f"{part}{rng.choice(_BLANKS)}" for part in parts[:-1]) + parts[-1]


def _or(rng: Random, depth: int) -> str:
    return _joined(rng, *_between_each(rng, "OR", [_and(rng, depth) for _ in range(_few(rng))]))


def _and(rng: Random, depth: int) -> str:
    return _joined(rng, *_between_each(rng, "AND", [_equality(rng, depth) for _ in range(_few(rng))]))


def _few(rng: Random) -> int:
    return rng.choice((1, 1, 1, 1, 2, 2, 3))


def _between_each(rng: Random, word: str, parts: list[str]) -> list[str]:
    found = [parts[0]]
    for part in parts[1:]:
        found += [_word(rng, word), part]
    return found


def _word(rng: Random, word: str) -> str:
    return rng.choice((word, word, word.lower(), word.capitalize()))


def _equality(rng: Random, depth: int) -> str:
    roll = rng.random()
    if roll < 0.12:
        words = ("IS", "NULL") if rng.random() < 0.5 else ("IS", "NOT", "NULL")
        return _joined(rng, _comparison(rng, depth), *(_word(rng, word) for word in words))
    if roll < 0.2:
        return _joined(rng, _comparison(rng, depth), rng.choice(("=", "<>")), _comparison(rng, depth))
    return _comparison(rng, depth)


def _comparison(rng: Random, depth: int) -> str:
    left, roll = _unary(rng, depth), rng.random()
    inverted = (_word(rng, "NOT"),) if rng.random() < 0.3 else ()
    if roll < 0.35:
        return _joined(rng, rng.choice(_NAMES), rng.choice(_COMPARISONS), _number(rng))
    if roll < 0.45:
        return _joined(rng, left, rng.choice(_COMPARISONS), _unary(rng, depth))
    if roll < 0.58:
        how = _word(rng, rng.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")))
        return _joined(rng, left, *inverted, how, rng.choice(_TEXTS))
    if roll < 0.7:
        low, high = _number(rng), _number(rng)
        if rng.random() < 0.2:
            low, high = _unary(rng, 0), _unary(rng, 0)
        return _joined(rng, left, *inverted, _word(rng, "BETWEEN"), low, _word(rng, "AND"), high)
    if roll < 0.8:
        texts = ",".join(rng.choice(_TEXTS) for _ in range(rng.randrange(1, 7)))
        left = left if rng.random() < 0.1 else rng.choice(_NAMES)
        return _joined(rng, left, *inverted, _word(rng, "IN"), f"({texts})")
    return rng.choice(_NAMES) if rng.random() < 0.8 else left


def _number(rng: Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(_NAMES)
    return rng.choice(("", "", "", "-", "+")) + rng.choice(_ODD_NUMBERS if rng.random() < 0.03 else _NUMBERS)


def _unary(rng: Random, depth: int) -> str:
    roll = rng.random()
    if roll < 0.05:
        return "-" + _unary(rng, depth)
    if roll < 0.07:
        return "+" + _unary(rng, depth)
    if roll < 0.13:
        return _joined(rng, _word(rng, "NOT"), _unary(rng, depth))
    if depth > 0 and roll < 0.45:
        return f"({_or(rng, depth - 1)})"
    return rng.choice(
        (
            *(rng.choice(_NAMES),) * 12,
            *(_number(rng),) * 2,
            rng.choice(_TEXTS),
            _word(rng, rng.choice(("TRUE", "FALSE", "NULL"))),
        )
    )


def main() -> None:
    from tests.interop.filters import apache_verdicts

    asked = list(cases(Random(92), RECORDED))
    lines = [
        json.dumps([case.expression, dict(case.properties), verdict], ensure_ascii=False)
        for case, (verdict, _) in zip(asked, apache_verdicts(asked), strict=True)
    ]
    VECTORS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
