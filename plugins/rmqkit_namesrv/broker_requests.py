"""Requests of brokers: register, unregister, heartbeat, data version, single topics (behaviour sheet, D3
and D4)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_FILTER_SERVERS, MAX_REGISTERED_TEXT_LENGTH
from rmqkit.log_limit import limited_logger
from rmqkit.model.names import topic_fault
from rmqkit.model.route import MASTER_ID, KVTable, QueueData, TopicRouteData
from rmqkit.model.sysflag import PERM_WRITE
from rmqkit.model.topic import DataVersion, TopicConfig
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    BrokerHeartbeatRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterTopicRequestHeader,
    UnregisterBrokerRequestHeader,
)
from rmqkit.protocol.headers.base import Header
from rmqkit_namesrv.changes import Change, Slices, in_one_slice
from rmqkit_namesrv.entries import DEFAULT_TIMEOUT_MS, BrokerKey, Registration
from rmqkit_namesrv.kv import ORDER_TOPIC_NAMESPACE
from rmqkit_namesrv.limits import MAX_BROKERS
from rmqkit_namesrv.registration_body import BodyReader, body_crc32
from rmqkit_namesrv.state import Handler, NameServerState, checked_address, checked_name, json_body

_I32_MAX = 0x7FFFFFFF
_I64_MAX = 0x7FFFFFFFFFFFFFFF
_log = limited_logger(__name__)


class RegisterBrokerResponseHeader(Header, kw_only=True):
    """Answer to REGISTER_BROKER; both fields are for slaves only."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class QueryDataVersionResponseHeader(Header, kw_only=True):
    changed: bool


class BrokerRequests:
    def __init__(self, state: NameServerState) -> None:
        self._state = state
        #: Broker name and id -> the pair of addresses for which a conflict was last logged.
        self._disputes: dict[tuple[str, int], frozenset[str]] = {}

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
        }

    def changes(self) -> Mapping[int, Change]:
        return {
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: in_one_slice(self.unregister_broker),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: in_one_slice(self.register_topic),
        }

    def register_broker(self, request: Command, peer: Peer) -> Slices:
        """A registration lives as long as the connection it came over; it is dropped when that has ended
        meanwhile. An ignored one is answered with SUCCESS without fields, as in Java."""
        header = request.header(RegisterBrokerRequestHeader)
        found_crc32 = yield from body_crc32(request.body)
        if header.body_crc32 not in (0, found_crc32):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"crc32 not match: {header.body_crc32} in the header, {found_crc32} of the body",
            )
        body = BodyReader(request.body, request.version, header.compressed)
        read_only = header.broker_id != MASTER_ID and header.enable_acting_master is True
        topics: dict[str, QueueData] = {}
        for part in body:
            for topic in part:
                topics[topic.topic_name] = _queue_data(header.broker_name, topic, read_only)
            yield
        if (
            len(body.filter_servers or ()) > MAX_FILTER_SERVERS
            or len(header.ha_server_addr) > MAX_REGISTERED_TEXT_LENGTH
        ):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"at most {MAX_FILTER_SERVERS} filter servers and {MAX_REGISTERED_TEXT_LENGTH} characters of"
                " a replication address are taken",
            )
        for server in body.filter_servers or ():
            checked_address("filter server", server)
        if not 0 <= header.broker_id <= _I64_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the broker id {header.broker_id} is outside 0 to {_I64_MAX}"
            )
        timeout_ms = header.heartbeat_timeout_millis
        new = Registration(
            cluster=checked_name("cluster name", header.cluster_name),
            broker_name=checked_name("broker name", header.broker_name),
            broker_id=header.broker_id,
            address=checked_address("broker address", header.broker_addr),
            ha_address=header.ha_server_addr,
            timeout_ms=timeout_ms if timeout_ms is not None and timeout_ms > 0 else DEFAULT_TIMEOUT_MS,
            enable_acting_master=header.enable_acting_master,
            topics=topics,
            data_version=body.data_version,
            filter_servers=body.filter_servers,
            connection=peer,
        )
        if peer.closed:
            return answer(request)
        known = new.key in self._state.tables.live
        outcome = self._state.tables.register(
            new, self._state.now_ms(), is_complete=self._state.settings.delete_topic_with_broker_registration
        )
        if not outcome.accepted:
            _log.warning(
                "%s ignored: the address it would replace is alive with a newer state version",
                _described(new),
            )
        elif not known:
            _log.info("%s registered from %s", _described(new), peer.remote_text)
        if outcome.replaced is not None:
            self._warn_of_dispute(new, outcome.replaced)
        fields = RegisterBrokerResponseHeader(
            ha_server_addr=outcome.ha_address, master_addr=outcome.master_address
        )
        return answer(request, header=fields, body=self._order_topics())

    def _warn_of_dispute(self, new: Registration, replaced: str) -> None:
        """Two live brokers with the same name and id replace each other at every registration; this is logged
        once per pair."""
        who, both = (new.broker_name, new.broker_id), frozenset({new.address, replaced})
        if self._disputes.get(who) == both:
            return
        if len(self._disputes) >= MAX_BROKERS:
            self._disputes.clear()
        self._disputes[who] = both
        _log.warning(
            "%s takes the place of a live broker of the same name and id at %s: clients are sent to whichever"
            " registered last; give one of them another brokerName or brokerId",
            _described(new),
            replaced,
        )

    def _order_topics(self) -> bytes:
        if not self._state.settings.return_order_topic_config_to_broker:
            return b""
        table = self._state.kv.namespace(ORDER_TOPIC_NAMESPACE)
        return json_body(KVTable(table=table)) if table else b""

    def unregister_broker(self, request: Command, peer: Peer) -> Command:
        header = request.header(UnregisterBrokerRequestHeader)
        self._state.tables.unregister(header.cluster_name, header.broker_addr, header.broker_name)
        return answer(request)

    def heartbeat(self, request: Command, peer: Peer) -> Outcome:
        """Brokers send heartbeats one-way; a request that wants an answer gets one."""
        header = request.header(BrokerHeartbeatRequestHeader)
        self._state.tables.touch(header.cluster_name, header.broker_addr, self._state.now_ms())
        return answer(request)

    def query_data_version(self, request: Command, peer: Peer) -> Outcome:
        """Whether a broker's topics differ from those of its last registration. Also counts as a
        heartbeat."""
        header = request.header(QueryDataVersionRequestHeader)
        version = request.decode_body(DataVersion)
        tables, key = self._state.tables, BrokerKey(header.cluster_name, header.broker_addr)
        changed = tables.version_changed(key, version)
        tables.touch(*key, self._state.now_ms())
        entry = tables.live.get(key)
        body = msgspec.json.encode(entry.data_version) if entry is not None else b""
        return answer(request, header=QueryDataVersionResponseHeader(changed=changed), body=body)

    def register_topic(self, request: Command, peer: Peer) -> Command:
        header = request.header(RegisterTopicRequestHeader)
        fault = topic_fault(header.topic)
        if fault:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, fault)
        queues = request.decode_body(TopicRouteData).queue_datas if request.body else []
        for queue in queues:
            numbers = (queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag)
            if not all(0 <= number <= _I32_MAX for number in numbers):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"broker {queue.broker_name!r}: a number outside 0 to {_I32_MAX}",
                )
        self._state.tables.register_topic(header.topic, queues)
        return answer(request)


def _described(new: Registration) -> str:
    return f"broker {new.broker_name} (id {new.broker_id}) of cluster {new.cluster} at {new.address}"


def _queue_data(broker_name: str, topic: TopicConfig, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        perm=topic.perm & ~PERM_WRITE if read_only else topic.perm,
        topic_sys_flag=topic.topic_sys_flag,
    )
