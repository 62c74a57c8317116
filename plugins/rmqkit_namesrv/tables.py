"""What a name server knows (Java: RouteInfoManager; behaviour sheet, D2 to D5). Plain state: no I/O, no clock; times in ms on any scale.

topics          topic -> broker name -> QueueData
brokers         broker name -> BrokerData (addresses by id, 0 is the master)
clusters        cluster -> broker names
live            (cluster, address) -> LiveBroker
filter_servers  (cluster, address) -> filter server addresses

What holds between calls: a broker name in `topics` or `clusters` is in `brokers`; an address in `brokers` is in `live`, so that whatever is
listed expires; no table keeps an empty entry; a broker name is in one cluster.

Where this differs from Java on purpose:
- The first registration of a broker with exactly one topic is taken (Java 5 answers SYSTEM_ERROR). Topics that were not in it come with the
  next full registration, since a missing topic is written whatever the data version says.
- A broker name that comes with another cluster moves there (Java lists it in both and keeps the first in the routes), and an address that
  comes with another broker name leaves the old one (in Java it stays listed there for ever).
- REGISTER_TOPIC writes the known brokers and leaves out the unknown ones (Java stops half way).
As in Java, a topic missing from a later registration stays: a 5.x broker that registers incrementally sends only what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from rmqkit.model.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from rmqkit.model.sysflag import PERM_RW, PERM_WRITE
from rmqkit.model.topic import DataVersion, TopicConfig
from rmqkit_namesrv.entries import BrokerKey, LiveBroker, Registered, Registration

#: Bits of topicSysFlag (Java: TopicSysFlag).
UNIT = 0x1
UNIT_SUB = 0x2


class RouteTables:
    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[BrokerKey, LiveBroker] = {}
        self.filter_servers: dict[BrokerKey, list[str]] = {}
        # Broker name -> its topics, so that losing a broker costs its own topics, not all.
        self._topics_of: dict[str, set[str]] = {}

    # Brokers come and go.

    def register(self, new: Registration, now_ms: int) -> Registered:
        """Take a registration (behaviour sheet, D3). A broker id that changes its address wins, unless the address it replaces is alive
        with a higher state version: then the registration is ignored and its address is not listed under any id."""
        broker = self.brokers.get(new.broker_name)
        before = self.live.get(new.key)
        refused = broker is not None and self._outdated(broker, new)
        if before is not None and (refused or before.broker_name != new.broker_name):
            # What stood at this address is no longer there, whether or not the newcomer is taken.
            self.unregister(*new.key, before.broker_name)
        if refused:
            return Registered(False)
        broker = self._joined(new)
        first = new.broker_id not in broker.broker_addrs
        for broker_id in [number for number, address in broker.broker_addrs.items() if address == new.address and number != new.broker_id]:
            # The same address under two ids: a slave that became the master, or the reverse.
            del broker.broker_addrs[broker_id]
        broker.broker_addrs[new.broker_id] = new.address
        broker.enable_acting_master = new.enable_acting_master is True
        self._define_topics(broker, new, first or self.version_changed(new.key, new.data_version))
        self.live[new.key] = LiveBroker(
            new.key, new.broker_name, now_ms, new.timeout_ms, msgspec.structs.replace(new.data_version), new.ha_address, new.connection
        )
        if new.filter_servers:
            self.filter_servers[new.key] = list(new.filter_servers)
        elif new.filter_servers is not None:
            self.filter_servers.pop(new.key, None)
        return self._registered(broker, new)

    def unregister(self, cluster: str, address: str, broker_name: str) -> None:
        """Forget one broker and what only it had. Unknown ones, and an address at which another broker name lives, are ignored."""
        key = BrokerKey(cluster, address)
        entry = self.live.get(key)
        if entry is not None and entry.broker_name != broker_name:
            return
        self.live.pop(key, None)
        self.filter_servers.pop(key, None)
        broker = self.brokers.get(broker_name)
        if broker is None or broker.cluster != cluster:
            return
        broker.broker_addrs = {number: known for number, known in broker.broker_addrs.items() if known != address}
        if not broker.broker_addrs:
            self._forget(broker)
        elif broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
            # A slave serves reads in its master's place; nobody may write.
            self.wipe_write_perm(broker_name)

    def unregister_connection(self, connection: object) -> list[LiveBroker]:
        """The brokers that registered over a connection which has ended; they are forgotten."""
        return self._remove(lambda entry: entry.connection is connection)

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Forget the brokers not heard of within their time-out; the caller closes their connections."""
        return self._remove(lambda entry: entry.last_update_ms + entry.timeout_ms < now_ms)

    def touch(self, cluster: str, address: str, now_ms: int) -> None:
        """A sign of life. Unknown brokers are ignored."""
        entry = self.live.get(BrokerKey(cluster, address))
        if entry is not None:
            entry.last_update_ms = now_ms

    def version_changed(self, key: BrokerKey, version: DataVersion) -> bool:
        """Whether the broker is unknown or last registered with another version of its topics."""
        entry = self.live.get(key)
        return entry is None or not entry.data_version.same(version)

    # Topics.

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Write queue data directly, for known brokers only (REGISTER_TOPIC_IN_NAMESRV)."""
        for queue in queues:
            if queue.broker_name in self.brokers:
                self._put(topic, queue)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Take a topic out of the routes, of one cluster or of all. It comes back when a broker that has it registers anew."""
        for broker_name in list(self.topics.get(topic, ())):
            if cluster is None or self.brokers[broker_name].cluster == cluster:
                self._drop(topic, broker_name)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Clear the write bit on every topic of a broker; the number of topics. Lasts until it registers with a changed version."""
        return self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Set every topic of a broker to exactly read and write, as Java does; the number of topics."""
        return self._set_perm(broker_name, lambda perm: PERM_RW)

    # Questions.

    def route(self, topic: str) -> TopicRouteData | None:
        """Brokers and queues of a topic; None when nobody has it. Shares nothing with the tables."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        brokers = [_copy(self.brokers[name]) for name in queues]
        route = TopicRouteData(broker_datas=brokers, queue_datas=list(queues.values()))
        if self.filter_servers:
            keys = [BrokerKey(broker.cluster, address) for broker in brokers for address in broker.broker_addrs.values()]
            route.filter_server_table = {key.address: list(self.filter_servers[key]) for key in keys if key in self.filter_servers}
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

    def topics_of_cluster(self, cluster: str) -> list[str]:
        return sorted(set().union(*(self._topics_of.get(name, ()) for name in self.clusters.get(cluster, ()))))

    def topics_by_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose topicSysFlag, as the first broker of the topic has it, has all `wanted` bits and none of `unwanted`."""
        flags = ((topic, next(iter(queues.values())).topic_sys_flag) for topic, queues in self.topics.items())
        return [topic for topic, flag in flags if flag & wanted == wanted and not flag & unwanted]

    # Inside.

    def _outdated(self, broker: BrokerData, new: Registration) -> bool:
        address = broker.broker_addrs.get(new.broker_id)
        if address is None or address == new.address:
            return False
        old = self.live.get(BrokerKey(new.cluster, address))
        return old is not None and old.data_version.state_version > new.data_version.state_version

    def _joined(self, new: Registration) -> BrokerData:
        broker = self.brokers.get(new.broker_name)
        if broker is not None and broker.cluster != new.cluster:
            self._forget(broker)
            broker = None
        if broker is None:
            broker = self.brokers[new.broker_name] = BrokerData(cluster=new.cluster, broker_name=new.broker_name, broker_addrs={})
            self.clusters.setdefault(new.cluster, set()).add(new.broker_name)
        return broker

    def _define_topics(self, broker: BrokerData, new: Registration, changed: bool) -> None:
        """Only the master defines topics, or the slave of the lowest id when the broker is of 5.0 or later."""
        is_master = new.broker_id == MASTER_ID
        leads = new.enable_acting_master is not None and new.broker_id == min(broker.broker_addrs)
        if not is_master and not leads:
            return
        mask = ~PERM_WRITE if not is_master and broker.enable_acting_master else -1
        known = self._topics_of.get(new.broker_name, set())
        for topic in new.topics:
            if changed or topic.topic_name not in known:
                self._put(topic.topic_name, _queue_data(new.broker_name, topic, mask))

    def _registered(self, broker: BrokerData, new: Registration) -> Registered:
        master = broker.master
        if new.broker_id == MASTER_ID or master is None:
            return Registered(True)
        entry = self.live.get(BrokerKey(new.cluster, master))
        return Registered(True, master, entry.ha_address) if entry is not None else Registered(True)

    def _remove(self, gone: Callable[[LiveBroker], bool]) -> list[LiveBroker]:
        removed = [entry for entry in self.live.values() if gone(entry)]
        for entry in removed:
            self.unregister(*entry.key, entry.broker_name)
        return removed

    def _forget(self, broker: BrokerData) -> None:
        del self.brokers[broker.broker_name]
        members = self.clusters[broker.cluster]
        members.discard(broker.broker_name)
        if not members:
            del self.clusters[broker.cluster]
        for topic in list(self._topics_of.get(broker.broker_name, ())):
            self._drop(topic, broker.broker_name)

    def _put(self, topic: str, queue: QueueData) -> None:
        self.topics.setdefault(topic, {})[queue.broker_name] = queue
        self._topics_of.setdefault(queue.broker_name, set()).add(topic)

    def _drop(self, topic: str, broker_name: str) -> None:
        queues, topics = self.topics[topic], self._topics_of[broker_name]
        del queues[broker_name]
        if not queues:
            del self.topics[topic]
        topics.discard(topic)
        if not topics:
            del self._topics_of[broker_name]

    def _set_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self._topics_of.get(broker_name, ())
        for topic in topics:
            queue = self.topics[topic][broker_name]
            self.topics[topic][broker_name] = msgspec.structs.replace(queue, perm=change(queue.perm))
        return len(topics)


def _copy(broker: BrokerData) -> BrokerData:
    return msgspec.structs.replace(broker, broker_addrs=dict(sorted(broker.broker_addrs.items())))


def _queue_data(broker_name: str, topic: TopicConfig, perm_mask: int) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        perm=topic.perm & perm_mask,
        topic_sys_flag=topic.topic_sys_flag,
    )
