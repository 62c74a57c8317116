"""The clients of a proxy as the brokers know them: one client with all their groups.

A broker knows a connection by one client id, so a proxy is one client that has every group of its own
clients. What a broker asks of a group goes to one of its members here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from rmqkit.errors import ClientError, RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import ConsumerData, HeartbeatData
from rmqkit.plugin.request import Peer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit_grpc.backend import ClientCounts
from rmqkit_grpc.limits import MAX_PROXIED_GROUPS

if TYPE_CHECKING:
    from rmqkit.client import ReceivedMessage, Relay

_log = logging.getLogger(__name__)


class _Group:
    """`rmqkit.client`'s member of a consumer group, for all clients of the group at this proxy."""

    def __init__(self, data: ConsumerData) -> None:
        self.data = data

    def describe(self) -> ConsumerData:
        return self.data

    def ids_changed(self) -> None:
        """These clients do not share queues among themselves."""

    def running_info(self) -> dict[str, Any]:
        return {
            "jstack": "",
            "mqTable": {},
            "properties": {"PROP_CONSUMER_TYPE": self.data.consume_type},
            "statusTable": {},
            "subscriptionSet": [],
        }

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Brokers keep the offsets of leases."""
        return {}

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Brokers have done it: nothing is kept here."""

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        raise ClientError("a proxy has no handler of messages: ask one of its clients by a broker's own door")


class Members:
    """The groups of the clients."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._beats: dict[Peer, HeartbeatData] = {}
        self._producers: dict[str, dict[Peer, None]] = {}
        self._consumers: dict[str, dict[Peer, ConsumerData]] = {}
        self._joined_producers: set[str] = set()
        self._joined: dict[str, _Group] = {}
        self._changed = trio.Event()

    def beat(self, peer: Peer, data: HeartbeatData) -> None:
        """A client says what it is. Raises RequestRefused when the clients have too many groups."""
        if self._beats.get(peer) == data:
            return
        if len(self._producers) + len(self._consumers) >= MAX_PROXIED_GROUPS:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"the clients of this proxy have {MAX_PROXIED_GROUPS} groups and topics, which is its limit",
            )
        self.forget(peer)
        self._beats[peer] = data
        for producer in data.producer_data_set or ():
            self._producers.setdefault(producer.group_name, {})[peer] = None
        for consumer in data.consumer_data_set or ():
            self._consumers.setdefault(consumer.group_name, {})[peer] = consumer
        self._changed.set()

    def counts(self) -> ClientCounts:
        """How many clients there are."""
        producers = {peer for group in self._producers.values() for peer in group}
        consumers = {peer for group in self._consumers.values() for peer in group}
        return ClientCounts(len(self._beats), len(producers), len(consumers))

    def forget(self, peer: Peer) -> None:
        """A client has gone."""
        data = self._beats.pop(peer, None)
        if data is None:
            return
        for producer in data.producer_data_set or ():
            _leave(self._producers, producer.group_name, peer)
        for consumer in data.consumer_data_set or ():
            _leave(self._consumers, consumer.group_name, peer)
        self._changed.set()

    async def run(self) -> None:
        """Loop that lets brokers know of groups that come and go."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            for group in [each for each in self._producers if each not in self._joined_producers]:
                self._joined_producers.add(group)
                self._relay.join_producer(group, self._check)
            for group, members in self._consumers.items():
                data = next(reversed(members.values()))
                known = self._joined.get(group)
                if known is None:
                    known = self._joined[group] = _Group(data)
                    self._relay.join_consumer(group, known)
                elif known.data != data:
                    known.data = data
                    self._relay.heartbeat_soon()
            for group in [each for each in self._joined_producers if each not in self._producers]:
                self._joined_producers.discard(group)
                await self._relay.leave(producer=group)
            for group in [each for each in self._joined if each not in self._consumers]:
                del self._joined[group]
                await self._relay.leave(consumer=group)

    async def _check(self, command: Command, half: ReceivedMessage, address: str) -> Command | None:
        """A broker's question for a transaction goes to a producer of the topic; to another one the next
        time."""
        group = half.properties.get(props.PRODUCER_GROUP, "")
        members = self._producers.get(group, {})
        fields = command.fields()
        fields["bname"] = self._relay.broker_at(address) or fields.get("bname", "")
        for peer in list(members):
            del members[peer]
            members[peer] = None
            if peer.push(command):
                return None
        _log.info("no client of this proxy can be asked for a transaction of %s", group)
        return None


def _leave(table: dict[str, dict[Peer, Any]], group: str, peer: Peer) -> None:
    members = table.get(group, {})
    members.pop(peer, None)
    if not members:
        table.pop(group, None)


__all__ = ["Members"]
