"""`rmqkit failover` against a coordinator."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.cli import main
from rmqkit.errors import ConfigError
from rmqkit.plugin.role import Role
from rmqkit.testing.command import CommandContract
from rmqkit_failover.commands import FAILOVER, Refused, act
from rmqkit_failover.coordinator import Put
from rmqkit_failover.memory import MemoryCoordinator
from rmqkit_failover.state import STATE, GroupState, encoded
from tests.plugins.failover.group import (
    PREFIX,
    failing_over,
    fresh_coordinator,
    group_view,
    in_sync,
    ledger_of,
)
from tests.plugins.ha.pair import until

GROUP = ("--coordinator", "memory://verb", "--group", "group")


class TestFailoverVerb(CommandContract):
    """A group of two members that are not running."""

    verb = FAILOVER
    good = (["status", *GROUP], ["status", "--json", *GROUP])
    bad = (
        [],
        ["status"],
        ["status", "--coordinator", "memory://verb", "--group", "unknown"],
        ["status", "--coordinator", "nowhere://verb"],
        ["switch", *GROUP],
        ["switch", "nobody", *GROUP],
        ["switch", "b", *GROUP],
        ["remove", "a", *GROUP],
    )

    @pytest.fixture(autouse=True)
    def _stopped_group(self) -> None:
        ledger = ledger_of("memory://verb")
        state = GroupState(epoch=1, in_sync=("a",), starts={"a": 1, "b": 1}, ids={"a": 1, "b": 2})
        ledger.entries.clear()
        trio.run(MemoryCoordinator(ledger, PREFIX).write, {STATE: 0}, [Put(STATE, encoded(state))])


def parsed(coordinator: str, *words: str) -> Namespace:
    """The arguments of a command."""
    parser = ArgumentParser()
    FAILOVER.arguments(parser)
    return parser.parse_args([*words, "--coordinator", coordinator, "--group", "group"])


async def printed(capsys: pytest.CaptureFixture[str], coordinator: str, *words: str) -> str:
    """What a command prints."""
    await act(parsed(coordinator, *words))
    return capsys.readouterr().out


async def shown(capsys: pytest.CaptureFixture[str], coordinator: str, *words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    found = json.loads(await printed(capsys, coordinator, *(words or ("status",)), "--json"))
    assert isinstance(found, dict)
    return found


@asynccontextmanager
async def pair(directory: Path, coordinator: str) -> AsyncIterator[dict[str, RunningBroker]]:
    """Two members in the in-sync set, by name; "a" is the master."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(failing_over(directory, "a", coordinator))
        await until(lambda: first.context.role.current is Role.MASTER)
        second = await stack.enter_async_context(failing_over(directory, "b", coordinator))
        await in_sync(coordinator, "a", "b")
        yield {"a": first, "b": second}


async def test_the_status_has_all_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the role, the addresses and the number of the start of each; as JSON and as a table."""
    coordinator = fresh_coordinator()
    async with pair(tmp_path, coordinator) as brokers:
        found = await shown(capsys, coordinator)
        assert found == {
            "cluster": "DefaultCluster",
            "group": "group",
            "epoch": 1,
            "master": "a",
            "wanted": None,
            "inSync": ["a", "b"],
            "members": [
                {
                    "name": name,
                    "brokerId": number,
                    "role": role,
                    "inSync": True,
                    "start": 1,
                    "address": brokers[name].context.address,
                    "haAddress": brokers[name].context.replication.own,
                }
                for number, (name, role) in enumerate({"a": "master", "b": "slave"}.items(), 1)
            ],
        }
        text = await printed(capsys, coordinator, "status")
        assert "group group of DefaultCluster: epoch 1, master a" in text
        assert [line.split()[:3] for line in text.splitlines()[2:]] == [
            ["a", "master", "yes"],
            ["b", "slave", "yes"],
        ]
    found = await shown(capsys, coordinator)
    assert (found["master"], [each["role"] for each in found["members"]]) == (None, ["none", "none"])


async def test_a_switch_returns_when_the_member_is_the_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be switched back."""
    coordinator = fresh_coordinator()
    async with pair(tmp_path, coordinator) as brokers:
        assert (await shown(capsys, coordinator, "switch", "b"))["master"] == "b"
        await until(lambda: brokers["b"].context.role.current is Role.MASTER)
        await in_sync(coordinator, "a", "b")
        text = await printed(capsys, coordinator, "switch", "a")
        assert text == "a is the master of epoch 3\n"


async def test_a_switch_that_would_lose_messages_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text says why; an unclean one is refused while there is a master."""
    coordinator = fresh_coordinator()
    async with pair(tmp_path, coordinator):
        with pytest.raises(Refused, match="the group has no member 'x'; it has a, b"):
            await act(parsed(coordinator, "switch", "x"))
        with pytest.raises(Refused, match="a is the master: stop it, or leave out --unclean"):
            await act(parsed(coordinator, "switch", "b", "--unclean"))
    with pytest.raises(Refused, match="b is not running"):
        await act(parsed(coordinator, "switch", "b"))
    # The last one to stop is the one that has everything.
    async with failing_over(tmp_path, "a", coordinator) as alone:
        (last,) = group_view(coordinator).state.in_sync
        assert last == "a"
        await until(lambda: alone.context.role.current is Role.MASTER)
    async with failing_over(tmp_path, "b", coordinator):
        await until(lambda: group_view(coordinator).is_running("b"))
        with pytest.raises(Refused, match="b may lack acknowledged messages; known to have all: a"):
            await act(parsed(coordinator, "switch", "b"))
        found = await shown(capsys, coordinator, "switch", "b", "--unclean")
        assert (found["master"], found["inSync"]) == ("b", ["b"])


async def test_a_switch_that_takes_too_long_is_withdrawn(tmp_path: Path) -> None:
    """The member is elected by nobody later."""
    coordinator = fresh_coordinator()
    async with pair(tmp_path, coordinator):
        with pytest.raises(Refused, match="b is not the master after 0 s"):
            await act(parsed(coordinator, "switch", "b", "--timeout-s", "0"))
        assert group_view(coordinator).state.wanted == ""


async def test_a_member_that_is_gone_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not while it runs, and not the last one that has every message."""
    coordinator = fresh_coordinator()
    async with pair(tmp_path, coordinator):
        with pytest.raises(Refused, match="b is running, or its lease is not over"):
            await act(parsed(coordinator, "remove", "b"))
    async with failing_over(tmp_path, "a", coordinator):
        await in_sync(coordinator, "a")
        found = await shown(capsys, coordinator, "remove", "b")
        assert [each["name"] for each in found["members"]] == ["a"]
    with pytest.raises(Refused, match="a alone is known to have every acknowledged message"):
        await act(parsed(coordinator, "remove", "a"))


async def test_a_group_that_nobody_knows_is_an_error() -> None:
    """The text names the options."""
    with pytest.raises(Refused, match="knows no group group of DefaultCluster: --group and --cluster"):
        await act(parsed(fresh_coordinator(), "status"))


@pytest.mark.parametrize("address", ["", "etcd://", "etcd://host", "zk://h:1", "etcd://h:1,", "etcd://h:x"])
async def test_an_address_that_is_none_is_an_error(address: str) -> None:
    """With an example."""
    with pytest.raises(ConfigError, match=r"which coordinator\?|as in etcd://"):
        await act(parsed(address, "status"))


def test_the_command_ends_with_the_code_of_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no traceback; a wrong address is an error of the arguments."""
    for address, code, text in (("etcd://127.0.0.1:1", 1, "is not reached"), ("x", 2, "as in etcd://")):
        assert main(["failover", "status", "--coordinator", address]) == code
        said = capsys.readouterr().err
        assert text in said
        assert said.count("\n") == 1
