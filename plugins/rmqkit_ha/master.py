"""The master's side: sends its log to each slave that connects (store-format sheet, section 13.1; Java:
DefaultHAService, DefaultHAConnection)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Literal, overload

import trio
from attrs import define, evolve, field

from rmqkit.config import FREE_PORT
from rmqkit.errors import ConfigError, ProtocolError, RequestRefused, StoreError, first_error
from rmqkit.log_limit import limited_logger
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.listen import Listener, bind, start_work
from rmqkit.plugin.positions import BEYOND_LOG, wait_moved
from rmqkit.plugin.replication import ReplicaProgress
from rmqkit.plugin.request import REPLICATION, StreamCaller
from rmqkit.plugin.role import ALL_ROLES, Role
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import NotInMemory, Pin
from rmqkit.plugin.transport import Address, ServerStream
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic, peek_store_timestamp
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit.toolkit.interval import sleep_interval
from rmqkit_ha.frames import Reports, confirmed_frame, frame_head
from rmqkit_ha.greeting import Greeting, packed, unpacked
from rmqkit_ha.group import ElectedGroup, GroupMember
from rmqkit_ha.introduction import introduced
from rmqkit_ha.limits import GATHERED_MS, MAX_BODY_BYTES, MAX_CONNECTIONS, TELL_MS, TURN_BYTES
from rmqkit_ha.meter import Meter
from rmqkit_ha.replicas import Replica, Replicas
from rmqkit_ha.settings import HaSettings, is_replicating, options

_log = logging.getLogger(__name__)
_peer_log = limited_logger(f"{__name__}.peers")
_LAG_LOG_S = 60
_REPORT_BYTES = 64 * 1024


class HaMaster(Service):
    """Service "ha-master": listens for slaves. Does nothing where no setting is about replication."""

    name = "ha-master"
    roles = frozenset({Role.MASTER})

    def __init__(self) -> None:
        self.replicas = Replicas()
        self.group: ElectedGroup | None = None
        self._places = set[_Place]()

    def begin(self, broker: Broker, replicas: Replicas, group: ElectedGroup | None = None) -> None:
        """Serve the slaves of an assembled broker. A member of an elected group listens in every role, for
        its address is to be known before it is the master."""
        self.replicas, self.group = replicas, group
        if group is not None:
            self.roles = ALL_ROLES
            broker.role.on_change.append(self._close_all)
        replicas.begin(broker.store.positions.appended)
        broker.store.positions.follow_truncation(replicas.truncated)
        broker.replication.replicas = partial(self.progress, broker)

    def progress(self, broker: Broker) -> list[ReplicaProgress]:
        """The connected slaves."""
        replicas = self.replicas
        return [
            ReplicaProgress(
                each.address,
                each.acknowledged,
                replicas.lag_bytes(each),
                lag_ms(broker, each.acknowledged),
                self.is_in_sync(each),
            )
            for each in replicas.connected
        ]

    def _close_all(self) -> None:
        """End all connections: they are of the epoch that is over."""
        for place in self._places:
            place.scope.cancel()

    def is_in_sync(self, replica: Replica) -> bool:
        """Whether a slave is waited for."""
        if self.group is not None:
            return replica.member in self.group.in_sync
        return self.replicas.is_in_sync(replica)

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Counts as started when the port is bound. Raises ConfigError when it cannot be."""
        if not is_replicating(broker.config):
            task_status.started()
            await trio.sleep_forever()
        listeners, bound = await _bound(broker)
        broker.replication.announce(_announced(broker, bound))
        _log.info("slaves are served at %s", bound)
        try:
            async with trio.open_nursery() as nursery:
                start_work(listeners, nursery)
                nursery.start_soon(self._log_lag, broker)
                task_status.started()
                await trio.serve_listeners(partial(self._serve, broker), listeners)
        finally:
            broker.replication.announce("")

    async def _log_lag(self, broker: Broker) -> None:
        """Java: BrokerController.printMasterAndSlaveDiff."""
        while True:
            await trio.sleep(_LAG_LOG_S)
            for replica in self.replicas.connected:
                _log.info(
                    "slave %s is %d bytes and %d ms behind",
                    replica.address,
                    self.replicas.lag_bytes(replica),
                    lag_ms(broker, replica.acknowledged),
                )

    async def _serve(self, broker: Broker, accepted: ServerStream) -> None:
        """One connection; its errors end it alone. Only a master serves."""
        if broker.role.current is not Role.MASTER:
            await trio.aclose_forcefully(accepted)
            return
        where, stream = "{}:{}".format(*accepted.remote), accepted
        place = self._place(where)
        try:
            given = broker.config.owned(HaSettings)
            with place.scope:
                with trio.fail_after(given.ha_housekeeping_interval / 1000):
                    stream = await accepted.opened()
                    introduction, first = await introduced(stream)
                broker.admit(StreamCaller(stream, REPLICATION, introduction))
                await _Connection(broker, self.replicas, stream, place, self.group, first).run()
        except* RequestRefused as group:
            _peer_log.warning("slave %s refused: %s", where, first_error(group))
        except* (ProtocolError, StoreError) as group:
            _peer_log.warning("%s is not a slave of this broker, closed: %s", where, first_error(group))
        except* trio.TooSlowError:
            _peer_log.warning("slave %s is silent, closed", where)
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            _peer_log.info("slave %s: the connection is lost: %s", where, first_error(group))
        except* Exception:  # noqa: BLE001 - one connection's error must not reach the others
            _peer_log.exception("the connection of slave %s failed and was closed", where)
        finally:
            self._places.discard(place)
            await trio.aclose_forcefully(stream)

    def _place(self, where: str) -> _Place:
        """The place of a new connection. When there is none, it is taken from the connection that has said
        nothing for the longest time, first of those that never reported: whoever opens many cannot keep the
        slaves out."""
        if len(self._places) >= MAX_CONNECTIONS:
            last = min(self._places, key=lambda each: (each.has_reported, each.heard_s))
            _peer_log.warning(
                "more than %d connections of slaves: %s has been silent for the longest time and is closed",
                MAX_CONNECTIONS,
                last.where,
            )
            self._places.remove(last)
            last.scope.cancel()
        place = _Place(where, trio.current_time())
        self._places.add(place)
        return place


@define(eq=False)
class _Place:
    """A connection from `where`, which ends when `scope` is cancelled. `heard_s` is the time of its last
    report, or of its beginning."""

    where: str
    heard_s: float
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    has_reported: bool = False


class _Connection:
    """One slave: a task reads its reports, another one sends."""

    def __init__(
        self,
        broker: Broker,
        replicas: Replicas,
        stream: ServerStream,
        place: _Place,
        group: ElectedGroup | None,
        first: bytes,
    ) -> None:
        self._broker = broker
        #: What has arrived and was not looked at.
        self._first = first
        self._store = broker.store
        self._replicas = replicas
        self._stream = stream
        self._place = place
        self._where = place.where
        self._config = broker.config
        self._owned = broker.config.owned(HaSettings)
        self._segment_bytes = broker.config.mapped_file_size_commit_log
        self._reports = Reports()
        self._group = group
        #: Whether senders may wait for the slave.
        self._is_awaited = group is not None or self._given.copies > 1

    @property
    def _given(self) -> HaSettings:
        """The settings of the moment, read again when one has changed: that takes longer than a turn."""
        if self._config is not self._broker.config:
            self._config = self._broker.config
            self._owned = self._config.owned(HaSettings)
        return self._owned

    async def run(self) -> None:
        """Until the connection ends, or its scope is cancelled. Raises ProtocolError, StoreError,
        TooSlowError, trio's stream errors."""
        scope = self._place.scope
        asked = await self._read(or_greeting=True)
        if self._reports.greeting is None:
            await self._follow(asked, None, scope)
            return
        group, member = await self._greeted(self._reports.greeting, scope)
        try:
            await self._follow(asked, member, scope)
        finally:
            group.disconnected(member, scope)

    async def _greeted(self, body: bytes, scope: trio.CancelScope) -> tuple[ElectedGroup, GroupMember]:
        """Answer a greeting. Raises ProtocolError when its slave is not served."""
        if self._group is None:
            raise ProtocolError("it is a member of an elected group, and this broker is none")
        greeting = unpacked(body, Greeting)
        welcome = self._group.welcome(greeting)
        await self._stream.send_all(packed(welcome))
        return self._group, self._group.connected(greeting, scope)

    async def _follow(self, asked: int | None, member: GroupMember | None, scope: trio.CancelScope) -> None:
        if asked is None:
            asked = await self._read()
        start = self._start(asked)
        replica = Replica(self._where, min(asked, start), start, Meter(self._broker.clock))
        _peer_log.info("slave %s has the log up to %d, it is sent from %d on", self._where, asked, start)
        with self._store.pin(start, f"slave {self._where}") as pin, self._replicas.joined(replica):
            if member is not None and self._group is not None:
                # What was asked for counts when the slave has compared it, and reports it.
                replica.member, replica.report = member.name, partial(self._group.acknowledge, member, scope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, replica, pin)
                while True:
                    self._replicas.acknowledge(replica, self._checked(await self._read()))

    @overload
    async def _read(self) -> int: ...
    @overload
    async def _read(self, *, or_greeting: Literal[True]) -> int | None: ...
    async def _read(self, *, or_greeting: bool = False) -> int | None:
        """The next complete report, which has to come in time as a whole; None for a greeting before it."""
        offset = None
        with trio.fail_after(self._given.ha_housekeeping_interval / 1000):
            while offset is None and not (or_greeting and self._reports.greeting is not None):
                data, self._first = self._first or await self._stream.receive_some(_REPORT_BYTES), b""
                if not data:
                    raise trio.BrokenResourceError("the slave closed it")
                offset = self._reports.feed(bytes(data))
        self._place.heard_s = trio.current_time()
        self._place.has_reported |= offset is not None
        return offset

    def _checked(self, offset: int) -> int:
        end = self._store.end_offset
        if not 0 <= offset <= end:
            raise ProtocolError(
                f"it says that its log ends at {offset}, and this one at {end}: it has followed another"
                " broker, or this one has lost the end of its log; keep the broker that has what you need as"
                " the master, and empty the directory of the other one"
            )
        return offset

    def _start(self, asked: int) -> int:
        """Where to begin for a slave whose log ends at `asked`. Raises ProtocolError."""
        store, end = self._store, self._store.end_offset
        self._checked(asked)
        if asked == 0 and self._given.sync_from_last_file:
            return max(store.start_offset, end - end % self._segment_bytes)
        if asked < store.start_offset:
            _peer_log.log(
                logging.WARNING if asked else logging.INFO,
                "slave %s ends at %d, this log begins at %d: it has to start over",
                self._where,
                asked,
                store.start_offset,
            )
            return store.start_offset
        return asked

    async def _send(self, replica: Replica, pin: Pin) -> None:
        """Send from `replica.sent` on. The first frame may be a heartbeat, by which the slave knows where the
        log goes on. A slave of the elected group also gets the confirmed position, once this master knows it:
        what a new one has beyond its set may be removed by the next."""
        written = self._store.positions.written
        limit_bytes = options(self._broker.config).pin_limit_bytes
        # Apache's slaves, and others that have not greeted, do not know such frames.
        group = self._group if replica.member else None
        confirmed_sent = BEYOND_LOG if group is None else -1
        await self._stream.send_all(frame_head(replica.sent, 0))
        while True:
            pin.offset = max(replica.acknowledged, self._store.end_offset - limit_bytes)
            parts, size = await self._frames(replica.sent)
            if group is not None and group.knows_confirmed and group.confirmed() != confirmed_sent:
                confirmed_sent = group.confirmed()
                parts = [confirmed_frame(confirmed_sent), *parts]
            if parts:
                await self._stream.send_parts(parts)
                replica.sent += size
                replica.meter.add(size)
                await self._pause(size)
                continue
            idle_ms = self._given.ha_send_heartbeat_interval
            if confirmed_sent < replica.sent:
                idle_ms = min(idle_ms, TELL_MS)
            with trio.move_on_after(idle_ms / 1000) as idle:
                await wait_moved(written, replica.sent)
            if idle.cancelled_caught:
                await self._stream.send_all(frame_head(replica.sent, 0))
            elif not self._is_awaited:
                # A frame for each run of messages would cost the master a quarter of its sends.
                with trio.move_on_after(GATHERED_MS / 1000):
                    await wait_moved(written, replica.sent + TURN_BYTES)

    async def _pause(self, sent_bytes: int) -> None:
        if self._given.ha_flow_control_enable:
            await sleep_interval(self._broker.on_config_change, partial(self._pause_ms, sent_bytes))
        else:
            await trio.lowlevel.checkpoint()

    def _pause_ms(self, sent_bytes: int) -> float:
        given = self._given
        if not given.ha_flow_control_enable:
            return 0
        return 1000 * sent_bytes / given.max_ha_transfer_byte_in_second

    async def _frames(self, offset: int) -> tuple[Sequence[Buffer], int]:
        """Frames for the log from an offset on, as many as fit into a turn, and the size of their bodies. A
        frame has whole records, unless one is larger than a slave's buffer, and ends where a file does.
        Raises ProtocolError when no record begins there."""
        store, parts, at = self._store, list[Buffer](), offset
        end = store.positions.written.offset
        while at < end and at - offset < TURN_BYTES:
            room = self._segment_bytes - at % self._segment_bytes
            limit = min(self._given.ha_transfer_batch_size, room, MAX_BODY_BYTES)
            data = memoryview(await read_when_cached(store, partial(store.read_log, at, limit)))
            if not data:
                raise ProtocolError(
                    f"no record begins at {at} in this log, which begins at {store.start_offset}: the slave"
                    " is too far behind, or its log differs"
                )
            for begin in range(0, len(data), MAX_BODY_BYTES):
                body = data[begin : begin + MAX_BODY_BYTES]
                parts += [frame_head(at, len(body)), body]
                at += len(body)
        return parts, at - offset


def lag_ms(broker: Broker, acknowledged: int) -> int:
    """The age of the oldest message from a log offset on; that of a message on the device alone is unknown,
    and 0."""
    store = broker.store
    try:
        data = store.read_log(max(acknowledged, store.start_offset), 1)
        if data and peek_size_and_magic(data)[1] == MAGIC_BLANK:
            data = store.read_log(acknowledged + len(data), 1)
    except NotInMemory:
        return 0
    return max(0, broker.clock.now_ms() - peek_store_timestamp(data)) if data else 0


async def _bound(broker: Broker) -> tuple[list[Listener], Address]:
    """The listeners for slaves, and where they are. Beside a port that the system has chosen for clients, the
    next one may have been taken meanwhile: then it is any free one. Raises ConfigError."""
    config, address = broker.config, listen_address(broker)
    is_free = config.owned(HaSettings).ha_listen_port is None and not options(config).listen
    try:
        listeners, (bound, *_) = await bind(broker.registry, [address])
    except ConfigError as error:
        if not (is_free and config.sources.get("listenPort") == FREE_PORT):
            raise ConfigError(f"slaves are served at haListenPort: {error}") from error
        listeners, (bound, *_) = await bind(broker.registry, [evolve(address, port=0)])
    return listeners, bound


def listen_address(broker: Broker) -> Address:
    """Where the master listens for slaves."""
    config = broker.config
    text = options(config).listen
    if text:
        return Address.parse(text)
    port = config.owned(HaSettings).ha_listen_port
    if port is None:
        port = config.listen_port + 1 if config.listen_port else 0
    return Address("tcp", config.bind_address, port)


def _announced(broker: Broker, bound: Address) -> str:
    """The address for slaves: brokerIP2, else the host for clients."""
    if bound.scheme != "tcp":
        return str(bound)
    host = broker.config.owned(HaSettings).broker_ip2 or broker.config.advertised_host
    return str(Address("tcp", host, bound.port))
