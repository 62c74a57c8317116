"""Settings of the console."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.errors import ConfigError
from rmqkit_console.settings import (
    PASSWORD_VARIABLE,
    ConsoleSettings,
    Login,
    LogsIn,
    address_of,
    login_of,
    logs_in,
)


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "[::1]:0", "localhost:1", "127.0.0.2:1"])
def test_loopback_needs_no_user(listen: str) -> None:
    """Nobody else reaches it."""
    assert address_of(ConsoleSettings(listen=listen)).scheme == "tcp"


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "10.0.0.1:80", "console.example:80"])
def test_beyond_loopback_a_user_is_needed(listen: str) -> None:
    """The error says what to do."""
    with pytest.raises(ConfigError, match="add --user NAME"):
        address_of(ConsoleSettings(listen=listen))
    assert address_of(ConsoleSettings(listen=listen, user="ann")).port in (80, 8080)
    assert address_of(ConsoleSettings(listen=listen, cluster_login=True)).port in (80, 8080)


def test_how_people_log_in() -> None:
    """By a password, by keys, or not at all; both is refused."""
    user, keys = ConsoleSettings(user="ann"), ConsoleSettings(cluster_login=True)
    found = [logs_in(each, is_signed=True) for each in (user, keys, ConsoleSettings())]
    assert found == [LogsIn.BY_PASSWORD, LogsIn.BY_KEYS, LogsIn.NOT]
    assert logs_in(ConsoleSettings(), is_signed=False) is LogsIn.BY_KEYS_WHEN_REFUSED
    with pytest.raises(ConfigError, match="or with the keys"):
        address_of(ConsoleSettings(user="ann", cluster_login=True))


@pytest.mark.parametrize("listen", ["8080", "unix:///run/console.sock", "tls://127.0.0.1:1"])
def test_addresses_that_cannot_be(listen: str) -> None:
    """Only HOST:PORT is taken."""
    with pytest.raises(ConfigError, match=r"plugins\.console\.listen"):
        address_of(ConsoleSettings(listen=listen))


def test_where_the_password_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of a file, or the variable."""
    file = tmp_path / "password"
    file.write_text(" of the file \nsecond line\n")
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the variable")
    assert login_of(ConsoleSettings()) is None
    assert login_of(ConsoleSettings(user="ann")) == Login("ann", "of the variable")
    assert login_of(ConsoleSettings(user="ann", password_file=str(file))) == Login("ann", "of the file")


def test_passwords_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing one, a short one, and a file that is none."""
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=PASSWORD_VARIABLE):
        login_of(ConsoleSettings(user="ann"))
    short = tmp_path / "short"
    short.write_text("1234567")
    with pytest.raises(ConfigError, match="at least 8 characters") as raised:
        login_of(ConsoleSettings(user="ann", password_file=str(short)))
    assert "1234567" not in str(raised.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        login_of(ConsoleSettings(user="ann", password_file=str(tmp_path / "none")))
