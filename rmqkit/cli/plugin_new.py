"""`rmqkit plugin new KIND NAME`: writes the distribution of a new plugin, with tests that pass at once."""

from __future__ import annotations

import keyword
import re
from argparse import ArgumentParser, Namespace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from rmqkit import __version__
from rmqkit.cli import output
from rmqkit.cli.verbs import Verb
from rmqkit.errors import ConfigError
from rmqkit.hookspecs import API

#: Kind -> what it is called in prose, and how one of them is chosen.
KINDS = {
    "store": ("store", 'Chosen by `store = "$name"`.'),
    "transport": ("transport", "Chosen by addresses that begin with `$name://`."),
    "flush-policy": ("flush policy", 'Chosen by `flushDiskType = "$name"`.'),
    "dispatcher": ("dispatcher", "On unless the setting `dispatchers` leaves it out."),
    "allocation-strategy": ("allocation strategy", "Chosen by a consumer."),
    "filter-server": ("filter", "Chosen by subscriptions of this expression type."),
    "processor": ("request processor", "Every broker answers its request code."),
    "service": ("service", "Runs with every broker, unless `disabledServices` names it."),
    "send-hook": ("send-message hook", "Called around every send."),
    "consume-hook": ("consume-message hook", "Called around pulls and send-backs."),
    "rpc-hook": ("rpc hook", "Called around the requests whose codes it names."),
    "put-hook": ("put-message hook", "Called before every append."),
    "client-hook": ("client hook", "Given to a client by its application: `Client(..., hooks=[$class_name()])`."),
    "command": ("verb", "Runs as `rmqkit $name`."),
}
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def generate(kind: str, name: str, parent: Path) -> Path:
    """Write the distribution of a plugin into a new directory of `parent` and return that. Raises ConfigError for a name that cannot be one, or a
    directory that is there; nothing is written then."""
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of plugin {kind!r}; there are: {', '.join(KINDS)}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} cannot be a plugin's name: small letters and digits, in parts joined by -, such as my-{kind}")
    target = parent / f"rmqkit-{name}"
    package = f"rmqkit_{name.replace('-', '_')}"
    if target.exists():
        raise ConfigError(f"{target} is there already: choose another name or another directory with --dir")
    if find_spec(package) is not None:
        raise ConfigError(f"the package {package} would hide one that is there: choose another name")
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
    """Template -> where its text goes. A client hook is no plugin: nobody looks for it, an application imports it."""
    about, module = ("client-hook", "hook.py") if kind == "client-hook" else ("common", "plugin.py")
    return {
        f"{about}/pyproject.toml.txt": "pyproject.toml",
        f"{about}/README.md.txt": "README.md",
        "common/package.txt": f"{package}/__init__.py",
        f"{kind}/{module}.txt": f"{package}/{module}",
        f"{kind}/test.py.txt": f"tests/test_{package.removeprefix('rmqkit_')}.py",
    }


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="write the distribution of a new plugin, with tests that pass at once")
    new.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    new.add_argument("name", metavar="NAME", help="of the plugin, and of what it registers")
    new.add_argument("--dir", metavar="DIR", type=Path, default=Path(), help="where its directory is made (default: here)")


def _run(arguments: Namespace) -> int:
    target = generate(arguments.kind, arguments.name, arguments.dir)
    output.line(f"{target} is made; next: cd {target} && pip install --editable '.[test]' && python -m pytest")
    return 0


PLUGIN = Verb("write a new plugin: rmqkit plugin new KIND NAME", _arguments, _run)
