"""`rmqkit plugin new KIND NAME` writes the distribution of a new plugin, with tests that pass."""

from __future__ import annotations

import keyword
import re
from argparse import ArgumentParser, Namespace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from rmqkit import __version__
from rmqkit.errors import ConfigError
from rmqkit.plugin.command import Verb
from rmqkit.plugin.hookspecs import API
from rmqkit.toolkit import output

#: Kind -> its name in prose, and how a plugin of the kind is selected.
KINDS = {
    "store": ("store", 'Chosen by `store = "$name"`.'),
    "transport": ("transport", "Chosen by addresses that begin with `$name://`."),
    "flush-policy": ("flush policy", 'Chosen by `flushDiskType = "$name"`.'),
    "ack-condition": ("acknowledgement condition", "Every sender that waits, waits for it."),
    "dispatcher": ("dispatcher", "On unless the setting `dispatchers` leaves it out."),
    "allocation-strategy": ("allocation strategy", "Chosen by a consumer."),
    "filter-server": ("filter", "Chosen by subscriptions of this expression type."),
    "python-filter": ("filter in Python", "Consumers name it: expression type PYTHON."),
    "processor": ("request processor", "Every broker answers its request code."),
    "protocol": ("protocol", "Shares the ports of every broker, chosen by its first bytes."),
    "service": ("service", "Runs with every broker, unless `disabledServices` names it."),
    "send-hook": ("send-message hook", "Called around every send."),
    "consume-hook": ("consume-message hook", "Called around pulls and send-backs."),
    "rpc-hook": ("rpc hook", "Called around the requests whose codes it names."),
    "put-hook": ("put-message hook", "Called before every append."),
    "client-hook": ("client hook", "Given to a client: `Client(..., hooks=[$class_name()])`."),
    "command": ("verb", "Runs as `rmqkit $name`."),
}
#: Kinds that are not plugins: the folder of their metadata, and their module.
_OWN_METADATA = {"client-hook": ("client-hook", "hook.py"), "python-filter": ("python-filter", "filter.py")}
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def generate(kind: str, name: str, parent: Path) -> Path:
    """Write the distribution of a plugin into a new directory in `parent` and return its path. Raises
    ConfigError for an invalid name or an existing directory; nothing is written then."""
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of plugin {kind!r}; known kinds:  {', '.join(KINDS)}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot be a plugin's name: small letters and digits, in parts joined by -, such as"
            f" my-{kind}"
        )
    target = parent / f"rmqkit-{name}"
    package = f"rmqkit_{name.replace('-', '_')}"
    if target.exists():
        raise ConfigError(f"{target} already exists: choose another name, or another directory with --dir")
    if find_spec(package) is not None:
        raise ConfigError(f"the package {package} would hide an installed one: choose another name")
    title, chosen = KINDS[kind]
    class_name = "".join(part.capitalize() for part in name.split("-"))
    words = {
        "name": name,
        "package": package,
        "distribution": target.name,
        "class_name": class_name,
        "constant": name.replace("-", "_").upper(),
        "title": title,
        "chosen": Template(chosen).substitute(name=name, class_name=class_name),
        "version": ".".join(__version__.split(".")[:2]),
        "api": str(API),
    }
    for template, path in _contents(kind, package).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = files("rmqkit.cli").joinpath("templates", template).read_text(encoding="utf-8")
        file.write_text(Template(text).substitute(words), encoding="utf-8")
    return target


def _contents(kind: str, package: str) -> dict[str, str]:
    """Template -> destination path. A client hook is not registered as a plugin: the application imports it;
    a filter in Python has an entry point of its own kind."""
    about, module = _OWN_METADATA.get(kind, ("common", "plugin.py"))
    return {
        f"{about}/pyproject.toml.txt": "pyproject.toml",
        f"{about}/README.md.txt": "README.md",
        "common/package.txt": f"{package}/__init__.py",
        f"{kind}/{module}.txt": f"{package}/{module}",
        f"{kind}/test.py.txt": f"tests/test_{package.removeprefix('rmqkit_')}.py",
    }


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser(
        "new", help="write the distribution of a new plugin, with tests that pass at once"
    )
    new.add_argument("kind", metavar="KIND", choices=list(KINDS), help=", ".join(KINDS))
    new.add_argument("name", metavar="NAME", help="name of the plugin, and of what it registers")
    parent = "parent of its directory (default: the working directory)"
    new.add_argument("--dir", metavar="DIR", type=Path, default=Path(), help=parent)


def _run(arguments: Namespace) -> int:
    target = generate(arguments.kind, arguments.name, arguments.dir)
    output.line(
        f"{target} created; next: cd {target} && pip install --editable '.[test]' && python -m pytest"
    )
    return 0


PLUGIN = Verb("write a new plugin: rmqkit plugin new KIND NAME", _arguments, _run)
