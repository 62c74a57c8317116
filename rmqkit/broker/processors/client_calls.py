"""Requests that a broker relays to its clients (Java: Broker2Client, AdminBrokerProcessor.callConsumer)."""

from __future__ import annotations

import logging
from functools import partial

import msgspec
import trio

from rmqkit.errors import ClientError, ConnectionLost, DecodeError, RequestRefused, RequestTimeout
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.request import Answer, EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import Client, RequestBroker
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import VERSION_CALLABLE, VERSION_RESET_OFFSET, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer, request
from rmqkit.protocol.headers import ConsumerClientRequestHeader, GetConsumerStatusRequestHeader
from rmqkit.protocol.message_id import parse_offset_message_id
from rmqkit.toolkit.cold_reads import read_cached

_log = logging.getLogger(__name__)
#: Java: Broker2Client.callClient and getConsumeStatus.
CALL_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5_000


class ClientCallProcessor(EachRequest):
    """Queries consumers of this broker for an administrator and returns their answers."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._handlers = {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def codes(self) -> list[int]:
        return list(self._handlers)

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return self._handlers[RequestCode(request.code)](request, peer)

    # One consumer.

    def _running_info(self, request: Command, peer: Peer) -> Outcome:
        client = self._client(request.header(ConsumerClientRequestHeader))
        relay = partial(self._relayed, request, client, dict(request.fields()), request.body)
        return peer.answer_async(request, relay)

    def _consume_directly(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(ConsumerClientRequestHeader)
        client = self._client(header)
        try:
            _, _, offset = parse_offset_message_id(header.msg_id or "")
        except DecodeError as error:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"msgId must be an offset message id: {error}"
            ) from error
        read = partial(self._with_message, request, peer, header, client, offset)
        return read_cached(self._broker.store, read, request, peer)

    def _with_message(
        self, request: Command, peer: Peer, header: ConsumerClientRequestHeader, client: Client, offset: int
    ) -> Outcome:
        found = self._broker.store.read_record(offset)
        if found is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"no message begins at commit-log offset {offset}"
            )
        fields = dict(request.fields()) | {"brokerName": self._broker.config.broker_name}
        topic = self._broker.topics.configs.get(header.topic or "")
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._broker.groups.configs.get(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        return peer.answer_async(request, partial(self._relayed, request, client, fields, bytes(found)))

    def _client(self, header: ConsumerClientRequestHeader) -> Client:
        """The member of the group with that client id. Raises RequestRefused when it is not online or too
        old."""
        group, client_id = header.consumer_group, header.client_id
        found = self._broker.clients.consumers.get(group)
        members = found.members.values() if found is not None else ()
        client = next((member for member in members if member.client_id == client_id), None)
        if client is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        if client.version < VERSION_CALLABLE:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, please upgrade it"
                " to V3_1_8_SNAPSHOT",
            )
        return client

    async def _relayed(self, asked: Command, client: Client, fields: dict[str, str], body: bytes) -> Answer:
        """The client's own answer. When cancelled, the client may have executed the request."""
        passed_on = request(asked.code, body=body)
        passed_on.ext = fields
        group = fields.get("consumerGroup")
        try:
            found = await client.peer.call(passed_on, CALL_TIMEOUT_MS)
        except RequestTimeout as error:
            raise RequestRefused(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client.client_id}> Timeout: {error}"
            ) from error
        except ConnectionLost as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{client.client_id}> Exception: {error}",
            ) from error
        response = answer(asked, found.code, found.remark, body=found.body)
        response.ext = dict(found.fields())
        return response

    # All members of a group.

    def _consumer_status(self, request: Command, peer: Peer) -> Outcome:
        return peer.answer_async(request, partial(self._ask_members, request))

    async def _ask_members(self, asked: Command) -> Answer:
        """Offsets that consumers hold in memory, by client id; members that do not answer are left out, as in
        Java."""
        header = asked.header(GetConsumerStatusRequestHeader)
        group = self._broker.clients.consumers.get(header.group)
        if group is None or not group.members:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        members = [
            member for member in group.members.values() if header.client_addr in (None, "", member.client_id)
        ]
        for member in members:
            if member.version < VERSION_RESET_OFFSET:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={member.version}",
                )
        table: dict[str, dict[MessageQueue, int]] = {}
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(self._ask_status, header, member, table)
        return json_answer(asked, {"consumerTable": table, "messageQueueTable": {}}, raw_keys=True)

    async def _ask_status(
        self,
        header: GetConsumerStatusRequestHeader,
        member: Client,
        table: dict[str, dict[MessageQueue, int]],
    ) -> None:
        question = request(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatusRequestHeader(topic=header.topic, group=header.group),
        )
        try:
            found = await member.peer.call(question, STATUS_TIMEOUT_MS)
            if found.code == ResponseCode.SUCCESS:
                table[member.client_id] = _offsets(found)
        except (ClientError, DecodeError) as error:
            _log.info("consumer %s of group %s gave no status: %s", member.client_id, header.group, error)


class _StatusBody(msgspec.Struct, rename="camel"):
    """The answer of a client (Java: GetConsumerStatusBody); the keys are queues as JSON text."""

    message_queue_table: dict[str, int] = {}


def _offsets(found: Command) -> dict[MessageQueue, int]:
    """The offsets of a consumer, by queue, in the answer of its client. Raises DecodeError."""
    body = found.decode_body(_StatusBody)
    return {
        loose_json.decode(key.encode(), MessageQueue): offset
        for key, offset in body.message_queue_table.items()
    }
