"""The documents are kept true: every code block runs, every hook, interface and setting is described."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from rmqkit import config, plugin, rocketmq_settings
from rmqkit.cli import whole_parser
from rmqkit.client import hooks as client_hooks
from rmqkit.config import with_values
from rmqkit.plugin import loader
from rmqkit.remoting import pool
from tests import programs

ROOT = Path(__file__).parent.parent
PLUGIN_MODULES = [
    import_module(f"rmqkit.plugin.{each.name}") for each in pkgutil.iter_modules(plugin.__path__)
]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[tuple[str, str]]:
    """(where, text) of the fenced blocks of a language."""
    found = []
    for path in DOCUMENTS:
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
            found.append(
                (f"{path.name}:{path.read_text()[: match.start()].count(chr(10)) + 1}", match.group(1))
            )
    return found


def run(words: list[str], directory: Path, namesrv: str) -> subprocess.CompletedProcess[bytes]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return programs.run(words, directory, env={"NAMESRV_ADDR": namesrv, "PATH": path})


#: Free ports in place of RocketMQ's, which another test or program may have.
FREE_PORTS = ["--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0"]


@contextmanager
def serving(
    words: list[str], directory: Path, verb: str = "serve", ports: Sequence[str] = FREE_PORTS
) -> Iterator[dict[str, str]]:
    """Run a server with further words; what its ready line says. It must end by itself when it is told to
    stop."""
    with subprocess.Popen(
        [str(BIN / "rmqkit"), verb, *words, *ports],
        cwd=directory,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("rmqkit ready"), line
            yield dict(word.split("=", 1) for word in line.split() if "=" in word)
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The server that the examples talk to."""
    words = ["--set", "store=memory", "--set", "hooks=quota", "--set", "brokerRole=ASYNC_MASTER"]
    with serving(words, tmp_path_factory.mktemp("serve")) as where:
        yield where


@pytest.fixture
def namesrv(served: dict[str, str]) -> str:
    """The address of its name server."""
    return served["namesrv"]


EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
#: An option of servers that need a running etcd: only their words are checked, tests/plugins/failover runs
#: such groups.
NEEDS_ETCD = "--failover"
#: The blocks of each are one program, which tests/spark and tests/testing run.
ONE_PROGRAM = ("spark.md", "testing.md")


@pytest.mark.parametrize(
    ("where", "text"),
    [each for each in blocks("python") if not each[0].startswith(ONE_PROGRAM)],
    ids=lambda value: value if len(value) < 40 else "",
)
def test_python_blocks_run(where: str, text: str, served: dict[str, str], tmp_path: Path) -> None:
    """As written, but for the addresses of the name server and of the port for gRPC."""
    program = tmp_path / "example.py"
    namesrv = served["namesrv"]
    program.write_text(text.replace("127.0.0.1:9876", namesrv).replace("127.0.0.1:8081", served["grpc"]))
    result = run([str(program)], tmp_path, namesrv)
    assert result.returncode == 0, f"{where}\n{result.stderr.decode()}"


#: Its server has access control: tests/hooks/acl/test_document.py runs it.
SECURE = "secure.md"


@pytest.mark.parametrize(
    ("where", "text"),
    [each for each in blocks("sh") if not each[0].startswith(SECURE)],
    ids=lambda value: value if len(value) < 40 else "",
)
def test_shell_blocks_run(where: str, text: str, namesrv: str, tmp_path: Path) -> None:
    """Every `rmqkit` line, in order; `make` targets exist; a server gets ready, and stops when told to."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[:2] == ["rmqkit", "serve"]:
            if NEEDS_ETCD in words:
                assert whole_parser().parse_args(words[1:]).failover, where
                continue
            ports = [] if "--control" in words else FREE_PORTS
            with serving(words[2:], tmp_path, ports=ports) as ready:
                assert ready["namesrv"], where
            continue
        if words[:2] == ["rmqkit", "proxy"]:
            ports = ["--namesrv", namesrv, "--grpc", "127.0.0.1:0"]
            with serving(words[2:], tmp_path, "proxy", ports) as ready:
                assert ready["grpc"], where
            continue
        if words[:2] == ["rmqkit", "console"]:
            ports = ["--namesrv", namesrv, "--listen", "127.0.0.1:0"]
            with serving(words[2:], tmp_path, "console", ports) as ready:
                assert ready["console"], where
            continue
        if words[0] == "make":
            assert words[1] in targets, where
            continue
        if words[:2] == ["pip", "install"]:
            assert set(re.findall(r"[\w-]+", words[2].partition("[")[2])) <= EXTRAS, where
            continue
        if words[0] == "python":
            assert (ROOT / words[2].replace(".", "/")).with_suffix(".py").is_file(), where
            continue
        assert words[0] == "rmqkit", f"{where}: nobody runs {line!r}"
        result = run(words[1:], tmp_path, namesrv)
        assert result.returncode == 0, f"{where}: {line}\n{result.stderr.decode()}"


@pytest.mark.parametrize(
    ("where", "text"), blocks("toml"), ids=lambda value: value if len(value) < 40 else ""
)
def test_toml_blocks_are_settings_or_entry_points(where: str, text: str, tmp_path: Path) -> None:
    """A block of settings loads without a warning."""
    table = tomllib.loads(text)
    if "project" in table:
        groups = {
            "rmqkit",
            "rmqkit.hooks",
            "rmqkit.hooks.when",
            "rmqkit.filters",
            "rmqkit.allow",
            "rmqkit.tokens",
        }
        assert set(table["project"]["entry-points"]) <= groups
        return
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert config.load(file, environ={}).warnings == (), where


def test_every_hook_is_described() -> None:
    """plugin_hooks.md has each hook with its arguments and its own words."""
    text = (ROOT / "docs" / "plugin_hooks.md").read_text()
    hooks = {
        name: value
        for name, value in vars(import_module("rmqkit.plugin.hookspecs")).items()
        if name.startswith("rmqkit_")
    }
    assert len(hooks) > 10
    for name, value in hooks.items():
        described = " ".join((inspect.getdoc(value) or "").split()).replace("|", "\\|")
        assert f"| `{name}` | {', '.join(inspect.signature(value).parameters)} | {described} |" in text, name


def test_every_interface_is_described() -> None:
    """Abstract classes that a plugin implements, and hooks."""
    text = (ROOT / "docs" / "plugin_hooks.md").read_text()
    kernels_own = {"Peer"}
    interfaces = [
        name
        for module in (*PLUGIN_MODULES, client_hooks, pool)
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and (inspect.isabstract(value) or name.endswith("Hook"))
    ]
    assert len(interfaces) > 10
    assert [name for name in interfaces if f"| `{name}` |" not in text and name not in kernels_own] == []


def test_every_setting_is_described() -> None:
    """configuration.md names each key, and no key that is none."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    given = config.load(environ={})
    kinds = loader.load(with_values(given, hooks=("acl", "metrics"))).settings.values()
    keys = [key for key, _, _ in given.described(kinds)]
    named = re.findall(
        r"[A-Za-z0-9.]+", "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| "))
    )
    assert [key for key in keys if key not in named] == []


def test_every_setting_of_rocketmq_is_described() -> None:
    """rocketmq_settings.md has the keys that stop the start, those that are warned of and those without
    effect, each with its reason."""
    text = (ROOT / "docs" / "rocketmq_settings.md").read_text()
    for key, promise in (rocketmq_settings.PROMISES | rocketmq_settings.OFFERS).items():
        harmless = " or ".join(f"`{value}`" if value else "empty" for value in promise.harmless)
        assert f"| {key} | {harmless} | {promise.reason} |" in text
    for reason, keys in rocketmq_settings.NO_EFFECT.items():
        assert f"| {reason} | {' '.join(keys)} |" in text


def test_the_readme_shows_the_three_faces_in_less_than_30_lines() -> None:
    """One program has trio, asyncio and the blocking client. The first one, which says what rmqkit is, has at
    most five lines. `test_python_blocks_run` runs them, as it does all."""
    readme = (ROOT / "README.md").read_text()
    programs = [block.split("```")[0] for block in readme.split("```python\n")[1:]]
    program = next(each for each in programs if "trio.run(" in each)
    assert all(face in program for face in ("trio.run(", "asyncio.run(", "with BlockingClient("))
    assert len(program.splitlines()) < 30
    assert len(list(filter(None, programs[0].splitlines()))) <= 5
