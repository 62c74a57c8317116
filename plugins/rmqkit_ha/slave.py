"""The slave's side: follows a master's log (store-format sheet, section 13.1; Java: DefaultHAClient)."""

from __future__ import annotations

import logging

import anyio
import trio
from anyio.abc import ByteStream

from rmqkit.errors import (
    ConfigError,
    PluginError,
    ProtocolError,
    StoreBusy,
    StoreError,
    StoreNotWritable,
    first_error,
)
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.plugin.transport import Address
from rmqkit_ha.comparison import REMEDY, Comparison, last_record
from rmqkit_ha.damage import KnownDamage
from rmqkit_ha.epochs import UNELECTED, common_end, with_history
from rmqkit_ha.frames import Frames, RecordAssembler, report
from rmqkit_ha.greeting import HEAD_BYTES, Greeting, Welcome, body_size, packed, unpacked
from rmqkit_ha.group import ElectedGroup
from rmqkit_ha.identity import is_own_master
from rmqkit_ha.introduction import introduce
from rmqkit_ha.limits import READ_BYTES
from rmqkit_ha.meter import Meter
from rmqkit_ha.settings import HaSettings, options
from rmqkit_ha.tables import MasterTables

_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT_MS = 5_000
#: Time limit for the last copy of the tables.
_LAST_TABLES_S = 0.5
#: Time until a slave of an elected group connects again; doubled each time, up to the configured interval.
_FIRST_RETRY_S = 0.05


class HaSlave(Service):
    """Service "ha-slave": appends the master's log, and copies its tables.

    following  the address of the master's replication port, empty while not connected
    tables     the copies of the master's tables, once it runs
    """

    name = "ha-slave"
    roles = frozenset({Role.SLAVE})

    def __init__(self) -> None:
        self.following = ""
        self.group: ElectedGroup | None = None
        self.damage: KnownDamage | None = None
        self.meter: Meter | None = None
        self.last_read_ms = self.last_write_ms = 0
        self._said = ""
        self.tables: MasterTables | None = None
        self._first_s = self._retry_s = _FIRST_RETRY_S

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Follow the master until cancelled; errors are logged, and it is tried again: after the configured
        interval, in an elected group sooner at first, for a new master is about to serve."""
        self.meter = Meter(broker.clock)
        longest_s = options(broker.config).retry_interval_ms / 1000
        if self.group is None:
            self._first_s = longest_s
        self._retry_s = self._first_s
        self.tables = MasterTables(broker)
        task_status.started()
        while True:
            changed = trio.Event()
            reasons = broker.replication.on_change, broker.role.on_change
            for listeners in reasons:
                listeners.append(changed.set)
            try:
                await self._follow_assigned(broker)
                broker.replication.want_master()
                with trio.move_on_after(self._retry_s):
                    await changed.wait()
                self._retry_s = self._first_s if changed.is_set() else min(2 * self._retry_s, longest_s)
            finally:
                for listeners in reasons:
                    listeners.remove(changed.set)

    async def stop(self, broker: Broker) -> None:
        """Where a master is elected, copy the tables once more: this broker may be the next one, and the last
        one may still answer. Limited to half a second."""
        if self.group is not None and self.tables is not None:
            with trio.move_on_after(_LAST_TABLES_S):
                await self.tables.round()

    async def _follow_assigned(self, broker: Broker) -> None:
        """Follow the master (`_follow`); in an elected group only until another one is assigned."""
        if self.group is None:
            await self._follow(broker)
            return
        replication, role = broker.replication, broker.role
        assigned = replication.master_ha, role.epoch

        def changed() -> None:
            if assigned != (replication.master_ha, role.epoch):
                scope.cancel()

        with trio.CancelScope() as scope:
            replication.on_change.append(changed)
            role.on_change.append(changed)
            try:
                await self._follow(broker)
            finally:
                replication.on_change.remove(changed)
                role.on_change.remove(changed)

    async def _follow(self, broker: Broker) -> None:
        """Until the connection ends, or at once when there is none; the reason is logged."""
        text = broker.replication.master_ha
        if self.group is None:
            text = broker.config.owned(HaSettings).ha_master_address or text
        if not text:
            self._log_once(
                logging.WARNING, "no master is known: no name server says one, and haMasterAddress is empty"
            )
            await trio.lowlevel.checkpoint()
            return
        try:
            address = Address.parse(text)
            stream = await broker.registry.transport(address).connect(address, _CONNECT_TIMEOUT_MS)
        except (OSError, ValueError, ConfigError, PluginError) as error:
            self._log_once(logging.WARNING, f"cannot connect to the master at {text}: {error or 'no answer'}")
            return
        self.following = text
        assert self.tables is not None, "it runs"
        session = _Session(self, self.tables, broker, stream, text)
        try:
            async with stream:
                await session.run()
        except* (ProtocolError, StoreError) as group:
            self._log_once(logging.ERROR, f"does not follow {text}, trying again: {first_error(group)}")
        except* trio.TooSlowError:
            self._log_once(logging.WARNING, f"the master {text} is silent, connecting again")
        except* (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._log_once(logging.WARNING, f"the master {text} {session.ending}, connecting again")
        finally:
            self.following = ""

    def _log_once(self, level: int, text: str) -> None:
        """Log a line unless it was the last one, for the same may happen every few seconds."""
        if text != self._said:
            self._said = text
            _log.log(level, "replication: %s", text)

    def say_following(self, text: str, end: int) -> None:
        self._retry_s = self._first_s
        self._log_once(logging.INFO, f"follows the master {text} from log offset {end} on")


class _Session:
    """One connection to a master: the end of the log is compared, then a task reads and appends, another one
    reports, and a third one copies the tables."""

    def __init__(
        self, slave: HaSlave, tables: MasterTables, broker: Broker, stream: ByteStream, where: str
    ) -> None:
        self._slave = slave
        self._tables = tables
        self._broker = broker
        self._store = broker.store
        self._stream = stream
        self._where = where
        self._given = broker.config.owned(HaSettings)
        policy: FlushPolicy = broker.registry.chosen("flush_policies", broker.config.flush_policy)(
            broker.config
        )
        self._level = policy.acknowledge_at
        self._appended = trio.Event()
        self._is_own_master = False
        self._is_followed = False

    @property
    def ending(self) -> str:
        """How the connection ended when the master ended it."""
        if self._is_followed or not self._end:
            return "closed the connection"
        if self._slave.group is not None and not self._is_own_master:
            return "closed the connection, for it does not lead yet or no longer"
        return (
            f"closed the connection before the end of this log, {self._end}, was found in its own: their logs"
            f" differ if this repeats, and the master's log lines say where. {REMEDY}"
        )

    @property
    def _end(self) -> int:
        return self._store.end_offset

    async def run(self) -> None:
        """Until the connection ends. Raises ProtocolError, StoreError, TooSlowError, anyio's errors."""
        self._tables.leave()
        if options(self._broker.config).introduce:
            with trio.fail_after(self._given.ha_housekeeping_interval / 1000):
                await introduce(self._stream, self._broker.registry, self._where)
        if self._slave.damage is not None:
            await self._slave.damage.cut(self._store)
        if self._slave.group is None:
            self._is_own_master = await is_own_master(self._broker, self._where)
        else:
            await self._join(self._slave.group)
        asked = await last_record(self._store)
        await self._stream.send(report(asked))
        async with trio.open_nursery() as nursery:
            await self._receive(nursery, asked)

    async def _join(self, group: ElectedGroup) -> None:
        """Greet the master, and cut the log where the common history ends. Raises ProtocolError when there is
        none, or the master is not the newest; StoreError."""
        config, role, epochs = self._broker.config, self._broker.role, group.epochs
        newest = max(role.epoch, epochs.last)
        greeting = Greeting(config.broker_cluster_name, config.broker_name, group.name, group.start, newest)
        await self._stream.send(packed(greeting))
        with trio.fail_after(self._given.ha_housekeeping_interval / 1000):
            welcome = unpacked(await self._exactly(body_size(await self._exactly(HEAD_BYTES))), Welcome)
        if welcome.refusal:
            raise ProtocolError(f"it refuses this slave: {welcome.refusal}")
        if welcome.epoch < newest:
            raise ProtocolError(
                f"it is of epoch {welcome.epoch}, and epoch {newest} is known: it is not a master"
            )
        history = welcome.epochs
        if self._end > self._store.start_offset:
            await self._cut(group, welcome)
            history = with_history(epochs.known, welcome.epochs)
        await epochs.replace(history, self._store.start_offset)
        self._is_own_master = True

    async def _cut(self, group: ElectedGroup, welcome: Welcome) -> None:
        """Cut what the master's log does not have. Nothing, when the master's log begins after this one ends:
        `_begin_at` sees to it. Raises ProtocolError, StoreError."""
        end = self._end
        if welcome.epochs and end <= welcome.epochs[0].start:
            return
        common = common_end(group.epochs.known, end, welcome.epochs, welcome.end)
        if common is None or common[1] < self._store.start_offset:
            raise ProtocolError(f"its log and this one have no epoch in common. {REMEDY}")
        last, at = common
        if at == end:
            return
        if last == UNELECTED:
            raise ProtocolError(
                f"this log ends at {end}, and its log has {at} bytes from before the first election: which of"
                f" the others are missing there cannot be known. {REMEDY}"
            )
        _log.warning(
            "replication: this log ends at %d, and has epoch %d in common with the master %s up to %d: what"
            " follows was not confirmed and is removed",
            end,
            last.epoch,
            self._where,
            at,
        )
        await self._store.truncate(at)

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self._stream.receive(size - len(data))
        return data

    async def _receive(self, nursery: trio.Nursery, asked: int) -> None:
        """Read, compare and append, from the record on that was asked for. Nothing is reported before the
        logs are known to be equal, for a report acknowledges messages."""
        segment_bytes = self._broker.config.mapped_file_size_commit_log
        group = self._slave.group
        frames = Frames(segment_bytes, is_elected=group is not None)
        records: RecordAssembler | None = None
        comparison: Comparison | None = None
        while True:
            with trio.fail_after(self._given.ha_housekeeping_interval / 1000):
                data = await self._stream.receive(READ_BYTES)
            self._slave.last_read_ms = self._broker.clock.now_ms()
            for piece in frames.feed(data):
                if records is None:
                    await self._begin_at(piece.offset)
                    records = RecordAssembler(piece.offset, segment_bytes)
                    comparison = Comparison(self._store, piece.offset)
                records.add(piece)
                if comparison is not None and not piece.data:
                    comparison.idle(records.end)
            if records is None:
                continue
            found = records.take()
            if comparison is not None:
                found = await comparison.rest(*found)
                if comparison.is_complete:
                    comparison = None
                    self._is_followed = True
                    self._slave.say_following(self._where, self._end)
                    await self._tables.follow(asked)
                    nursery.start_soon(self._report)
                    nursery.start_soon(self._tables.run)
            await self._append(*found)
            if group is not None and frames.confirmed is not None and self._is_followed:
                group.confirmed_seen(frames.confirmed)

    async def _begin_at(self, offset: int) -> None:
        """Prepare the log for what a master sends from `offset` on. Raises ProtocolError, StoreError."""
        store, end = self._store, self._end
        if store.start_offset <= offset <= end or store.start_offset == end < offset:
            return
        if offset < end:
            raise ProtocolError(
                f"it sends from {offset} on, before the beginning of this log, {store.start_offset}. {REMEDY}"
            )
        if not self._is_own_master:
            raise ProtocolError(
                f"its log begins at {offset}, and this one ends at {end}: this slave was away for too long,"
                " or that is the master of another group. To let it remove its log and start over by itself,"
                " set haMasterAddress, and plugins.ha.masterAddress or namesrvAddr, so that the settings of"
                f" that broker can be read; what a name server alone says is not enough. {REMEDY}"
            )
        _log.error(
            "replication: this log ends at %d, and the log of the master %s begins at %d: this slave was away"
            " for too long. It removes its log from %d on and starts over",
            end,
            self._where,
            offset,
            store.start_offset,
        )
        await store.truncate(store.start_offset)

    async def _append(self, offset: int, data: bytes) -> None:
        if not data:
            return
        if self._tables.changing.locked():
            async with self._tables.changing:
                pass
        try:
            made = self._store.append_log(offset, data)
        except StoreBusy:
            await self._store.settled(self._end, Level.WRITTEN)
            made = self._store.append_log(offset, data)
        except StoreNotWritable:
            raise
        except StoreError as error:
            raise StoreError(
                f"{error}. If the master's log differs from this one, empty this broker's directory to let it"
                " start over"
            ) from error
        if self._slave.meter is not None:
            self._slave.meter.add(len(data))
        await self._tables.appended(offset, data, made)
        self._appended.set()

    async def _report(self) -> None:
        """Report the end of the log: at once, after each append, and as a heartbeat. What is reported is as
        safe as the flush policy makes a message before its acknowledgement."""
        while True:
            self._appended = trio.Event()
            end = self._end
            if self._store.is_settled(end, self._level):
                await trio.lowlevel.checkpoint()
            else:
                await self._store.settled(end, self._level)
            await self._stream.send(report(end))
            self._slave.last_write_ms = self._broker.clock.now_ms()
            with trio.move_on_after(self._given.ha_send_heartbeat_interval / 1000):
                await self._appended.wait()
