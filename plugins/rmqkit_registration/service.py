"""Registers a broker periodically with every name server (Java: BrokerController, BrokerOuterAPI; behaviour
sheet, C9).

Each name server has its own task, so a dead or slow one does not delay the others. Registrations are made at
the start, after ten seconds, then once per period, and whenever topics or filter servers change. Changes in
quick succession share a registration: the first is sent at once, the next after a gap proportional to the
duration of a registration, which is shorter while an administrative request waits for it: such a request is
answered when all name servers have been told. So a client finds the route of a topic that it has just
created, and a broker with many topics is not busy registering. A failure is logged, and the next round
retries.

Two brokers with the same name and id would alternately hide each other's messages. Each round therefore first
queries which address has them at the name server: another broker that answers there prevents the start, and
one that appears later is logged as an error.

A member of an elected group registers with id 0 while it is the master, and otherwise with the one that the
elector gave it; at once when its role changes. A new master takes the place of the old one at the name
server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from rmqkit.config import properties_text
from rmqkit.errors import BrokerError, ConfigError, RmqError
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.toolkit.address_server import LOOK_UP_S, addresses_at, url_of
from rmqkit.toolkit.interval import sleep_interval
from rmqkit_registration.requests import (
    Identity,
    broker_config_request,
    check_success,
    cluster_info_request,
    read_other_address,
    read_register_answer,
    register_body,
    register_request,
    unregister_request,
)
from rmqkit_registration.settings import RegistrationSettings

_log = logging.getLogger(__name__)
#: The id of a master.
MASTER_ID = 0
#: Time between the first and the second registration (Java: the initial delay of the scheduled task); the
#: later ones are a period apart.
INITIAL_DELAY_MS = 10_000
#: Java limits registerNameServerPeriod to this range.
MIN_PERIOD_MS = 10_000
MAX_PERIOD_MS = 60_000
#: Minimum and maximum time between two registrations of changed topics with one name server; in between, it
#: is `GAP_FACTOR` times the duration of the last registration. While somebody waits, the gap is divided by
#: the factor.
MIN_GAP_MS = 5
MAX_GAP_MS = 1_000
GAP_FACTOR = 4
#: Time limit for another broker with this broker's name to answer before it counts as dead.
PROBE_TIMEOUT_MS = 3_000
#: Time limit for each name server when the broker unregisters.
UNREGISTER_TIMEOUT_MS = 3_000


class RegistrationService(Service):
    """Service "registration". Does nothing without name servers."""

    name = "registration"

    def __init__(self) -> None:
        self._rounds = trio.CancelScope()

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Counts as started when every name server has been tried once. Raises ConfigError before the first
        registration when another broker with this name and id is serving. When cancelled, a registration in
        progress is abandoned; `stop` unregisters."""
        with trio.CancelScope() as self._rounds:
            async with trio.open_nursery() as nursery:
                if url := address_server(broker):
                    await _look_up(broker, url)
                loops = _Loops(broker, nursery)
                loops.listen()
                try:
                    await loops.begin()
                    task_status.started()
                    if url:
                        nursery.start_soon(_look_up_regularly, broker, url)
                    await trio.sleep_forever()
                finally:
                    loops.listen_no_more()
        # `stop` ended the rounds; the broker cancels the service.
        await trio.sleep_forever()

    async def stop(self, broker: Broker) -> None:
        """Unregister from all name servers concurrently, with a limit of 3 s each. Failures are logged; the
        name server then expires the broker."""
        self._rounds.cancel()
        async with trio.open_nursery() as nursery:
            for address in broker.name_servers.addresses:
                nursery.start_soon(_unregister, broker, address)


def address_server(broker: Broker) -> str:
    """The URL where the name servers are looked up; empty where settings name them. Raises ConfigError."""
    settings = _settings(broker)
    if broker.config.name_servers or not settings.fetch_namesrv_addr_by_address_server:
        return ""
    if not settings.rmq_address_server_domain:
        raise ConfigError(
            "fetchNamesrvAddrByAddressServer = true needs rmqAddressServerDomain: the host, or host:port, of"
            " the server that answers GET /rocketmq/nsaddr with the addresses of the name servers"
        )
    return url_of(settings.rmq_address_server_domain, settings.rmq_address_server_sub_group)


async def _look_up(broker: Broker, url: str) -> None:
    """Follow the address server; while it does not answer, the last addresses stay."""
    try:
        with trio.fail_after(LOOK_UP_S):
            found = await trio.to_thread.run_sync(addresses_at, url, abandon_on_cancel=True)
    except (OSError, ValueError, trio.TooSlowError) as error:
        _log.warning("%s names no name servers, trying again: %s", url, error or "no answer in time")
        return
    if found != broker.name_servers.addresses:
        _log.info("%s names the name servers %s", url, ", ".join(found))
        broker.name_servers.replace(found)


async def _look_up_regularly(broker: Broker, url: str) -> None:
    while True:
        await sleep_interval(broker.on_config_change, lambda: _settings(broker).fetch_namesrv_addr_interval)
        await _look_up(broker, url)


class _Loops:
    """A loop for each name server, also for those that are found later."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self._broker = broker
        self._nursery = nursery
        self._running: dict[str, tuple[_Loop, trio.CancelScope]] = {}

    def _wakers(self) -> list[list[Callable[[], None]]]:
        broker = self._broker
        return [
            broker.topics.on_change,
            broker.replication.on_wanted,
            broker.filter_servers.on_change,
            broker.role.on_change,
        ]

    def listen(self) -> None:
        """Follow the broker's changes."""
        broker = self._broker
        for listeners in self._wakers():
            listeners.append(self._wake)
        broker.on_config_change.append(self._look)
        broker.topics.on_announce.append(self._announced)
        broker.name_servers.on_change.append(self._follow)

    def listen_no_more(self) -> None:
        """Follow no further changes."""
        broker = self._broker
        for listeners in self._wakers():
            listeners.remove(self._wake)
        broker.on_config_change.remove(self._look)
        broker.topics.on_announce.remove(self._announced)
        broker.name_servers.on_change.remove(self._follow)

    async def begin(self) -> None:
        """Return when every name server has been tried once. Raises ConfigError where another broker has
        this name."""
        async with trio.open_nursery() as first_round:
            for address in self._broker.name_servers.addresses:
                first_round.start_soon(partial(self._nursery.start, self._run, address, True))

    async def _run(
        self, address: str, is_start: bool, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        loop = _Loop(self._broker, address)
        with trio.CancelScope() as scope:
            self._running[address] = loop, scope
            await loop.run(is_start, task_status)

    def _follow(self) -> None:
        """Listener for other name servers. One that is no longer named forgets the broker by itself."""
        addresses = self._broker.name_servers.addresses
        for address in [each for each in self._running if each not in addresses]:
            self._running.pop(address)[1].cancel()
        for address in addresses:
            if address not in self._running:
                self._nursery.start_soon(self._run, address, False)

    def _wake(self) -> None:
        for loop, _ in self._running.values():
            loop.wake()

    def _look(self) -> None:
        for loop, _ in self._running.values():
            loop.look()

    async def _announced(self) -> None:
        async with trio.open_nursery() as nursery:
            for loop, _ in self._running.values():
                nursery.start_soon(loop.announced)


class _Loop:
    """Registrations with one name server."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self._address = address
        #: Ends the wait: topics or settings have changed.
        self._woken = trio.Event()
        self._is_stale = False
        self._registered = False
        self._took_ms = 0.0
        #: Number of changes, how many of them an attempt has told, and whether somebody waits for one.
        self._changes = 0
        self._told = 0
        self._attempted = trio.Event()
        self._awaited = trio.Event()

    def wake(self) -> None:
        """Listener for changed topics."""
        self._changes += 1
        self._is_stale = True
        self._woken.set()

    async def announced(self) -> None:
        """Wait until the changes made so far were told to the name server. One that could not be told the
        last ones is not waited for."""
        changes = self._changes
        while self._told < changes and self._registered:
            self._awaited.set()
            await self._attempted.wait()

    def _attempt_ended(self, told: int) -> None:
        """Let those continue that wait for so many changes."""
        self._told = max(self._told, told)
        event, self._attempted = self._attempted, trio.Event()
        event.set()

    def look(self) -> None:
        """Listener for changed settings: the period may be another one."""
        self._woken.set()

    async def run(self, is_start: bool, task_status: trio.TaskStatus[None]) -> None:
        await self._round(first=is_start)
        task_status.started()
        round_s, is_first = trio.current_time(), True
        while True:
            gap_ms = min(max(self._took_ms, MIN_GAP_MS / GAP_FACTOR), MAX_GAP_MS / GAP_FACTOR)
            await trio.sleep(gap_ms / 1000)
            with trio.move_on_after((GAP_FACTOR - 1) * gap_ms / 1000):
                await self._awaited.wait()
            wait_ms = INITIAL_DELAY_MS if is_first else self._period_ms()
            with trio.move_on_at(round_s + wait_ms / 1000):
                await self._woken.wait()
            self._woken = trio.Event()
            wait_ms = INITIAL_DELAY_MS if is_first else self._period_ms()
            if trio.current_time() >= round_s + wait_ms / 1000:
                # A round delayed by a slow name server is not made up for.
                round_s, is_first = trio.current_time(), False
                await self._round(first=False)
            elif self._is_stale:
                await self._register()

    def _period_ms(self) -> int:
        period_ms = _settings(self._broker).register_name_server_period
        return min(max(period_ms, MIN_PERIOD_MS), MAX_PERIOD_MS)

    async def _round(self, first: bool) -> None:
        """Check for another broker with this name, then register. Raises ConfigError when the first check
        finds one that answers."""
        broker, address = self._broker, self._address
        if broker.replication.group is not None:
            await self._register()
            return
        who = _identity(broker)
        try:
            answer = await broker.pool.call(
                address, cluster_info_request(), _settings(broker).register_broker_timeout_mills
            )
            other = read_other_address(answer, who, address)
        except BrokerError as error:
            _log.warning("the name server %s does not say which brokers it knows: %s", address, error)
            other = None
        except RmqError as error:
            self._failed(error)
            return
        if other is not None:
            taken = (
                f"{who.broker_name} (id {who.broker_id}) is registered at the name server {address} with the"
                f" address {other}"
            )
            if not first:
                _log.error(
                    "%s, not %s: two brokers of one name hide each other's messages; stop one, or give it"
                    " another brokerName",
                    taken,
                    who.address,
                )
            elif await _is_another_broker(broker, other):
                raise ConfigError(
                    f"{taken}, and a broker answers there: two brokers of one name hide each other's"
                    " messages; stop that one, or give this one another name with brokerName"
                )
            else:
                _log.warning(
                    "%s, where no broker of this name answers: taken for an earlier start of this one", taken
                )
        await self._register()

    def _failed(self, error: RmqError) -> None:
        self._registered = False
        self._attempt_ended(self._changes)
        _log.warning(
            "cannot register with the name server %s, next try in the next round: %s", self._address, error
        )

    async def _register(self) -> None:
        """One attempt. Every failure is logged with the name server's address."""
        self._is_stale, self._awaited = False, trio.Event()
        changes = self._changes
        try:
            await self._tell()
        finally:
            self._attempt_ended(changes)

    async def _tell(self) -> None:
        broker, address = self._broker, self._address
        if _is_nobody(broker):
            return
        began_s = trio.current_time()
        table, permission = broker.topics.table(), broker.config.broker_permission
        filter_servers = broker.filter_servers.addresses
        # Of one moment: the id of a master must not be sent with a later epoch.
        who, epoch = _identity(broker), broker.role.epoch
        # The body of many topics has megabytes: its checksum is the thread's work as well.
        command = await trio.to_thread.run_sync(
            lambda: register_request(who, register_body(table, permission, filter_servers, epoch))
        )
        try:
            answer = await broker.pool.call(address, command, _settings(broker).register_broker_timeout_mills)
            header, _ = read_register_answer(answer, address)
        except RmqError as error:
            self._failed(error)
            return
        self._took_ms = (trio.current_time() - began_s) * 1000
        _log.log(
            logging.DEBUG if self._registered else logging.INFO, "registered with the name server %s", address
        )
        self._registered = True
        broker.replication.learned(header.master_addr or "", header.ha_server_addr or "")


async def _is_another_broker(broker: Broker, address: str) -> bool:
    """Whether the broker that answers at an address has this broker's name and is not this one under an
    earlier address of the machine."""
    try:
        answer = await broker.pool.call(address, broker_config_request(), PROBE_TIMEOUT_MS)
    except RmqError:
        return False
    text = answer.body.decode("utf-8", "replace")
    if text == properties_text(broker.config, broker.registry.settings.values()):
        return False
    # If the broker does not disclose its settings, it is treated as another one with the same name.
    return bool(answer.code) or f"brokerName={broker.config.broker_name}" in text.splitlines()


async def _unregister(broker: Broker, address: str) -> None:
    try:
        with trio.fail_after(UNREGISTER_TIMEOUT_MS / 1000):
            check_success(
                await broker.pool.call(address, unregister_request(_identity(broker)), UNREGISTER_TIMEOUT_MS),
                address,
            )
    except (RmqError, trio.TooSlowError) as error:
        _log.warning("cannot unregister from the name server %s: %s", address, error or "no answer")


def _identity(broker: Broker) -> Identity:
    config = broker.config
    return Identity(
        cluster=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=_broker_id(broker),
        address=broker.address,
        ha_address=broker.replication.own,
    )


def _is_nobody(broker: Broker) -> bool:
    """Whether this is a member of an elected group that has no id yet, and is not the master."""
    is_master = broker.role.current is Role.MASTER
    return broker.replication.group is not None and not is_master and not _broker_id(broker)


def _broker_id(broker: Broker) -> int:
    group = broker.replication.group
    if group is None:
        return broker.config.broker_id
    return MASTER_ID if broker.role.current is Role.MASTER else group.broker_id


def _settings(broker: Broker) -> RegistrationSettings:
    return broker.config.owned(RegistrationSettings)
