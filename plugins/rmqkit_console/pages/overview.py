"""The overview of the cluster, and one broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rmqkit.client import RmqError, broker_views
from rmqkit.model.replication import ReplicationStatus
from rmqkit_console.console import Asked, Console
from rmqkit_console.pages.plots import broker_plots, furthest_behind, group_plots
from rmqkit_console.samples import rates_of
from rmqkit_console.side_by_side import side_by_side
from rmqkit_console.wrong_input import WrongInput

_MASTER = 0
#: Seconds between two loads of a page that refreshes itself.
_MAX_REFRESH_S = 3_600


async def overview(console: Console, asked: Asked) -> dict[str, Any]:
    """All brokers with their replicas and rates, and plots of the rates."""
    admin = console.client.admin
    info = await admin.cluster_info()
    cluster_of = {
        broker: cluster for cluster, brokers in info.cluster_addr_table.items() for broker in brokers
    }
    members = {
        address: (name, number)
        for name, data in sorted(info.broker_addr_table.items())
        for number, address in sorted(data.broker_addrs.items())
    }
    figures = await side_by_side(admin.runtime_info, members)
    replicas = await side_by_side(
        admin.replication, [address for address, (_, number) in members.items() if number == _MASTER]
    )
    brokers, faults = [], []
    for address, (name, number) in members.items():
        found = figures[address]
        member = {"cluster": cluster_of.get(name, ""), "broker": name, "number": number, "address": address}
        if isinstance(found, RmqError):
            faults.append(str(found))
            brokers.append(member | {"answers": False})
        else:
            replication = replicas.get(address)
            known = replication if isinstance(replication, ReplicationStatus) else None
            brokers.append(member | {"answers": True} | _figures(found) | _replicas(known))
    shown = {str(each["broker"]) for each in brokers if each["answers"]}
    return {
        "nameServers": list(console.client.settings.name_servers),
        "brokers": brokers,
        "faults": faults,
        "refresh": asked.number("refresh", 0, 0, _MAX_REFRESH_S),
        "plots": broker_plots(console.samples.kept, shown) + await _groups(console),
    }


async def _groups(console: Console) -> list[dict[str, Any]]:
    """Plots of the groups that are furthest behind, of those that the user may see."""
    kept = console.samples.kept
    asked = await side_by_side(console.client.groups.progress, furthest_behind(kept))
    return group_plots(kept, [group for group, found in asked.items() if not isinstance(found, RmqError)])


async def broker(console: Console, asked: Asked) -> dict[str, Any]:
    """One broker: its dispatchers, replicas and all run-time figures. Raises WrongInput for an address that
    is none of the cluster's, so that the console asks nobody else."""
    admin, address = console.client.admin, asked.needed("address")
    info = await admin.cluster_info()
    for name, data in info.broker_addr_table.items():
        for number, known in data.broker_addrs.items():
            if known == address:
                runtime = await admin.runtime_info(address)
                replication = (await side_by_side(admin.replication, [address]))[address]
                status = replication if isinstance(replication, ReplicationStatus) else None
                return {
                    "broker": name,
                    "number": number,
                    "address": address,
                    **_figures(runtime),
                    **_replicas(status),
                    "master": _master(status),
                    "dispatchers": _dispatchers(runtime),
                    "runtime": dict(sorted(runtime.items())),
                }
    raise WrongInput(f"no broker of this cluster has the address {address}")


def _figures(runtime: Mapping[str, str]) -> dict[str, Any]:
    rates = rates_of(runtime)
    return {
        "version": runtime.get("brokerVersionDesc", ""),
        "code": runtime.get("compiledPart"),
        "storedPerSecond": rates.stored,
        "fetchedPerSecond": rates.fetched,
        "storedToday": _since_morning(runtime, "Put"),
        "fetchedToday": _since_morning(runtime, "Get"),
        "logBytes": _log_bytes(runtime),
        "behindBytes": _number(runtime, "dispatchBehindBytes"),
        "diskRatio": rates.disk,
        "disk": runtime.get("commitLogDirCapacity", ""),
    }


def _replicas(status: ReplicationStatus | None) -> dict[str, Any]:
    """The slaves of a master; None when it does not tell."""
    if status is None or not status.master:
        return {"inSync": None, "slaves": None}
    return {"inSync": status.in_sync_slave_nums, "slaves": msgspec.to_builtins(status.ha_connection_info)}


def _master(status: ReplicationStatus | None) -> dict[str, Any] | None:
    """The master of a slave."""
    if status is None or status.master:
        return None
    found: dict[str, Any] = msgspec.to_builtins(status.ha_client_runtime_info)
    return found


def _dispatchers(runtime: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "behindBytes": each.behind_bytes,
            "unsavedBytes": each.unsaved_bytes,
            "failures": each.failures,
        }
        for each in broker_views.dispatcher_states(runtime)
    ]


def _since_morning(runtime: Mapping[str, str], kind: str) -> int | None:
    now = _number(runtime, f"msg{kind}TotalTodayNow")
    morning = _number(runtime, f"msg{kind}TotalTodayMorning")
    return None if now is None or morning is None else now - morning


def _log_bytes(runtime: Mapping[str, str]) -> int | None:
    first, end = _number(runtime, "commitLogMinOffset"), _number(runtime, "commitLogMaxOffset")
    return None if first is None or end is None else end - first


def _number(runtime: Mapping[str, str], key: str) -> int | None:
    text = runtime.get(key, "")
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else None


__all__ = ["broker", "overview"]
