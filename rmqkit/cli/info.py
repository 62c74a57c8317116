"""`rmqkit plugins` and `rmqkit config`: what is installed, what serves and why, what is set, where it came from, and what is wrong with it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import attrs

from rmqkit import plugins
from rmqkit.cli import config_check, explain, options, output
from rmqkit.cli.verbs import Verb
from rmqkit.errors import ConfigError


def _plugins_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--explain", action="store_true", help="say of everything that plugins bring whether it serves, and why")
    options.add_settings(parser)
    options.add_json(parser)


def _config_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["show", "check"], default="show", help="print the settings, or check a file (show)")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the file to check: TOML, or Java properties")
    options.add_settings(parser)
    options.add_json(parser)


def _plugins(arguments: Namespace) -> int:
    config = options.load_config(arguments)
    registry = plugins.load(config)
    if arguments.explain:
        uses = explain.explain(config, registry)
        if arguments.json:
            output.as_json([attrs.asdict(use) for use in uses])
        else:
            output.table(("KIND", "NAME", "PLUGIN", "STATE", "WHY"), [attrs.astuple(use) for use in uses])
        return 0
    found = sorted(registry.plugins, key=lambda plugin: plugin.name)
    if arguments.json:
        output.as_json(
            [
                {
                    "name": plugin.name,
                    "package": plugin.package,
                    "version": plugin.version,
                    "enabled": plugin.enabled,
                    "registers": plugin.registers,
                }
                for plugin in found
            ]
        )
        return 0
    output.table(
        ("NAME", "PACKAGE", "VERSION", "ENABLED", "REGISTERS"),
        [(p.name, p.package, p.version, "yes" if p.enabled else "no", ", ".join(p.registers)) for p in found],
    )
    return 0


def _config(arguments: Namespace) -> int:
    if arguments.action == "check":
        if arguments.file is None:
            raise ConfigError("config check needs a file, as in: rmqkit config check broker.toml")
        return config_check.run(arguments.file, arguments.json)
    if arguments.file is not None:
        raise ConfigError(f"config show takes its file as --config {arguments.file}")
    rows = options.load_config(arguments).described()
    if arguments.json:
        output.as_json({key: {"value": value, "source": source} for key, value, source in rows})
        return 0
    output.table(("KEY", "VALUE", "SOURCE"), [(key, _shown(value), source) for key, value, source in rows])
    return 0


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


PLUGINS = Verb("list plugins and what they bring; with --explain, which of them serves what and why", _plugins_arguments, _plugins)
CONFIG = Verb(
    "print every setting and where its value came from (show), or say all that is wrong with a file (check)", _config_arguments, _config
)
