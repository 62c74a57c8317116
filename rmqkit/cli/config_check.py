"""`rmqkit config check FILE`: everything that is wrong with a deployment's settings and plugins at once, without starting anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attrs import frozen

from rmqkit import config as settings
from rmqkit import plugins
from rmqkit.abc import Address
from rmqkit.broker.dispatching import choose
from rmqkit.cli import output
from rmqkit.config import Config
from rmqkit.errors import ConfigError, Fault
from rmqkit.plugins import Registry

ERROR, WARNING = "error", "warning"
_TOML_LINE = re.compile(r"at line (\d+)")
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_.-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)""")


@frozen
class Problem:
    """One thing that is wrong, or that has no effect. `line` counts from 1, 0 where no line of the file is to blame."""

    severity: str
    key: str
    line: int
    text: str


def check(path: Path) -> list[Problem]:
    """What a start with this file would refuse (errors) or complain of (warnings), in the order of the file. The environment is left out: a file is
    right or wrong by itself. Plugins are imported, nothing is opened and nothing listens."""
    warnings: list[Fault] = []
    try:
        config, faults = settings.examine(path, environ={})
    except ConfigError as error:
        faults = list(error.faults)
    else:
        warnings = [Fault(_named_in(warning, config.unknown) or _named_in(warning, config.sources), warning) for warning in config.warnings]
        warnings += _tables_nobody_reads(config)
        told = {fault.key for fault in faults}
        faults += [fault for fault in _plugin_faults(config) if not fault.key or fault.key not in told]
    lines = _lines_of(path)
    problems = [Problem(ERROR, fault.key, _line(fault, lines), fault.text) for fault in faults]
    problems += [Problem(WARNING, fault.key, _line(fault, lines), fault.text) for fault in warnings]
    return sorted(problems, key=lambda problem: problem.line)


def _named_in(text: str, keys: Iterable[str]) -> str:
    return next((key for key in keys if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text)), "")


def _tables_nobody_reads(config: Config) -> Iterator[Fault]:
    for key, value in config.unknown.items():
        if isinstance(value, dict):
            yield Fault(key, f"table [{key}]: nothing built in reads it; the settings of a plugin stand in [plugins.NAME]")


def _plugin_faults(config: Config) -> Iterator[Fault]:
    """What loading the plugins finds, and names of things that no plugin brings."""
    try:
        registry = plugins.load(config)
    except ConfigError as error:
        yield from error.faults
        return
    for key, ask in _choices(config, registry):
        try:
            ask()
        except (ConfigError, ValueError) as error:
            where = f"setting {key} ({config.sources.get(key, 'default')}): "
            yield Fault(key, where + str(error).removeprefix(where))


def _choices(config: Config, registry: Registry) -> Iterator[tuple[str, Callable[[], object]]]:
    """(key, what a start would ask for because of it)."""
    yield "store", lambda: registry.chosen("stores", config.store)
    yield "flushDiskType", lambda: registry.chosen("flush_policies", config.flush_policy)
    yield "dispatchers", lambda: choose(config, registry)
    yield "namesrvListen", lambda: registry.chosen("transports", Address.parse(config.namesrv_listen).scheme)
    for text in config.listeners:
        yield "listeners", lambda text=text: registry.chosen("transports", Address.parse(text).scheme)  # type: ignore[misc]


def _lines_of(path: Path) -> dict[str, int]:
    """Key -> the line it stands on, in TOML with the table before it; the last one when there are several."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
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
    """Print what `check` finds; 0 when a start would go well, else 1."""
    problems = check(path)
    errors = sum(problem.severity == ERROR for problem in problems)
    if as_json:
        rows = [{"severity": p.severity, "key": p.key or None, "line": p.line or None, "text": p.text} for p in problems]
        output.as_json({"file": str(path), "ok": not errors, "problems": rows})
        return 1 if errors else 0
    for problem in problems:
        output.line(f"{path}:{problem.line or '-'}: {problem.severity}: {problem.text}")
    output.line(f"{path}: {errors} errors, {len(problems) - errors} warnings" if problems else f"{path}: ok")
    return 1 if errors else 0
