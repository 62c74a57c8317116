"""The tables of a name server (Java: RouteInfoManager; behaviour sheet, D2 to D5). Plain state: no I/O, no
clock; times in ms on any scale.

topics          topic -> broker name -> QueueData
brokers         broker name -> BrokerData (addresses by id, 0 is the master)
clusters        cluster -> broker names
live            (cluster, address) -> LiveBroker
filter_servers  (cluster, address) -> filter server addresses

Invariants between calls: a broker name in `topics` or `clusters` is in `brokers`; an address in `brokers` is
in `live`, so that every listed broker expires; no table has empty entries; a broker name is in one cluster.

Intended differences from Java:

- The first registration of a broker with exactly one topic is accepted (Java 5 answers SYSTEM_ERROR). Topics
  missing from it are added by the next full registration, because a missing topic is written whatever the
  data version is.
- A broker name that registers with another cluster moves there (Java lists it in both and keeps the first in
  the routes). An address that registers with another broker name leaves the old one (Java lists it there for
  ever).
- REGISTER_TOPIC writes the known brokers and skips the unknown ones (Java stops at the first unknown one).

As in Java, a topic missing from a later registration stays, because a 5.x broker that registers incrementally
sends only changes; where registrations count as complete (deleteTopicWithBrokerRegistration), it goes.

A broker has up to MAX_REGISTERED_TOPICS topics, and one call must not visit them all. So the topics of a
registration are first kept beside `topics` and count from then on; `step` moves them there, a slice at a
time. Likewise a broker that leaves is out of the routes at once, and its entries are removed in slices. The
methods take the unfinished work into account. Small work is finished by the call that causes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec
from attrs import frozen

from rmqkit.errors import RequestRefused
from rmqkit.model.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from rmqkit.model.sysflag import PERM_RW, PERM_WRITE
from rmqkit.model.topic import DataVersion
from rmqkit.protocol.codes import ResponseCode
from rmqkit_namesrv.entries import BrokerKey, LiveBroker, Registered, Registration
from rmqkit_namesrv.limits import (
    MAX_BROKERS,
    MAX_BROKERS_PER_CONNECTION,
    MAX_REGISTERED_TOPICS,
    MAX_ROUTE_ENTRIES,
)

#: Bits of topicSysFlag (Java: TopicSysFlag).
UNIT = 0x1
UNIT_SUB = 0x2
#: Topics of one slice.
_SLICE = 256


@frozen(eq=False)
class _Landing:
    """Registered topics that are on their way into `topics`. They replace the entries there, or only add
    missing ones; if they are complete, other entries of the broker go."""

    queues: dict[str, QueueData]
    replaces: bool
    is_complete: bool


class RouteTables:
    """`on_work` is called when there is work for `step`."""

    def __init__(self) -> None:
        self.on_work: Callable[[], object] = lambda: None
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[BrokerKey, LiveBroker] = {}
        self.filter_servers: dict[BrokerKey, list[str]] = {}
        # Broker name -> its topics, so that the cost of losing a broker depends only on its own topics.
        self._topics_of: dict[str, set[str]] = {}
        # Connection -> the brokers that registered over it, for the same reason.
        self._registered_over: dict[object, dict[BrokerKey, None]] = {}
        self._route_entries = 0
        # Broker name -> its last registration, until its topics are all in `topics`.
        self._landing: dict[str, _Landing] = {}
        # Broker name -> how many times it has left with entries that are still to be removed from `topics`.
        self._leaving: dict[str, int] = {}
        self._work: deque[Iterator[None]] = deque()
        #: Number of registrations refused because of a limit.
        self.refused = 0

    # Registration and expiry of brokers.

    def register(self, new: Registration, now_ms: int, *, is_complete: bool = False) -> Registered:
        """Apply a registration (behaviour sheet, D3). If a broker id changes its address, the new address
        wins, unless the old one is alive with a higher state version: then the registration is ignored and
        its address is not listed under any id, or remains as it is when it has registered with a higher one
        itself. `is_complete`: topics of the broker that are missing here leave the routes.

        Raises RequestRefused when a table is full; nothing is changed then.
        """
        if new.broker_name in self._landing:
            self.finish()
        self._check_room(new)
        broker = self.brokers.get(new.broker_name)
        before = self.live.get(new.key)
        refused = broker is not None and self._outdated(broker, new)
        is_late = refused and before is not None and _version(before) > new.data_version.state_version
        if before is not None and not is_late and (refused or before.broker_name != new.broker_name):
            # The previous broker at this address no longer exists, whether or not the new one is accepted.
            self.unregister(*new.key, before.broker_name)
        if refused:
            self._add_work(_emptied(new.topics))
            return Registered(False)
        replaced = self._replaced(broker, new)
        broker = self._joined(new)
        first = new.broker_id not in broker.broker_addrs
        for broker_id in [
            number
            for number, address in broker.broker_addrs.items()
            if address == new.address and number != new.broker_id
        ]:
            # The same address under another id: a slave that became the master, or the reverse.
            del broker.broker_addrs[broker_id]
        broker.broker_addrs[new.broker_id] = new.address
        broker.enable_acting_master = new.enable_acting_master is True
        changed = first or self.version_changed(new.key, new.data_version)
        self._define_topics(broker, new, changed, is_complete)
        self._disconnect(new.key)
        self.live[new.key] = LiveBroker(
            new.key,
            new.broker_name,
            now_ms,
            new.timeout_ms,
            msgspec.structs.replace(new.data_version),
            new.ha_address,
            new.connection,
        )
        if new.connection is not None:
            self._registered_over.setdefault(new.connection, {})[new.key] = None
        if new.filter_servers:
            self.filter_servers[new.key] = list(new.filter_servers)
        elif new.filter_servers is not None:
            self.filter_servers.pop(new.key, None)
        return self._registered(broker, new)._replace(replaced=replaced)

    def unregister(self, cluster: str, address: str, broker_name: str) -> None:
        """Remove one broker and its own data. Unknown brokers are ignored, and so is an address that belongs
        to another broker name."""
        key = BrokerKey(cluster, address)
        entry = self.live.get(key)
        if entry is not None and entry.broker_name != broker_name:
            return
        self._disconnect(key)
        self.live.pop(key, None)
        self.filter_servers.pop(key, None)
        broker = self.brokers.get(broker_name)
        if broker is None or broker.cluster != cluster:
            return
        broker.broker_addrs = {
            number: known for number, known in broker.broker_addrs.items() if known != address
        }
        if not broker.broker_addrs:
            self._forget(broker)
        elif broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
            # A slave serves reads for its master; writing is not possible.
            self.wipe_write_perm(broker_name)

    def unregister_connection(self, connection: object) -> list[LiveBroker]:
        """Remove and return the brokers that registered over a connection that has ended."""
        return self._remove([self.live[key] for key in self._registered_over.get(connection, ())])

    def registered_over(self, connection: object) -> bool:
        """Whether a live broker registered over the connection."""
        return connection in self._registered_over

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Remove and return the brokers without a heartbeat within their time-out; the caller closes their
        connections."""
        return self._remove(
            [entry for entry in self.live.values() if entry.last_update_ms + entry.timeout_ms < now_ms]
        )

    def touch(self, cluster: str, address: str, now_ms: int) -> None:
        """Record a heartbeat. Unknown brokers are ignored."""
        entry = self.live.get(BrokerKey(cluster, address))
        if entry is not None:
            entry.last_update_ms = now_ms

    def version_changed(self, key: BrokerKey, version: DataVersion) -> bool:
        """Whether the broker is unknown or its last registration had another version of its topics."""
        entry = self.live.get(key)
        return entry is None or not entry.data_version.same(version)

    # Topics.

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Write queue data directly, for registered brokers only (REGISTER_TOPIC_IN_NAMESRV). Raises
        RequestRefused when the tables are full."""
        for queue in queues:
            if queue.broker_name in self.brokers:
                self._check_topics(queue.broker_name, queue.broker_name not in self.topics.get(topic, ()))
                self._put(topic, queue)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from the routes of one cluster or of all. It reappears when a broker that has it
        registers again."""
        self.finish()
        for broker_name in list(self.topics.get(topic, ())):
            if cluster is None or self.brokers[broker_name].cluster == cluster:
                self._drop(topic, broker_name)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Clear the write permission on every topic of a broker. Returns the number of topics. Lasts until
        the broker registers with a changed version."""
        return self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Set every topic of a broker to exactly read and write, as Java does. Returns the number of
        topics."""
        return self._set_perm(broker_name, lambda perm: PERM_RW)

    # Queries.

    def route(self, topic: str) -> TopicRouteData | None:
        """Brokers and queues of a topic; None when no broker has it. The result is a copy."""
        queues = self._queues(topic)
        if not queues:
            return None
        brokers = [_copy(self.brokers[name]) for name in queues]
        route = TopicRouteData(broker_datas=brokers, queue_datas=list(queues.values()))
        if self.filter_servers:
            keys = [
                BrokerKey(broker.cluster, address)
                for broker in brokers
                for address in broker.broker_addrs.values()
            ]
            route.filter_server_table = {
                key.address: list(self.filter_servers[key]) for key in keys if key in self.filter_servers
            }
        return route

    def broker(self, broker_name: str) -> BrokerData | None:
        """A copy of one broker's addresses."""
        found = self.brokers.get(broker_name)
        return _copy(found) if found is not None else None

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: _copy(broker) for name, broker in self.brokers.items()},
            cluster_addr_table={cluster: sorted(names) for cluster, names in self.clusters.items()},
        )

    def all_topics(self) -> list[str]:
        """The names of all topics."""
        names = list(self.topics)
        if self._landing or self._leaving:
            names += (name for landing in self._landing.values() for name in landing.queues)
            names = [name for name in dict.fromkeys(names) if self._queues(name)]
        return names

    def topics_of_cluster(self, cluster: str) -> list[str]:
        found: set[str] = set()
        for name in self.clusters.get(cluster, ()):
            landing = self._landing.get(name)
            if landing is None or not landing.is_complete:
                found.update(self._topics_of.get(name, ()))
            if landing is not None:
                found.update(landing.queues)
        return sorted(found)

    def topics_by_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose topicSysFlag, taken from the first broker of the topic, has all `wanted` bits and none
        of `unwanted`."""
        flags = (
            (topic, next(iter(self._queues(topic).values())).topic_sys_flag) for topic in self.all_topics()
        )
        return [topic for topic, flag in flags if flag & wanted == wanted and not flag & unwanted]

    # Work in slices.

    def step(self) -> bool:
        """Do a slice of the unfinished work. Returns False when there is none."""
        while self._work:
            for _ in self._work[0]:
                return True
            self._work.popleft()
        return False

    def finish(self) -> None:
        """Do all unfinished work."""
        while self.step():
            pass

    @property
    def working(self) -> bool:
        """Whether there is unfinished work."""
        return bool(self._work)

    def _add_work(self, work: Iterator[None]) -> None:
        self._work.append(work)
        if self.step() and self.step():
            self.on_work()

    def _land(self, name: str, landing: _Landing) -> Iterator[None]:
        if landing.is_complete:
            yield from self._drop_missing(name, landing)
        for number, (topic, queue) in enumerate(landing.queues.items(), 1):
            if self._landing.get(name) is not landing:
                break
            if landing.replaces or name not in self.topics.get(topic, ()):
                self._put(topic, queue)
            if number % _SLICE == 0:
                yield
        if self._landing.get(name) is landing:
            del self._landing[name]
        yield from _emptied(landing.queues)

    def _drop_missing(self, name: str, landing: _Landing) -> Iterator[None]:
        """Remove the broker's topics that its complete registration lacks."""
        topics = iter(list(self._topics_of.get(name, ())))
        while (part := list(islice(topics, _SLICE))) and self._landing.get(name) is landing:
            for topic in part:
                if topic not in landing.queues and name in self.topics.get(topic, ()):
                    self._drop(topic, name)
            if len(part) == _SLICE:
                yield

    def _remove_topics(self, name: str, topics: set[str]) -> Iterator[None]:
        while topics:
            for _ in range(min(len(topics), _SLICE)):
                self._drop(topics.pop(), name)
            if topics:
                yield
        self._leaving[name] -= 1
        if not self._leaving[name]:
            del self._leaving[name]

    def _change_perm(self, name: str, change: Callable[[int], int]) -> Iterator[None]:
        topics = iter(list(self._topics_of.get(name, ())))
        while part := list(islice(topics, _SLICE)):
            for topic in part:
                queue = self.topics.get(topic, {}).get(name)
                if queue is not None:
                    self.topics[topic][name] = msgspec.structs.replace(queue, perm=change(queue.perm))
            yield

    # Internals.

    def _queues(self, topic: str) -> dict[str, QueueData]:
        """What each broker has of a topic, by name."""
        queues = self.topics.get(topic, {})
        if not self._landing and not self._leaving:
            return queues
        found = {name: queue for name, queue in queues.items() if name not in self._leaving}
        for name, landing in self._landing.items():
            queue = landing.queues.get(topic)
            if queue is None and landing.is_complete:
                found.pop(name, None)
            if queue is not None and (landing.replaces or name not in found):
                found[name] = queue
        return found

    def _outdated(self, broker: BrokerData, new: Registration) -> bool:
        address = broker.broker_addrs.get(new.broker_id)
        if address is None or address == new.address:
            return False
        old = self.live.get(BrokerKey(new.cluster, address))
        return old is not None and _version(old) > new.data_version.state_version

    def _joined(self, new: Registration) -> BrokerData:
        broker = self.brokers.get(new.broker_name)
        if broker is not None and broker.cluster != new.cluster:
            self._forget(broker)
            broker = None
        if broker is None:
            broker = self.brokers[new.broker_name] = BrokerData(
                cluster=new.cluster, broker_name=new.broker_name, broker_addrs={}
            )
            self.clusters.setdefault(new.cluster, set()).add(new.broker_name)
        return broker

    def _define_topics(self, broker: BrokerData, new: Registration, changed: bool, is_complete: bool) -> None:
        """Only the master defines topics, or for brokers from 5.0 on the slave with the lowest id."""
        leads = new.enable_acting_master is not None and new.broker_id == min(broker.broker_addrs)
        if new.broker_id != MASTER_ID and not leads:
            self._add_work(_emptied(new.topics))
        elif new.topics:
            landing = self._landing[new.broker_name] = _Landing(new.topics, changed, is_complete)
            self._add_work(self._land(new.broker_name, landing))

    def _registered(self, broker: BrokerData, new: Registration) -> Registered:
        master = broker.master
        if new.broker_id == MASTER_ID or master is None:
            return Registered(True)
        entry = self.live.get(BrokerKey(new.cluster, master))
        return Registered(True, master, entry.ha_address) if entry is not None else Registered(True)

    def _check_room(self, new: Registration) -> None:
        if new.key not in self.live:
            over = self._registered_over.get(new.connection, ())
            if len(self.live) >= MAX_BROKERS:
                raise self._refusal(f"this name server keeps {MAX_BROKERS} brokers, and has as many")
            if len(over) >= MAX_BROKERS_PER_CONNECTION:
                raise self._refusal(
                    f"{len(over)} brokers have registered over this connection, at most"
                    f" {MAX_BROKERS_PER_CONNECTION} may"
                )
        known, more = self._topics_of.get(new.broker_name, set()), len(new.topics)
        if len(known) + more > MAX_REGISTERED_TOPICS or self._route_entries + more > MAX_ROUTE_ENTRIES:
            self._check_topics(new.broker_name, sum(topic not in known for topic in new.topics))

    def _check_topics(self, broker_name: str, more: int) -> None:
        known = len(self._topics_of.get(broker_name, ()))
        if more and known + more > MAX_REGISTERED_TOPICS:
            raise self._refusal(
                f"broker {broker_name} would have {known + more} topics, at most {MAX_REGISTERED_TOPICS} are"
                " kept"
            )
        if more and self._route_entries + more > MAX_ROUTE_ENTRIES:
            raise self._refusal(
                f"the topics of all brokers together would be {self._route_entries + more}, at most"
                f" {MAX_ROUTE_ENTRIES} are kept"
            )

    def _refusal(self, remark: str) -> RequestRefused:
        self.refused += 1
        return RequestRefused(ResponseCode.SYSTEM_ERROR, remark)

    def _replaced(self, broker: BrokerData | None, new: Registration) -> str | None:
        """The address of another live broker with the name and id of a new one."""
        address = (
            broker.broker_addrs.get(new.broker_id)
            if broker is not None and broker.cluster == new.cluster
            else None
        )
        return (
            address if address != new.address and BrokerKey(new.cluster, address or "") in self.live else None
        )

    def _disconnect(self, key: BrokerKey) -> None:
        """Detach a broker from the connection that it registered over."""
        entry = self.live.get(key)
        if entry is not None and entry.connection is not None:
            keys = self._registered_over[entry.connection]
            del keys[key]
            if not keys:
                del self._registered_over[entry.connection]

    def _remove(self, removed: list[LiveBroker]) -> list[LiveBroker]:
        for entry in removed:
            self.unregister(*entry.key, entry.broker_name)
        return removed

    def _forget(self, broker: BrokerData) -> None:
        del self.brokers[broker.broker_name]
        members = self.clusters[broker.cluster]
        members.discard(broker.broker_name)
        if not members:
            del self.clusters[broker.cluster]
        name = broker.broker_name
        self._landing.pop(name, None)
        topics = self._topics_of.pop(name, None)
        if topics:
            self._leaving[name] = self._leaving.get(name, 0) + 1
            self._add_work(self._remove_topics(name, topics))

    def _put(self, topic: str, queue: QueueData) -> None:
        queues = self.topics.setdefault(topic, {})
        self._route_entries += queue.broker_name not in queues
        queues[queue.broker_name] = queue
        self._topics_of.setdefault(queue.broker_name, set()).add(topic)

    def _drop(self, topic: str, broker_name: str) -> None:
        queues = self.topics[topic]
        del queues[broker_name]
        self._route_entries -= 1
        if not queues:
            del self.topics[topic]
        topics = self._topics_of.get(broker_name)
        if topics is not None:
            topics.discard(topic)
            if not topics:
                del self._topics_of[broker_name]

    def _set_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        self._add_work(self._change_perm(broker_name, change))
        return len(self._topics_of.get(broker_name, ()))


def _version(entry: LiveBroker) -> int:
    return entry.data_version.state_version


def _copy(broker: BrokerData) -> BrokerData:
    return msgspec.structs.replace(broker, broker_addrs=dict(sorted(broker.broker_addrs.items())))


def _emptied(queues: dict[str, QueueData]) -> Iterator[None]:
    """Give the memory of many entries back."""
    while queues:
        for _ in range(min(len(queues), _SLICE)):
            queues.popitem()
        if queues:
            yield
