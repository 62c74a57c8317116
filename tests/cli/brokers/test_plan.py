"""The brokers of `--brokers N`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit import config as settings
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugin.transport import Address
from rmqkit.supervisor import plan
from rmqkit_ha.settings import HaSettings
from rmqkit_hook_metrics.settings import ExporterSettings


def metrics_port(config: Config) -> int:
    return config.owned(ExporterSettings).metrics_prom_exporter_port


def config_in(root: Path, **keys: object) -> Config:
    return settings.load(environ={}, flags={"storePathRootDir": str(root)} | keys)


def used_by_a_broker(directory: Path) -> Path:
    (directory / "commitlog").mkdir(parents=True)
    return directory


@pytest.mark.parametrize(
    ("first", "count", "names"),
    [
        ("broker-a", 3, ["broker-a", "broker-b", "broker-c"]),
        ("broker-c", 2, ["broker-c", "broker-d"]),
        ("east_A", 2, ["east_A", "east_B"]),
        ("broker-a", 26, [f"broker-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]),
        ("orders", 3, ["orders", "orders-2", "orders-3"]),
        ("broker-1", 2, ["broker-1", "broker-1-2"]),
        ("a", 2, ["a", "a-2"]),
        ("broker-z", 1, ["broker-z"]),
    ],
)
def test_names_follow_the_first(first: str, count: int, names: list[str]) -> None:
    """A single letter after a hyphen or underscore is incremented; every other name is numbered from the
    second broker on."""
    assert plan.broker_names(first, count) == names


def test_letters_run_out() -> None:
    """The error contains the available names and an alternative."""
    with pytest.raises(
        ConfigError, match=r"'broker-y' leaves 2 names up to 'broker-z', and --brokers asks for 3.*'broker-1'"
    ):
        plan.broker_names("broker-y", 3)


def test_each_broker_has_a_name_a_port_and_a_directory(tmp_path: Path) -> None:
    """Ports are 10 apart, so that no broker uses another one's fast port; all other settings are equal."""
    planned = plan.several(config_in(tmp_path, flushDiskType="SYNC_FLUSH", listenPort=20_000), 3)
    assert [(one.broker_name, one.listen_port, one.root_path) for one in planned] == [
        ("broker-a", 20_000, tmp_path / "broker-a"),
        ("broker-b", 20_010, tmp_path / "broker-b"),
        ("broker-c", 20_020, tmp_path / "broker-c"),
    ]
    assert {(one.flush_disk_type, one.store_path_commit_log, one.broker_cluster_name) for one in planned} == {
        ("SYNC_FLUSH", "", "DefaultCluster")
    }
    assert list(tmp_path.iterdir()) == []


def test_port_0_is_any_port_for_all(tmp_path: Path) -> None:
    """Port 0 stays 0 for all brokers."""
    assert [
        one.listen_port
        for one in plan.several(config_in(tmp_path, listenPort=0), 2, [Address("tcp", "127.0.0.1", 0)])
    ] == [0, 0]


def test_a_log_that_lies_elsewhere_is_divided_too(tmp_path: Path) -> None:
    """With a separate log directory, brokers do not share log files."""
    planned = plan.several(config_in(tmp_path, storePathCommitLog="/disk/log"), 2)
    assert [one.commit_log_path for one in planned] == [
        Path("/disk/log/broker-a"),
        Path("/disk/log/broker-b"),
    ]


def test_all_else_that_listens_is_apart_too(tmp_path: Path) -> None:
    """Ports of further listeners and of metrics are 10 apart, paths contain the broker's name, and 0 stays
    any port."""
    config = config_in(
        tmp_path, listeners="tls://0.0.0.0:8443,unix:///run/x.sock,127.0.0.1:0", metricsPromExporterPort=5557
    )
    first, second = plan.several(config, 2, kinds=[ExporterSettings])
    assert (first.listeners, metrics_port(first)) == (config.listeners, 5557)
    assert second.listeners == ("tls://0.0.0.0:8453", "unix:///run/x.sock.broker-b", "127.0.0.1:0")
    assert metrics_port(second) == 5567
    assert [
        metrics_port(one)
        for one in plan.several(config_in(tmp_path, metricsPromExporterPort=0), 2, kinds=[ExporterSettings])
    ] == [0, 0]
    with pytest.raises(ConfigError, match=r"listeners: .*nowhere"):
        plan.several(config_in(tmp_path, listeners="nowhere"), 2)


def test_several_brokers_have_no_ports_for_grpc(tmp_path: Path) -> None:
    """A proxy before them has it."""
    for listen in ("0.0.0.0:8081", "auto", "none"):
        config = config_in(tmp_path, **{"plugins.grpc.listen": listen})
        assert [one.plugins["grpc"]["listen"] for one in plan.several(config, 2)] == ["none"] * 2


def test_more_brokers_find_the_directories_of_fewer(tmp_path: Path) -> None:
    """The directory of a broker depends only on its name."""
    two, four = (plan.several(config_in(tmp_path), count) for count in (2, 4))
    assert [one.root_path for one in two] == [one.root_path for one in four[:2]]


def test_ports_run_out(tmp_path: Path) -> None:
    """Too high ports are reported before anything starts."""
    with pytest.raises(ConfigError, match="listenPort 65530 with --brokers 2 needs ports up to 65540"):
        plan.several(config_in(tmp_path, listenPort=65_530), 2)


@pytest.mark.parametrize("port", [9_866, 9_868, 9_876, 9_878])
def test_the_name_servers_port_is_not_a_brokers(tmp_path: Path, port: int) -> None:
    """No normal or fast port of any broker may be the name server's."""
    with pytest.raises(
        ConfigError,
        match=r"broker-[ab] would listen on ports .* and the name server listens on 127.0.0.1:9876",
    ):
        plan.several(config_in(tmp_path, listenPort=port), 2, [Address("tcp", "127.0.0.1", 9_876)])


@pytest.mark.parametrize(("host", "collides"), [("0.0.0.0", True), ("127.0.0.1", True), ("127.0.0.2", False)])
def test_the_same_port_of_another_address_is_free(tmp_path: Path, host: str, collides: bool) -> None:
    """Equal ports collide only on equal addresses or if one address stands for all interfaces."""
    arguments = (config_in(tmp_path, listenPort=9_866), 2, [Address("tcp", host, 9_876)])
    if collides:
        with pytest.raises(ConfigError, match="choose another listenPort"):
            plan.several(*arguments)
    else:
        assert [one.listen_port for one in plan.several(*arguments)] == [9_866, 9_876]


def test_a_directory_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    """The directory is refused because its messages would be invisible; the error names both alternatives."""
    used_by_a_broker(tmp_path)
    with pytest.raises(ConfigError) as caught:
        plan.several(config_in(tmp_path), 2)
    text = str(caught.value)
    assert f"{tmp_path} holds the store of a single broker" in text
    assert "Start without --brokers" in text
    assert f"into {tmp_path / 'broker-a'}" in text


def test_a_single_broker_with_its_log_elsewhere_is_refused_too(tmp_path: Path) -> None:
    """The store is recognised by its tables; the error says where to move the log."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{}")
    with pytest.raises(ConfigError, match="its log files go from /disk/log into /disk/log/broker-a"):
        plan.several(config_in(tmp_path, storePathCommitLog="/disk/log"), 2)


def test_a_broker_cannot_be_called_as_a_store_calls_its_directory(tmp_path: Path) -> None:
    """DATA/commitlog would be taken for the log of a single broker at the next start."""
    with pytest.raises(ConfigError, match="brokerName 'commitlog'"):
        plan.several(config_in(tmp_path, brokerName="commitlog"), 2)


def test_a_single_broker_is_as_it_is_set(tmp_path: Path) -> None:
    """A single broker's settings are unchanged in a new directory, in its own, and in one with unrelated
    content."""
    config = config_in(tmp_path / "new")
    assert plan.single(config) is config
    own = config_in(used_by_a_broker(tmp_path / "own"))
    used_by_a_broker(tmp_path / "own" / "broker-a")
    assert plan.single(own) is own
    used_by_a_broker(tmp_path / "other" / "somebody")
    other = config_in(tmp_path / "other")
    assert plan.single(other) is other


def test_a_single_broker_goes_on_where_several_were(tmp_path: Path) -> None:
    """Without --brokers, the broker continues in its own subdirectory."""
    used_by_a_broker(tmp_path / "broker-a")
    single = plan.single(config_in(tmp_path, storePathCommitLog="/disk/log"))
    assert (single.root_path, single.commit_log_path) == (tmp_path / "broker-a", Path("/disk/log/broker-a"))
    assert (single.broker_name, single.listen_port) == ("broker-a", 10_911)


def test_brokers_that_are_not_started_are_found(tmp_path: Path) -> None:
    """Store directories of brokers that are not started are listed; a single broker's own directory and a
    missing one have none."""
    config = config_in(tmp_path / "data")
    assert plan.not_started(config, plan.several(config, 2)) == []
    for name in ("broker-a", "broker-b", "broker-c", "old"):
        used_by_a_broker(tmp_path / "data" / name)
    (tmp_path / "data" / "lost+found").mkdir()
    (tmp_path / "data" / "note.txt").write_text("x")
    assert plan.not_started(config, plan.several(config, 2)) == [
        tmp_path / "data" / "broker-c",
        tmp_path / "data" / "old",
    ]
    assert plan.not_started(config, [plan.single(config)]) == [
        tmp_path / "data" / name for name in ("broker-b", "broker-c", "old")
    ]
    used_by_a_broker(tmp_path / "data")
    assert plan.not_started(config, [plan.single(config)]) == []


def test_a_master_and_its_slaves(tmp_path: Path) -> None:
    """All have the master's name; ids, roles, ports and directories differ."""
    planned = plan.replicated(config_in(tmp_path, listenPort=20_000), 2, kinds=[HaSettings])
    assert [
        (one.broker_name, one.broker_id, one.listen_port, one.root_path.name, plan.label(one))
        for one in planned
    ] == [
        ("broker-a", 0, 20_000, "broker-a", "broker-a"),
        ("broker-a", 1, 20_010, "broker-a-slave-1", "broker-a-slave-1"),
        ("broker-a", 2, 20_020, "broker-a-slave-2", "broker-a-slave-2"),
    ]
    assert [one.owned(HaSettings).broker_role for one in planned] == ["SYNC_MASTER", "SLAVE", "SLAVE"]


def test_the_role_of_the_master_is_kept(tmp_path: Path) -> None:
    """A configured ASYNC_MASTER stays one; the settings of a slave are refused, and a used directory."""
    given = config_in(tmp_path, brokerRole="ASYNC_MASTER")
    assert plan.replicated(given, 1, kinds=[HaSettings])[0].owned(HaSettings).broker_role == "ASYNC_MASTER"
    with pytest.raises(ConfigError, match="leave brokerId out"):
        plan.replicated(config_in(tmp_path, brokerRole="SLAVE", brokerId=1), 1, kinds=[HaSettings])
    used_by_a_broker(tmp_path)
    with pytest.raises(ConfigError, match="with --replicas 1 each has a directory"):
        plan.replicated(config_in(tmp_path), 1, kinds=[HaSettings])
