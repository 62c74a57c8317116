"""The units for systemd: systemd's own checks of them, and that their commands and files are ours."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from rmqkit.cli import config_check
from tests import programs
from tests.deploy.kit import DEPLOY, accepted

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ROLES = ("broker", "broker@", "namesrv", "proxy")
#: The file of settings of each role.
SETTINGS = {"broker": "broker", "broker@": "group", "namesrv": "namesrv", "proxy": "proxy"}
#: Of systemd-analyze security; below 2 is the best of its grades.
MAX_EXPOSURE = 1.5

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: install systemd"
)
each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)


def _read(unit: Path) -> dict[str, list[str]]:
    """Key -> its values, of all sections."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def _analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_each_role_has_a_unit() -> None:
    """A broker, a member of a replica group, a name server and a proxy."""
    assert [unit.stem for unit in UNITS] == [f"rmqkit-{role}" for role in ROLES]


@needs_systemd
@each_unit
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, with the program where it is here."""
    text = unit.read_text()
    assert text.count("/opt/rmqkit/bin/rmqkit ") == 2
    placed = tmp_path / unit.name
    placed.write_text(text.replace("/opt/rmqkit/bin/rmqkit ", f"{programs.PROGRAM} "))
    result = _analyze("verify", "--man=no", str(placed))
    assert (result.returncode, result.stderr) == (0, "")


@needs_systemd
@each_unit
def test_the_unit_is_hardened(unit: Path) -> None:
    """`systemd-analyze security` finds an exposure of at most 1.5 of 10."""
    result = _analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:.0f}", str(unit))
    assert result.returncode == 0, result.stdout


@each_unit
def test_commands_and_settings_are_accepted(unit: Path) -> None:
    """The parser takes the command lines, and the file of settings is without an error and a warning."""
    keys = _read(unit)
    role = unit.stem.removeprefix("rmqkit-")
    for command in (*keys["ExecStartPre"], *keys["ExecStart"]):
        program, *words = shlex.split(command.replace("%i", "127.0.0.2"))
        assert program == "/opt/rmqkit/bin/rmqkit"
        accepted(words)
        assert f"/etc/rmqkit/{SETTINGS[role]}.toml" in words
    assert config_check.check(DEPLOY / "systemd" / f"{SETTINGS[role]}.toml") == []


@each_unit
def test_a_stop_is_graceful_and_wrong_settings_end_it(unit: Path) -> None:
    """SIGTERM goes to the parent alone; a broker has more time than its requests in flight get; exit code 2
    does not start again."""
    keys = _read(unit)
    assert keys["KillSignal"] == ["SIGTERM"]
    assert keys["KillMode"] == ["mixed"]
    assert int(keys["TimeoutStopSec"][0]) >= 20
    assert keys["RestartPreventExitStatus"] == ["2"]
    assert keys["Type"] == ["notify"]


def test_units_of_brokers_differ_in_what_a_member_needs() -> None:
    """A member of a replica group has its address from the name of its unit, and does not start without the
    secrets; all else is that of a single broker."""
    single, member = (
        (DEPLOY / "systemd" / f"rmqkit-{role}.service").read_text().splitlines()
        for role in ("broker", "broker@")
    )
    ours = [line for line in member if line not in single]
    assert {line.partition("=")[0] for line in ours if not line.startswith("#")} == {
        "Description",
        "After",
        "ExecStartPre",
        "ExecStart",
        "EnvironmentFile",
    }
    assert "EnvironmentFile=/etc/rmqkit/cluster.env" in ours


def test_the_user_is_made() -> None:
    """The units' user is in the file for systemd-sysusers."""
    users = [line.split()[1] for line in (DEPLOY / "systemd" / "rmqkit.conf").read_text().splitlines()[1:]]
    assert users == ["rmqkit"]
    assert all(_read(unit)["User"] == users for unit in UNITS)


def test_keys_are_in_the_sections_of_systemd() -> None:
    """Each unit has the three sections, once."""
    for unit in UNITS:
        parser = RawConfigParser(strict=False)
        parser.read(unit)
        assert parser.sections() == ["Unit", "Service", "Install"]
