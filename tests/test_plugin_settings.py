"""Settings of plugins: read from every source, typed, and each fault named with its key and source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmqkit import config as settings
from rmqkit.config import Config
from rmqkit.errors import ConfigError


class AuditLike(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a plugin may ask for."""

    file: str = "audit.jsonl"
    max_bytes: int = 1_000
    topics: tuple[str, ...] = ()
    body: bool = False

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError("maxBytes must be positive")


def loaded(
    tmp_path: Path,
    text: str = "",
    environ: Mapping[str, str] | None = None,
    name: str = "s.toml",
    **flags: Any,
) -> Config:
    path = tmp_path / name
    path.write_text(text)
    return settings.load(path, environ=environ or {}, flags=flags)


def read(config: Config) -> AuditLike:
    return config.plugin_settings("audit", AuditLike)


def test_a_table_is_the_plugins_struct(tmp_path: Path) -> None:
    """With the struct's defaults for the rest, and without a warning."""
    config = loaded(tmp_path, '[plugins.audit]\nfile = "a"\ntopics = ["x", "y"]\n')
    assert read(config) == AuditLike(file="a", topics=("x", "y"))
    assert config.warnings == ()
    assert read(Config()) == AuditLike()


def test_properties_the_environment_and_flags_say_the_same(tmp_path: Path) -> None:
    """Each in its own spelling; numbers, switches and lists come as text there."""
    expected = AuditLike(max_bytes=7, topics=("x", "y"), body=True)
    text = "plugins.audit.maxBytes=7\nplugins.audit.topics=x,y\nplugins.audit.body=true\n"
    assert read(loaded(tmp_path, text, name="broker.conf")) == expected
    variables = {"MAX_BYTES": "7", "TOPICS": "x,y", "BODY": "true"}
    assert (
        read(
            loaded(
                tmp_path, environ={f"RMQKIT_PLUGINS__AUDIT__{key}": value for key, value in variables.items()}
            )
        )
        == expected
    )
    flags: dict[str, Any] = {
        "plugins.audit.maxBytes": "7",
        "plugins.audit.topics": "x,y",
        "plugins.audit.body": "true",
    }
    assert read(loaded(tmp_path, **flags)) == expected


def test_the_later_source_wins_whatever_its_spelling(tmp_path: Path) -> None:
    """File, then environment, then command line."""
    text, variable = "[plugins.audit]\nmaxBytes = 1\n", {"RMQKIT_PLUGINS__AUDIT__MAX_BYTES": "2"}
    assert read(loaded(tmp_path, text)).max_bytes == 1
    assert read(loaded(tmp_path, text, variable)).max_bytes == 2
    assert read(loaded(tmp_path, text, variable, **{"plugins.audit.maxBytes": "3"})).max_bytes == 3


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[plugins.audit]\nmaxByte = 1\n",
            (
                r"plugins.audit.maxByte \(file .*s.toml\): plugin 'audit' has no such setting; did you mean"
                r" 'maxBytes'\?"
            ),
        ),
        ("[plugins.audit]\nmax_bytes = 1\n", "did you mean 'maxBytes'"),
        ("[plugins.audit]\nmaxBytes = 'many'\n", r"plugins.audit.maxBytes \(file .*\): Expected `int`"),
        ("[plugins.audit]\nmaxBytes = 0\n", "settings of plugin 'audit': maxBytes must be positive"),
    ],
)
def test_a_fault_names_key_and_source(tmp_path: Path, text: str, fault: str) -> None:
    """An unknown key with the nearest there is; a wrong type; what the plugin itself refuses."""
    with pytest.raises(ConfigError, match=fault):
        read(loaded(tmp_path, text))


@pytest.mark.parametrize("text", ["plugins = 1\n", "[plugins]\naudit = 1\n"])
def test_plugins_holds_tables(tmp_path: Path, text: str) -> None:
    """Anything else stops the start, with an example of the form."""
    with pytest.raises(ConfigError, match=r"one table for each plugin, as in \[plugins.audit\]"):
        loaded(tmp_path, text)
    with pytest.raises(ConfigError, match=r"write plugins.PLUGIN.KEY"):
        loaded(tmp_path, "plugins.audit=1\n", name="broker.conf")
    with pytest.raises(ConfigError, match="write RMQKIT_PLUGINS__PLUGIN__KEY"):
        loaded(tmp_path, environ={"RMQKIT_PLUGINS__AUDIT": "1"})


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("secretKey", True),
        ("tls.server.keyPassword", True),
        ("innerClientAuthenticationCredentials", True),
        ("initAuthenticationUser", True),
        ("metricsGrpcExporterHeader", True),
        ("accessKey", False),
        ("tls.server.keyPath", False),
        ("userCacheMaxNum", False),
    ],
)
def test_secrets_are_known_by_their_names(key: str, secret: bool) -> None:
    """What is shown, and what a backup keeps of a broker's settings, has none of them."""
    assert settings.is_secret(key) is secret


def test_they_are_shown_but_not_told_to_clients(tmp_path: Path) -> None:
    """`described` has each with its source and masks secrets; the answer to GET_BROKER_CONFIG leaves them
    out: only the plugin knows what is secret."""
    config = loaded(tmp_path, '[plugins.audit]\nfile = "a"\npassword = "p"\n')
    rows = {key: (value, source) for key, value, source in config.described()}
    assert rows["plugins.audit.file"] == ("a", f"file {tmp_path / 's.toml'}")
    assert rows["plugins.audit.password"][0] == "***"
    assert "plugins" not in settings.properties_text(config)
