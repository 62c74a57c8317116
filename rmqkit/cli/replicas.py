"""`rmqkit broker ha` shows how far each slave is behind its master."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import anyio
import msgspec

from rmqkit.cli import options
from rmqkit.errors import RmqError
from rmqkit.model.replication import ReplicationStatus
from rmqkit.toolkit import output

_UNKNOWN = "-"


def run(arguments: Namespace) -> int:
    return anyio.run(_show, arguments, backend="trio")


async def _show(arguments: Namespace) -> int:
    """Ask every broker. One that does not answer is reported, and the exit code is then 1."""
    found: list[dict[str, Any]] = []
    rows: list[tuple[object, ...]] = []
    failed = False
    async with options.client_of(arguments) as client:
        info = await client.admin.cluster_info()
        for name, data in sorted(info.broker_addr_table.items()):
            for broker_id, address in sorted(data.broker_addrs.items()):
                try:
                    status = await client.admin.replication(address)
                except RmqError as error:
                    output.error(str(error))
                    failed = True
                    continue
                own = {"broker": name, "brokerId": broker_id, "address": address}
                found.append(own | msgspec.to_builtins(status))
                rows += _rows(name, broker_id, address, status)
    if arguments.json:
        output.as_json(found)
    else:
        header = ("BROKER", "ID", "ADDRESS", "ROLE", "PEER", "OFFSET", "BYTES BEHIND", "MS BEHIND", "IN SYNC")
        output.table(header, rows)
    return 1 if failed else 0


def _rows(name: str, broker_id: int, address: str, status: ReplicationStatus) -> list[tuple[object, ...]]:
    """One row for a broker, and one for each slave of a master."""
    own = (name, broker_id, address)
    if not status.master:
        master = status.ha_client_runtime_info
        return [(*own, "slave", master.master_addr or _UNKNOWN, master.max_offset, *[_UNKNOWN] * 3)]
    rows: list[tuple[object, ...]] = [
        (*own, "master", _UNKNOWN, status.master_commit_log_max_offset, *[_UNKNOWN] * 3)
    ]
    for slave in status.ha_connection_info:
        lag_ms = _UNKNOWN if slave.lag_ms is None else slave.lag_ms
        in_sync = "yes" if slave.in_sync else "no"
        rows.append((*own, "its slave", slave.addr, slave.slave_ack_offset, slave.diff, lag_ms, in_sync))
    return rows
