"""Verdicts of Apache's SqlFilter, from the jar of its broker."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections.abc import Iterable

from tests.interop.builds import BUILD_SECONDS, HERE, SERVER_VERSION, apache_server_classpath, tool
from tests.plugins.filter.sql92_cases import Case


def apache_verdicts(cases: Iterable[Case], version: str = SERVER_VERSION) -> list[tuple[str, list[int]]]:
    """For each case the verdict, and the bits of the expression's text in the broker's bloom filter."""
    lines = []
    for case in cases:
        fields = [case.expression, *(text for pair in case.properties.items() for text in pair)]
        lines.append(" ".join(b64encode(field.encode()).decode() for field in fields) + "\n")
    program = HERE / "java-filter" / "Sql92Cases.java"
    command = [tool("java"), "-cp", apache_server_classpath(version), str(program)]
    done = subprocess.run(
        command, input="".join(lines), capture_output=True, text=True, check=True, timeout=BUILD_SECONDS
    )
    answers = [line.split(" ") for line in done.stdout.splitlines()]
    return [(verdict, [int(bit) for bit in bits]) for verdict, *bits in answers]
