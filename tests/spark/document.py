"""What docs/spark.md is compared with: the option tables as they are to be written there. `python -m tests.spark.document` prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from pyspark_rocketmq.option_table import Option
from pyspark_rocketmq.options import OPTIONS
from pyspark_rocketmq.write_options import WRITE_OPTIONS

READING, WRITING = "### Reading", "### Writing"


def rows(options: Sequence[Option], *, where: bool) -> Iterator[str]:
    """A table; `where` adds the column that says what the options are good for."""
    yield f"| option | value | default |{' for |' if where else ''} meaning |"
    yield f"|---|---|---|{'---|' if where else ''}---|"
    for option in options:
        default = f"`{option.default}`" if option.default else ""
        uses = [use for use in option.where if use != "write"]
        use = f" {' and '.join(uses)} |" if where else ""
        aliases = f" Also {', '.join(f'`{name}`' for name in option.aliases)}." if option.aliases else ""
        # A table's cell ends at a bar, also within code.
        meaning = option.meaning.replace("||", r"\|\|")
        yield f"| `{option.name}` | {option.kind.label} | {default} |{use} {meaning}{aliases} |"


def sections() -> dict[str, list[str]]:
    """Heading -> the lines of its table."""
    return {READING: list(rows(OPTIONS, where=True)), WRITING: list(rows(WRITE_OPTIONS, where=False))}


if __name__ == "__main__":
    for heading, lines in sections().items():
        sys.stdout.write("\n".join([heading, "", *lines, "", ""]))
