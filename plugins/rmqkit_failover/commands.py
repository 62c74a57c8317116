"""`rmqkit failover`: the state of a replica group, a planned switch of its master, members that are gone."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define

from rmqkit import config as settings
from rmqkit.config import Config
from rmqkit.errors import ConfigError, RmqError
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output
from rmqkit_failover.coordinator import Coordinator, Put
from rmqkit_failover.coordinators import connected
from rmqkit_failover.settings import group_prefix, options
from rmqkit_failover.state import STATE, GroupState, GroupView, encoded, removed, wanting

_UNKNOWN = "-"


class Refused(RmqError):
    """What was asked for would lose messages, or has no effect. Nothing was changed."""


@define
class Group:
    """A replica group, as its coordinator knows it."""

    cluster: str
    name: str
    coordinator: Coordinator

    async def view(self) -> GroupView:
        """The state of the group as the coordinator has it. Raises CoordinatorError, StateError; Refused when
        nobody has written the group's state."""
        found = GroupView.of(await self.coordinator.read())
        if not found.revision:
            raise Refused(
                f"the coordinator knows no group {self.name} of {self.cluster}: --group and --cluster are"
                " brokerName and brokerClusterName of its members"
            )
        return found

    async def change(self, changed: Callable[[GroupView], GroupState]) -> None:
        """Change the state, again when somebody else has changed it meanwhile. Raises what `changed` and
        `view` raise."""
        done = None
        while done is None:
            view = await self.view()
            done = await self.coordinator.write({STATE: view.revision}, [Put(STATE, encoded(changed(view)))])


def as_document(group: Group, view: GroupView) -> dict[str, Any]:
    """What `--json` prints."""
    state = view.state
    return {
        "cluster": group.cluster,
        "group": group.name,
        "epoch": state.epoch,
        "master": state.master if view.is_running(state.master) else None,
        "wanted": state.wanted or None,
        "inSync": list(state.in_sync),
        "members": [_member(view, name) for name in state.starts],
    }


def _member(view: GroupView, name: str) -> dict[str, Any]:
    state, is_running = view.state, view.is_running(name)
    record = view.members[name].record if is_running else None
    role = "none" if record is None else "master" if state.master == name else "slave"
    return {
        "name": name,
        "brokerId": state.ids.get(name),
        "role": role,
        "inSync": name in state.in_sync,
        "start": state.starts[name],
        "address": record.address if record is not None else None,
        "haAddress": record.ha_address if record is not None else None,
    }


async def show(group: Group, arguments: Namespace) -> None:
    view = await group.view()
    found = as_document(group, view)
    if arguments.json:
        output.as_json(found)
        return
    master = found["master"] or "none"
    output.line(f"group {group.name} of {group.cluster}: epoch {found['epoch']}, master {master}")
    if view.state.wanted:
        output.line(f"{view.state.wanted} shall be the master next")
    rows = [
        (
            each["name"],
            each["role"],
            "yes" if each["inSync"] else "no",
            each["brokerId"] or _UNKNOWN,
            each["start"],
            each["address"] or _UNKNOWN,
            each["haAddress"] or _UNKNOWN,
        )
        for each in found["members"]
    ]
    output.table(("MEMBER", "ROLE", "IN SYNC", "BROKER ID", "START", "ADDRESS", "REPLICATION"), rows)


async def switch(group: Group, arguments: Namespace) -> None:
    """Wait until the member is the master. Raises Refused, also when it takes too long: the wish is then
    withdrawn."""
    name, is_unclean = arguments.name, arguments.unclean

    def changed(view: GroupView) -> GroupState:
        _check_switch(view, name, is_unclean=is_unclean)
        return wanting(view.state, name, is_unclean=is_unclean)

    await group.change(changed)
    with trio.move_on_after(arguments.timeout_s):
        async with group.coordinator.watch() as snapshots:
            async for snapshot in snapshots:
                view = GroupView.of(snapshot)
                if view.state.master == name and view.is_running(name):
                    _done(arguments, group, view, f"{name} is the master of epoch {view.state.epoch}")
                    return
    await group.change(lambda view: wanting(view.state, ""))
    raise Refused(
        f"{name} is not the master after {arguments.timeout_s:g} s; the log lines of the members say why"
    )


def _check_switch(view: GroupView, name: str, *, is_unclean: bool) -> None:
    state = view.state
    _check_known(state, name)
    if not view.is_running(name):
        raise Refused(f"{name} is not running")
    if is_unclean and view.is_running(state.master):
        raise Refused(
            f"{state.master} is the master: stop it, or leave out --unclean, which loses messages that {name}"
            " does not have"
        )
    if not is_unclean and name not in state.in_sync:
        known = ", ".join(state.in_sync) or "nobody"
        raise Refused(
            f"{name} may lack acknowledged messages; known to have all: {known}. `--unclean` elects it"
            " nevertheless when there is no master, and they are lost"
        )


async def remove(group: Group, arguments: Namespace) -> None:
    name = arguments.name

    def changed(view: GroupView) -> GroupState:
        _check_known(view.state, name)
        if view.is_running(name):
            raise Refused(f"{name} is running, or its lease is not over: stop it first")
        if view.state.in_sync == (name,):
            raise Refused(
                f"{name} alone is known to have every acknowledged message: start it, or elect another member"
                " with `rmqkit failover switch NAME --unclean` first"
            )
        return removed(view.state, name)

    await group.change(changed)
    _done(arguments, group, await group.view(), f"{name} is not a member any more")


def _check_known(state: GroupState, name: str) -> None:
    if name not in state.starts:
        raise Refused(f"the group has no member {name!r}; it has {', '.join(state.starts) or 'none'}")


def _done(arguments: Namespace, group: Group, view: GroupView, text: str) -> None:
    if arguments.json:
        output.as_json(as_document(group, view))
    else:
        output.line(text)


# The command line.


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (text, _) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name != "status":
            action.add_argument("name", metavar="NAME", help="the member: its plugins.ha.memberName")
        if name == "switch":
            action.add_argument(
                "--unclean",
                action="store_true",
                help="elect it although it may lack acknowledged messages, which are then lost",
            )
            action.add_argument(
                "--timeout-s", type=float, default=30.0, metavar="S", help="wait so long, default 30"
            )
        _add_group(action)


def _add_group(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="the settings of a member: TOML, or broker.conf")
    parser.add_argument("--coordinator", metavar="ADDRESS", help="as in etcd://10.0.0.1:2379")
    parser.add_argument("--cluster", metavar="NAME", help="brokerClusterName of the members")
    parser.add_argument("--group", metavar="NAME", help="brokerName of the members")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: Namespace) -> int:
    trio.run(act, arguments)
    return 0


async def act(arguments: Namespace) -> None:
    """Do what the arguments say. Raises ConfigError, Refused, CoordinatorError, StateError."""
    _, action = _ACTIONS[arguments.action]
    async with _opened(arguments) as group:
        await action(group, arguments)


@asynccontextmanager
async def _opened(arguments: Namespace) -> AsyncIterator[Group]:
    """The elected group of the settings, with its coordinator, for a `with` block. Raises ConfigError."""
    config = _config(arguments)
    given = options(config)
    if not given.coordinator:
        raise ConfigError(
            "which coordinator? Give --coordinator, or a member's settings with --config:"
            " plugins.failover.coordinator"
        )
    cluster, name = config.broker_cluster_name, config.broker_name
    coordinator = connected(given, group_prefix(given, cluster, name))
    try:
        yield Group(cluster, name, coordinator)
    finally:
        with trio.CancelScope(shield=True):
            await coordinator.aclose()


def _config(arguments: Namespace) -> Config:
    flags = {
        "plugins.failover.coordinator": arguments.coordinator,
        "brokerClusterName": arguments.cluster,
        "brokerName": arguments.group,
    }
    return settings.load(
        arguments.config, flags={key: value for key, value in flags.items() if value is not None}
    )


_ACTIONS = {
    "status": ("show the members of a replica group, and who is the master", show),
    "switch": ("make another member the master", switch),
    "remove": ("forget a member that does not come back", remove),
}
FAILOVER = Verb("replica groups whose master is elected: status, switch, remove", _arguments, _run)
