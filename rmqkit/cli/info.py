"""`rmqkit plugins` and `rmqkit config`: what is installed, what is set and where it came from."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rmqkit import plugins
from rmqkit.cli import options, output
from rmqkit.cli.verbs import Verb


def _arguments(parser: ArgumentParser) -> None:
    options.add_settings(parser)
    options.add_json(parser)


def _plugins(arguments: Namespace) -> int:
    found = sorted(plugins.load(options.load_config(arguments)).plugins, key=lambda plugin: plugin.name)
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


PLUGINS = Verb("list plugins: name, package, version, what they register, whether they are enabled", _arguments, _plugins)
CONFIG = Verb("print every setting and where its value came from", _arguments, _config)
