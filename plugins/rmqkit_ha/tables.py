"""Copies the master's tables to a slave (store-format sheet, section 13.3; Java: SlaveSynchronize)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import trio

from rmqkit.errors import BrokerError, DecodeError, RmqError
from rmqkit.model.topic import ConsumerOffsetFile, DelayOffsetFile, SubscriptionGroupTable, TopicConfigTable
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.json_file import JsonFile
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit_ha.identity import clients_address
from rmqkit_ha.limits import MAX_TABLE_BYTES
from rmqkit_ha.settings import options

_log = logging.getLogger(__name__)
_TIMEOUT_MS = 3_000
T = TypeVar("T", bound=msgspec.Struct)


class MasterTables:
    """Copies topics, consumer offsets, delay offsets and groups, in this order. Topics and groups are
    replaced when their version differs; consumer offsets are merged, so a commit at the slave lasts until the
    master has one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._delays = JsonFile(broker.config.config_path / "delayOffset.json", DelayOffsetFile)
        self._delay_body = b""
        self._failed = ""

    async def run(self) -> None:
        """Until cancelled: one round per interval, and when the master becomes known."""
        broker = self._broker
        while True:
            changed = trio.Event()
            broker.replication.on_change.append(changed.set)
            try:
                await self.round()
                with trio.move_on_after(options(broker.config).tables_every_ms / 1000):
                    await changed.wait()
            finally:
                broker.replication.on_change.remove(changed.set)

    async def round(self) -> None:
        """Copy each table once; a failure is logged and the next round tries again."""
        address = clients_address(self._broker)
        if not address:
            await trio.lowlevel.checkpoint()
            return
        steps: tuple[Callable[[str], Awaitable[None]], ...] = (
            self._topics,
            self._offsets,
            self._delay_offsets,
            self._groups,
        )
        try:
            for step in steps:
                await step(address)
            self._failed = ""
        except (RmqError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            if text != self._failed:
                self._failed = text
                _log.warning("the tables of the master %s were not copied, trying again: %s", address, text)

    async def _topics(self, address: str) -> None:
        table = await self._get(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable)
        if not table.data_version.same(self._broker.topics.table().data_version):
            await self._broker.topics.replace(table)

    async def _groups(self, address: str) -> None:
        table = await self._get(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable)
        if not table.data_version.same(self._broker.groups.table().data_version):
            await self._broker.groups.replace(table)

    async def _offsets(self, address: str) -> None:
        self._broker.offsets.merge(
            await self._get(address, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetFile)
        )

    async def _delay_offsets(self, address: str) -> None:
        table = await self._get(address, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetFile)
        body = self._delays.encode(table)
        if body != self._delay_body:
            await trio.to_thread.run_sync(self._delays.write, [body])
            self._delay_body = body

    async def _get(self, address: str, code: RequestCode, kind: type[T]) -> T:
        """Raises BrokerError, and as `Pool.call`."""
        answer = await self._broker.pool.call(address, request(code), _TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "", address)
        if len(answer.body) > MAX_TABLE_BYTES:
            raise BrokerError(answer.code, f"a table of {len(answer.body)} bytes", address)
        try:
            return answer.decode_body(kind) if answer.body else kind()
        except DecodeError as error:
            raise BrokerError(answer.code, f"{code.name} cannot be read: {error}", address) from error
