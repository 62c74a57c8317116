"""The option tables in the form used by docs/spark.md, with which the page is compared. `python -m
tests.spark.document` prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from pyspark_rocketmq.options.read import OPTIONS
from pyspark_rocketmq.options.table import Option
from pyspark_rocketmq.options.write import WRITE_OPTIONS

READING, WRITING = "### Reading", "### Writing"


def rows(options: Sequence[Option], *, where: bool) -> Iterator[str]:
    """The rows of a table; `where` adds the column for the scope of the options."""
    yield f"| option | value | default |{' for |' if where else ''} meaning |"
    yield f"|---|---|---|{'---|' if where else ''}---|"
    for option in options:
        default = f"`{option.default}`" if option.default else ""
        uses = [use for use in option.where if use != "write"]
        use = f" {' and '.join(uses)} |" if where else ""
        aliases = f" Also {', '.join(f'`{name}`' for name in option.aliases)}." if option.aliases else ""
        # A bar ends a table cell, even within code.
        meaning = option.meaning.replace("||", r"\|\|")
        yield f"| `{option.name}` | {option.kind.label} | {default} |{use} {meaning}{aliases} |"


def sections() -> dict[str, list[str]]:
    """Heading -> the lines of its table."""
    return {READING: list(rows(OPTIONS, where=True)), WRITING: list(rows(WRITE_OPTIONS, where=False))}


if __name__ == "__main__":
    for heading, lines in sections().items():
        sys.stdout.write("\n".join([heading, "", *lines, "", ""]))
