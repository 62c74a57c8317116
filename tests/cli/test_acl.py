"""`rmqkit acl`: users, what they may do, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ready, Run, Start
from tests.hooks.acl.kit import CHECKED, INNER, ROOT

AS_ROOT = {"RMQKIT_ACCESS_KEY": ROOT[0], "RMQKIT_SECRET_KEY": ROOT[1]}


@pytest.fixture
def checked(start: Start) -> Ready:
    """A server that checks everything."""
    words = [word for key, value in CHECKED.items() for word in ("--set", f"{key}={value}")]
    where = ("--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")
    return start("serve", *where, *words)


class Acl:
    """The verb `acl` as root; all that it has printed."""

    def __init__(self, rmqkit: Run, server: Ready) -> None:
        self._rmqkit = rmqkit
        self._namesrv = server.where["namesrv"]
        self.printed = ""

    def text(self, *words: str, code: int = 0, stdin: str = "", **env: str) -> str:
        done = self._rmqkit("acl", *words, "--namesrv", self._namesrv, stdin=stdin, env=AS_ROOT | env)
        assert done.returncode == code, done.stderr
        self.printed += done.stdout + done.stderr
        return done.stderr if code == 2 or not done.stdout else done.stdout

    def json(self, *words: str, **options: Any) -> Any:
        return json.loads(self.text(*words, "--json", **options))


def test_users_and_policies(rmqkit: Run, checked: Ready, tmp_path: Path) -> None:
    """All verbs in both forms: a user with its password from a file, from standard input and from a variable;
    rules; what decides, with an exit code; deletions only with --yes. No password is printed."""
    acl = Acl(rmqkit, checked)
    (tmp_path / "password").write_text("alice-secret\n")
    assert acl.json("user", "set", "alice", "--password-file", "password") == {
        "user": "alice",
        "brokers": ["broker-a"],
    }
    assert acl.text("user", "set", "bob", "--password-file", "-", stdin="bob-secret\n").startswith(
        "user bob set"
    )
    acl.text("user", "set", "carl", "--type", "Super", RMQKIT_USER_PASSWORD="carl-secret")
    assert acl.json("user", "list", "a") == {
        "broker-a": [
            {"user": "alice", "type": "Normal", "status": "enable"},
            {"user": "carl", "type": "Super", "status": "enable"},
        ]
    }
    acl.text("user", "set", "alice", "--status", "disable")
    assert acl.text("user", "list", "alice").splitlines()[1].split() == [
        "alice",
        "Normal",
        "disable",
        "broker-a",
    ]
    acl.text("user", "set", "alice", "--status", "enable")

    acl.text("policy", "set", "alice", "Pub,Sub", "Topic:orders", "Group:g*", "--source", "10.0.0.0/8")
    acl.text("policy", "set", "alice", "All", "*", "--deny", "--default")
    rules = acl.json("policy", "list", "alice", "--resource", "orders")
    assert rules == [
        {
            "broker": "broker-a",
            "user": "alice",
            "policy": "Custom",
            "resource": "Topic:orders",
            "actions": ["Pub", "Sub"],
            "sources": ["10.0.0.0/8"],
            "decision": "Allow",
        }
    ]
    assert "Default" in acl.text("policy", "list", "alice")
    asked = ("policy", "explain", "alice", "Pub", "Topic:orders")
    assert acl.text(*asked, "--source", "10.1.2.3") == (
        "broker-a: allowed, Custom policy Topic:orders Pub,Sub from 10.0.0.0/8 Allow\n"
    )
    assert acl.json(*asked, code=1) == [
        {"broker": "broker-a", "allowed": False, "rule": "Default policy * All Deny"}
    ]
    assert "add --yes" in acl.text("user", "delete", "alice", code=2)
    acl.text("policy", "delete", "alice", "Topic:orders", "--yes")
    assert acl.json("policy", "delete", "alice", "--yes") == {"user": "alice", "brokers": ["broker-a"]}
    acl.text("user", "delete", "alice", "--yes")
    assert acl.json("user", "list", "alice") == {"broker-a": []}
    for secret in ("alice-secret", "bob-secret", "carl-secret", ROOT[1], INNER[1]):
        assert secret not in acl.printed


def test_without_rights(rmqkit: Run, checked: Ready, tmp_path: Path) -> None:
    """The error of a verb says what the server said."""
    where = ("--namesrv", checked.where["namesrv"])
    nobody = rmqkit("acl", "user", "list", *where)
    assert nobody.returncode == 1
    assert "username cannot be null" in nobody.stderr
    half = rmqkit("acl", "user", "list", *where, env={"RMQKIT_ACCESS_KEY": "root"})
    assert half.returncode == 2
    assert "accessKey is given without secretKey" in half.stderr
    (tmp_path / "empty").write_text("\n")
    blank = rmqkit("acl", "user", "set", "u", "--password-file", "empty", *where, env=AS_ROOT)
    assert blank.returncode == 2
    assert "first line is blank" in blank.stderr


def test_every_verb_signs(rmqkit: Run, checked: Ready) -> None:
    """Sending and reading need the keys, from the environment or from the settings."""
    where = ("--namesrv", checked.where["namesrv"])
    sent = rmqkit("send", "Orders", "hello", *where, env=AS_ROOT)
    assert sent.returncode == 0, sent.stderr
    keys = ("--set", f"accessKey={ROOT[0]}", "--set", f"secretKey={ROOT[1]}")
    read = rmqkit("topic", "stats", "Orders", *where, *keys)
    assert read.returncode == 0, read.stderr
    refused = rmqkit("send", "Orders", "hello", *where)
    assert refused.returncode == 1
    assert "NO_PERMISSION" in refused.stderr
