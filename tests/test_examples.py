"""Plugins as their authors ship them: distributions that are installed by pip and found by their entry
points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from rmqkit.cli.plugin_new import KINDS, generate

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.parent for path in (ROOT / "docs" / "examples").glob("*/pyproject.toml"))
_DEADLINE_S = 300


def run(
    words: Iterable[str | Path], directory: Path, site: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """This Python, with what was installed into `site` besides, and nothing of ours from the environment."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RMQKIT_", "NAMESRV_", "PYTEST_"))
    }
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if site:
        environment["PYTHONPATH"] = str(site)
    return subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=directory,
        env=environment,
        text=True,
        capture_output=True,
        timeout=_DEADLINE_S,
        check=False,
    )


def install(sources: Iterable[Path], site: Path) -> None:
    """Without the network: hatchling is a development requirement of rmqkit."""
    options = (
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        site,
    )
    result = run(("pip", "install", *options, *sources), site.parent)
    assert result.returncode == 0, result.stderr


def wheels(sources: Iterable[Path], directory: Path) -> list[Path]:
    """Built as pip builds them, but all in one process."""
    directory.mkdir()
    program = (
        "import os, sys\nfrom hatchling.build import build_wheel\n"
        "for source in sys.argv[2:]:\n    os.chdir(source)\n    build_wheel(sys.argv[1])\n"
    )
    (directory.parent / "build_all.py").write_text(program)
    result = run(("build_all", directory, *sources), directory.parent)
    assert result.returncode == 0, result.stderr
    return list(directory.iterdir())


def run_tests(directories: Iterable[Path], site: Path) -> str:
    """The summary of what passed; warnings are errors."""
    options = (
        "-rA",
        "-q",
        "-p",
        "pytest_trio.plugin",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-o",
        "trio_mode=true",
        "-W",
        "error",
    )
    result = run(("pytest", *options, *directories), site.parent, site)
    assert result.returncode == 0, result.stdout[-5_000:] + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples of the documentation are installed."""
    site = tmp_path_factory.mktemp("examples") / "site"
    install(EXAMPLES, site)
    return site


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of one new plugin of each kind, all installed side by side: the first by pip from its
    source, the others from wheels."""
    directory = tmp_path_factory.mktemp("generated")
    made = [generate(kind, f"my-{kind}", directory) for kind in KINDS]
    install([made[0], *wheels(made[1:], directory / "wheels")], directory / "site")
    return run_tests(made, directory / "site")


def test_there_are_two_examples() -> None:
    """A store and a hook."""
    assert [path.name for path in EXAMPLES] == ["rmqkit-redact", "rmqkit-store-sqlite"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_passes_its_tests(example: Path, examples: Path) -> None:
    """Installed as any plugin is; its own tests have the contract of its interface."""
    assert "passed" in run_tests([example / "tests"], examples)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_at_once(kind: str, generated: str) -> None:
    """Of every kind: as it was written by `rmqkit plugin new`, it can be installed, is found by its entry
    point and passes its contract."""
    lines = [line for line in generated.splitlines() if f"/test_my_{kind.replace('-', '_')}.py::" in line]
    assert any(line.startswith("PASSED") for line in lines)
    assert [line for line in lines if line.startswith(("FAILED", "ERROR"))] == []


def test_a_deployment_with_the_examples(examples: Path, tmp_path: Path) -> None:
    """The file shown in docs/plugins.md: checked, and explained."""
    text = (ROOT / "docs" / "plugins.md").read_text()
    (tmp_path / "deployment.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    checked = run(("rmqkit.cli", "config", "check", "deployment.toml"), tmp_path, examples)
    assert (checked.returncode, checked.stdout) == (0, "deployment.toml: ok\n"), checked.stderr
    explained = run(
        ("rmqkit.cli", "plugins", "--explain", "--json", "--config", "deployment.toml"), tmp_path, examples
    )
    uses = {(use["kind"], use["name"]): use for use in json.loads(explained.stdout)}
    assert uses["store", "sqlite"]["state"] == "used"
    assert uses["put message hook", "redact"]["why"].startswith("2 of 7, order -10")
    assert uses["plugin", "mmap"]["state"] == "off"
    without = run(("rmqkit.cli", "config", "check", "deployment.toml"), tmp_path)
    assert without.returncode == 1
    assert (
        "'sqlite' among the stores" in without.stdout
        or "'redact', but there is no such plugin" in without.stdout
    )
