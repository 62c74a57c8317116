"""Settings changed by an administrator while the broker runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from rmqkit import config as settings
from rmqkit.broker.run.live_settings import live_settings
from rmqkit.config import with_texts
from rmqkit.errors import RequestRefused
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_retention.settings import RetentionSettings
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


async def update(desk: BrokerHarness, text: str) -> Command:
    return await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def with_file(desk: BrokerHarness, path: Path, text: str) -> None:
    """As if the broker had been started with a configuration file."""
    path.write_text(text)
    read = settings.load(path, environ={})
    keys = {key: read.sources[key] for key in read.sources}
    kinds = list(desk.broker.registry.settings.values())
    texts = {key: str(read.setting(key, kinds)) for key in keys}
    desk.broker.config = with_texts(desk.broker.config, texts, keys, kinds)

    desk.broker.config = msgspec.structs.replace(desk.broker.config, file=str(path))


@pytest.mark.row("S009")
async def test_a_setting_takes_effect_at_once(desk: BrokerHarness) -> None:
    """Without a configuration file the change lasts until the next start, as the answer says."""
    assert (await desk.pull()).code == ResponseCode.PULL_NOT_FOUND
    version = desk.broker.topics.data_version.counter
    changed = await update(desk, "brokerPermission=2\n")
    assert (changed.code, changed.remark) == (
        0,
        "until the next start only, since no configuration file sets them: brokerPermission",
    )
    assert (await desk.pull()).code == ResponseCode.NO_PERMISSION
    assert desk.broker.topics.data_version.counter == version + 1
    assert "brokerPermission=2" in (await desk.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()
    same = await update(desk, "brokerPermission=2\nmaxMessageSize=4194304\n")
    assert (same.code, same.remark) == (0, None)


async def test_sql92_is_switched(desk: BrokerHarness) -> None:
    """Conditions can be allowed and refused."""
    await desk.sent(properties={"price": "5"})
    for value, code in (("true", ResponseCode.SUCCESS), ("false", ResponseCode.SYSTEM_ERROR)):
        assert (await update(desk, f"enablePropertyFilter={value}")).code == 0
        assert (await desk.pull(subscription="price > 3", expression_type="SQL92")).code == code


async def test_automatic_creation_is_switched(desk: BrokerHarness) -> None:
    """Automatic creation of topics and of groups can be changed."""
    assert (await update(desk, "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false")).code == 0
    assert (await desk.send("Fresh")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await desk.pull(consumer_group="fresh")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await update(desk, "autoCreateTopicEnable=true\nautoCreateSubscriptionGroup=true")).code == 0
    assert (await desk.send("Fresh")).code == 0
    assert (await desk.pull(consumer_group="fresh")).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.row("S009")
@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("brokerConfigPath=/etc/passwd", 16, "Can not update config in black list."),
        ("rocketmqHome=/tmp\nfileReservedTime=1", 16, "Can not update config in black list."),
        ("configBlackList=x", 16, "Can not update config in black list."),
        ("regionId=x", 16, "Can not update config in black list."),
        (
            "mappedFileSizeConsumeQueue=5\nfileReservedTime=1",
            29,
            "take effect at the start only: mappedFileSizeConsumeQueue",
        ),
        ("storePathRootDir=/tmp", 29, "take effect at the start only: storePathRootDir"),
        ("fileReservedTim=1", 29, "no settings of this server, nothing was changed: fileReservedTim"),
        ("fileReservedTime=long", 29, "nothing was changed: setting fileReservedTime = 'long'"),
        ("fileReservedTime=-1", 29, "Expected `int` >= 0"),
    ],
)
async def test_what_may_not_be_changed_is_refused_as_a_whole(
    opened: Opened, text: str, code: int, remark: str
) -> None:
    """Keys of the black list, keys that need a restart, unknown keys and wrong values are refused, and
    nothing changes."""
    async with opened(configBlackList="configBlackList;regionId") as desk:
        before = desk.broker.config
        refused = await update(desk, text)
        assert refused.code == code
        assert remark in (refused.remark or "")
        assert desk.broker.config is before


@pytest.mark.parametrize("value", ["-1", "0", str(1 << 60)])
@pytest.mark.parametrize(
    "key", ["flushConsumerOffsetInterval", "flushDelayOffsetInterval", "registerNameServerPeriod"]
)
async def test_an_interval_has_bounds(desk: BrokerHarness, key: str, value: str) -> None:
    """A value that would stop the work, or never let it rest, is refused with the reason."""
    refused = await update(desk, f"{key}={value}")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    reason = rf"nothing was changed: setting {key} = '{value}' .* Expected `int` [<>]="
    assert re.search(reason, refused.remark or "")


async def test_listeners_are_told_of_a_change(desk: BrokerHarness) -> None:
    """Once it counts, and not of one that was refused."""
    seen: list[int] = []
    desk.broker.on_config_change.append(lambda: seen.append(desk.broker.config.channel_expired_timeout))
    await update(desk, "channelExpiredTimeout=7")
    await update(desk, "channelExpiredTimeout=-7")
    assert seen == [7]


@pytest.mark.row("S009")
async def test_a_change_is_kept_in_the_configuration_file(desk: BrokerHarness, tmp_path: Path) -> None:
    """The change is written to the file; settings overridden by the environment or the command line are lost
    at the next start."""
    path = tmp_path / "broker.conf"
    with_file(desk, path, "# mine\nfileReservedTime=48\nlongPollingEnable=true\n")
    changed = await update(desk, "fileReservedTime=12\nbrokerPermission=4\n")
    assert (changed.code, changed.remark) == (0, None)
    assert path.read_text() == "# mine\nfileReservedTime=12\nlongPollingEnable=true\nbrokerPermission=4\n"
    desk.broker.config = with_texts(
        desk.broker.config, {"channelExpiredTimeout": "9"}, {"channelExpiredTimeout": "command line"}
    )
    for value in (10, 11):
        lost = await update(desk, f"channelExpiredTimeout={value}")
        assert (lost.code, "channelExpiredTimeout" in (lost.remark or "")) == (0, True)
    assert "channelExpiredTimeout" not in path.read_text()
    assert desk.broker.config.channel_expired_timeout == 11


async def test_a_file_that_cannot_be_written_changes_nothing(desk: BrokerHarness, tmp_path: Path) -> None:
    """If the file cannot be written, neither the file nor the broker changes."""
    path = tmp_path / "broker.conf"
    with_file(desk, path, "fileReservedTime=48\n")
    path.unlink()
    with pytest.raises(RequestRefused, match="cannot be written"):
        await live_settings(desk.broker).update({"fileReservedTime": "12"})
    assert desk.broker.config.owned(RetentionSettings).file_reserved_time == 48


async def test_settings_that_are_no_text(desk: BrokerHarness) -> None:
    """Bytes that are not UTF-8, as in a Chinese comment, are read with replacement and hinder no setting."""
    comment = "# 编号\n".encode("gbk")
    body = comment + b"brokerPermission=4\n"
    changed = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert changed.code == ResponseCode.SUCCESS
    assert "brokerPermission=4" in (await desk.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()


async def test_the_limit_of_bodies_changes_at_once(desk: BrokerHarness) -> None:
    """The next send is measured against the new limit, larger or smaller; a limit that does not fit into a
    file of the log is refused."""
    limit = desk.broker.config.max_message_size
    too_large = desk.broker.config.mapped_file_size_commit_log
    refused = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"maxMessageSize={too_large}".encode())
    assert refused.code == ResponseCode.INVALID_PARAMETER
    for changed, size, code in (
        (10, 11, ResponseCode.MESSAGE_ILLEGAL),
        (11, 11, ResponseCode.SUCCESS),
        (limit, 1_000, ResponseCode.SUCCESS),
    ):
        done = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"maxMessageSize={changed}".encode())
        assert done.code == 0
        for _ in range(2):
            assert (await desk.send(body=bytes(size))).code == code
