"""Copies the master's tables to a slave (store-format sheet, section 13.3; Java: SlaveSynchronize).

The tables come from the master's address for clients, which a name server may say, and the log from another
one. So a slave copies only while it follows a log, which was compared with its own, and each time it first
asks the broker at the address for clients for one of its last records: who has it has the same log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec
import trio

from rmqkit.errors import (
    BrokerError,
    ConfigError,
    DecodeError,
    ProtocolError,
    RequestRefused,
    RmqError,
    StoreError,
)
from rmqkit.model.buffer import Buffer
from rmqkit.model.topic import ConsumerOffsetFile, DelayOffsetFile, SubscriptionGroupTable, TopicConfigTable
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.replication import MasterTable
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import ViewMessageRequestHeader
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit.toolkit.json_file import JsonFile
from rmqkit_ha.comparison import last_record
from rmqkit_ha.identity import clients_address
from rmqkit_ha.limits import MAX_TABLE_BYTES
from rmqkit_ha.settings import options

_log = logging.getLogger(__name__)
_TIMEOUT_MS = 3_000
T = TypeVar("T", bound=msgspec.Struct)


class MasterTables:
    """Copies topics, consumer offsets, delay offsets and groups, in this order. Topics and groups are
    taken over when their version differs; consumer offsets are merged, so a commit at the slave lasts until
    the master has one.

    changing  held while topics change: nothing may be appended, for it could belong to one that is deleted
    """

    def __init__(self, broker: Broker) -> None:
        self.changing = trio.Lock()
        self._broker = broker
        self._is_followed = False
        #: The physical offset of the record to ask for, and that of a newer one; None without records.
        self._record: int | None = None
        self._newest: int | None = None
        #: Queues of which the topic table may know nothing, and topics of which queues may be dead.
        self._unknown: dict[tuple[str, int], None] = {}
        self._dead = set[str]()
        self._delays = JsonFile(broker.config.config_path / "delayOffset.json", DelayOffsetFile)
        self._delay_table: dict[int, int] | None = None
        self._failed = ""

    def leave(self) -> None:
        """Copy nothing before `follow`: another master's log is about to be compared."""
        self._is_followed = False

    async def follow(self, record: int) -> None:
        """The log is the master's, with a record at this physical offset, if there is any."""
        store, topics = self._broker.store, self._broker.topics
        self._record = self._newest = record if store.end_offset > store.start_offset else None
        self._is_followed = True
        stored = store.queues().items()
        await self.know((topic, each) for topic, ids in stored if topics.get(topic) is None for each in ids)

    async def appended(self, offset: int, data: Buffer, made: Iterable[tuple[str, int]]) -> None:
        """The log has grown by these records, which have begun queues."""
        if peek_size_and_magic(data)[1] != MAGIC_BLANK:
            self._newest = offset
        if made:
            await self.know(made)

    async def know(self, queues: Iterable[tuple[str, int]]) -> None:
        """Let clients read these queues although the topics may not have been copied yet. A failure is logged
        and the next round tries again."""
        self._unknown.update(dict.fromkeys(queues))
        topics = self._broker.topics
        try:
            await topics.know(self._unknown)
        except RequestRefused as error:
            _log.error("topics of copied messages are not served yet, trying again: %s", error)
            return
        self._dead |= {topic for topic, _ in self._unknown if topics.is_dead(topic)}
        self._unknown.clear()

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
        if not address or not self._is_followed:
            await trio.lowlevel.checkpoint()
            return
        steps: tuple[Callable[[str], Awaitable[None]], ...] = (
            self._topics,
            self._offsets,
            self._delay_offsets,
            self._groups,
        )
        try:
            if not await self._is_proven(address):
                return
            for step in steps:
                await step(address)
            for table in self._broker.replication.tables:
                await self._of_plugin(address, table)
            await self._tidy()
            self._failed = ""
        except (RmqError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            if text != self._failed:
                self._failed = text
                _log.warning("the tables of the master %s were not copied, trying again: %s", address, text)

    async def _is_proven(self, address: str) -> bool:
        """Whether the broker there has one of the last records of this log; False when that cannot be asked
        yet. Raises ProtocolError when it does not, and as `_call`."""
        store, group = self._broker.store, self._broker.replication.group
        at = self._record = self._newest if self._record is None else self._record
        if at is None:
            await trio.lowlevel.checkpoint()
            return True
        if group is not None and group.confirmed() <= at:
            # Its master shows nobody what is not confirmed.
            await trio.lowlevel.checkpoint()
            return False
        try:
            own = await read_when_cached(store, partial(store.read_log, at, 1))
        except StoreError:
            own = b""
        if not own:
            # Retention has removed it since the last success.
            self._record = await last_record(store)
            return False
        header = ViewMessageRequestHeader(offset=at)
        answer = await self._broker.pool.call(
            address, request(RequestCode.VIEW_MESSAGE_BY_ID, header), _TIMEOUT_MS
        )
        if answer.code != ResponseCode.SUCCESS or answer.body != own:
            raise ProtocolError(
                f"the broker there does not have the record at {at} of this log, so it is not the master that"
                " is followed. Check plugins.ha.masterAddress, and which brokers have the name"
                f" {self._broker.config.broker_name} at the name servers"
            )
        self._record = self._newest
        return True

    async def _tidy(self) -> None:
        """Remove the queues of topics that were deleted before their records arrived. Raises OSError,
        StoreError."""
        if self._unknown:
            await self.know(())
        topics, found = self._broker.topics, {*self._dead}
        self._dead -= found
        for topic in found:
            if topics.get(topic) is None and topics.is_dead(topic):
                self._broker.store.delete_topic(topic)

    async def _topics(self, address: str) -> None:
        table = await self._get(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable)
        if not table.data_version.same(self._broker.topics.table().data_version):
            async with self.changing:
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
        known = self._delay_table
        if known is None:
            known = await trio.to_thread.run_sync(self._known_delays)
        # Levels that the master lacks stay, as consumer offsets do.
        table.offset_table = known | table.offset_table
        if table.offset_table != self._delay_table:
            await trio.to_thread.run_sync(self._delays.write, [self._delays.encode(table)])
            self._delay_table = table.offset_table

    async def _of_plugin(self, address: str, table: MasterTable) -> None:
        """Copy a plugin's table; a master without the plugin refuses the request."""
        answer = await self._broker.pool.call(address, request(RequestCode(table.code)), _TIMEOUT_MS)
        if answer.code == ResponseCode.SUCCESS and len(answer.body) <= MAX_TABLE_BYTES:
            await table.take(bytes(answer.body))

    def _known_delays(self) -> dict[int, int]:
        """The delay offsets of this broker; those of a damaged file are replaced by the master's."""
        try:
            stored = self._delays.load()
        except ConfigError as error:
            _log.warning("delay offsets are copied anew: %s", error)
            return {}
        return {} if stored is None else stored.offset_table

    async def _get(self, address: str, code: RequestCode, kind: type[T]) -> T:
        """A table of the master. Raises BrokerError and what `Pool.call` raises."""
        answer = await self._broker.pool.call(address, request(code), _TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "", address)
        if len(answer.body) > MAX_TABLE_BYTES:
            raise BrokerError(answer.code, f"a table of {len(answer.body)} bytes", address)
        try:
            return answer.decode_body(kind) if answer.body else kind()
        except DecodeError as error:
            raise BrokerError(answer.code, f"{code.name} cannot be read: {error}", address) from error
