"""How a job reaches its cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_rocketmq.options.connection import client_keywords
from pyspark_rocketmq.options.write import WriteOptions
from rmqkit.errors import ConfigError

SERVER = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def test_what_a_client_gets(tmp_path: Path) -> None:
    """Transport and credentials, from the options or from a file; without them the environment's count."""
    assert client_keywords(WriteOptions.parse(SERVER)) == {"transport": ""}
    given = WriteOptions.parse(SERVER | {"tls": "true", "accessKey": "app", "secretKey": "pssst"})
    assert client_keywords(given) == {"transport": "tls", "access_key": "app", "secret_key": "pssst"}
    (tmp_path / "keys").write_text("# of the job\naccessKey=app\nsecretKey = from file\n")
    given = WriteOptions.parse(SERVER | {"credentialsFile": str(tmp_path / "keys")})
    assert client_keywords(given) == {"transport": "", "access_key": "app", "secret_key": "from file"}


def test_a_file_without_credentials(tmp_path: Path) -> None:
    """The error names the file and the lines, and shows nothing of it."""
    (tmp_path / "keys").write_text("secretKey=pssst\n")
    for name in ("keys", "missing"):
        with pytest.raises(ConfigError, match=name) as caught:
            client_keywords(WriteOptions.parse(SERVER | {"credentialsFile": str(tmp_path / name)}))
        assert "pssst" not in str(caught.value)
