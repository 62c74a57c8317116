"""The settings of the brokers, side by side."""

from __future__ import annotations

from functools import cache
from typing import Any

from rmqkit import config
from rmqkit.client import RmqError
from rmqkit.config.values import masked
from rmqkit.plugin import loader
from rmqkit_console.console import Asked, Console
from rmqkit_console.side_by_side import side_by_side


async def settings(console: Console, asked: Asked) -> dict[str, Any]:
    """The settings of all masters by key, each with its origin: `default` where all have rmqkit's default,
    `set` where one has another value, `unknown` for keys that rmqkit does not know. Secrets are masked."""
    admin = console.client.admin
    find, which = asked.text("find"), asked.choice("which", ("all", "set", "differing"))
    masters = await admin.masters()
    found = await side_by_side(admin.broker_settings, masters.values())
    tables = {
        broker: table
        for broker, address in masters.items()
        if not isinstance(table := found[address], RmqError)
    }
    known = _defaults()
    rows = []
    for key in sorted({key for table in tables.values() for key in table}):
        values = {broker: str(masked(key, table[key])) for broker, table in tables.items() if key in table}
        differs = len({table.get(key) for table in tables.values()}) > 1
        default = known.get(key)
        is_set = any(table.get(key, default) != default for table in tables.values())
        origin = "unknown" if default is None else "set" if is_set else "default"
        is_wanted = {"all": True, "set": origin == "set", "differing": differs}[which]
        if is_wanted and find.lower() in key.lower():
            shown = None if default is None else str(masked(key, default))
            row = {"key": key, "values": values, "default": shown, "origin": origin, "differs": differs}
            rows.append(row)
    faults = [str(error) for error in found.values() if isinstance(error, RmqError)]
    return {"brokers": list(tables), "settings": rows, "faults": faults, "find": find, "which": which}


@cache
def _defaults() -> dict[str, str]:
    """The defaults of the kernel and of the installed plugins, as a broker writes them."""
    made = config.Config()
    text = config.properties_text(made, loader.load(made).settings.values())
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, _, value in pairs}


__all__ = ["settings"]
