"""docs/operate/three_brokers.md as a reader follows it: its blocks run in one shell, in their order, and
print what the page says.

The shell is root's, in namespaces of its own: ports are those of the page, /etc, /opt and /var are copies
that vanish, and what it starts ends with it. Three things differ from the page. Packages are not installed,
but have to be there; /opt/rmqkit is the virtual environment of the tests, for the page's would be built from
the network; Prometheus asks every second. Blocks for systemd are not run: units and commands are held against
the others.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define, evolve, field, frozen

from tests.deploy.kit import DEPLOY, extras
from tests.programs import clean_environment

ROOT = DEPLOY.parent
PAGE = ROOT / "docs" / "operate" / "three_brokers.md"
#: For all of the page: a minute where the machine has little else to do.
_PATIENCE_S = 600
#: Blocks that install what the test has: apt-get, pip.
_INSTALL = re.compile(r"^(apt-get|python3 -m venv) ", re.MULTILINE)
_SYSTEMD = re.compile(r"^(systemctl) ", re.MULTILINE)
_PROMETHEUS = re.compile(r"\bprom(etheus|tool) ")
_PROGRAMS = ("bash", "curl", "etcd", "ip", "openssl", "setpriv", "unshare", "useradd")
_ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
#: Copies of the machine's directories, and users of packages that may have come without them.
_PREPARE = """
set -eu
ip link set lo up
mount -t tmpfs -o mode=0755 scratch $SCRATCH
for each in etc opt var; do mkdir -p $SCRATCH/$each; done
cp -a /etc/. $SCRATCH/etc
mkdir -p $SCRATCH/opt/rmqkit/bin $SCRATCH/etc/prometheus $SCRATCH/var/log $SCRATCH/var/lib/etcd
mkdir -p $SCRATCH/var/lib/prometheus $SCRATCH/home
ln -sf "$PROGRAMS"/rmqkit $SCRATCH/opt/rmqkit/bin/rmqkit
for each in etc opt var; do mount --bind $SCRATCH/$each /$each; done
chmod 0755 $SCRATCH /var /var/lib /opt /opt/rmqkit /opt/rmqkit/bin
for each in etcd prometheus; do
    getent passwd $each > /dev/null || useradd --system --user-group $each
    chown $each /var/lib/$each
done
userdel rmqkit 2> /dev/null || true
export HOME=$SCRATCH/home PATH=/opt/rmqkit/bin:$PATH
set +u
"""


@frozen
class Block:
    """A block of commands, with the patterns of what they print, one for each line that the page shows."""

    line: int
    text: str
    shown: tuple[str, ...]

    @property
    def installs(self) -> bool:
        return _INSTALL.search(self.text) is not None

    @property
    def is_for_systemd(self) -> bool:
        return _SYSTEMD.search(self.text) is not None

    @property
    def is_about_prometheus(self) -> bool:
        return _PROMETHEUS.search(self.text) is not None


def blocks() -> list[Block]:
    """Those of the page. Blocks of text belong to the commands before them."""
    found: list[Block] = []
    page = PAGE.read_text()
    for match in re.finditer(r"^```(sh|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        language, text = match.groups()
        if language == "sh":
            found.append(Block(page[: match.start()].count("\n") + 1, text, ()))
        else:
            last = found.pop()
            found.append(Block(last.line, last.text, (*last.shown, *text.splitlines())))
    return found


def _missing() -> str:
    """Why the page cannot be followed here."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "its commands are root's"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"these programs are not installed: {', '.join(absent)}"
    for words in (
        ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"],
        ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", "import rmqkit"],
    ):
        if subprocess.run(words, cwd="/", capture_output=True, timeout=60, check=False).returncode != 0:
            return f"{shlex.join(words)} fails: no namespaces, or other users cannot read the checkout"
    return ""


@define
class Shell:
    """The reader's shell."""

    process: subprocess.Popen[str]
    said: list[str] = field(factory=list)

    def run(self, block: Block) -> str:
        """What the commands print on both streams."""
        end = f"--- line {block.line} ends with"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f'{{\n{block.text}\n}} < /dev/null\necho "{end} $?"\n')
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith(end):
                assert line == f"{end} 0\n", f"line {block.line}: {''.join(lines)}"
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell has ended at line {block.line}: {''.join(lines)}")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in namespaces of its own, in the checkout, which ends with the first command that fails."""
    why = _missing()
    if why:
        pytest.skip(f"the page cannot be followed here: {why}")
    words = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"]
    env = clean_environment() | {"SCRATCH": str(tmp_path), "PROGRAMS": str(Path(sys.executable).parent)}
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        # Its end is that of the first process of the namespace, and so of all.
        watch = threading.Timer(_PATIENCE_S, process.kill)
        watch.start()
        try:
            found = Shell(process)
            found.run(Block(0, _PREPARE, ()))
            yield found
        finally:
            watch.cancel()
            process.kill()


def as_pattern(line: str) -> str:
    """A line of the page: dots are any text, spaces any number of them."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in line.split("...")]
    return r"\s*.*\s*".join(parts)


def here(block: Block) -> str:
    """The commands, with Prometheus asking every second."""
    return block.text.replace("sed 's/", "sed 's/scrape_interval: 15s/scrape_interval: 1s/; s/")


def test_the_page_is_followed(shell: Shell) -> None:
    """Three brokers with users, a stranger who is refused, a Prometheus without alerts, a master that is
    killed, every number consumed, and a doctor that finds nothing."""
    has_prometheus = all(map(shutil.which, ("prometheus", "promtool")))
    for block in blocks():
        if block.installs or block.is_for_systemd:
            continue
        if block.is_about_prometheus and not has_prometheus:
            continue
        said = shell.run(evolve(block, text=here(block)))
        rest = [line.strip() for line in said.splitlines()]
        for shown in block.shown:
            pattern = as_pattern(shown)
            while rest and not re.fullmatch(pattern, rest[0]):
                rest.pop(0)
            assert rest, f"line {block.line}: {shown!r} is not there, or not in its place, in\n{said}"
            rest.pop(0)


def _commands(text: str) -> list[list[str]]:
    """The words of each line, up to where its output goes into a file, or the program into the background."""
    found = []
    for line in text.splitlines():
        command = re.split(r" >>? /| &$", line.strip())[0]
        found.append(shlex.split(command))
    return found


def test_both_ways_start_the_same() -> None:
    """The words after `run` are those of the units, with the address in place of the instance."""
    started = [
        words[1:] for block in blocks() for words in _commands(block.text) if words[:2] == ["run", "rmqkit"]
    ]
    assert len(started) == 2
    for unit, words in zip(("rmqkit-namesrv", "rmqkit-broker@"), started, strict=True):
        text = (DEPLOY / "systemd" / f"{unit}.service").read_text()
        (command,) = re.findall(r"^ExecStart=/opt/rmqkit/bin/(.*)$", text, re.MULTILINE)
        assert shlex.split(command.replace("%i", "$1")) == words


def test_what_is_installed_is_there() -> None:
    """Files of deploy/, units that systemctl is given, and extras of the project."""
    text = "\n".join(block.text for block in blocks())
    files = set(re.findall(r"deploy/[\w/@.-]+", text))
    assert len(files) > 5
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert set(re.findall(r"(rmqkit-\w+@?)(?:127\S+)?", text)) - {"rmqkit-console"} == {
        "rmqkit-namesrv",
        "rmqkit-broker@",
    }
    (wanted,) = re.findall(r"pip install '\.\[(.*)\]'", text)
    assert set(wanted.split(",")) <= extras()


def test_the_page_says_how_many_copies_there_are() -> None:
    """The group's settings fit to the three addresses, and to each other."""
    settings = tomllib.loads((DEPLOY / "systemd" / "group.toml").read_text())
    text = PAGE.read_text()
    (addresses,) = re.findall(r"for address in ([\d. ]+);", text)
    assert tuple(addresses.split()) == _ADDRESSES
    assert settings["totalReplicas"] == len(_ADDRESSES)
