"""`rmqkit config check FILE` reports all errors in the settings and plugins of a deployment without starting
it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from attrs import frozen

from rmqkit import config as settings
from rmqkit.broker.run import checks
from rmqkit.config import Config
from rmqkit.errors import ConfigError, Fault
from rmqkit.plugin import loader
from rmqkit.plugin.loader import Registry
from rmqkit.toolkit import output

ERROR, WARNING = "error", "warning"
_LINE_END = re.compile(r"\r\n|\r|\n")
_TOML_LINE = re.compile(r"at line (\d+)")
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_KEY = re.compile(
    r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_.-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)"""
)


@frozen
class Problem:
    """An error, or a setting without effect. `line` counts from 1; 0 when the problem belongs to no line of
    the file."""

    severity: str
    key: str
    line: int
    text: str


def check(path: Path) -> list[Problem]:
    """Everything in this file that would stop a start (errors) or cause a warning, in the order of the file.
    The environment is not considered, so the result depends on the file alone. Plugins are imported; nothing
    is opened and nothing listens."""
    warnings: list[Fault] = []
    try:
        config, faults = settings.examine(path, environ={})
    except ConfigError as error:
        faults = list(error.faults)
    else:
        warnings = [
            Fault(_named_in(warning, config.unknown) or _named_in(warning, config.sources), warning)
            for warning in config.warnings
        ]
        warnings += _unread_tables(config)
        known = {fault.key for fault in faults}
        _, further, more_warnings = with_plugins(config)
        faults += [fault for fault in further if not fault.key or fault.key not in known]
        warnings += more_warnings
    lines = _lines_of(path)
    problems = [Problem(ERROR, fault.key, _line(fault, lines), fault.text) for fault in faults]
    problems += [Problem(WARNING, fault.key, _line(fault, lines), fault.text) for fault in warnings]
    return sorted(problems, key=lambda problem: problem.line)


def _named_in(text: str, keys: Iterable[str]) -> str:
    return next((key for key in keys if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text)), "")


def _unread_tables(config: Config) -> Iterator[Fault]:
    for key, value in config.unknown.items():
        if isinstance(value, dict):
            yield Fault(
                key,
                f"table [{key}]: nothing built in reads it; settings of a plugin belong in [plugins.NAME]",
            )


def with_plugins(config: Config) -> tuple[Registry | None, list[Fault], list[Fault]]:
    """The plugins, None when they cannot be loaded, and the errors and warnings that only they can detect."""
    try:
        registry = loader.load(config)
    except ConfigError as error:
        return None, [*error.faults, *_owned_faults(config)], []
    return registry, *checks.examine(config, registry, name_server=True)


def _owned_faults(config: Config) -> list[Fault]:
    """Faults of settings that plugins own, of all plugins that are there: for where those that the settings
    choose cannot be loaded."""
    everything = msgspec.structs.replace(
        config, disabled_plugins=(), disabled_services=(), hooks=(), plugins={}
    )
    try:
        return list(checks.setting_faults(config, loader.load(everything)))
    except ConfigError:
        return []


def _lines_of(path: Path) -> dict[str, int]:
    """Key -> its line, with the name of its table in TOML; the last line when a key occurs several times."""
    try:
        text = settings.file_text(path)
    except ConfigError:
        return {}
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(_LINE_END.split(text), 1):
        header = _HEADER.fullmatch(line)
        match = _KEY.match(line)
        if header and path.suffix.lower() == ".toml":
            table = _unquoted(header.group(1)) + "."
            found[table[:-1]] = number
        elif match:
            found[table + _unquoted(match.group(1))] = number
    return found


def _unquoted(key: str) -> str:
    return re.sub(r"""["'\s]""", "", key)


def _line(fault: Fault, lines: dict[str, int]) -> int:
    if not fault.key:
        broken = _TOML_LINE.search(fault.text)
        return int(broken.group(1)) if broken else 0
    inside = [number for key, number in lines.items() if key.startswith(f"{fault.key}.")]
    return lines.get(fault.key, min(inside, default=0))


def run(path: Path, as_json: bool) -> int:
    """Print the result of `check`. Returns 0 when a start would succeed, else 1."""
    problems = check(path)
    errors = sum(problem.severity == ERROR for problem in problems)
    if as_json:
        rows = [
            {"severity": p.severity, "key": p.key or None, "line": p.line or None, "text": p.text}
            for p in problems
        ]
        output.as_json({"file": str(path), "ok": not errors, "problems": rows})
        return 1 if errors else 0
    for problem in problems:
        output.line(f"{path}:{problem.line or '-'}: {problem.severity}: {problem.text}")
    counted = f"{_counted(errors, 'error')}, {_counted(len(problems) - errors, 'warning')}"
    output.line(f"{path}: {counted}" if problems else f"{path}: ok")
    return 1 if errors else 0


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
