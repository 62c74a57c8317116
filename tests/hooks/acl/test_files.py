"""The table acl.json."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.model.access import AclTable
from rmqkit_hook_acl.files import AclFile
from rmqkit_hook_acl.model import DISABLED, SUPER, User
from rmqkit_hook_acl.wire import of_table, table_of
from tests.hooks.acl.kit import access_of, policies

USERS = {"a": User("a", "secret-a", SUPER), "b": User("b", "sécret", "Normal", DISABLED)}
RULES = {"b": policies(["Topic:T Pub,Sub Allow 10.0.0.0/8", "Topic:T All Deny"], ["* Get Allow"])}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Users and rules come back, also those about the same resource; the file and the one before it are their
    owner's alone."""
    old = os.umask(0)
    try:
        written = AclFile(tmp_path / "acl.json")
        written.write(USERS, {})
        written.write(USERS, RULES)
    finally:
        os.umask(old)
    read = AclFile(tmp_path / "acl.json")
    assert read.read_changed()
    assert (read.users, read.policies) == (USERS, RULES)
    assert not read.read_changed()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"users": 1}',
        '{"users": [{"username": "a"}]}',
        '{"users": [{"password": "geheim"}]}',
        '{"users": [{"username": "a", "password": "geheim"}, {"username": "a", "password": "geheim"}]}',
        '{"acls": [{"subject": "a"}]}',
        '{"acls": [{"subject": "User:a", "policies": [{"entries": [{"resource": "x"}]}]}]}',
    ],
)
def test_a_damaged_table_stops_the_start(tmp_path: Path, text: str) -> None:
    """No older table takes its place, for it may have users that were deleted; the error has no secret."""
    file = AclFile(tmp_path / "acl.json")
    file.write(USERS, RULES)
    file.write(USERS, RULES)
    (tmp_path / "acl.json").write_text(text)
    with pytest.raises(ConfigError, match=r"acl\.json cannot be read") as caught:
        AclFile(tmp_path / "acl.json").read()
    assert "geheim" not in str(caught.value)


def test_another_process_changes_the_table(tmp_path: Path) -> None:
    """A server reads a changed table with its next look; a damaged one changes nothing."""
    now = [1_000.0]
    access = access_of(tmp_path, (), None, lambda: now[0])
    other = AclFile(access.file.path)
    other.write(USERS, RULES)
    access.look()
    assert "a" not in access.users
    now[0] += 2
    access.look()
    assert access.users["a"] == USERS["a"]
    assert access.policies == RULES
    access.file.path.write_text("{")
    now[0] += 2
    access.look()
    assert access.users["a"] == USERS["a"]


@given(st.builds(lambda text: User("n", text or "x"), st.text(min_size=1).filter(str.strip)))
def test_any_password_is_kept(user: User) -> None:
    """A password of any characters is the same after it was written and read."""
    if len(user.password) > 1_024:
        return
    users, _ = of_table(table_of({"n": user}, {}))
    assert users["n"].password == user.password


def test_an_empty_table_is_one() -> None:
    """Nobody is there, and nothing is allowed."""
    assert of_table(AclTable()) == ({}, {})
    with pytest.raises(RequestRefused):
        of_table(table_of({" ": User(" ", "x")}, {}))
