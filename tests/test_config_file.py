"""Single settings changed in a configuration file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rmqkit.config import load, parse_properties
from rmqkit.config_file import change, edited
from rmqkit.errors import ConfigError


def test_properties_keep_comments_and_order() -> None:
    """The last of several lines counts; a new key comes at the end."""
    text = "# mine\nfileReservedTime = 48\nbrokerName: a\nfileReservedTime=24\n  longPollingEnable true\n"
    after = edited(text, {"fileReservedTime": 12, "longPollingEnable": False, "regionId": "a\\b"}, toml=False)
    assert (
        after == "# mine\nfileReservedTime = 48\nbrokerName:"
        " a\nfileReservedTime=12\nlongPollingEnable=false\nregionId=a\\\\b\n"
    )
    assert parse_properties(after) == {
        "fileReservedTime": "12",
        "brokerName": "a",
        "longPollingEnable": "false",
        "regionId": "a\\b",
    }


def test_toml_keeps_tables() -> None:
    """Settings are those before the first table, also where a table has a key of the same name."""
    text = 'brokerName = "a" # name\nfileReservedTime = 48\n\n[plugins.x]\nbrokerPermission = 1\n'
    after = edited(text, {"brokerPermission": 4, "fileReservedTime": 12, "regionId": 'q"'}, toml=True)
    assert tomllib.loads(after) == {
        "brokerName": "a",
        "fileReservedTime": 12,
        "brokerPermission": 4,
        "regionId": 'q"',
        "plugins": {"x": {"brokerPermission": 1}},
    }
    assert after.startswith('brokerName = "a" # name\nfileReservedTime = 12\n')
    assert edited("", {"longPollingEnable": True}, toml=True) == "longPollingEnable = true\n"


@pytest.mark.parametrize(
    ("text", "toml"),
    [
        ("fileReserved\\\nTime=48\nfileReservedTime = \\\n 24\n", False),
        ('a = """\nfileReservedTime = 1\n"""\n', True),
    ],
)
def test_what_cannot_be_changed_line_by_line_is_refused(text: str, toml: bool) -> None:
    """Rather than changed wrongly."""
    with pytest.raises(ConfigError, match="set fileReservedTime by hand"):
        edited(text, {"fileReservedTime": 12}, toml=toml)


def test_the_file_is_replaced_with_its_permissions(tmp_path: Path) -> None:
    """A link still leads to it."""
    path, link = tmp_path / "broker.conf", tmp_path / "link.conf"
    path.write_text("brokerName=a\n")
    path.chmod(0o600)
    link.symlink_to(path)
    change(link, {"fileReservedTime": 12})
    assert link.is_symlink()
    assert path.read_text() == "brokerName=a\nfileReservedTime=12\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["broker.conf", "link.conf"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gbk"])
def test_the_encoding_of_properties_stays(tmp_path: Path, encoding: str) -> None:
    """Comments keep their bytes; a value that the encoding lacks is written as an escape."""
    before = "# 中文\nbrokerName=a\n".encode(encoding)
    path = tmp_path / "broker.conf"
    path.write_bytes(before)
    change(path, {"brokerName": "b", "regionId": "\u6e2f\U0001f600"})
    after = path.read_bytes()
    assert after.startswith(before.replace(b"=a\n", b"=b\n"))
    values = load(path, environ={})
    assert (values.broker_name, values.region_id) == ("b", "\u6e2f\U0001f600")
