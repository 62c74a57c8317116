"""The operator's pages: every command in them is run, or, where it is the machine's own, held against the
files that it names."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import textwrap
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from attrs import frozen

from rmqkit import config
from rmqkit.cli import whole_parser
from tests import programs
from tests.deploy.kit import extras
from tests.ports import free_port
from tests.test_docs import serving

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "operate").glob("*.md"))
#: Its blocks are one program, which tests/faults/test_three_brokers.py runs.
ONE_PROGRAM = "three_brokers.md"
UNITS = {path.stem for path in (ROOT / "deploy" / "systemd").glob("*.service")}
#: Directories of a machine, which are below a directory of the test here.
_MACHINE = re.compile(r"^/(etc|opt|usr|var)/")
#: Servers that go on; their words are checked, and start as in other documents.
_SERVERS = ("broker", "namesrv", "proxy")


def _blocks(language: str) -> list[tuple[str, str]]:
    """(where, text) of the fenced blocks of a language, also of those in a list."""
    found = []
    for path in PAGES:
        if path.name == ONE_PROGRAM:
            continue
        text = path.read_text()
        pattern = rf"^( *)```{language}\n(.*?)^\1```$"
        for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
            line = text[: match.start()].count("\n") + 1
            found.append((f"{path.name}:{line}", textwrap.dedent(match.group(2))))
    return found


def each_block(language: str) -> pytest.MarkDecorator:
    found = _blocks(language)
    return pytest.mark.parametrize(("where", "text"), found, ids=[where for where, _ in found])


@frozen
class Machine:
    """A machine for the commands: a broker with metrics that runs, and directories below `root`."""

    root: Path
    namesrv: str
    metrics_port: int

    def placed(self, word: str) -> str:
        """A word with a path of the machine below `root`."""
        return f"{self.root}{word}" if _MACHINE.match(word) else word

    def rmqkit(self, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        given = [self.placed(word) for word in words]
        return programs.run(given, self.root, env={"NAMESRV_ADDR": self.namesrv})


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With a store of a stopped broker, and the settings that the page about services puts in place."""
    root = tmp_path_factory.mktemp("machine")
    store = root / "var" / "lib" / "rmqkit" / "broker"
    made = programs.run(["demo", "--messages", "10", "--data", str(store)], root)
    assert made.returncode == 0, made.stderr
    shutil.copytree(ROOT / "deploy" / "systemd", root / "etc" / "rmqkit")
    (root / "broker.conf").write_text(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
        "fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
    )
    port = free_port()
    words = ["--set", "store=memory", "--set", "hooks=metrics", "--set", "brokerRole=ASYNC_MASTER"]
    words += ["--set", f"metricsPromExporterPort={port}"]
    with serving(words, root) as ready:
        yield Machine(root, ready["namesrv"], port)


def _serve(machine: Machine, words: Sequence[str]) -> None:
    with serving(list(words[1:]), machine.root) as ready:
        assert ready["namesrv"]


def _rmqkit(machine: Machine, words: Sequence[str]) -> None:
    if words[0] == "serve":
        _serve(machine, words)
        return
    parsed: Namespace | None = None
    if words[0] != "--version":
        parsed = whole_parser().parse_args(list(words))
    if words[0] in _SERVERS and words[1:2] != ["ha"]:
        assert parsed is not None
        return
    result = machine.rmqkit(words)
    # The doctor of a machine with a full disk finds that.
    allowed = (0, 1) if words[0] == "doctor" else (0,)
    assert result.returncode in allowed, result.stderr.decode()


def _install(machine: Machine, words: Sequence[str]) -> None:
    *options, source, target = words
    assert (ROOT / source).is_file()
    placed = machine.placed(target)
    assert placed != target
    subprocess.run(["install", *options, str(ROOT / source), placed], check=True, timeout=30)
    assert Path(placed).read_bytes() == (ROOT / source).read_bytes()


def _systemctl(machine: Machine, words: Sequence[str]) -> None:
    verb, *units = [word for word in words if not word.startswith("--")]
    assert verb in {"daemon-reload", "enable", "start", "stop", "restart", "status"}
    assert set(units) <= UNITS
    assert bool(units) == (verb != "daemon-reload")


def _journalctl(machine: Machine, words: Sequence[str]) -> None:
    option, unit = words
    assert (option, unit in UNITS) == ("--unit", True)


def _sysusers(machine: Machine, words: Sequence[str]) -> None:
    assert list(machine.root.glob("usr/lib/sysusers.d/*.conf")), "no file for systemd-sysusers is in place"


def _venv(machine: Machine, words: Sequence[str]) -> None:
    module, name, target = words
    assert (module, name) == ("-m", "venv")
    for unit in UNITS:
        text = (ROOT / "deploy" / "systemd" / f"{unit}.service").read_text()
        assert f"ExecStart={target}/bin/rmqkit " in text


def _link(machine: Machine, words: Sequence[str]) -> None:
    option, program, name = words
    assert (option, Path(program).name) == ("-s", Path(name).name)
    for unit in UNITS:
        assert f"ExecStart={program} " in (ROOT / "deploy" / "systemd" / f"{unit}.service").read_text()


def _pip(machine: Machine, words: Sequence[str]) -> None:
    verb, wanted = words
    assert verb == "install"
    assert set(re.findall(r"[\w-]+", wanted.partition("[")[2])) <= extras()


def _docker(machine: Machine, words: Sequence[str]) -> None:
    file = ROOT / words[words.index("--file") + 1]
    assert file.is_file()
    if words[0] == "build":
        assert (ROOT / words[-1]).is_dir()
        return
    assert words[0] == "compose"
    verb, *rest = words[3:]
    assert verb in {"up", "logs", "stop", "down"}
    services = yaml.safe_load(file.read_text())["services"]
    assert {word for word in rest if not word.startswith("--")} <= set(services)


def _kubectl(machine: Machine, words: Sequence[str]) -> None:
    manifests = [
        each
        for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml")
        for each in yaml.safe_load_all(path.read_text())
    ]
    if words[0] == "apply":
        assert list((ROOT / words[2]).glob("*.yaml"))
    elif words[:2] == ["rollout", "status"]:
        names = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in manifests}
        assert words[2] in names
    else:
        assert words[:3] == ["get", "pods", "--selector"]
        key, _, value = words[3].partition("=")
        labels = [each["metadata"].get("labels", {}) for each in manifests]
        assert any(label.get(key) == value for label in labels)


def _curl(machine: Machine, words: Sequence[str]) -> None:
    url = words[-1].replace("127.0.0.1:5557", f"127.0.0.1:{machine.metrics_port}")
    assert url != words[-1]
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.status == 200


def _promtool(machine: Machine, words: Sequence[str]) -> None:
    assert (ROOT / words[-1]).is_file()


_COMMANDS: dict[str, Callable[[Machine, Sequence[str]], None]] = {
    "rmqkit": _rmqkit,
    "install": _install,
    "systemctl": _systemctl,
    "systemd-sysusers": _sysusers,
    "journalctl": _journalctl,
    "python3": _venv,
    "ln": _link,
    "/opt/rmqkit/bin/pip": _pip,
    "docker": _docker,
    "kubectl": _kubectl,
    "curl": _curl,
    "promtool": _promtool,
}


@each_block("sh")
def test_commands_run(where: str, text: str, machine: Machine) -> None:
    """Every line, in order."""
    for line in text.splitlines():
        program, *words = shlex.split(line)
        assert program in _COMMANDS, f"{where}: nobody runs {line!r}"
        _COMMANDS[program](machine, words)


@each_block("toml")
def test_settings_load(where: str, text: str, tmp_path: Path) -> None:
    """Without a warning."""
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert config.load(file, environ={}).warnings == (), where


def test_programs_in_python_are_run_elsewhere() -> None:
    """The bridge, with Kafka: by tests/interop/test_from_kafka.py."""
    assert [where.partition(":")[0] for where, _ in _blocks("python")] == ["from_kafka.md"]


def test_commands_in_tables_are_accepted() -> None:
    """Those that begin with rmqkit and are not text for people: words in capitals stand for a name."""
    parser = whole_parser()
    commands = {
        command
        for path in PAGES
        for line in path.read_text().splitlines()
        if line.startswith("|")
        for command in re.findall(r"`rmqkit ([^`]+)`", line)
    }
    assert len(commands) > 10
    complete = {each for each in commands if not each.startswith(("ready", "--", "acl policy explain"))}
    for command in complete:
        parsed = parser.parse_args(shlex.split(command))
        assert parsed.verb, command


def test_every_page_is_in_the_table_of_the_index() -> None:
    """The index of the folder leads to each page, and the index of all documents to the folder."""
    index = (ROOT / "docs" / "operate" / "index.md").read_text()
    assert [path.name for path in PAGES if f"({path.name})" not in index and path.name != "index.md"] == []
    assert "(operate/index.md)" in (ROOT / "docs" / "index.md").read_text()


def test_every_alert_has_a_place_to_look_at() -> None:
    """The page about monitoring names each alert of the rules, and no other."""
    page = (ROOT / "docs" / "operate" / "monitoring.md").read_text()
    rules = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(re.findall(r"Rmqkit\w+", page)) == alerts
