"""`rmqkit plugins`, `rmqkit config`, `rmqkit topic`, help and version."""

from __future__ import annotations

import json
from pathlib import Path

from rmqkit import __version__, speedups
from tests.cli.conftest import Ready, Run


def test_plugins_lists_what_each_brings(rmqkit: Run) -> None:
    """The list has name, package, version, registrations and whether the plugin is enabled."""
    result = rmqkit("plugins", "--json", "--set", "disabledPlugins=delay")
    assert result.returncode == 0, result.stderr
    plugins = {plugin["name"]: plugin for plugin in json.loads(result.stdout)}
    assert plugins["mmap"]["registers"] == ["store: mmap", "store tools: mmap", "settings: mmap"]
    assert plugins["mmap"]["package"] == "rmqkit"
    assert plugins["mmap"]["version"] == __version__
    assert plugins["delay"] == {
        "name": "delay",
        "package": "rmqkit",
        "version": __version__,
        "enabled": False,
        "registers": [],
    }
    table = rmqkit("plugins")
    assert table.stdout.splitlines()[0].split() == ["NAME", "PACKAGE", "VERSION", "ENABLED", "REGISTERS"]


def test_config_names_the_source_of_every_value(rmqkit: Run, tmp_path: Path) -> None:
    """The sources are, in increasing priority, defaults, file, environment and command line."""
    (tmp_path / "broker.conf").write_text(
        "brokerName=from-file\nregionId=from-file\ndefaultTopicQueueNums=3\n"
    )
    result = rmqkit(
        "config",
        "--json",
        "--config",
        "broker.conf",
        "--set",
        "brokerName=from-flag",
        env={"RMQKIT_REGION_ID": "from-env", "RMQKIT_BROKER_NAME": "no"},
    )
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["brokerName"] == {"value": "from-flag", "source": "command line"}
    assert values["regionId"] == {"value": "from-env", "source": "environment RMQKIT_REGION_ID"}
    assert values["defaultTopicQueueNums"] == {"value": 3, "source": "file broker.conf"}
    assert values["listenPort"] == {"value": 10911, "source": "default"}


def test_topics_are_created_shown_and_deleted(rmqkit: Run, server: Ready) -> None:
    """A topic is created, shown and deleted on the command line, with --json for every read."""
    namesrv = ("--namesrv", server.where["namesrv"])
    created = rmqkit("topic", "create", "Mine", "--queues", "3", *namesrv)
    assert (created.returncode, created.stdout) == (0, "topic Mine created on broker-a\n"), created.stderr
    again = rmqkit("topic", "create", "Mine", "--queues", "3", *namesrv)
    assert (again.returncode, again.stdout) == (0, "topic Mine unchanged on broker-a\n"), again.stderr
    changed = rmqkit("topic", "create", "Mine", "--queues", "3", "--order", "--json", *namesrv)
    assert json.loads(changed.stdout) == {"topic": "Mine", "updated": ["broker-a"]}
    # The broker registers the new topic by itself; a send waits for that no longer than the client's retries.
    assert rmqkit("send", "Mine", "x", *namesrv).returncode == 0
    route = json.loads(rmqkit("topic", "route", "Mine", *namesrv, "--json").stdout)
    assert [(queue["brokerName"], queue["readQueueNums"]) for queue in route["queueDatas"]] == [
        ("broker-a", 3)
    ]
    assert "Mine" in json.loads(rmqkit("topic", "list", *namesrv, "--json").stdout)
    stats = json.loads(rmqkit("topic", "stats", "Mine", *namesrv, "--json").stdout)
    assert [queue["queueId"] for queue in stats] == [0, 1, 2]
    assert sum(queue["maxOffset"] for queue in stats) == 1
    typed = rmqkit("topic", "create", "Mine", "--queues", "3", "--type", "delay", *namesrv)
    assert (typed.returncode, typed.stdout) == (0, "topic Mine updated on broker-a\n"), typed.stderr
    (shown,) = json.loads(rmqkit("topic", "show", "Mine", *namesrv, "--json").stdout)
    assert (shown["brokerName"], shown["readQueueNums"], shown["order"]) == ("broker-a", 3, False)
    assert (shown["messageType"], shown["attributes"]) == ("DELAY", {"message.type": "DELAY"})
    words = ("--queues", "3", "--attribute", "+dedup.window=10m", "--attribute", "+dedup.key=order")
    assert rmqkit("topic", "create", "Mine", *words, *namesrv).returncode == 0
    (shown,) = json.loads(rmqkit("topic", "show", "Mine", *namesrv, "--json").stdout)
    assert (shown["attributes"]["dedup.window"], shown["attributes"]["dedup.key"]) == ("10m", "order")
    removed = ("--queues", "3", "--attribute=-dedup.window", "--attribute=-dedup.key")
    assert rmqkit("topic", "create", "Mine", *removed, *namesrv).returncode == 0
    rows = [line.split() for line in rmqkit("topic", "show", "Mine", *namesrv).stdout.splitlines()]
    assert rows[1] == ["broker-a", "3", "3", "6", "no", "DELAY", "message.type=DELAY"]
    assert rmqkit("topic", "delete", "Mine", *namesrv).returncode == 0
    gone = rmqkit("topic", "stats", "Mine", *namesrv)
    assert gone.returncode == 1
    assert "Mine" in gone.stderr
    assert rmqkit("topic", "delete", "Mine", *namesrv).returncode == 1


def test_topic_list_hides_system_topics_unless_asked(rmqkit: Run, server: Ready) -> None:
    """TBW102 and other system topics, and the topics named after broker and cluster, are listed only with
    --all."""
    namesrv = ("--namesrv", server.where["namesrv"])
    own = {"TBW102", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"}
    assert not own & set(rmqkit("topic", "list", *namesrv).stdout.split())
    assert own <= set(rmqkit("topic", "list", "--all", *namesrv).stdout.split())


def test_a_bad_topic_name_is_refused(rmqkit: Run, server: Ready) -> None:
    """Names with path parts are refused."""
    result = rmqkit("topic", "create", "../evil", "--namesrv", server.where["namesrv"])
    assert result.returncode == 1
    assert "characters besides letters" in result.stderr


def test_help_and_version(rmqkit: Run) -> None:
    """The help lists every verb, and the version is shown as a line and as JSON."""
    assert rmqkit("--version").stdout == f"rmqkit {__version__}, {speedups.description()}\n"
    assert json.loads(rmqkit("--version", "--json").stdout) == {
        "version": __version__,
        "compiled": speedups.IN_USE,
        "code": speedups.description(),
    }
    shown = rmqkit("--help").stdout
    for verb in (
        "serve",
        "namesrv",
        "broker",
        "send",
        "consume",
        "topic",
        "status",
        "plugins",
        "plugin",
        "config",
        "demo",
    ):
        assert f" {verb} " in shown
    assert rmqkit("nonsense").returncode == 2


def test_options_have_no_abbreviations(rmqkit: Run) -> None:
    """Abbreviations are refused in verbs and their actions, because further options could change their
    meaning."""
    for words in (("consume", "T", "--ta", "a"), ("topic", "create", "T", "--queue", "3"), ("--versio",)):
        result = rmqkit(*words)
        assert result.returncode == 2
        assert "unrecognized arguments" in result.stderr or "required" in result.stderr
