"""TLS settings: the same from every kind of file, checked together, and with nothing secret in what is
shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.config import Config, load, properties_text
from rmqkit.config import tls as tls_settings
from rmqkit.errors import ConfigError

CERTIFICATE = {"tls.server.certPath": "c.pem", "tls.server.keyPath": "k.pem"}
CLIENTS = {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": "ca.pem"}


def given(*tables: dict[str, Any], **more: Any) -> Config:
    values: dict[str, Any] = {}
    for table in (*tables, more):
        values |= table
    return load(environ={}, flags=values)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.toml",
            '"tls.server.mode" = "enforcing"\n"tls.server.certPath" = "c"\n'
            '"tls.server.need.client.auth" = "optional"\n'
            '"tls.server.trustCertPath" = "t"\n"tls.enable" = true\n',
        ),
        (
            "a.toml",
            '[tls]\nenable = true\n[tls.server]\nmode = "enforcing"\ncertPath = "c"\n'
            'need.client.auth = "optional"\ntrustCertPath = "t"\n',
        ),
        (
            "a.toml",
            '["tls.server"]\nmode = "enforcing"\ncertPath = "c"\ntrustCertPath = "t"\n'
            'need = { client = { auth = "optional" } }\n[tls]\nenable = true\n',
        ),
        (
            "broker.conf",
            "tls.server.mode=enforcing\ntls.server.certPath = c\ntls.server.need.client.auth=optional\n"
            "tls.server.trustCertPath: t\ntls.enable true\n",
        ),
    ],
    ids=["quoted", "tables", "mixed", "properties"],
)
def test_every_form_of_a_file(tmp_path: Path, name: str, text: str) -> None:
    """RocketMQ's keys have dots, which TOML reads as tables unless they are quoted; both are the same, and
    other tables stay a plugin's."""
    file = tmp_path / name
    file.write_text(text + ("[audit]\npath = 'x'\n" if name.endswith(".toml") else ""))
    config = load(file, environ={})
    assert (config.tls_server_mode, config.tls_server_cert_path, config.tls_enable) == (
        "enforcing",
        "c",
        True,
    )
    assert (config.tls_server_need_client_auth, config.tls_server_trust_cert_path) == ("optional", "t")
    assert config.unknown == ({"audit": {"path": "x"}} if name.endswith(".toml") else {})
    assert config.sources["tls.server.mode"] == f"file {file}"
    assert config.warnings == ()


def test_the_environment() -> None:
    """Dots are underscores there."""
    config = load(environ={"RMQKIT_TLS_ENABLE": "true", "RMQKIT_TLS_CLIENT_TRUST_CERT_PATH": "ca.pem"})
    assert (config.tls_enable, config.tls_client_trust_cert_path) == (True, "ca.pem")


@pytest.mark.parametrize("name", ["tlsServerMode", "tls.server.certpath", "tls_enable", "TLS.ENABLE"])
def test_another_spelling_stops_the_start(name: str) -> None:
    """Who writes it believes it is in force; the error says how it is written."""
    with pytest.raises(ConfigError, match=r"command line.*write tls\."):
        load(environ={}, flags={name: "x"})
    with pytest.raises(
        ConfigError, match=r"environment RMQKIT_TLS_SERVER_CERTPATH.*write tls\.server\.certPath"
    ):
        load(environ={"RMQKIT_TLS_SERVER_CERTPATH": "x"})


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({}, "disabled"),
        ({"tls.server.mode": "permissive"}, "disabled"),
        (CERTIFICATE, "permissive"),
        ({"tls.test.mode.enable": True}, "permissive"),
        (CERTIFICATE | {"tls.server.mode": "disabled"}, "disabled"),
        (CERTIFICATE | {"tls.server.mode": "enforcing"}, "enforcing"),
    ],
    ids=["nothing", "no certificate", "certificate", "test mode", "disabled", "enforcing"],
)
def test_the_mode(values: dict[str, Any], mode: str) -> None:
    """As asked for; of itself permissive, as RocketMQ has it, once there is a certificate."""
    assert tls_settings.effective_mode(given(values)) == mode


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tls.server.mode": "on"}, "tls.server.mode = 'on'.*is disabled, permissive, enforcing"),
        ({"tls.server.mode": "enforcing"}, "tls.server.mode.*tls.server.certPath"),
        ({"tls.server.keyPath": "k"}, "tls.server.keyPath.*without tls.server.certPath"),
        ({"tls.client.keyPath": "k"}, "tls.client.keyPath.*without tls.client.certPath"),
        ({"tls.server.need.client.auth": "yes"}, "tls.server.need.client.auth.*is none, optional or require"),
        (CLIENTS, "tls.server.need.client.auth.*tls.server.certPath"),
        (
            CERTIFICATE | {"tls.server.need.client.auth": "optional"},
            "tls.server.need.client.auth.*tls.server.trustCertPath",
        ),
        (CERTIFICATE | CLIENTS | {"tls.server.authClient": False}, "tls.server.authClient.*always checked"),
    ],
)
def test_what_does_not_fit_together(values: dict[str, Any], said: str) -> None:
    """Stops the start, naming the key and what is missing."""
    with pytest.raises(ConfigError, match=said.replace(".", r"\.").replace(r"\.*", ".*")):
        given(values)


def test_required_is_require() -> None:
    """RocketMQ's documents write both; its program reads the second as none at all."""
    config = given(
        CERTIFICATE, CLIENTS, {"tls.server.need.client.auth": "required", "tls.server.mode": "enforcing"}
    )
    assert tls_settings.client_auth(config) == tls_settings.REQUIRE
    assert config.warnings == ()


def test_warnings() -> None:
    """What sounds safer than it is."""
    (warning,) = given({"tls.server.mode": "permissive"}).warnings
    assert "only plain connections" in warning
    (warning,) = given(CERTIFICATE, CLIENTS).warnings
    assert "set tls.server.mode = enforcing" in warning
    for key, value in (("tls.test.mode.enable", True), ("tls.client.authServer", False)):
        (warning,) = given({key: value}).warnings
        assert key in warning
        assert "trusts every server" in warning
    assert given(CERTIFICATE).warnings == ()


def test_passwords_are_not_shown() -> None:
    """Not where settings are printed, told to administrators, or in a traceback; nor a plugin's."""
    config = load(
        environ={"RMQKIT_TLS_CLIENT_KEY_PASSWORD": "hush-1"},
        flags=[
            ("tls.server.keyPassword", "hush-2"),
            ("my.password", "hush-3"),
            ("mine", {"clientSecret": "hush-4", "path": "x"}),
        ],
    )
    assert (config.tls_client_key_password, config.tls_server_key_password) == ("hush-1", "hush-2")
    shown = f"{config!r} {config.described()} {properties_text(config)} {config.warnings}"
    assert "hush" not in shown
    assert shown.count("***") > 3
    assert "'path': 'x'" in shown
    with pytest.raises(ConfigError) as error:
        load(environ={}, flags={"tls.server.keyPassword": ["hush"]})
    assert "hush" not in str(error.value)
