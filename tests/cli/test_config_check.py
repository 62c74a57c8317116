"""`rmqkit config check FILE` reports all errors of a deployment together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqkit.cli.config_check import ERROR, WARNING, Problem, check
from tests.cli.conftest import Run

DEPLOYMENT = """\
# A deployment with a fault on nearly every line.
brokerName = "broker a!"
listenPort = 99999999
storee = "mmap"
maxIndexNum = 1
disabledPlugins = ["momory"]
maxMessageSize = "lots"

[tls.server]
mode = "enforcing"

[plugin.audit]
level = 1

[plugins.adit]
level = 1
"""


def found(directory: Path, text: str, name: str = "broker.toml") -> list[Problem]:
    file = directory / name
    file.write_text(text)
    return check(file)


def test_all_faults_at_once(tmp_path: Path) -> None:
    """Wrong values, unknown keys, missing plugins and unsupported protection are reported with line and key,
    in the order of the file."""
    problems = found(tmp_path, DEPLOYMENT)
    assert [(problem.line, problem.severity, problem.key) for problem in problems] == [
        (2, ERROR, "brokerName"),
        (3, ERROR, "listenPort"),
        (4, WARNING, "storee"),
        (5, ERROR, "maxIndexNum"),
        (6, ERROR, "disabledPlugins"),
        (7, ERROR, "maxMessageSize"),
        (10, ERROR, "tls.server.mode"),
        (12, WARNING, "plugin"),
        (16, ERROR, "plugins.adit.level"),
    ]
    texts = {problem.key: problem.text for problem in problems}
    assert "did you mean 'store'?" in texts["storee"]
    assert "did you mean 'memory'?" in texts["disabledPlugins"]
    assert "[plugins.NAME]" in texts["plugin"]


@pytest.mark.parametrize(
    ("line", "key", "hint"),
    [
        ('store = "mnap"', "store", "did you mean 'mmap'?"),
        ('flushDiskType = "SNYC_FLUSH"', "flushDiskType", "did you mean 'SYNC_FLUSH'?"),
        ('disabledServices = ["delya"]', "disabledServices", "did you mean 'delay'?"),
        ('dispatchers = ["consume-queue", "idnex"]', "dispatchers", "did you mean 'index'?"),
        ('listeners = ["tpc://127.0.0.1:1"]', "listeners", "did you mean 'tcp'?"),
        ('listeners = ["nonsense"]', "listeners", "as in 127.0.0.1:10911"),
        ('namesrvListen = "9876"', "namesrvListen", "as in 127.0.0.1:10911"),
        ('disabledPlugins = ["flush"]', "flushDiskType", "no plugin brings 'ASYNC_FLUSH'"),
        ('disabledPlugins = ["mmap"]', "store", "no plugin brings 'mmap' among the stores"),
    ],
)
def test_names_that_nobody_brings(tmp_path: Path, line: str, key: str, hint: str) -> None:
    """Names are checked as a start does, and the nearest known name is suggested."""
    (problem,) = found(tmp_path, line)
    assert (problem.severity, problem.key) == (ERROR, key)
    assert hint in problem.text


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("broken.toml", "brokerName = 'a'\nlistenPort = = 1\n", 2),
        ("missing/broker.conf", "", 0),
        ("broker.conf", "# one\n\nbrokerName=b\nlistenPort : none\n", 4),
        ("quoted.toml", "'tls.server.mode' = 'enforcing'\n", 1),
    ],
)
def test_where_it_is(tmp_path: Path, name: str, text: str, line: int) -> None:
    """Lines are found in TOML, also invalid TOML, and in properties; a missing file has no lines."""
    file = tmp_path / name
    if text:
        file.write_text(text)
    assert [(problem.severity, problem.line) for problem in check(file)] == [(ERROR, line)]


def test_exit_codes_and_json(rmqkit: Run, tmp_path: Path) -> None:
    """The exit code is 0 with "ok" when a start would succeed, also with warnings, else 1. JSON contains
    every problem."""
    (tmp_path / "good.toml").write_text('store = "memory"\ndisabledPlugins = ["delay"]\n')
    good = rmqkit("config", "check", "good.toml")
    assert (good.returncode, good.stdout) == (0, "good.toml: ok\n"), good.stderr
    (tmp_path / "odd.toml").write_text("storee = 1\n")
    odd = json.loads(rmqkit("config", "check", "odd.toml", "--json").stdout)
    assert odd["ok"] is True
    assert [(problem["severity"], problem["key"], problem["line"]) for problem in odd["problems"]] == [
        ("warning", "storee", 1)
    ]
    (tmp_path / "bad.toml").write_text("listenPort = -1\n")
    bad = rmqkit("config", "check", "bad.toml")
    assert bad.returncode == 1
    assert bad.stdout.splitlines()[0].startswith("bad.toml:1: error: setting listenPort = -1")
    assert bad.stdout.splitlines()[-1] == "bad.toml: 1 error, 0 warnings"


def test_show_complains_of_what_a_start_would_refuse(rmqkit: Run) -> None:
    """The settings are printed, followed by their errors; the exit code is 2."""
    shown = rmqkit(
        "config",
        "show",
        "--set",
        "flushDiskType=SINC",
        "--set",
        "bindAddress=0.0.0.0",
        "--set",
        "brokerRole=LEADER",
    )
    assert shown.returncode == 2
    assert "flushDiskType" in shown.stdout
    for text in ("no plugin brings 'SINC'", "set brokerIP1", "brokerRole = 'LEADER'"):
        assert text in shown.stderr


def test_a_broker_conf_of_rocketmq(tmp_path: Path) -> None:
    """Unsupported settings are errors on their lines; all settings without effect share one warning."""
    problems = found(
        tmp_path, "duplicationEnable=true\nsendMessageThreadPoolNums=8\nbindAddress=0.0.0.0\n", "broker.conf"
    )
    assert [(problem.line, problem.severity, problem.key) for problem in problems] == [
        (1, ERROR, "duplicationEnable"),
        (2, WARNING, "sendMessageThreadPoolNums"),
        (3, ERROR, "bindAddress"),
    ]


def test_a_table_of_a_plugin_that_is_off(tmp_path: Path) -> None:
    """A table that is never read causes a warning on its line."""
    (problem,) = found(tmp_path, "\n[plugins.audit]\nmaxBytes = 1\n")
    assert (problem.line, problem.severity, problem.key) == (2, WARNING, "plugins.audit")


def test_words_that_do_not_fit(rmqkit: Run) -> None:
    """check without a file, and show with one, print the correct form."""
    assert "rmqkit config check broker.toml" in rmqkit("config", "check").stderr
    assert "--config x.toml" in rmqkit("config", "show", "x.toml").stderr
    assert rmqkit("config", "show").stdout == rmqkit("config").stdout != ""


def test_secrets_are_not_shown(rmqkit: Run, tmp_path: Path) -> None:
    """Neither show nor check prints a secret; check names only the key."""
    (tmp_path / "broker.toml").write_text('"tls.server.keyPassword" = "hunter2"\nlistenPort = -1\n')
    shown = rmqkit("config", "show", "--set", "tls.server.keyPassword=hunter2")
    checked = rmqkit("config", "check", "broker.toml")
    assert "tls.server.keyPassword" in shown.stdout
    assert "hunter2" not in shown.stdout + shown.stderr + checked.stdout + checked.stderr


def test_addresses_are_checked_as_by_a_start(tmp_path: Path) -> None:
    """A placeholder is an error of its line; an address where nothing would listen is a warning."""
    (problem,) = found(tmp_path, "brokerName=b\nbrokerIP1=${HOST_IP}\n", "broker.conf")
    assert (problem.severity, problem.key, problem.line) == (ERROR, "brokerIP1", 2)
    (problem,) = found(tmp_path, "brokerName=b\nbrokerIP1=10.1.2.3\n", "broker.conf")
    assert (problem.severity, problem.key, problem.line) == (WARNING, "brokerIP1", 2)
    assert "set bindAddress = 0.0.0.0" in problem.text


def test_lines_are_found_in_any_encoding(tmp_path: Path) -> None:
    """A byte of GBK that is a line end in Latin-1 alone ends no line."""
    file = tmp_path / "broker.conf"
    file.write_bytes("# 闄厖\r\nlistenPort=-1\r\n".encode("gbk") + b"# \x85\r\nregionId=\r\nmaxIndexNum=1\n")
    assert [(problem.key, problem.line) for problem in check(file)] == [("listenPort", 2), ("maxIndexNum", 5)]
