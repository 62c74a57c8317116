"""SEND_REPLY_MESSAGE: the answer of a request-reply pair is pushed to the requester's connection (Java: ReplyMessageProcessor)."""

from __future__ import annotations

from rmqkit.abc import Answer, Outcome, Peer, RequestProcessor
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.processors import destination
from rmqkit.errors import ClientError, RequestRefused
from rmqkit.model import properties as props
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.command import request as new_request
from rmqkit.protocol.headers import (
    PushReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

_PUSH_TIMEOUT_MS = 10_000


class ReplyProcessor(RequestProcessor):
    """Finds the requester by the client id in REPLY_TO_CLIENT. The reply is delivered, not stored."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def process(self, request: Command, peer: Peer) -> Outcome:
        header: SendMessageRequestHeader | SendMessageRequestHeaderV2
        if request.code == RequestCode.SEND_REPLY_MESSAGE:
            header = request.header(SendMessageRequestHeader)
        else:
            header = request.header(SendMessageRequestHeaderV2)
        topic = destination.topic_for_send(
            self._broker, header.topic, header.default_topic, header.default_topic_queue_nums, peer.remote_text
        )
        destination.check_queue(topic, header.queue_id)
        properties = props.decode(header.properties or "")
        requester = properties.get(props.REPLY_TO_CLIENT)
        if not requester:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"reply message properties[{props.REPLY_TO_CLIENT}] is null")
        client = self._broker.clients.find(requester)
        if client is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{requester}> not found.")
        now_ms = self._broker.clock.now_ms()
        properties[props.PUSH_REPLY_TIME] = str(now_ms)
        push = new_request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            PushReplyMessageRequestHeader(
                born_host=peer.remote_text,
                store_host=self._broker.address,
                store_timestamp=now_ms,
                producer_group=header.producer_group,
                topic=header.topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=header.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                properties=props.encode(properties),
                reconsume_times=header.reconsume_times,
                unit_mode=header.unit_mode,
            ),
            request.body,
        )
        return self._push(request, client.peer, push, header.queue_id)

    async def _push(self, request: Command, requester: Peer, push: Command, queue_id: int) -> Answer:
        try:
            response = await requester.call(push, _PUSH_TIMEOUT_MS)
        except ClientError as error:
            return answer(request, ResponseCode.SYSTEM_ERROR, f"push reply message fail: {error}")
        if response.code != ResponseCode.SUCCESS:
            return answer(request, ResponseCode.SYSTEM_ERROR, f"push reply message to {requester.remote_text} fail: {response.remark}")
        config = self._broker.config
        header = SendMessageResponseHeader(
            msg_id="0", queue_id=queue_id, queue_offset=0, region_id=config.region_id, trace_on=config.trace_on
        )
        return answer(request, header=header)
