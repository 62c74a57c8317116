"""Settings: who wins, where each came from, and that nothing asked for is ignored in silence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.config import (
    Config,
    decoded_properties,
    encoded_properties,
    load,
    parse_properties,
    properties_text,
    with_tables,
    with_values,
)
from rmqkit.errors import ConfigError
from rmqkit.rocketmq_settings import bare
from rmqkit_store_mmap.settings import MmapSettings


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def from_toml(tmp_path: Path, text: str) -> Config:
    return load(written(tmp_path / "rmqkit.toml", text), environ={})


def test_defaults() -> None:
    """Without file, environment and flags everything is as documented, safe to start, and says so."""
    loaded = load(environ={})
    assert loaded == Config()
    assert (loaded.listen_port, loaded.broker_name, loaded.bind_address, loaded.flush_disk_type) == (
        10911,
        "broker-a",
        "127.0.0.1",
        "ASYNC_FLUSH",
    )
    assert (loaded.sources, loaded.unknown, loaded.warnings) == ({}, {}, ())
    assert {source for _, _, source in loaded.described()} == {"default"}


def test_precedence(tmp_path: Path) -> None:
    """Defaults < file < environment < command line, and each value knows its source."""
    file = written(
        tmp_path / "rmqkit.toml", 'listenPort = 1001\nbrokerName = "from-file"\nmaxMessageSize = 1000\n'
    )
    environ = {"RMQKIT_LISTEN_PORT": "1002", "RMQKIT_BROKER_NAME": "from-environment", "PATH": "/bin"}
    loaded = load(file, environ=environ, flags={"listenPort": 1003})
    assert (loaded.listen_port, loaded.broker_name, loaded.max_message_size) == (
        1003,
        "from-environment",
        1000,
    )
    sources = {key: source for key, _, source in loaded.described()}
    assert sources["listenPort"] == "command line"
    assert sources["brokerName"] == "environment RMQKIT_BROKER_NAME"
    assert sources["maxMessageSize"] == f"file {file}"
    assert sources["brokerId"] == "default"
    assert loaded.warnings == ()
    assert load(file, environ=environ).listen_port == 1002
    assert load(file, environ={}).listen_port == 1001


@pytest.mark.row("S012")
def test_both_file_formats_say_the_same(tmp_path: Path) -> None:
    """A broker.conf and a TOML file with the same settings give the same configuration."""
    conf = (
        "brokerClusterName = C1\nbrokerName=b-1\nautoCreateTopicEnable=false\nlistenPort:"
        " 10920\ndisabledPlugins=a, b;c\n"
    )
    toml = (
        'brokerClusterName = "C1"\nbrokerName = "b-1"\nautoCreateTopicEnable = false\nlistenPort ='
        ' 10920\ndisabledPlugins = ["a", "b", "c"]\n'
    )
    one = load(written(tmp_path / "broker.conf", conf), environ={})
    other = load(written(tmp_path / "broker.TOML", toml), environ={})
    assert msgspec.structs.replace(one, sources={}, file="") == msgspec.structs.replace(
        other, sources={}, file=""
    )
    assert one.disabled_plugins == ("a", "b", "c")
    assert one.auto_create_topic_enable is False


def test_every_setting_from_the_environment() -> None:
    """Each setting has one environment name, the upper form of its key."""
    assert load(environ={"RMQKIT_BROKER_IP1": "10.0.0.9"}).advertised_host == "10.0.0.9"
    for field in msgspec.structs.fields(Config):
        if field.type is bool:
            name = "RMQKIT_" + field.name.upper()
            loaded = load(environ={name: "false" if field.default else "true"})
            assert getattr(loaded, field.name) is not field.default
            assert loaded.sources == {field.encode_name: f"environment {name}"}


def test_rocketmq_keys_of_the_environment() -> None:
    """RocketMQ's keys that are not settings here have environment names too, so that nothing asked for there
    is lost."""
    assert load(environ={"RMQKIT_IN_SYNC_REPLICAS": "2"}).unknown == {"inSyncReplicas": "2"}


def test_name_server_variable() -> None:
    """NAMESRV_ADDR, which RocketMQ's own tools read, counts unless our own variable is there."""
    loaded = load(environ={"NAMESRV_ADDR": "a:9876; b:9876;"})
    assert loaded.name_servers == ("a:9876", "b:9876")
    assert loaded.sources["namesrvAddr"] == "environment NAMESRV_ADDR"
    assert load(environ={"NAMESRV_ADDR": "a:1", "RMQKIT_NAMESRV_ADDR": "b:2"}).name_servers == ("b:2",)
    assert load(environ={}).name_servers == ()


def test_aliases(tmp_path: Path) -> None:
    """RocketMQ's old misspelling is taken for the setting it means."""
    loaded = load(
        written(
            tmp_path / "broker.conf", "mapedFileSizeCommitLog=2000000000\nmapedFileSizeConsumeQueue=600\n"
        ),
        environ={},
    )
    assert loaded.mapped_file_size_commit_log == 2_000_000_000
    assert loaded.owned(MmapSettings).mapped_file_size_consume_queue == 600
    assert loaded.warnings == ()
    assert "mappedFileSizeCommitLog" in loaded.sources


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("flush_disk_type", "flushDiskType"),
        ("flushdisktype", "flushDiskType"),
        ("FLUSH_DISK_TYPE", "flushDiskType"),
        ("broker.name", "brokerName"),
        ("brokerNmae", "brokerName"),
        ("somethingElse", None),
    ],
)
def test_unknown_keys_warn(key: str, meant: str | None) -> None:
    """A key no setting has is kept for plugins and warned of with its source, and with the key that was
    probably meant."""
    loaded = load(environ={}, flags={key: "x"})
    assert loaded.unknown == {key: "x"}
    (warning,) = loaded.warnings
    assert repr(key) in warning
    assert "command line" in warning
    assert ("did you mean" in warning) is (meant is not None)
    assert meant is None or repr(meant) in warning
    assert (key, "x", "command line (unknown key)") in loaded.described()


def test_unknown_environment_names_warn() -> None:
    """A misspelt variable with our prefix is warned of; other people's variables are none of ours."""
    loaded = load(environ={"RMQKIT_FLUSHDISKTYPE": "SYNC_FLUSH", "HOME": "/", "rmqkit_x": "1"})
    (warning,) = loaded.warnings
    assert "RMQKIT_FLUSHDISKTYPE" in warning
    assert "did you mean 'RMQKIT_FLUSH_DISK_TYPE'?" in warning
    assert loaded.flush_disk_type == "ASYNC_FLUSH"
    (warning,) = load(environ={"RMQKIT_LOG_LEVL": "DEBUG"}).warnings
    assert "did you mean 'RMQKIT_LOG_LEVEL'?" in warning


@pytest.mark.parametrize("name", ["RMQKIT_PURE", "RMQKIT_COMPILED"])
def test_variables_of_the_compiled_part_are_no_settings(name: str) -> None:
    """They are read when rmqkit is imported or built."""
    loaded = load(environ={name: "1"})
    assert loaded.warnings == ()
    assert loaded.unknown == {}


def test_quiet_unknown_keys(tmp_path: Path) -> None:
    """Tables belong to plugins, and what a start makes of RocketMQ's own keys is not decided here: no warning
    for either."""
    loaded = from_toml(tmp_path, "sendMessageThreadPoolNums = 4\n[audit]\npath = 'x'\n")
    assert loaded.warnings == ()
    assert loaded.unknown == {"sendMessageThreadPoolNums": 4, "audit": {"path": "x"}}


@pytest.mark.parametrize(
    "text",
    [
        '"tls.config.file" = "/etc/rocketmq/tls.properties"',
        'tls.ciphers = "ALL"',
        '[tls]\nprotocols = "TLSv1"',
        "useTLS = true",
    ],
)
def test_security_keys_stop_the_start(tmp_path: Path, text: str) -> None:
    """A setting that asks for protection which is not there is refused, in whatever spelling or table, and
    the error names the file."""
    with pytest.raises(ConfigError, match=r"rmqkit\.toml.*asks for protection"):
        from_toml(tmp_path, text)


def test_security_keys_of_the_environment_and_the_command_line() -> None:
    """The environment and the command line are checked like a file."""
    with pytest.raises(ConfigError, match="environment RMQKIT_TLS_CIPHERS"):
        load(environ={"RMQKIT_TLS_CIPHERS": "true"})
    with pytest.raises(ConfigError, match=r"tls\.ciphers.*command line"):
        load(environ={}, flags=[("tls.ciphers", "ALL")])


def test_harmless_security_values(tmp_path: Path) -> None:
    """Asking for no protection is granted without a word."""
    loaded = from_toml(
        tmp_path, 'aclEnable = false\nuseTLS = false\n"tls.server.mode" = "disabled"\ntls.enable = "False"\n'
    )
    assert loaded.warnings == ()
    assert load(environ={"RMQKIT_ACL_ENABLE": "false"}).warnings == ()


def test_one_log_directory() -> None:
    """RocketMQ can spread its log over several directories; a list of them is refused rather than taken for a
    name."""
    with pytest.raises(ConfigError, match=r"storePathCommitLog.*several paths"):
        load(environ={}, flags={"storePathCommitLog": "/disk1/log,/disk2/log"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "many"),
        ("listenPort", 1.5),
        ("listenPort", [1]),
        ("listenPort", ""),
        ("autoCreateTopicEnable", "perhaps"),
        ("autoCreateTopicEnable", 5),
        ("brokerName", True),
        ("brokerName", ["b"]),
        ("disabledPlugins", 5),
        ("disabledPlugins", [1]),
    ],
)
def test_wrong_types(key: str, value: object) -> None:
    """A value of a wrong type is refused with key, value and source."""
    with pytest.raises(ConfigError, match=f"setting {key} = .*command line"):
        load(environ={}, flags={key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "-1"),
        ("listenPort", "65536"),
        ("brokerId", "1"),
        ("brokerName", "../x"),
        ("brokerName", ""),
        ("brokerClusterName", "a/b"),
        ("mappedFileSizeCommitLog", "1024"),
        ("maxMessageSize", "0"),
        ("transientStorePoolSize", "0"),
        ("flushConsumerOffsetInterval", "0"),
    ],
)
def test_values_that_cannot_work(tmp_path: Path, key: str, value: str) -> None:
    """A value out of its range is refused with key, value and source."""
    file = written(tmp_path / "broker.conf", f"{key}={value}\n")
    with pytest.raises(ConfigError, match=rf"setting {key} = '?{value}'? \(file .*broker\.conf\)"):
        load(file, environ={})


def test_all_faults_at_once() -> None:
    """Several faults are told together, so that nobody mends them one start at a time."""
    with pytest.raises(ConfigError, match=r"listenPort.*maxMessageSize.*transientStorePoolSize"):
        load(environ={}, flags={"listenPort": -1, "maxMessageSize": 0, "transientStorePoolSize": 0})


def test_numbers_where_text_belongs() -> None:
    """A name that looks like a number in TOML is still a name."""
    assert load(environ={}, flags={"brokerName": 5}).broker_name == "5"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing, a broken and an undecodable file of TOML are named."""
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load(tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML"):
        load(written(tmp_path / "bad.toml", "a = = 1"), environ={})
    (tmp_path / "latin.toml").write_bytes(b"brokerName='\xff'\n")
    with pytest.raises(ConfigError, match=r"latin\.toml is not TOML, which is UTF-8"):
        load(tmp_path / "latin.toml", environ={})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gbk", "gb18030", "big5", "cp932", "latin-1"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_properties_have_any_encoding(tmp_path: Path, encoding: str, end: str) -> None:
    """Java reads Latin-1: comments of another encoding are odd text, and the settings count, the first one
    after a byte order mark as well."""
    comment = "é" if encoding == "latin-1" else "中文"
    lines = ["brokerName=first", f"# {comment}", "regionId = after ", ""]
    (tmp_path / "broker.conf").write_bytes(end.join(lines).encode(encoding))
    config = load(tmp_path / "broker.conf", environ={})
    assert (config.broker_name, config.region_id, config.warnings) == ("first", "after", ())


@given(st.binary(max_size=200))
def test_every_file_of_properties_has_a_text(data: bytes) -> None:
    """The bytes come back as they were, whatever they are."""
    text, encoding = decoded_properties(data)
    assert encoded_properties(text, encoding) == data


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=b\nc = d\ne:f\ng h\ni\n", {"a": "b", "c": "d", "e": "f", "g": "h", "i": ""}),
        ("# comment\n! comment\n\n   \n  a = b  \n", {"a": "b"}),
        ("a=b=c\nd:e=f\n", {"a": "b=c", "d": "e=f"}),
        ("a\\=b=c\na\\:d=e\na\\ f=g\n", {"a=b": "c", "a:d": "e", "a f": "g"}),
        ("path=C:\\\\data\\\\x\n", {"path": "C:\\data\\x"}),
        ("a=1\\\n   2\\\n\t3\nb=4\n", {"a": "123", "b": "4"}),
        ("a=even\\\\\nb=2\n", {"a": "even\\", "b": "2"}),
        ("a=x\\ty\\nz\\u00e9\\q\n", {"a": "x\ty\nzéq"}),
        ("a=\\uD83D\\uDE00\n", {"a": "😀"}),
        ("a=\\uD83D.\n", {"a": "\ufffd."}),
        ("a=1\ra=2\r\nb=3", {"a": "2", "b": "3"}),
        ("a=x\u2028y\x85z\n", {"a": "x\u2028y\x85z"}),
        ("a=ends\\", {"a": "ends"}),
        ("#a\\\nb=1\n", {"b": "1"}),
        ("a=\\\n#b\n", {"a": "#b"}),
        ("=v\n", {"": "v"}),
        ("", {}),
    ],
)
def test_java_properties(text: str, values: dict[str, str]) -> None:
    """Java's rules: three separators, comments, escapes (also a pair for one character), lines continued
    by an odd number of backslashes."""
    assert parse_properties(text) == values


@settings(max_examples=200, deadline=None, database=None)
@given(st.text(max_size=60) | st.text(st.sampled_from("a=: \t\\\n\r#!u0"), max_size=60))
def test_any_text_is_properties(text: str) -> None:
    """Any text reads, since a broker gets such text from the network, and what comes out can be written as
    UTF-8."""
    for key, value in parse_properties(text).items():
        (key + value).encode()


def test_long_continued_line() -> None:
    """A value over a hundred thousand lines is put together once, not line by line."""
    assert parse_properties("a=" + "xy\\\n" * 100_000 + "z") == {"a": "xy" * 100_000 + "z"}


def test_properties_text_reads_back() -> None:
    """What GET_BROKER_CONFIG answers reads back to the same settings."""
    loaded = load(
        environ={}, flags={"brokerName": "b-7", "disabledPlugins": "x,y", "traceOn": False, "custom": "1"}
    )
    text = properties_text(loaded)
    assert "brokerName=b-7\n" in text
    assert "traceOn=false\n" in text
    assert "disabledPlugins=x,y\n" in text
    assert "custom=1\n" in text
    again = load(environ={}, flags=parse_properties(text))
    assert msgspec.structs.replace(again, sources={}, warnings=()) == msgspec.structs.replace(
        loaded, sources={}, warnings=()
    )


def test_with_tables() -> None:
    """Keys of plugins are replaced with their source; the others stay."""
    first = load(environ={}, flags={"plugins.audit.path": "x", "plugins.audit.maxBytes": 1})
    second = with_tables(first, {"audit": {"maxBytes": 2}, "ha": {"elected": True}}, "here")
    assert second.plugins == {"audit": {"path": "x", "maxBytes": 2}, "ha": {"elected": True}}
    assert second.sources["plugins.audit.maxBytes"] == second.sources["plugins.ha.elected"] == "here"
    assert first.plugins == {"audit": {"path": "x", "maxBytes": 1}}


def test_with_values() -> None:
    """A changed copy is checked, knows its source, and leaves the first as it was."""
    first = load(environ={"RMQKIT_LISTEN_PORT": "1"})
    second = with_values(first, listen_port=0, broker_ip1="10.0.0.1")
    assert (first.listen_port, second.listen_port) == (1, 0)
    assert second.sources == {"listenPort": "command line", "brokerIP1": "command line"}
    with pytest.raises(ConfigError, match="listenPort"):
        with_values(first, listen_port=70_000)
    with pytest.raises(AttributeError):
        first.listen_port = 5  # type: ignore[misc]


def test_paths() -> None:
    """The log lies in the root unless it has a place of its own; tables are in config."""
    assert Config(store_path_root_dir="/d").commit_log_path == Path("/d/commitlog")
    assert Config(store_path_root_dir="/d", store_path_commit_log="/log").commit_log_path == Path("/log")
    assert Config(store_path_root_dir="/d").config_path == Path("/d/config")
    assert Config(bind_address="10.0.0.2").advertised_host == "10.0.0.2"


def test_keys_are_distinct_in_every_spelling() -> None:
    """No two settings differ only in case, so that a suggestion and an environment name mean one."""
    keys = [key for key, _, _ in Config().described()]
    assert len({bare(key) for key in keys}) == len(keys) > 50
