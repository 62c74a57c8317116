"""`rmqkit plugins` lists what is installed and what is used; `rmqkit config` prints the settings with their
sources and checks files."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import attrs

from rmqkit.cli import config_check, explain, options
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output


def _plugins_arguments(parser: ArgumentParser) -> None:
    explained = "show for each part of a plugin whether it is used, and why"
    parser.add_argument("--explain", action="store_true", help=explained)
    options.add_settings(parser)
    options.add_json(parser)


def _config_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    what = "print the settings, or check a file (show)"
    add("action", nargs="?", choices=["show", "check"], default="show", help=what)
    add("file", nargs="?", type=Path, metavar="FILE", help="the file to check: TOML, or Java properties")
    options.add_settings(parser)
    options.add_json(parser)


def _plugins(arguments: Namespace) -> int:
    config = options.load_config(arguments)
    registry = loader.load(config)
    if arguments.explain:
        uses = explain.explain(config, registry)
        if arguments.json:
            output.as_json([attrs.asdict(use) for use in uses])
        else:
            output.table(("KIND", "NAME", "PLUGIN", "STATE", "WHY"), [attrs.astuple(use) for use in uses])
        return 0
    found = sorted(registry.plugins, key=lambda plugin: plugin.name)
    if arguments.json:
        members = ("name", "package", "version", "enabled", "registers")
        output.as_json([{member: getattr(plugin, member) for member in members} for plugin in found])
        return 0
    output.table(
        ("NAME", "PACKAGE", "VERSION", "ENABLED", "REGISTERS"),
        [(p.name, p.package, p.version, "yes" if p.enabled else "no", ", ".join(p.registers)) for p in found],
    )
    return 0


def _config(arguments: Namespace) -> int:
    if arguments.action == "check":
        if arguments.file is None:
            raise ConfigError("config check needs a file, for example:  rmqkit config check broker.toml")
        return config_check.run(arguments.file, arguments.json)
    if arguments.file is not None:
        raise ConfigError(f"config show takes its file as --config {arguments.file}")
    config = options.load_config(arguments)
    registry, faults, warnings = config_check.with_plugins(config)
    rows = config.described(registry.settings.values() if registry is not None and not faults else ())
    if arguments.json:
        output.as_json({key: {"value": value, "source": source} for key, value, source in rows})
    else:
        output.table(
            ("KEY", "VALUE", "SOURCE"), [(key, _shown(value), source) for key, value, source in rows]
        )
    for warning in warnings:
        output.error(f"warning: {warning.text}")
    for fault in faults:
        output.error(fault.text)
    return 2 if faults else 0


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


PLUGINS = Verb(
    "list plugins and their parts; with --explain, which are used and why", _plugins_arguments, _plugins
)
CONFIG = Verb(
    "print every setting and its source, or report all errors in a file", _config_arguments, _config
)
